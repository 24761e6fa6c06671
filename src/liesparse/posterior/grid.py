"""The paper's quadrature on N points per axis: dense sums as the definition reads, and separable ones."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse.posterior.ascent import Ascent, Codes, Natural
from liesparse.posterior.base import GridBased, Moments, OnGrid
from liesparse.posterior.kernels.grid import GridKernel, Refinement
from liesparse.posterior.kernels.library import Library, library_for
from liesparse.posterior.separable import FrequencyBox, SeparableSum, sum_points
from liesparse.torus import Frequencies


class ReferenceEngine(GridBased):
    """One sum over all N^n grid points for every integral [Chau20, sec. 3.2]: slow, obvious, the tests' oracle."""

    def values(self, natural: Natural) -> OnGrid:
        """Return η·T(s) at every grid point [Chau20, app. B]."""
        return natural.flatten(1) @ self._statistics(natural).flatten(1).T

    def moments(self, natural: Natural) -> Moments:
        """Return ln Z(η) and R̄ = Σ_s P(s) R(s) [Chau20, app. B and C]."""
        values = self.values(natural)
        log_partition = torch.logsumexp(values, dim=1) + self.log_cell
        rotation = torch.einsum("bp,plk->blk", torch.softmax(values, dim=1), self._statistics(natural))
        return Moments(log_partition, rotation)

    def _statistics(self, like: Tensor) -> Float[Tensor, "point irrep 2"]:
        return torus.features(torus.phases(self.frequencies, self.points.double())).to(like)


class GridEngine(GridBased):
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
        device: torch.device | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__(frequencies, n_grid, dtype=dtype, device=device)
        self._box = FrequencyBox(frequencies, self.device)
        self._separable = SeparableSum(self._box, torus.grid_axis(n_grid), dtype=dtype)
        library = library_for(kernel, dtype, self.device)
        self._kernel = self._make_kernel(library) if library is not None and self.torus_dim == 2 else None

    def _make_kernel(self, library: Library) -> GridKernel | None:
        one_level = ([self.n_grid], Refinement(0, 0, 0))  # nothing to refine
        return None if self.n_grid % 2 else GridKernel(library, self.frequencies, *one_level)

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
        log_partition, rotation = sum_points(self._box.fold(natural), self._separable, self.log_cell)
        return Moments(log_partition, self._box.unfold(rotation))

    def ascend(self, codes: Codes, ascent: Ascent) -> Codes:
        """Return the codes after all steps of FISTA; they carry no gradient [Chau20, app. D]."""
        if self._kernel is None:
            return super().ascend(codes, ascent)
        found, failed = self._kernel.ascend(codes, ascent)
        if bool(failed.any()):
            found[failed] = super().ascend(codes[failed], ascent.rows(failed))
        return found
