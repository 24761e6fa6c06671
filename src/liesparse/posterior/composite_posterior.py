"""The posterior of both poses of two groups one after the other, as :class:`TorusPosterior` is that of one."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, reject
from liesparse.devices import to_cpu
from liesparse.model import Codes, Images, Parameters, Poses, compose
from liesparse.posterior.adaptive import AdaptiveEngine
from liesparse.posterior.ascent import PerImage
from liesparse.posterior.base import natural_parameters
from liesparse.posterior.composition import N_STARTS, CompositeEngine, Sums, turn_between
from liesparse.posterior.distribution import TorusPosterior

SAME_MODE = 0.1  # radians within which two modes are one


class CompositePosterior:
    """P(s₂, s₁ | I, α) of some images: where each lies and how it is turned, how surely, and what else it may be.

    The first coordinates are the outer group's. Integrals over the inner torus are sums over its fine points that
    carry the mass; those over the outer one are its engine's. Poses are in [-π, π].
    """

    def __init__(self, parameters: Parameters, images: Images, codes: Codes) -> None:
        assert parameters.outer is not None  # for compositions only
        self._parameters, self._images, self._codes = parameters, images, codes
        self.torus_dim = parameters.torus_dim
        units = torch.eye(parameters.outer_dim, dtype=torch.int64)  # whose moments are those of the coordinates
        frequencies = torch.cat((to_cpu(parameters.outer.frequencies), units))
        outer = AdaptiveEngine(frequencies, dtype=parameters.dtype, device=parameters.device)
        self._engine = CompositeEngine(outer, parameters.frequencies)
        pad = (0, 0, 0, len(units))
        self._turn = torch.nn.functional.pad(turn_between(parameters), (0, 0, 0, 2 * len(units)))
        self._shape = parameters.to_planes(compose(parameters, codes))
        self._image = torch.nn.functional.pad(parameters.seen_planes(images), pad)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, chosen: int | slice) -> CompositePosterior:
        """Return the posteriors of some of the images, always as a batch."""
        rows = slice(chosen, chosen + 1 or None) if isinstance(chosen, int) else chosen
        return CompositePosterior(self._parameters, self._images[rows], self._codes[rows])

    def __repr__(self) -> str:
        return f"CompositePosterior of {len(self)} image(s), torus_dim = {self.torus_dim}"

    @cached_property
    def _sums(self) -> Sums:
        size, how = self._engine.at_once, (self._turn, self._parameters.noise_std)
        batches = zip(self._shape.split(size), self._image.split(size), strict=True)
        parts = [self._engine.look(*each, *how) for each in batches]
        most = max(part.log_weights.shape[1] for part in parts)
        padded = [_pad_points(part, most) for part in parts]
        return Sums(*(torch.cat(part) for part in zip(*padded, strict=True)))

    @cached_property
    def _weights(self) -> Float[Tensor, "batch point"]:
        return torch.softmax(self._sums.log_weights.double(), dim=1)

    @cached_property
    def log_partition(self) -> PerImage:
        """Log of the integral of exp(-‖v - R₂MR₁u₁‖²/2σ²) over both tori, but for the image's own energy."""
        return torch.logsumexp(self._sums.log_weights.double(), dim=1) + self._engine.log_cell

    @cached_property
    def _means(self) -> Float[Tensor, "batch torus 2"]:
        """E[exp(is)] of each coordinate."""
        weights, n = self._weights[..., None, None], self._parameters.outer_dim
        outer = self._sums.rotation[:, :, -n:].double()
        return (weights * torch.cat((outer, torus.features(self._sums.points.double())), dim=2)).sum(dim=1)

    @cached_property
    def mean(self) -> Poses:
        """The circular mean of each coordinate."""
        return torch.atan2(self._means[..., 1], self._means[..., 0])

    @cached_property
    def width(self) -> Poses:
        """The circular standard deviation √(-2 ln R) of each coordinate, in radians."""
        return (-2 * self._means.norm(dim=-1).clamp(1e-300, 1).log()).sqrt()

    @cached_property
    def entropy(self) -> PerImage:
        """-∫ P ln P in nats; the uniform density has n ln 2π."""
        shapes, image = self._sums.shapes, self._image[:, None].expand_as(self._sums.rotation)
        moved = torus.apply_mean_rotation(shapes, self._sums.rotation)
        overlap = (moved * image).sum(dim=(-2, -1)) - shapes.square().sum(dim=(-2, -1)) / 2
        return self.log_partition - (self._weights * overlap.double()).sum(dim=1) / self._parameters.noise_std**2

    @cached_property
    def mode(self) -> Poses:
        """The most probable pose ŝ."""
        return self.modes(1).poses[:, 0]

    def log_prob(self, poses: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return ln P(s) at one pose for all images (n,), one for each (batch, n), or many for each (batch, k, n)."""
        poses = torch.as_tensor(poses).to(self._shape)
        many = poses.expand(len(self), -1)[:, None] if poses.ndim < 3 else poses
        k = many.shape[1]
        left = self._left(many.flatten(0, 1), k).view(len(self), k)
        energy = self._image.square().sum(dim=(1, 2)).double()[:, None]
        found = (energy - left) / (2 * self._parameters.noise_std**2) - self.log_partition[:, None]
        return found if poses.ndim == 3 else found[:, 0]

    def _left(self, poses: Poses, k: int) -> PerImage:
        shape, image = (each.repeat_interleave(k, dim=0) for each in (self._shape, self._image))
        return self._engine.linearise(shape, image, self._turn, poses)[0].double().square().sum(dim=1)

    def modes(self, k: int) -> CompositeModes:
        """Return the ``k`` highest distinct modes, best first; where there are fewer, NaN with ln P = -inf."""
        n_starts = max(N_STARTS, 2 * check_count("k", k))
        poses, left = self._engine.climb(self._shape, self._image, self._turn, self._parameters.noise_std, n_starts)
        order = left.argsort(dim=1)
        poses = torus.wrap(poses.take_along_dim(order[..., None], dim=1))
        apart = torus.wrap(poses[:, :, None] - poses[:, None]).norm(dim=-1)
        repeated = torch.tril(apart < SAME_MODE, diagonal=-1).any(dim=2)
        chosen = repeated.to(torch.int8).argsort(dim=1, stable=True)[:, :k]
        missing = repeated.take_along_dim(chosen, dim=1)
        poses = poses.take_along_dim(chosen[..., None], dim=1)
        log_prob = self.log_prob(poses).masked_fill(missing, -torch.inf)
        shape, image = (each.repeat_interleave(poses.shape[1], dim=0) for each in (self._shape, self._image))
        _, slopes = self._engine.linearise(shape, image, self._turn, poses.flatten(0, 1))
        curvature = (slopes.mT @ slopes / self._parameters.noise_std**2).unflatten(0, (len(self), -1)).double()
        poses = poses.masked_fill(missing[..., None], torch.nan).double()
        short = max(0, k - poses.shape[1])
        pad = torch.nn.functional.pad
        return CompositeModes(
            pad(poses, (0, 0, 0, short), value=torch.nan),
            pad(log_prob, (0, short), value=-torch.inf),
            pad(curvature, (0, 0, 0, 0, 0, short)),
        )

    @staticmethod
    def axis(n_grid: int) -> Float[Tensor, " point"]:
        """Return the angles of :meth:`marginal`: from -π, ``n_grid`` equal steps."""
        return TorusPosterior.axis(n_grid)

    def marginal(self, axis: int, n_grid: int = 100) -> Float[Tensor, "batch point"]:
        """Return the density of one coordinate at ``n_grid`` angles from -π, the others integrated out.

        That of an inner coordinate is blurred by one step.
        """
        if not 0 <= axis < self.torus_dim:
            reject("axis", f"0 <= axis < torus_dim = {self.torus_dim}", str(axis), "Axes count from 0.")
        n_outer = self._parameters.outer_dim
        if axis < n_outer:
            each = [self._given(row).marginal(axis, n_grid) for row in range(len(self))]
            return torch.stack([to_cpu(w) @ density for w, density in zip(self._weights, each, strict=True)])
        concentration = (n_grid / (2 * math.pi)) ** 2
        scale = 2 * math.pi * torch.special.i0e(torch.tensor(concentration, dtype=torch.float64))
        points = to_cpu(self._sums.points[..., axis - n_outer]).double()
        apart = self.axis(n_grid)[:, None] - points[:, None]
        return ((concentration * (apart.cos() - 1)).exp() @ to_cpu(self._weights)[..., None])[..., 0] / scale

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "batch k torus"]:
        """Draw ``k`` poses from each posterior; the inner ones anywhere in the cell of a fine point."""
        generator = generator if generator is not None else torch.default_generator
        check_count("k", k)
        cell, found = 2 * math.pi / (self._engine.n_coarse * self._engine.n_fine), []
        for row, weights in enumerate(to_cpu(self._weights)):
            chosen = torch.multinomial(weights, k, replacement=True, generator=generator).sort().values
            outer = [
                self._given(row)[int(point)].sample(int(count), generator=generator)[0]
                for point, count in zip(*chosen.unique(return_counts=True), strict=True)
            ]
            jitter = cell * (torch.rand(k, self._engine.inner_dim, generator=generator, dtype=torch.float64) - 0.5)
            poses = torch.cat((torch.cat(outer), to_cpu(self._sums.points[row])[chosen].double() + jitter), dim=1)
            found.append(poses[torch.randperm(k, generator=generator)])
        return torus.wrap(torch.stack(found))

    def _given(self, row: int) -> TorusPosterior:
        """Return the posterior of the outer pose of one image at each point of the inner torus."""
        shapes = self._sums.shapes[row]
        image = self._image[row].expand_as(shapes)
        flat = torch.zeros(image.shape[1:]).to(image)
        natural = natural_parameters(shapes, image, self._parameters.noise_std, flat)
        return TorusPosterior(natural, self._engine.outer.frequencies)


def _pad_points(sums: Sums, n_points: int) -> Sums:
    """Return sums with more points, which have no weight."""
    missing = n_points - sums.log_weights.shape[1]
    pad = torch.nn.functional.pad
    padded = Sums(*(pad(part, (0, 0) * (part.ndim - 2) + (0, missing)) for part in sums))
    return padded._replace(log_weights=pad(sums.log_weights, (0, missing), value=-torch.inf))


class CompositeModes(NamedTuple):
    """Distinct local maxima, highest first."""

    poses: Float[Tensor, "batch mode torus"]
    log_prob: Float[Tensor, "batch mode"]
    curvature: Float[Tensor, "batch mode torus torus"]  # JᵀJ/σ², as near a mode the residual is noise
