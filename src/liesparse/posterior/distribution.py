"""The posterior of the pose as an object: modes, mean, width, entropy, densities, samples.

Every density here is P(s) = exp(η·T(s) - ln Z(η)) [Chau20, app. B]: the posterior of an image, or a prior.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, check_frequencies, check_real, describe, reject
from liesparse.devices import to_cpu
from liesparse.model import Numbers, Poses
from liesparse.posterior.base import GridEngine, Moments, OnGrid
from liesparse.posterior.interface import RIDGE, PosesOfModes
from liesparse.posterior.sampling import MOST_AXES_BY_GRID, SamplingEngine

POINTS_PER_WIDTH = 1.0  # the trapezoidal rule on a Gaussian is then right to 1e-8
POINTS_PER_WAVE = 6.0  # on an axis where modes are looked for, over the 2·max|ω| + 1 that determine η·T(s)
LEAST_POINTS, MOST_POINTS = 2**14, 2**22  # for one image; n = 2 gets up to 2048 per axis
MOST_IN_A_CUBE = 2**18  # for n >= 3, beyond which draws take the place of the grid
MOST_IN_A_DENSITY = 2**27  # points for all images, for n >= 4: 1 GiB
ENTRIES_AT_ONCE = 2**23
METROPOLIS_STEPS = 8
N_CLOUD = 1024  # draws around each mode, for n >= 3


class Modes(NamedTuple):
    """Distinct local maxima, highest first; where there are fewer, NaN poses with log density -inf."""

    poses: PosesOfModes
    log_prob: Float[Tensor, "batch mode"]


class PosePosterior(ABC):
    """P(s | I, α) for each image of a batch. Results are float64 tensors; angles lie in [-π, π]."""

    torus_dim: int  #: dimension of the pose (paper: n)

    @abstractmethod
    def __len__(self) -> int: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self)} image(s), torus_dim = {self.torus_dim}"

    @property
    @abstractmethod
    def log_partition(self) -> Numbers:
        """Ln Z of the log density as :meth:`_log_density` and :meth:`_find_modes` give it."""

    @abstractmethod
    def _log_density(self, poses: PosesOfModes) -> OnGrid: ...

    @abstractmethod
    def _find_modes(self, k: int) -> tuple[PosesOfModes, OnGrid]: ...

    @property
    @abstractmethod
    def _means(self) -> Float[Tensor, "batch torus 2"]: ...  # E[exp(is)] of each coordinate

    @cached_property
    def mean(self) -> Poses:
        """The circular mean of each coordinate."""
        return torch.atan2(self._means[..., 1], self._means[..., 0])

    @cached_property
    def width(self) -> Poses:
        """The circular standard deviation √(-2 ln R) of each coordinate, in radians."""
        return (-2 * self._means.norm(dim=-1).clamp(1e-300, 1).log()).sqrt()

    @cached_property
    def mode(self) -> Poses:
        """The most probable pose ŝ."""
        return self.modes(1).poses[:, 0]

    def modes(self, k: int) -> Modes:
        """Return the ``k`` highest distinct modes, best first."""
        poses, values = self._find_modes(check_count("k", k))
        poses = torch.where(values.isfinite()[..., None], torus.wrap(poses), torch.nan)
        return Modes(poses, values - self.log_partition[:, None])

    def log_prob(self, poses: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return ln P(s) at one pose for all images (n,), one for each (batch, n), or many for each (batch, k, n)."""
        poses = torch.as_tensor(poses)
        if poses.shape[-1:] != (self.torus_dim,) or (poses.ndim > 1 and poses.shape[0] != len(self)) or poses.ndim > 3:
            expected = f"shape ({self.torus_dim},), (batch = {len(self)}, {self.torus_dim}) or (batch, k, ...)"
            reject("poses", expected, describe(poses), "Give one row for each image.")
        many = poses.expand(len(self), -1)[:, None] if poses.ndim < 3 else poses
        found = self._log_density(many) - self.log_partition[:, None]
        return found if poses.ndim == 3 else found[:, 0]

    @staticmethod
    def axis(n_grid: int) -> Float[Tensor, " point"]:
        """Return the angles of one axis of a density or :meth:`marginal`: from -π, ``n_grid`` equal steps."""
        return torus.grid_axis(check_count("n_grid", n_grid, 2)) - math.pi

    def _check_axis(self, axis: int) -> None:
        if not 0 <= axis < self.torus_dim:
            reject("axis", f"0 <= axis < torus_dim = {self.torus_dim}", str(axis), "Axes count from 0.")

    def _blur(self, angles: OnGrid, weights: OnGrid, n_grid: int) -> Float[Tensor, "batch angle"]:
        """Return the density of weighted points on a circle, blurred by a von Mises density one step wide."""
        concentration = (n_grid / (2 * math.pi)) ** 2
        scale = 2 * math.pi * torch.special.i0e(torch.tensor(concentration, dtype=torch.float64))
        apart = self.axis(n_grid)[:, None] - angles[:, None]
        return ((concentration * (apart.cos() - 1)).exp() @ weights[..., None])[..., 0] / scale


