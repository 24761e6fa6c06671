"""The posterior of both poses of two groups one after the other, as :class:`TorusPosterior` is that of one."""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count
from liesparse.devices import to_cpu
from liesparse.model import Codes, Images, Numbers, Parameters
from liesparse.posterior.adaptive import AdaptiveEngine
from liesparse.posterior.base import OnGrid
from liesparse.posterior.composition import CompositeEngine, Sums
from liesparse.posterior.distribution import PosePosterior, TorusPosterior, as_rows
from liesparse.posterior.interface import Evidence, PosesOfModes


class CompositePosterior(PosePosterior):
    """P(s₂, s₁ | I, α) of some images: where each lies and how it is turned, how surely, and what else it may be.

    The first coordinates are the outer group's. Integrals over the inner torus are sums over its fine points that
    carry the mass; those over the outer one are its engine's.
    """

    def __init__(self, parameters: Parameters, images: Images, codes: Codes) -> None:
        assert parameters.outer is not None  # for compositions only
        self._parameters, self._images, self._codes = parameters, images, codes
        self.torus_dim, self._n_outer = parameters.torus_dim, parameters.outer_dim
        units = torch.eye(self._n_outer, dtype=torch.int64)  # whose moments are those of the coordinates
        frequencies = torch.cat((to_cpu(parameters.outer.frequencies), units))
        outer = AdaptiveEngine(frequencies, dtype=parameters.dtype, device=parameters.device)
        self._engine = CompositeEngine(outer, parameters.frequencies)
        pad, known = torch.nn.functional.pad, Evidence.of(parameters, images, codes)
        assert known.turn is not None
        image, turn = pad(known.image, (0, 0, 0, len(units))), pad(known.turn, (0, 0, 0, 2 * len(units)))
        self._evidence = known._replace(image=image, turn=turn)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, chosen: int | slice) -> CompositePosterior:
        """Return the posteriors of some of the images, always as a batch."""
        rows = as_rows(chosen)
        return CompositePosterior(self._parameters, self._images[rows], self._codes[rows])

    @cached_property
    def _sums(self) -> Sums:
        parts = [self._engine.look(part) for part in self._evidence.split(self._engine.at_once)]
        most = max(part.log_weights.shape[1] for part in parts)
        return Sums(*(torch.cat(part) for part in zip(*(_pad_points(part, most) for part in parts), strict=True)))

    @cached_property
    def _weights(self) -> OnGrid:
        return torch.softmax(self._sums.log_weights.double(), dim=1)

    @cached_property
    def log_partition(self) -> Numbers:
        """Log of the integral of exp(-‖v - R₂MR₁u₁‖²/2σ²) over both tori, but for the image's own energy."""
        return torch.logsumexp(self._sums.log_weights.double(), dim=1) + self._engine.log_cell

    @cached_property
    def _means(self) -> Float[Tensor, "batch torus 2"]:
        outer, inner = self._sums.rotation[:, :, -self._n_outer :], torus.features(self._sums.points.double())
        return (self._weights[..., None, None] * torch.cat((outer.double(), inner), dim=2)).sum(dim=1)

    @cached_property
    def entropy(self) -> Numbers:
        """-∫ P ln P in nats; the uniform density has n ln 2π."""
        overlap = (self._sums.moved * self._evidence.image[:, None]).sum(dim=(-2, -1))
        overlap = overlap - self._sums.shapes.square().sum(dim=(-2, -1)) / 2
        return self.log_partition - (self._weights * overlap.double()).sum(dim=1) / self._evidence.noise_std**2

    def _find_modes(self, k: int) -> tuple[PosesOfModes, OnGrid]:
        return self._engine.find_modes(self._evidence, k)[:2]

    def _log_density(self, poses: PosesOfModes) -> OnGrid:
        return self._engine.log_density(self._evidence, poses.to(self._evidence.shape))

    def marginal(self, axis: int, n_grid: int = 100) -> OnGrid:
        """Return the density of one coordinate at ``n_grid`` angles from -π; of an inner one blurred by one step."""
        self._check_axis(axis)
        if axis < self._n_outer:
            each = [self._given(row).marginal(axis, n_grid) for row in range(len(self))]
            return torch.stack([to_cpu(w) @ density for w, density in zip(self._weights, each, strict=True)])
        points = to_cpu(self._sums.points[..., axis - self._n_outer]).double()
        return self._blur(points, to_cpu(self._weights), n_grid)

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "batch k torus"]:
        """Draw ``k`` poses from each posterior; the inner ones anywhere in the cell of a fine point."""
        check_count("k", k)
        found = []
        for row, weights in enumerate(to_cpu(self._weights)):
            chosen = torch.multinomial(weights, k, replacement=True, generator=generator).sort().values
            outer = [
                self._given(row)[int(point)].sample(int(count), generator=generator)[0]
                for point, count in zip(*chosen.unique(return_counts=True), strict=True)
            ]
            jitter = torch.rand(k, self._engine.inner_dim, generator=generator, dtype=torch.float64) - 0.5
            inner = to_cpu(self._sums.points[row])[chosen].double() + self._engine.cell * jitter
            found.append(torch.cat((torch.cat(outer), inner), dim=1)[torch.randperm(k, generator=generator)])
        return torus.wrap(torch.stack(found))

    def _given(self, row: int) -> TorusPosterior:
        """Return the posterior of the outer pose of one image at each point of the inner torus."""
        one = self._evidence._replace(image=self._evidence.image[row : row + 1])
        return TorusPosterior(self._engine.given(one, self._sums.inner[row]).natural, self._engine.outer.frequencies)


def _pad_points(sums: Sums, n_points: int) -> Sums:
    """Return sums with more points, which have no weight."""
    missing = n_points - sums.log_weights.shape[1]
    pad = torch.nn.functional.pad
    padded = Sums(*(pad(part, (0, 0) * (part.ndim - 2) + (0, missing)) for part in sums))
    return padded._replace(log_weights=pad(sums.log_weights, (0, missing), value=-torch.inf))
