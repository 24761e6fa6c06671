"""Dense quadrature, written as the definition reads: slow, obvious, the oracle of the tests."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse.posterior.base import GridBased, Moments


class ReferenceEngine(GridBased):
    """One sum over all N^n grid points for every integral [Chau20, sec. 3.2]."""

    def values(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s) at every grid point [Chau20, app. B]."""
        return natural.flatten(1) @ self._statistics(natural).flatten(1).T

    def moments(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        """Return ln Z(η) and R̄ = Σ_s P(s) R(s) [Chau20, app. B and C]."""
        values = self.values(natural)
        log_partition = torch.logsumexp(values, dim=1) + self.log_cell
        rotation = torch.einsum("bp,plk->blk", torch.softmax(values, dim=1), self._statistics(natural))
        return Moments(log_partition, rotation)

    def _statistics(self, like: Tensor) -> Float[Tensor, "point irrep 2"]:
        return torus.features(torus.phases(self.frequencies, self.points.double())).to(like)
