"""What every engine offers: integrals over the pose s under P(s) ∝ exp(η·T(s)) [Chau20, app. B]."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, check_frequencies, reject
from liesparse.model import Parameters
from liesparse.posterior.ascent import Ascent, ascend_codes
from liesparse.posterior.modes import Modes, find_modes

N_CANDIDATES = 4  # places that are climbed for each mode that is asked for


class Moments(NamedTuple):
    """ln Z(η) and R̄ = E[R(s)], the latter as (E[cos ω_l·s], E[sin ω_l·s]) for each plane."""

    log_partition: Float[Tensor, " batch"]
    rotation: Float[Tensor, "batch irrep 2"]


class Nodes(NamedTuple):
    """Points of a sum in place of an integral: ∫ f(s) exp(η·T(s)) ds is about Σ exp(log_weight) f(pose)."""

    poses: Float[Tensor, "one_or_batch point torus"]
    log_weights: Float[Tensor, "batch point"]


class Engine(ABC):
    """Integrals over the torus for one set of frequencies."""

    def __init__(
        self,
        frequencies: Int[Tensor, "irrep torus"],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.frequencies = check_frequencies(frequencies)
        self.dtype = dtype
        self.device = frequencies.device if device is None else device

    def check_fits(self, parameters: Parameters) -> None:
        """Reject a model with other frequencies, another floating point type, or on another device."""
        if not self.frequencies.equal(parameters.frequencies):
            reject("engine", "the model's own frequencies", "other ones", "Make it from parameters.frequencies.")
        if self.dtype != parameters.dtype:
            reject(
                "engine", f"dtype {parameters.dtype}, as the model has", str(self.dtype), "Pass dtype to the engine."
            )
        if self.device != parameters.device:
            got = str(self.device)
            reject("engine", f"device {parameters.device}, as the model has", got, "Pass device to the engine.")

    @property
    def torus_dim(self) -> int:
        """Dimension of the pose (paper: n)."""
        return self.frequencies.shape[1]

    @abstractmethod
    def moments(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        """Return ln Z(η) and R̄ = E[R(s)] [Chau20, app. B and C]."""

    @abstractmethod
    def nodes(self, natural: Float[Tensor, "batch irrep 2"]) -> Nodes:
        """Return the points over which the engine sums, and their log weights."""

    @abstractmethod
    def coarse_modes(self, natural: Float[Tensor, "batch irrep 2"], n_modes: int) -> Float[Tensor, "batch mode torus"]:
        """Return the best of the engine's own points, best first, one for each hill as far as these points tell."""

    def log_partition(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, " batch"]:
        """Return ln Z(η) = ln ∫ exp(η·T(s)) ds over [0, 2π)ⁿ [Chau20, app. B]."""
        return self.moments(natural).log_partition

    def log_density(
        self, natural: Float[Tensor, "batch irrep 2"], poses: Float[Tensor, "batch point torus"]
    ) -> Float[Tensor, "batch point"]:
        """Return ln P(s) = η·T(s) - ln Z(η) at any poses [Chau20, app. B]."""
        features = torus.features(torus.phases(self.frequencies, poses))
        return torch.einsum("blc,bklc->bk", natural, features) - self.log_partition(natural)[:, None]

    def modes(self, natural: Float[Tensor, "batch irrep 2"], n_modes: int = 1) -> Modes:
        """Return the highest distinct modes, refined between the engine's points."""
        return find_modes(natural, self.frequencies, self.coarse_modes(natural, N_CANDIDATES * n_modes), n_modes)

    def effective_sample_size(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, " batch"]:
        """Return how many equally weighted draws would tell as much: infinite where the integral is a full sum."""
        return natural.new_full((len(natural),), torch.inf)

    def ascend(self, codes: Float[Tensor, "batch component"], ascent: Ascent) -> Float[Tensor, "batch component"]:
        """Return the codes after all steps of FISTA; they carry no gradient [Chau20, app. D]."""
        return ascend_codes(lambda natural: self.moments(natural).rotation, codes, ascent)


class GridBased(Engine):
    """An engine with ``n_grid`` points per axis, on which densities can be read."""

    def __init__(
        self,
        frequencies: Int[Tensor, "irrep torus"],
        n_grid: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(frequencies, dtype=dtype, device=device)
        self.n_grid = check_count("n_grid", n_grid, 2)

    @property
    def log_cell(self) -> float:
        """Log volume of one grid cell, the weight of a point in the quadrature."""
        return self.torus_dim * math.log(2 * math.pi / self.n_grid)

    @cached_property
    def points(self) -> Float[Tensor, "point torus"]:
        """All grid points in the order of :meth:`values`."""
        return torus.grid_points(self.n_grid, self.torus_dim, dtype=self.dtype).to(self.device)

    @abstractmethod
    def values(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s), the unnormalised log density, at every grid point [Chau20, app. B]."""

    def nodes(self, natural: Float[Tensor, "batch irrep 2"]) -> Nodes:
        """Return the points of the grid."""
        return Nodes(self.points[None].to(natural), self.values(natural) + self.log_cell)

    def probabilities(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return the probability of each grid cell under P(s | I, α) [Chau20, app. B]."""
        return torch.softmax(self.values(natural), dim=1)

    def density(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch *grid"]:
        """Return the posterior density on the grid, shape (batch, N, …, N); it integrates to 1."""
        shape = (len(natural),) + (self.n_grid,) * self.torus_dim
        return (self.probabilities(natural) * math.exp(-self.log_cell)).view(shape)

    def marginal(self, natural: Float[Tensor, "batch irrep 2"], axis: int) -> Float[Tensor, "batch point"]:
        """Return the density of s_axis alone on its grid."""
        if not 0 <= axis < self.torus_dim:
            reject("axis", f"0 <= axis < torus_dim = {self.torus_dim}", str(axis), "Axes count from 0.")
        others = [other + 1 for other in range(self.torus_dim) if other != axis]
        density = self.density(natural)
        return density.sum(dim=others) * (2 * math.pi / self.n_grid) ** len(others) if others else density

    def coarse_modes(self, natural: Float[Tensor, "batch irrep 2"], n_modes: int) -> Float[Tensor, "batch mode torus"]:
        """Return the highest local maxima on the grid, the best grid point first [Chau20, sec. 5].

        Where there are fewer than ``n_modes`` of them, other grid points fill the rows.
        """
        flat = self.values(natural)
        values = flat.view((len(natural),) + (self.n_grid,) * self.torus_dim)
        peaks = torch.ones_like(values, dtype=torch.bool)
        for axis in range(1, self.torus_dim + 1):
            peaks &= (values >= values.roll(1, axis)) & (values >= values.roll(-1, axis))
        best = flat.masked_fill(~peaks.view_as(flat), -torch.inf).topk(min(n_modes, flat.shape[1]), dim=1)
        return self.points[best.indices].to(natural)
