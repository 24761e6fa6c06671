"""What every engine of one torus offers: integrals over the pose s under P(s) ∝ exp(η·T(s)) [Chau20, app. B].

The paper's quadrature on N points per axis is here too: dense sums as the definition reads, and separable ones.
"""

import math
from abc import abstractmethod
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, check_frequencies
from liesparse.model import Codes, Numbers, Poses
from liesparse.posterior.interface import Ascent, Evidence, Modes, Natural, PoseEngine, PoseExpectation, find_modes
from liesparse.posterior.kernels import Library, library_for
from liesparse.posterior.kernels.sums import GridKernel, SamplingKernel
from liesparse.posterior.separable import Folded, FrequencyBox, SeparableSum, sum_points
from liesparse.torus import Frequencies

N_CANDIDATES = 4  # places that are climbed for each mode that is asked for

Device = torch.device | None  # None: where the frequencies are
OnGrid = Float[Tensor, "batch point"]


class Moments(NamedTuple):
    """ln Z(η) and R̄ = E[R(s)], the latter as (E[cos ω_l·s], E[sin ω_l·s]) for each plane."""

    log_partition: Numbers
    rotation: Natural


class Nodes(NamedTuple):
    """Points of a sum in place of an integral: ∫ f(s) exp(η·T(s)) ds is about Σ exp(log_weight) f(pose)."""

    poses: Float[Tensor, "one_or_batch point torus"]
    log_weights: OnGrid


class Engine(PoseEngine):
    """Integrals over the torus for one set of frequencies."""

    _kernel: GridKernel | SamplingKernel | None = None

    def __init__(self, frequencies: Frequencies, *, dtype: torch.dtype = torch.float32, device: Device = None) -> None:
        self.frequencies = check_frequencies(frequencies)
        self.tori, self.torus_dim, self.dtype = (frequencies,), frequencies.shape[1], dtype
        self.device = frequencies.device if device is None else device

    @property
    def kernel(self) -> str:
        """What does the sums: the name of a compiled kernel, or torch."""
        return "torch" if self._kernel is None else self._kernel.library.name

    @abstractmethod
    def moments(self, natural: Natural) -> Moments:
        """Return ln Z(η) and R̄ = E[R(s)] [Chau20, app. B and C]."""

    @abstractmethod
    def nodes(self, natural: Natural) -> Nodes:
        """Return the points over which the engine sums, and their log weights."""

    @abstractmethod
    def coarse_modes(self, natural: Natural, n_modes: int) -> Float[Tensor, "batch mode torus"]:
        """Return the best of the engine's own points, best first, one for each hill as far as these points tell."""

    def log_partition(self, natural: Natural) -> Numbers:
        """Return ln Z(η) = ln ∫ exp(η·T(s)) ds over [0, 2π)ⁿ [Chau20, app. B]."""
        return self.moments(natural).log_partition

    def log_density(self, natural: Natural, poses: Float[Tensor, "batch point torus"]) -> OnGrid:
        """Return ln P(s) = η·T(s) - ln Z(η) at any poses [Chau20, app. B]."""
        features = torus.features(torus.phases(self.frequencies, poses))
        return torch.einsum("blc,bklc->bk", natural, features) - self.log_partition(natural)[:, None]

    def modes(self, natural: Natural, n_modes: int = 1) -> Modes:
        """Return the highest distinct modes, refined between the engine's points."""
        return find_modes(natural, self.frequencies, self.coarse_modes(natural, N_CANDIDATES * n_modes), n_modes)

    def effective_sample_size(self, natural: Natural) -> Numbers:
        """Return how many equally weighted draws would tell as much: infinite where the integral is a full sum."""
        return natural.new_full((len(natural),), torch.inf)

    def find_codes(self, codes: Codes, ascent: Ascent) -> Codes:
        """Return the codes after all steps of FISTA; they carry no gradient [Chau20, app. D]."""
        return ascent.climb(codes, lambda natural: self.moments(natural).rotation)

    def expect(self, evidence: Evidence) -> PoseExpectation:
        """Integrate the pose out [Chau20, app. B and C]."""
        log_partition, rotation = self.moments(evidence.natural)
        u, moved = evidence.shape, torus.apply_mean_rotation(evidence.shape, rotation)
        returned = torus.apply_mean_rotation_transposed(evidence.image, rotation)
        cos, sin = rotation.split(1, dim=-1)
        damped = (cos * cos + sin * sin) * u  # R̄ᵀR̄ = (c² + s²)·1
        return PoseExpectation(u, returned, u, damped, moved, log_partition, moved.flatten(1))

    def log_evidence(self, evidence: Evidence) -> Numbers:
        """Return ln ∫ P(s) exp((v·R(s)u - ‖u‖²/2) / σ²) ds."""
        energy = evidence.shape.square().sum(dim=(1, 2)) / (2 * evidence.noise_std**2)
        return self.log_partition(evidence.natural) - self.log_partition(evidence.prior[None]) - energy

    def find_modes(self, evidence: Evidence, n_modes: int) -> Modes:
        """Return the highest distinct modes."""
        return self.modes(evidence.natural, n_modes)

    def find_poses(self, evidence: Evidence, *, refine: bool = True) -> Poses:
        """Return the most probable pose of each image, or the best of the engine's own points."""
        natural = evidence.natural
        return (self.modes(natural).poses if refine else self.coarse_modes(natural, 1))[:, 0]


