"""The paper's quadrature on N points per axis, with separable sums."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.posterior.base import GridBased, Moments
from liesparse.posterior.native import make_kernel
from liesparse.posterior.separable import FrequencyBox, SeparableSum, normalize_


class GridEngine(GridBased):
    """Separable quadrature on N points per axis; same numbers as the dense one."""

    def __init__(
        self,
        frequencies: Int[Tensor, "irrep torus"],
        n_grid: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(frequencies, n_grid, dtype=dtype, device=device)
        self._box = FrequencyBox(frequencies, self.device)
        self._sum = SeparableSum(self._box, torus.grid_axis(n_grid), dtype=dtype)
        self.kernel = make_kernel(frequencies, n_grid, dtype, self.device)

    def arrange(self, planes: Float[Tensor, "*batch irrep 2"]) -> Float[Tensor, "*batch cell 2"]:
        """Put each plane into its cell of the box; cells without a frequency stay zero."""
        return self._box.arrange(planes)

    def restore(self, planes: Float[Tensor, "*batch cell 2"]) -> Float[Tensor, "*batch irrep 2"]:
        """Take each plane out of its cell."""
        return self._box.restore(planes)

    def log_density(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s) at every grid point [Chau20, app. B]."""
        return self._sum.evaluate(self._box.fold(self.arrange(natural)))

    def arranged_moments(self, natural: Float[Tensor, "batch cell 2"]) -> Moments:
        """Return ln Z(η) and R̄ by summing over the grid [Chau20, app. B and C]."""
        weights = self._sum.evaluate(self._box.fold(natural))
        peak, total = normalize_(weights)
        rotation = self._sum.expect(weights).div_(total[:, :, None])
        return Moments((peak + total.log()).squeeze(1) + self.log_cell, self._box.unfold(rotation))
