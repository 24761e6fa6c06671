"""Importance sampling: the pose integrated out in any dimension, without a grid.

Half of the proposal is even points that cover the torus; the other half is clouds around the highest modes, as wide
as the posterior is there. Both are lattices, always the same ones: the result is a smooth function of η and needs few
points. A flat posterior needs no cloud, and its lattice sum is all but exact; from there to a sharp one the clouds
come in gradually. Every point counts by the density of the whole mixture (the balance heuristic of Veach and Guibas).
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, reject
from liesparse.devices import is_cpu
from liesparse.posterior.base import Engine, Moments
from liesparse.posterior.lattices import SPREAD, cloud_points, even_points
from liesparse.posterior.native import load_library
from liesparse.posterior.peaks import pose_log_density, refine_poses, slope_and_bend

N_STARTS = 16  # hills climbed: from the best of every 16th even point
N_MODES = 4  # of which so many get a cloud
N_CLIMBS = 4  # Newton steps; a mode that is not quite reached is a proposal all the same
TAIL = 7.0  # nats below the highest mode from which another one is left to the even points
ARRIVED = 0.2  # nats left to climb from which a climber stands on a mode of its own
RIDGE = 1.0  # added to the curvature: no cloud is wider than a radian
LOW, HIGH = 3.0, 8.0  # nats of the highest mode above the mean at which clouds begin, and have their full share
MOST_AXES = 6
MOST_AXES_BY_GRID = 2  # from three axes on this is the engine of choice; docs/engines.md has the figures
ENTRIES_AT_ONCE = 1 << 23
SOURCES = ("grid.c", "hills.c", "sampling.c")


class Draws(NamedTuple):
    """Poses and their log weights: ∫ f(s) exp(η·T(s)) ds is about Σ exp(log_weight) f(pose)."""

    poses: Float[Tensor, "batch point torus"]
    log_weights: Float[Tensor, "batch point"]


class Hills(NamedTuple):
    """Modes, best first, with precision = root rootᵀ; only those ``alive`` get a cloud."""

    poses: Float[Tensor, "batch mode torus"]
    values: Float[Tensor, "batch mode"]
    roots: Float[Tensor, "batch mode torus torus"]
    alive: Bool[Tensor, "batch mode"]


class SamplingEngine(Engine):
    """Self-normalised importance sampling from the refined modes, for three and more transformations at once.

    ``n_even`` points cover the torus, ``n_cloud`` surround each of up to four modes. Nothing is random.
    """

    def __init__(
        self,
        frequencies: Int[Tensor, "irrep torus"],
        *,
        n_even: int | None = None,
        n_cloud: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(frequencies, dtype=dtype, device=device)
        n = self.torus_dim
        if n > MOST_AXES:
            reject("frequencies", f"at most {MOST_AXES} torus axes", str(n), "Use fewer transformations.")
        self.n_even = _check_power("n_even", 2048 if n_even is None else n_even)
        self.n_cloud = _check_power("n_cloud", (256 if n <= 4 else 512) if n_cloud is None else n_cloud)
        # In a mixed order: along the lattice, equal hills of a symmetric posterior would compete for the same starts.
        mixed = torch.randperm(self.n_even, generator=torch.Generator().manual_seed(0))
        self._even = (2 * math.pi * even_points(self.n_even, n)[mixed]).to(self.device)
        self._cloud = cloud_points(self.n_cloud, n).to(self.device)
        self._cells, self._tree = _grow_tree(self.frequencies)
        self._same = self._tree.omega.equal(self.frequencies)  # then cells and planes are one
        library = load_library(SOURCES) if dtype == torch.float32 and is_cpu(self.device) else None
        self._native = None if library is None else _Native(library, self._tree, self._even, self._cloud)

    def arranged_moments(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        """Return ln Z(η) and R̄ [Chau20, app. B and C]."""
        return self._sample(natural)[0]

    def effective_sample_size(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, " batch"]:
        """Return (Σw)² / Σw², how many equally weighted draws would tell as much: below about 50 beware."""
        return self._sample(natural)[1]

    def _sample(self, natural: Float[Tensor, "batch irrep 2"]) -> tuple[Moments, Float[Tensor, " batch"]]:
        if self._native is not None and not natural.requires_grad:
            log_partition, rotation, size = self._native(natural if self._same else self._fold(natural))
            return Moments(log_partition, rotation if self._same else rotation.index_select(1, self._cells)), size
        step = max(1, ENTRIES_AT_ONCE // ((self.n_even + N_MODES * self.n_cloud) * 2 * len(self.frequencies)))
        parts = [self._sample_slowly(part) for part in natural.split(step)]
        log_partition, rotation, size = (torch.cat(part) for part in zip(*parts, strict=True))
        return Moments(log_partition, rotation), size

    def _fold(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch cell 2"]:
        """Add planes of equal frequencies in their cell of the tree."""
        return natural.new_zeros(len(natural), len(self._tree.omega), 2).index_add_(1, self._cells, natural)

    def _sample_slowly(self, natural: Float[Tensor, "batch irrep 2"]) -> tuple[Tensor, Tensor, Tensor]:
        draws = self.draws(natural)
        log_partition = draws.log_weights.logsumexp(dim=1)
        weights = (draws.log_weights - log_partition[:, None]).exp()
        features = torus.features(torus.phases(self.frequencies, draws.poses))
        rotation = torch.einsum("bp,bplk->blk", weights, features)
        return log_partition, rotation, 1 / weights.square().sum(dim=1)

    def draws(self, natural: Float[Tensor, "batch irrep 2"]) -> Draws:
        """Return the points and their importance weights."""
        n = self.torus_dim
        even, cloud = self._even.to(natural), self._cloud.to(natural)
        hills = self.climb(natural)
        rise = hills.values[:, 0] - self._mean(natural)
        share = ((rise - LOW) / (HIGH - LOW)).clamp(0, 1)
        share = share * share * (3 - 2 * share)  # smooth at both ends
        most = int((hills.alive & (share > 0)[:, None]).any(dim=0).sum())
        hills = Hills(*(part[:, : max(1, most)] for part in hills))  # those alive come first
        offsets = torch.linalg.solve_triangular(hills.roots.mT[:, :, None], cloud[:, :, None], upper=True)[..., 0]
        around = hills.poses[:, :, None] + offsets
        inside = (offsets.abs() <= math.pi).all(dim=-1) & hills.alive[..., None]
        poses = torch.cat((even.expand(len(natural), -1, -1), around.flatten(1, 2)), dim=1)
        log_even = math.log(self.n_even) - n * math.log(2 * math.pi)
        log_share = share.log()
        log_cloud = self._log_cloud_density(hills, poses) + log_share[:, None, None]
        log_mixture = torch.logaddexp(log_cloud.logsumexp(dim=2), log_cloud.new_tensor(log_even))
        log_counted = (inside.to(share) * share[:, None, None]).log().flatten(1)
        log_counted = torch.cat((log_counted.new_zeros(len(natural), len(even)), log_counted), dim=1)
        features = torus.features(torus.phases(self.frequencies, poses))
        return Draws(poses, torch.einsum("blk,bplk->bp", natural, features) - log_mixture + log_counted)

    def _log_cloud_density(
        self, hills: Hills, poses: Float[Tensor, "batch point torus"]
    ) -> Float[Tensor, "batch point mode"]:
        """Return ln of the points per volume of each cloud: a logistic density along each axis of its root."""
        apart = torus.wrap(poses[:, :, None] - hills.poses[:, None])
        along = torch.einsum("bmij,bpmi->bpmj", hills.roots, apart).abs() / SPREAD
        log_density = -along - 2 * torch.nn.functional.softplus(-along) - math.log(SPREAD)
        volume = hills.roots.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1) + math.log(self.n_cloud)
        return (log_density.sum(dim=-1) + volume[:, None]).masked_fill(~hills.alive[:, None], -torch.inf)

    def _mean(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, " batch"]:
        """Return the mean of η·T(s) over the torus, which only ω = 0 has."""
        still = (self.frequencies == 0).all(dim=1).to(natural)
        return natural[..., 0] @ still

    def _starts(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch start torus"]:
        """Return the best of every 16th even point."""
        features = torus.features(torus.phases(self.frequencies, self._even)).flatten(1).to(natural)
        values = (natural.flatten(1) @ features.T).unflatten(1, (-1, N_STARTS))
        best = values.argmax(dim=1) * N_STARTS + torch.arange(N_STARTS, device=natural.device)
        return self._even.to(natural)[best]

    def climb(self, natural: Float[Tensor, "batch irrep 2"]) -> Hills:
        """Find the highest modes and how wide each is."""
        poses = self._starts(natural)
        repeated = natural.repeat_interleave(N_STARTS, dim=0)
        reached = refine_poses(repeated, self.frequencies, poses.flatten(0, 1), n_steps=N_CLIMBS)
        values, order = pose_log_density(repeated, self.frequencies, reached).view(-1, N_STARTS).sort(descending=True)
        slope, bend = slope_and_bend(repeated, self.frequencies, reached)
        n = self.torus_dim
        poses = reached.view(-1, N_STARTS, n).take_along_dim(order[..., None], dim=1)
        bends = bend.view(-1, N_STARTS, n, n).take_along_dim(order[..., None, None], dim=1)
        slopes = slope.view_as(reached.view(-1, N_STARTS, n)).take_along_dim(order[..., None], dim=1)
        eigenvalues, axes = torch.linalg.eigh(bends)
        along = torch.einsum("bmij,bmi->bmj", axes, slopes)
        left = 0.5 * (along.square() / eigenvalues.clamp(min=torch.finfo(natural.dtype).tiny)).sum(dim=-1)
        arrived = (left < ARRIVED) | (torch.arange(N_STARTS, device=natural.device) == 0)
        stiff = eigenvalues.clamp(min=0) + RIDGE
        roots = torch.linalg.cholesky(torch.einsum("bmij,bmj,bmkj->bmik", axes, stiff, axes))
        apart = torus.wrap(poses[:, :, None] - poses[:, None])  # of the first from the second
        near = torch.einsum("bnij,bmni->bmnj", roots, apart).square().sum(dim=-1) < 1
        kept = arrived & ~torch.tril(near, diagonal=-1).any(dim=2) & (values > values[:, :1] - TAIL)
        kept &= kept.cumsum(dim=1) <= N_MODES
        first = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :N_MODES]
        return Hills(
            poses.take_along_dim(first[..., None], dim=1),
            values.take_along_dim(first, dim=1),
            roots.take_along_dim(first[..., None, None], dim=1),
            kept.take_along_dim(first, dim=1),
        )

    def modes(self, natural: Float[Tensor, "batch irrep 2"], n_modes: int) -> Float[Tensor, "batch mode torus"]:
        """Return the highest local maxima, best first; where there are fewer, points near them fill the rows."""
        starts = self._starts(natural)
        repeated = natural.repeat_interleave(N_STARTS, dim=0)
        reached = refine_poses(repeated, self.frequencies, starts.flatten(0, 1), n_steps=N_CLIMBS)
        values = pose_log_density(repeated, self.frequencies, reached).view(-1, N_STARTS)
        poses = reached.view_as(starts)
        order = values.argsort(dim=1, descending=True)
        poses = poses.take_along_dim(order[..., None], dim=1)
        near = torus.wrap(poses[:, :, None] - poses[:, None]).norm(dim=-1) < 0.05
        repeats = torch.tril(near, diagonal=-1).any(dim=2)
        first = repeats.to(torch.int8).argsort(dim=1, stable=True)[:, : min(n_modes, N_STARTS)]
        return poses.take_along_dim(first[..., None], dim=1)


def _check_power(name: str, count: int) -> int:
    if check_count(name, count, 2 * N_STARTS) & (count - 1):
        reject(name, "a power of 2", str(count), f"Pass {1 << count.bit_length()}.")
    return count


class _Tree(NamedTuple):
    """Every ω with one that is a step nearer to 0, from which its wave follows by one product."""

    omega: Int[Tensor, "cell torus"]  # cell 0 is ω = 0
    parent: Int[Tensor, " cell"]
    turn: Int[Tensor, " cell"]  # 2j for exp(is_j), 2j + 1 for exp(-is_j)


def _grow_tree(frequencies: Int[Tensor, "irrep torus"]) -> tuple[Int[Tensor, " irrep"], _Tree]:
    """Return the cell of each frequency, and the tree: equal frequencies share a cell, and steps between are added."""
    n = frequencies.shape[1]
    cells: dict[tuple[int, ...], int] = {(0,) * n: 0}
    parents, turns = [0], [0]

    def grow(omega: tuple[int, ...]) -> int:
        if omega not in cells:
            axis = max(j for j in range(n) if omega[j])
            sign = 1 if omega[axis] > 0 else -1
            parent = grow((*omega[:axis], omega[axis] - sign, *omega[axis + 1 :]))
            cells[omega] = len(cells)
            parents.append(parent)
            turns.append(2 * axis + (sign < 0))
        return cells[omega]

    places = torch.tensor([grow(tuple(omega)) for omega in frequencies.tolist()])
    return places, _Tree(torch.tensor(list(cells)), torch.tensor(parents), torch.tensor(turns))


class _Plan(ctypes.Structure):
    """The struct Scatter in sampling.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("n_axes", "n_cells")),
        *((name, ctypes.c_void_p) for name in ("parent", "turn", "omega", "pairs")),
        *((name, ctypes.c_int) for name in ("n_even", "n_pairs")),
        *((name, ctypes.c_void_p) for name in ("even", "cloud", "share", "count")),
        ("n_climbs", ctypes.c_int),
        *((name, ctypes.c_float) for name in ("spread", "ridge", "tail", "arrived", "low", "high")),
    )