class TorusPosterior(PosePosterior):
    """P(s | I, α) for each image of a batch. Results are float64 tensors; angles lie in [-π, π].

    Integrals are sums over a grid that is as fine as the sharpest posterior needs, up to 2²² points for an image: with
    n = 2 that resolves a width of 0.003. With n >= 3, where that would take more than 2¹⁸ points, they are sums over
    the draws of a :class:`liesparse.SamplingEngine`, right to about a hundredth.

    Parameters
    ----------
    natural : Tensor of shape (batch, n_irreps, 2)
        Natural parameters (paper: η̂), as :func:`liesparse.posterior.pose_natural` computes them.
    frequencies : int64 Tensor of shape (n_irreps, torus_dim)
        The model's own (paper: ω).
    """

    def __init__(self, natural: Float[Tensor, "..."], frequencies: torus.Frequencies) -> None:
        self.frequencies = to_cpu(check_frequencies(frequencies))
        if natural.ndim != 3 or natural.shape[1:] != (len(frequencies), 2):
            expected = f"shape (batch, n_irreps = {len(frequencies)}, 2)"
            reject("natural", expected, describe(natural), "Use pose_natural.")
        if not bool(natural.isfinite().all()):
            reject("natural", "finite numbers", "NaN or infinite entries", "Check the images and codes.")
        self.natural = to_cpu(natural).double()
        self.torus_dim = frequencies.shape[1]
        self._padded = torch.nn.functional.pad(self.natural, (0, 0, 0, self.torus_dim))

    def __len__(self) -> int:
        return len(self.natural)

    def __getitem__(self, chosen: int | slice) -> TorusPosterior:
        """Return the posteriors of some of the images, always as a batch."""
        return TorusPosterior(self.natural[as_rows(chosen)], self.frequencies)

    def _find_modes(self, k: int) -> tuple[PosesOfModes, OnGrid]:
        found = [self._mode_engine.modes(natural, k)[:2] for natural in self._padded.split(self._at_once)]
        poses, values = (torch.cat(part) for part in zip(*found, strict=True))
        return poses, values

    @cached_property
    def log_partition(self) -> Numbers:
        """Ln Z(η)."""
        return self._moments.log_partition

    @property
    def _means(self) -> Float[Tensor, "batch torus 2"]:
        return self._moments.rotation[:, -self.torus_dim :]

    @cached_property
    def cov(self) -> Float[Tensor, "batch torus torus"]:
        """The covariance of the deviations from the circular mean, each brought into [-π, π]."""
        found = []
        for rows, weights, points in self._weights():
            apart = torus.wrap(points - self.mean[rows, None])
            found.append(torch.einsum("bp,bpi,bpj->bij", weights, apart, apart))
        return torch.cat(found)

    @cached_property
    def entropy(self) -> Numbers:
        """-∫ P ln P = ln Z - η·E[T(s)] in nats; the uniform density has n ln 2π."""
        return self.log_partition - (self._padded * self._moments.rotation).sum(dim=(1, 2))

    def _log_density(self, poses: PosesOfModes) -> OnGrid:
        features = torus.features(torus.phases(self.frequencies, to_cpu(poses).double()))
        return torch.einsum("blc,bklc->bk", self.natural, features)

    def density(self, n_grid: int = 100) -> Float[Tensor, "batch *grid"]:
        """Return P(s) at the points of a grid from -π, of shape (batch, N, …, N); for n >= 4 at most 2²⁷ points."""
        n_points = max(1, len(self)) * check_count("n_grid", n_grid, 2) ** self.torus_dim
        if self.torus_dim >= 4 and n_points > MOST_IN_A_DENSITY:
            got = f"{n_points:,} for n_grid = {n_grid}, torus_dim = {self.torus_dim} and {len(self)} image(s)"
            reject("n_grid", f"at most {MOST_IN_A_DENSITY:,} points", got, "Use marginal, or a smaller n_grid.")
        engine = GridEngine(self.frequencies, n_grid, dtype=torch.float64)
        values = engine.values(self._seen_from_minus_pi) - self.log_partition[:, None]
        return values.exp().view((len(self),) + (n_grid,) * self.torus_dim)

    def marginal(self, axis: int, n_grid: int = 100) -> OnGrid:
        """Return the density of one coordinate at ``n_grid`` angles from -π, the others integrated out."""
        self._check_axis(axis)
        check_count("n_grid", n_grid, 2)
        if isinstance(self._engine, GridEngine):
            n_fine = n_grid * max(1, math.ceil(self._engine.n_grid / n_grid))
            engine = GridEngine(self.frequencies, n_fine, dtype=torch.float64)
            rows = []
            for natural in self._seen_from_minus_pi:  # one by one, as the grid may be large
                masses = torch.softmax(engine.values(natural[None])[0], dim=0).view([n_fine] * self.torus_dim)
                rows.append(masses.movedim(axis, 0).reshape(n_fine, -1).sum(dim=1))
            return torch.stack(rows)[:, :: n_fine // n_grid] * n_fine / (2 * math.pi)
        return torch.cat([self._blur(points[..., axis], weights, n_grid) for _, weights, points in self._weights()])

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "batch k torus"]:
        """Draw ``k`` poses from each posterior.

        A point of the grid or of the draws is chosen; a few Metropolis steps take away what is coarse about that.
        """
        check_count("k", k)
        ridge = RIDGE * torch.eye(self.torus_dim, dtype=torch.float64)
        found = []
        for rows, weights, points in self._weights():
            part, shape = self[rows], (len(weights), k, self.torus_dim)
            chosen = torch.multinomial(weights, k, replacement=True, generator=generator)
            poses = points.expand(len(weights), -1, -1).take_along_dim(chosen[..., None], dim=1)
            poses = poses + self._cell * (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5)
            roots = torch.linalg.cholesky(self._engine.modes(self._padded[rows]).curvature + ridge).mT
            values = part.log_prob(poses)
            for _ in range(METROPOLIS_STEPS):  # as wide as the highest mode
                noise = torch.randn(shape, generator=generator, dtype=torch.float64)[..., None]
                others = poses + torch.linalg.solve_triangular(roots, noise, upper=True)[..., 0]
                their_values = part.log_prob(others)
                take = torch.rand(shape[:2], generator=generator, dtype=torch.float64).log() < their_values - values
                poses, values = torch.where(take[..., None], others, poses), torch.where(take, their_values, values)
            found.append(poses)
        return torus.wrap(torch.cat(found))

    def credible_mass(self, radius: float) -> Numbers:
        """Return the probability that the pose lies within ``radius`` (radians, along the torus) of the mode."""
        check_real("radius", radius, above=0)
        cell = max(self._cell, 1e-9)
        found = []
        for rows, weights, points in self._weights():
            away = torus.wrap(points - self.mode[rows, None]).norm(dim=-1)
            inside = ((radius - away) / cell + 0.5).clamp(0, 1)  # the share of a cell at the edge
            found.append((weights * inside).sum(dim=1))
        return torch.cat(found)

    @cached_property
    def _seen_from_minus_pi(self) -> Float[Tensor, "batch irrep 2"]:
        """η of the same density with the origin at (-π, …, -π)."""
        turn = torus.phases(self.frequencies, torch.full((self.torus_dim,), math.pi, dtype=torch.float64))
        return torus.rotate(self.natural, turn.expand(len(self), -1))

    @cached_property
    def _engine(self) -> GridEngine | SamplingEngine:
        """As fine as the sharpest posterior needs; unit vectors among the frequencies tell E[exp(is_j)] too."""
        n, omega = self.torus_dim, self.frequencies.double()
        bend = torch.einsum("bl,li,lj->bij", self.natural.norm(dim=-1), omega, omega)  # no second derivative is larger
        sharpest = math.sqrt(float(torch.linalg.eigvalsh(bend).max())) if len(self) else 0.0
        wanted = math.ceil(2 * math.pi * sharpest * POINTS_PER_WIDTH)  # per axis
        frequencies = torch.cat((self.frequencies, torch.eye(n, dtype=torch.int64)))
        if n > MOST_AXES_BY_GRID and wanted**n > MOST_IN_A_CUBE:
            return SamplingEngine(frequencies, n_cloud=N_CLOUD)
        least, most = (int(points ** (1 / n) + 1e-9) for points in (LEAST_POINTS, MOST_POINTS))
        n_grid = max(least, 2 * int(self.frequencies.abs().max()) + 1, min(wanted, most))
        return GridEngine(frequencies, n_grid, dtype=torch.float64)

    @cached_property
    def _mode_engine(self) -> GridEngine | SamplingEngine:
        """As fine as the polynomial η·T(s) needs for all its hills to be seen, however sharp they are."""
        n_grid = math.ceil(POINTS_PER_WAVE * (2 * int(self.frequencies.abs().max()) + 1))
        if not isinstance(self._engine, GridEngine) or n_grid >= self._engine.n_grid:
            return self._engine
        return GridEngine(self._engine.frequencies, n_grid, dtype=torch.float64)

    @property
    def _cell(self) -> float:
        """How wide a point of the sums is."""
        return 2 * math.pi / self._engine.n_grid if isinstance(self._engine, GridEngine) else 0.0

    @property
    def _at_once(self) -> int:
        """How many images are looked at together."""
        engine = self._engine
        draws = 4 * N_CLOUD * len(self.frequencies)
        return max(1, ENTRIES_AT_ONCE // (engine.n_grid**engine.torus_dim if isinstance(engine, GridEngine) else draws))

    def _weights(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield the probabilities of points, some images at a time: (rows, (batch, point), (batch or 1, point, n))."""
        for first in range(0, len(self), self._at_once):
            rows = slice(first, first + self._at_once)
            poses, log_weights = self._engine.nodes(self._padded[rows])
            yield rows, torch.softmax(log_weights, dim=1), poses

    @cached_property
    def _moments(self) -> Moments:
        found = [self._engine.moments(part.to(self._engine.dtype)) for part in self._padded.split(self._at_once)]
        return Moments(*(torch.cat(part).double() for part in zip(*found, strict=True)))


def as_rows(chosen: int | slice) -> slice:
    """Return one row as a slice, so that it stays a batch."""
    return slice(chosen, chosen + 1 or None) if isinstance(chosen, int) else chosen