class ReferenceEngine(Engine):
    """One sum over all N^n grid points for every integral [Chau20, sec. 3.2]: slow, obvious, the tests' oracle.

    An engine with another way to sum over a grid of ``n_grid`` points per axis inherits from it, and writes only
    ``values`` and ``moments``.
    """

    def __init__(
        self, frequencies: Frequencies, n_grid: int, *, dtype: torch.dtype = torch.float32, device: Device = None
    ) -> None:
        super().__init__(frequencies, dtype=dtype, device=device)
        self.n_grid = check_count("n_grid", n_grid, 2)
        self.log_cell = self.torus_dim * math.log(2 * math.pi / n_grid)  #: log volume of a cell, its weight

    @cached_property
    def points(self) -> Float[Tensor, "point torus"]:
        """All grid points in the order of :meth:`values`."""
        return torus.grid_points(self.n_grid, self.torus_dim, dtype=self.dtype).to(self.device)

    def values(self, natural: Natural) -> OnGrid:
        """Return η·T(s), the unnormalised log density, at every grid point [Chau20, app. B]."""
        return natural.flatten(1) @ self._statistics(natural).flatten(1).T

    def moments(self, natural: Natural) -> Moments:
        """Return ln Z(η) and R̄ = Σ_s P(s) R(s) [Chau20, app. B and C]."""
        values = self.values(natural)
        log_partition = torch.logsumexp(values, dim=1) + self.log_cell
        rotation = torch.einsum("bp,plk->blk", torch.softmax(values, dim=1), self._statistics(natural))
        return Moments(log_partition, rotation)

    def _statistics(self, like: Tensor) -> Float[Tensor, "point irrep 2"]:
        return torus.features(torus.phases(self.frequencies, self.points.double())).to(like)

    def nodes(self, natural: Natural) -> Nodes:
        """Return the points of the grid."""
        return Nodes(self.points[None].to(natural), self.values(natural) + self.log_cell)

    def coarse_modes(self, natural: Natural, n_modes: int) -> Float[Tensor, "batch mode torus"]:
        """Return the highest local maxima on the grid, the best grid point first [Chau20, sec. 5].

        Where there are fewer than ``n_modes`` of them, other grid points fill the rows.
        """
        flat = self.values(natural)
        values = flat.unflatten(1, [self.n_grid] * self.torus_dim)
        peaks = torch.ones_like(values, dtype=torch.bool)
        for axis in range(1, self.torus_dim + 1):
            peaks &= (values >= values.roll(1, axis)) & (values >= values.roll(-1, axis))
        best = flat.masked_fill(~peaks.view_as(flat), -torch.inf).topk(min(n_modes, flat.shape[1]), dim=1)
        return self.points[best.indices].to(natural)


class GridEngine(ReferenceEngine):
    """Quadrature on N points per axis, one axis at a time; same numbers as the dense one.

    ``kernel`` names a compiled kernel, or torch; without it the best is taken that this processor can run.
    """

    _kernel: GridKernel | None

    def __init__(
        self,
        frequencies: Frequencies,
        n_grid: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: Device = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__(frequencies, n_grid, dtype=dtype, device=device)
        self._box = FrequencyBox(frequencies, self.device)
        self._separable = SeparableSum(self._box, torus.grid_axis(n_grid), dtype=dtype)
        library = library_for(kernel, dtype, self.device)
        self._kernel = self._make_kernel(library) if library is not None and self.torus_dim <= 2 else None

    def _make_kernel(self, library: Library) -> GridKernel | None:
        return None if self.n_grid % 2 else GridKernel(library, self.frequencies, [self.n_grid])

    def values(self, natural: Natural) -> OnGrid:
        """Return η·T(s) at every grid point [Chau20, app. B]."""
        return self._separable.evaluate(self._box.fold(natural))

    def moments(self, natural: Natural) -> Moments:
        """Return ln Z(η) and R̄ = E[R(s)] [Chau20, app. B and C]: by compiled code where it fits, else by torch."""
        if self._kernel is None or natural.requires_grad:
            return self._sum(natural)
        log_partition, rotation, failed = self._kernel.moments(natural)
        if bool(failed.any()):
            log_partition[failed], rotation[failed] = self._sum(natural[failed])
        return Moments(log_partition, rotation)

    def _sum(self, natural: Natural) -> Moments:
        log_partition, rotation = self._sum_folded(self._box.fold(natural))
        return Moments(log_partition, self._box.unfold(rotation))

    def _sum_folded(self, folded: Folded) -> Moments:
        return Moments(*sum_points(folded, self._separable, self.log_cell))

    def find_codes(self, codes: Codes, ascent: Ascent) -> Codes:
        """Return the codes after all steps of FISTA; they carry no gradient [Chau20, app. D]."""
        if self._kernel is None:
            return self._climb(codes, ascent)
        found, failed = self._kernel.ascend(codes, ascent)
        if bool(failed.any()):
            again = ascent._replace(image_planes=ascent.image_planes[failed])
            found[failed] = self._climb(codes[failed], again)
        return found

    def _climb(self, codes: Codes, ascent: Ascent) -> Codes:
        """Let torch do all steps; planes that do not share their cells stay in them meanwhile."""
        if self._box.layered:
            return super().find_codes(codes, ascent)
        image_planes, dictionary_planes, prior = map(self._box.fold, (*ascent[:2], ascent.pose_prior[None]))
        inside = ascent._replace(image_planes=image_planes, dictionary_planes=dictionary_planes, pose_prior=prior[0])
        return inside.climb(codes, lambda folded: self._sum_folded(folded).rotation)