class _Native:
    """The compiled code and what its plan points at. The even points are the same for all: torch has their sums."""

    def __init__(self, library: ctypes.CDLL, tree: _Tree, even: Tensor, cloud: Tensor) -> None:
        self._library = library
        self._table = torus.features(torus.phases(tree.omega, even)).flatten(1).float()
        self._table_transposed = self._table.T.contiguous()
        cloud = cloud[: (len(cloud) + 1) // 2]  # the mode and one end of each arm; the others mirror them
        share = (1 / torch.cosh(cloud / (2 * SPREAD)) ** 2).prod(dim=1)
        count = torch.ones_like(share)
        count[0] = 0.5
        rows, columns = torch.tril_indices(*[tree.omega.shape[1]] * 2)
        pairs = tree.omega[:, rows] * tree.omega[:, columns]
        floats = [table.float().contiguous() for table in (tree.omega, pairs, even.T, cloud.T, share, count)]
        self._kept = [tree.parent.int(), tree.turn.int(), *floats]
        parent, turn, omega, products, *tables = (ctypes.c_void_p(table.data_ptr()) for table in self._kept)
        sizes = (tree.omega.shape[1], len(tree.omega))
        numbers = (N_CLIMBS, SPREAD, RIDGE, TAIL, ARRIVED, LOW, HIGH)
        self._plan = _Plan(*sizes, parent, turn, omega, products, len(even), len(cloud), *tables, *numbers)

    def __call__(self, folded: Float[Tensor, "batch cell 2"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ln Z, R̄ of every cell, and the effective sample size."""
        folded = folded.contiguous()
        values = folded.flatten(1) @ self._table_transposed
        total, scale = torch.empty_like(folded), folded.new_empty(len(folded))
        squares, loud = torch.empty_like(scale), torch.empty(len(folded), dtype=torch.int32)
        pointers: list[Any] = [ctypes.c_void_p(t.data_ptr()) for t in (folded, values, total, scale, squares, loud)]
        failed = self._library.sample_clouds(
            ctypes.byref(self._plan), pointers[0], len(folded), *pointers[1:], torch.get_num_threads()
        )
        if failed:
            raise MemoryError("No memory is left for importance sampling. Use smaller batches.")
        rows = loud.nonzero().flatten()
        if len(rows):
            total[rows] += (values[rows] @ self._table).view(len(rows), *folded.shape[1:])
        mass = total[:, 0, 0]  # that of ω = 0 is Σ w
        return mass.log() + scale, total / mass[:, None, None], mass.square() / squares
