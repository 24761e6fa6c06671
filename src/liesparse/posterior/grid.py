"""The paper's quadrature on N points per axis, with separable sums."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.posterior.ascent import Ascent
from liesparse.posterior.base import GridBased, Moments
from liesparse.posterior.kernels import GridKernel, make_grid_kernel
from liesparse.posterior.separable import FrequencyBox, SeparableSum, sum_points


class SeparableEngine(GridBased):
    """A grid whose sums go one axis at a time: by the compiled kernel where it fits, in torch elsewhere."""

    _kernel: GridKernel | None = None

    @cached_property
    def _box(self) -> FrequencyBox:
        return FrequencyBox(self.frequencies, self.device)

    @property
    def kernel(self) -> str:
        """What does the sums: the name of a compiled kernel, or torch."""
        return "torch" if self._kernel is None else self._kernel.library.name

    @abstractmethod
    def _sum(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        """Return ln Z(η) and R̄, in torch."""

    def moments(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        """Return ln Z(η) and R̄ = E[R(s)] [Chau20, app. B and C]."""
        if self._kernel is None or natural.requires_grad:
            return self._sum(natural)
        log_partition, rotation, failed = self._kernel.moments(natural)
        if bool(failed.any()):
            log_partition[failed], rotation[failed] = self._sum(natural[failed])
        return Moments(log_partition, rotation)

    def ascend(self, codes: Float[Tensor, "batch component"], ascent: Ascent) -> Float[Tensor, "batch component"]:
        """Return the codes after all steps of FISTA; they carry no gradient [Chau20, app. D]."""
        if self._kernel is None:
            return super().ascend(codes, ascent)
        found, failed = self._kernel.ascend(codes, ascent)
        if bool(failed.any()):
            found[failed] = super().ascend(codes[failed], ascent.rows(failed))
        return found


class GridEngine(SeparableEngine):
    """Separable quadrature on N points per axis; same numbers as the dense one.

    ``kernel`` names a compiled kernel, or torch; without it the best is taken that this processor can run.
    """

    def __init__(
        self,
        frequencies: Int[Tensor, "irrep torus"],
        n_grid: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__(frequencies, n_grid, dtype=dtype, device=device)
        self._separable = SeparableSum(self._box, torus.grid_axis(n_grid), dtype=dtype)
        self._kernel = make_grid_kernel(kernel, frequencies, n_grid, dtype, self.device)

    def values(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s) at every grid point [Chau20, app. B]."""
        return self._separable.evaluate(self._box.fold(natural))

    def _sum(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        log_partition, rotation = sum_points(self._box.fold(natural), self._separable, self.log_cell)
        return Moments(log_partition, self._box.unfold(rotation))
