"""What every engine offers: integrals over the pose s under P(s) ∝ exp(η·T(s)) [Chau20, app. B]."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, check_frequencies, reject
from liesparse.model import Parameters
from liesparse.posterior.native import Kernel
from liesparse.posterior.native import Moments as Moments


class Engine(ABC):
    """Integrals over the torus for one set of frequencies.

    An engine may keep the planes in an order of its own, with empty planes (all zeros) between
    them: :meth:`arrange` brings planes into it, :meth:`restore` back. Loops that ask for moments
    again and again arrange once and then call :meth:`arranged_moments`.
    """

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
        self.kernel: Kernel | None = None  # compiled code that does the same, where there is any

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

    def arrange(self, planes: Float[Tensor, "*batch irrep 2"]) -> Float[Tensor, "*batch cell 2"]:
        """Bring planes into the engine's own order."""
        return planes

    def restore(self, planes: Float[Tensor, "*batch cell 2"]) -> Float[Tensor, "*batch irrep 2"]:
        """Bring planes back into the order of ``frequencies``."""
        return planes

    @abstractmethod
    def arranged_moments(self, natural: Float[Tensor, "batch cell 2"]) -> Moments:
        """Return ln Z and R̄ for natural parameters in the engine's own order."""

    def moments(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        """Return ln Z(η) and R̄ = E[R(s)] [Chau20, app. B and C]."""
        found = self.kernel.moments(natural) if self.kernel is not None else None
        if found is not None:
            return found
        log_partition, rotation = self.arranged_moments(self.arrange(natural))
        return Moments(log_partition, self.restore(rotation))

    def log_partition(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, " batch"]:
        """Return ln Z(η) = ln ∫ exp(η·T(s)) ds over [0, 2π)ⁿ [Chau20, app. B]."""
        return self.moments(natural).log_partition

    @abstractmethod
    def modes(self, natural: Float[Tensor, "batch irrep 2"], n_modes: int) -> Float[Tensor, "batch mode torus"]:
        """Return the places of the highest local maxima as the engine sees them, best first."""

    def mode(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch torus"]:
        """Return the best point that the engine has seen; :func:`liesparse.inference.map_poses` refines it."""
        return self.modes(natural, 1)[:, 0]


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
        """All grid points in the order of the flattened :meth:`log_density`."""
        return torus.grid_points(self.n_grid, self.torus_dim, dtype=self.dtype).to(self.device)

    @abstractmethod
    def log_density(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s), the unnormalised log density, at every grid point."""

    def probabilities(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return the probability of each grid cell under P(s | I, α) [Chau20, app. B]."""
        return torch.softmax(self.log_density(natural), dim=1)

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

    def mode(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch torus"]:
        """Return the best grid point [Chau20, sec. 5]; :func:`liesparse.inference.map_poses` refines it."""
        return self.points[self.log_density(natural).argmax(dim=1)].to(natural)

    def modes(self, natural: Float[Tensor, "batch irrep 2"], n_modes: int) -> Float[Tensor, "batch mode torus"]:
        """Return the highest local maxima on the grid, best first.

        Where there are fewer than ``n_modes`` of them, other grid points fill the rows.
        """
        flat = self.log_density(natural)
        values = flat.view((len(natural),) + (self.n_grid,) * self.torus_dim)
        peaks = torch.ones_like(values, dtype=torch.bool)
        for axis in range(1, self.torus_dim + 1):
            peaks &= (values >= values.roll(1, axis)) & (values >= values.roll(-1, axis))
        best = flat.masked_fill(~peaks.view_as(flat), -torch.inf).topk(min(n_modes, flat.shape[1]), dim=1)
        return self.points[best.indices].to(natural)
