"""Two groups one after the other, I = T₂(s₂) T₁(s₁) Φα + ε: sums over the inner torus of integrals over the outer one.

Given s₁ the rest is the usual model of the outer group with the shape T₁(s₁)Φα. So each point of the inner torus has
the weight exp(ln Z₂(s₁) - ‖W₂ᵀT₁(s₁)Φα‖²/2σ²), where Z₂ is the outer engine's. The two actions need not commute.
All is in planes: u₁ = W₁ᵀΦα of the shape, v = W₂ᵀI of the image, and M = W₂ᵀW₁ leads from one to the other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_images, reject
from liesparse.model import Images, Parameters, compose
from liesparse.posterior.ascent import Ascent, Codes, PerImage, Poses, fista
from liesparse.posterior.base import Engine, natural_parameters
from liesparse.torus import Frequencies

COARSE = {1: 32, 2: 16}  # points of each inner axis at which every image is looked at, by the number of these axes
FINE = {1: 6, 2: 4}  # how much finer they get
# FISTA sums over all coarse points in its first steps, then over the best ones, finer ones, and the best of these.
N_ALL, N_KEPT, KEPT_UNTIL, N_FINER, FINER_UNTIL, N_LAST = 1, 5, 6, 1, 9, 2
N_CELLS = 3  # coarse ones that are made finer where moments and modes are asked for
NEGLIGIBLE = 7.0  # nats below the highest point
N_STARTS, N_STEPS = 3, 15  # points from which modes are climbed to, and steps of Levenberg and Marquardt
AT_ONCE = 16_384  # outer integrals

Planes = Float[Tensor, "#batch irrep 2"]  # of shapes, u₁; one may be for all images
Seen = Float[Tensor, "batch outer_irrep 2"]  # of images, v
Points = Float[Tensor, "#batch point inner"]
Turn = Float[Tensor, "outer_column column"]  # M


class Sums(NamedTuple):
    """What the integrals over the outer torus give at each point of the inner one."""

    points: Points
    inner: Float[Tensor, "#batch point irrep 2"]  # R₁u₁
    shapes: Float[Tensor, "#batch point outer_irrep 2"]  # u₂ = MR₁u₁
    rotation: Float[Tensor, "batch point outer_irrep 2"]  # R̄₂
    log_weights: Float[Tensor, "batch point"]


class CompositeExpectation(NamedTuple):
    """What the E-step knows of both poses under P(s₂, s₁ | I, α)."""

    shape_planes: Planes  # u₁
    returned: Planes  # E[R₁ᵀMᵀR₂ᵀ]v, the image turned back
    explained: Planes  # E[R₁ᵀMᵀMR₁]u₁, the shape as the outer group lets it through
    damped: Planes  # the same with R̄₂ᵀR̄₂ between: T₂ and ε taken as independent
    moved: Float[Tensor, "batch outer_irrep 2"]  # E[R₂MR₁]u₁
    cross: Float[Tensor, "outer_column column"]  # Σ E[R₂ᵀv (R₁u₁)ᵀ], of which the best M is the polar factor
    log_partition: PerImage


class CompositeEngine:
    """Integrals over two tori; ``whole`` sums over all fine points of the inner one, which is slow and leaves none out.

    It is made by :func:`liesparse.posterior.engine_of`, and serves the functions that take an engine and a model.
    """

    def __init__(self, outer: Engine, frequencies: Frequencies, *, whole: bool = False) -> None:
        self.outer, self.frequencies, self.whole = outer, frequencies, whole
        self.inner_dim = frequencies.shape[1]
        self.torus_dim = outer.torus_dim + self.inner_dim
        if self.inner_dim not in COARSE:
            expected = "an inner group of one or two axes"
            reject("group", expected, f"{self.inner_dim} axes", "Put the group with more axes outside.")
        self.n_coarse, self.n_fine = COARSE[self.inner_dim], FINE[self.inner_dim]
        n_first = self.n_coarse * (self.n_fine if whole else 1)
        dtype, device = outer.dtype, outer.device
        self._points = torus.grid_points(n_first, self.inner_dim, dtype=dtype).to(device)
        offsets = torus.grid_points(self.n_fine, self.inner_dim, dtype=dtype) / self.n_coarse
        self._within = (offsets - math.pi * (1 - 1 / self.n_fine) / self.n_coarse).to(device)  # about a coarse point
        n_sparse = self.n_coarse // self.inner_dim  # two axes would have too many for every pair of a sort
        self._sparse = torus.grid_points(n_sparse, self.inner_dim, dtype=dtype).to(device)

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type."""
        return self.outer.dtype

    @property
    def kernel(self) -> str:
        """What does the outer integrals."""
        return self.outer.kernel

    def check_fits(self, parameters: Parameters) -> None:
        """Reject a model of other groups."""
        if parameters.outer is None or not self.frequencies.equal(parameters.frequencies):
            reject("engine", "the model's own frequencies", "other ones", "Make it by engine_of(parameters).")
        if not self.outer.frequencies.equal(parameters.outer.frequencies):
            reject("engine", "the outer group's frequencies", "other ones", "Make it by engine_of(parameters).")

    def at(self, shape: Planes, image: Seen, turn: Turn, points: Points, noise_std: float) -> Sums:
        """Integrate over the outer torus at some points of the inner one; ``shape`` may be one for all images."""
        n_points = points.shape[1]
        angles = torus.phases(self.frequencies, points)
        inner = torus.rotate(shape[:, None].expand(-1, n_points, -1, -1), angles)
        shapes = (inner.flatten(-2) @ turn.T).unflatten(-1, (-1, 2))
        flat = torch.zeros(image.shape[1:]).to(image)
        natural = natural_parameters(shapes, image[:, None].expand(-1, n_points, -1, -1), noise_std, flat)
        moments = self.outer.moments(natural.flatten(0, 1))
        energy = shapes.square().sum(dim=(-2, -1)) / (2 * noise_std**2)
        size = len(image), n_points
        log_weights = moments.log_partition.view(size) - energy
        points = points.expand(len(image), -1, -1)
        return Sums(points, inner, shapes, moments.rotation.unflatten(0, size), log_weights)

    def look(self, shape: Planes, image: Seen, turn: Turn, noise_std: float) -> Sums:
        """Sum over all coarse points, of which the best are replaced by finer ones; those without mass are left out."""
        sums = self.at(shape, image, turn, self._points[None], noise_std)
        if self.whole:
            return sums
        chosen = sums.log_weights.topk(N_CELLS, dim=1).indices
        fine = self.at(shape, image, turn, self._finer(sums, N_CELLS), noise_std)
        rest = sums.log_weights.scatter(1, chosen, -torch.inf) + self.inner_dim * math.log(self.n_fine)  # larger cells
        near = rest > fine.log_weights.amax(dim=1, keepdim=True) - NEGLIGIBLE
        others = rest.topk(max(1, int(near.sum(dim=1).amax())), dim=1).indices
        coarse = [_take(part, others) for part in sums._replace(log_weights=rest)]
        own = [part.expand(len(image), *part.shape[1:]) for part in fine]
        return Sums(*(torch.cat(pair, dim=1) for pair in zip(own, coarse, strict=True)))

    def carry(self, shape: Planes, image: Seen, turn: Turn, noise_std: float) -> tuple[Seen, Planes]:
        """Return E[R₂MR₁]u₁ and E[R₁ᵀMᵀR₂ᵀ]v over the best cell alone: for the many pairs of a sort."""
        if len(image) > self.at_once:
            size, one = self.at_once, len(shape) == 1
            rows = zip(shape.expand(len(image), -1, -1).split(size), image.split(size), strict=True)
            parts = [self.carry(shape if one else own, each, turn, noise_std) for own, each in rows]
            there, returned = zip(*parts, strict=True)
            return torch.cat(there), torch.cat(returned)
        sums = self.at(shape, image, turn, self._sparse[None], noise_std)
        around = self._best(sums, 1) + self.inner_dim * self._within
        sums = self.at(shape, image, turn, around, noise_std)
        weights = torch.softmax(sums.log_weights, dim=1)[..., None, None]
        moved = torus.apply_mean_rotation(sums.shapes, sums.rotation)
        back = torus.apply_mean_rotation_transposed(image[:, None].expand_as(sums.rotation), sums.rotation)
        return (weights * moved).sum(dim=1), self.turn_back(weights * back, turn, sums.points)

    @property
    def at_once(self) -> int:
        """How many images are looked at together."""
        return max(1, AT_ONCE // len(self._points))

    def _finer(self, sums: Sums, n_cells: int) -> Points:
        return (self._best(sums, n_cells)[:, :, None] + self._within).flatten(1, 2)

    def _best(self, sums: Sums, n_points: int) -> Points:
        chosen = sums.log_weights.topk(min(n_points, sums.log_weights.shape[1]), dim=1).indices
        return sums.points.take_along_dim(chosen[..., None], dim=1)

    @property
    def log_cell(self) -> float:
        """Log volume that a fine point of the inner torus stands for."""
        return self.inner_dim * math.log(2 * math.pi / (self.n_coarse * self.n_fine))

    def expect(self, shape: Planes, image: Seen, turn: Turn, noise_std: float) -> CompositeExpectation:
        """Integrate both poses out at fixed codes, some images at a time."""
        size = self.at_once
        parts = [
            self._expect(each if len(shape) > 1 else shape, rows, turn, noise_std)
            for each, rows in zip(shape.expand(len(image), -1, -1).split(size), image.split(size), strict=True)
        ]
        joined = [torch.cat(part) for part in zip(*(p._replace(cross=p.log_partition) for p in parts), strict=True)]
        return CompositeExpectation(*joined)._replace(cross=torch.stack([part.cross for part in parts]).sum(dim=0))

    def _expect(self, shape: Planes, image: Seen, turn: Turn, noise_std: float) -> CompositeExpectation:
        sums = self.look(shape, image, turn, noise_std)
        weights = torch.softmax(sums.log_weights, dim=1)[..., None, None]
        image = image[:, None].expand_as(sums.rotation)
        shapes = sums.shapes.expand_as(sums.rotation)
        back = weights * torus.apply_mean_rotation_transposed(image, sums.rotation)
        lengths = sums.rotation.square().sum(dim=-1, keepdim=True)
        inner = sums.inner.expand(len(image), -1, -1, -1).flatten(0, 1).flatten(1)
        return CompositeExpectation(
            shape.expand(len(image), -1, -1),
            self.turn_back(back, turn, sums.points),
            self.turn_back(weights * shapes, turn, sums.points),
            self.turn_back(weights * lengths * shapes, turn, sums.points),
            (weights * torus.apply_mean_rotation(shapes, sums.rotation)).sum(dim=1),
            back.flatten(0, 1).flatten(1).T @ inner,
            torch.logsumexp(sums.log_weights, dim=1) + self.log_cell,
        )

    def turn_back(self, planes: Float[Tensor, "batch point outer_irrep 2"], turn: Turn, points: Points) -> Planes:
        """Return Σ R₁(s₁)ᵀMᵀx over the points."""
        angles = torus.phases(self.frequencies, points)
        inner = (planes.flatten(-2) @ turn).unflatten(-1, (-1, 2))
        return torus.rotate(inner, -angles).sum(dim=1)

    def ascend(self, codes: Codes, ascent: Ascent, turn: Turn) -> Codes:
        """Return the codes after all steps of FISTA: the first with all points, then with ever fewer and finer ones."""
        noise_std, atoms = math.sqrt(ascent.variance), ascent.dictionary_planes.flatten(1)
        size = self.at_once
        if len(codes) > size:
            parts = zip(codes.split(size), ascent.image_planes.split(size), strict=True)
            return torch.cat([self.ascend(each, ascent._replace(image_planes=rows), turn) for each, rows in parts])
        points, n_done = self._points[None], 0

        def advance(codes: Codes) -> Codes:
            nonlocal points, n_done
            shape = (codes @ atoms).unflatten(1, (-1, 2))
            sums = self.at(shape, ascent.image_planes, turn, points, noise_std)
            weights = torch.softmax(sums.log_weights, dim=1)[..., None, None]
            back = torus.apply_mean_rotation_transposed(
                ascent.image_planes[:, None].expand_as(sums.rotation), sums.rotation
            )
            explained = sums.shapes
            if not ascent.exact:
                explained = sums.rotation.square().sum(dim=-1, keepdim=True) * explained
            residual = self.turn_back(weights * (back - explained), turn, points)
            uphill = residual.flatten(1) @ atoms.T * (ascent.step / ascent.variance).to(atoms)
            n_done += 1
            if not self.whole:
                points = self._next_points(sums, n_done)
            shrink = codes.sign() if ascent.subgradient else 1.0
            return (codes + uphill - ascent.step * ascent.sparsity * shrink).clamp(min=0)

        return fista(advance, codes, ascent.n_steps).clone()

    def _next_points(self, sums: Sums, n_done: int) -> Points:
        """Return the points over which FISTA sums after so many steps."""
        if n_done == KEPT_UNTIL:
            return self._finer(sums, N_FINER)
        kept = {N_ALL: N_KEPT, FINER_UNTIL: N_LAST * self.inner_dim}.get(n_done)
        return sums.points if kept is None else self._best(sums, kept)

    def modes(self, shape: Planes, image: Seen, turn: Turn, noise_std: float, *, refine: bool = True) -> Poses:
        """Return the most probable (s₂, s₁) of each image: from the best points, climbed in all coordinates."""
        poses, left = self.climb(shape, image, turn, noise_std, N_STARTS if refine else 1, refine=refine)
        best = left.argmin(dim=1)
        return torus.wrap(poses.take_along_dim(best[:, None, None], dim=1)[:, 0])

    def climb(
        self, shape: Planes, image: Seen, turn: Turn, noise_std: float, n_starts: int, *, refine: bool = True
    ) -> tuple[Float[Tensor, "batch start torus"], Float[Tensor, "batch start"]]:
        """Return where one gets to from the best points, and ‖v - R₂MR₁u₁‖² there."""
        size = self.at_once
        parts = []
        for each, rows in zip(shape.split(size), image.split(size), strict=True):
            sums = self.look(each, rows, turn, noise_std)
            parts.append(self._starts(sums, each, rows, turn, noise_std, n_starts, refine))
        poses, left = zip(*parts, strict=True)
        return torch.cat(poses), torch.cat(left)

    def _starts(
        self, sums: Sums, shape: Planes, image: Seen, turn: Turn, noise_std: float, n_starts: int, refine: bool
    ) -> tuple[Float[Tensor, "batch start torus"], Float[Tensor, "batch start"]]:
        inner = self._hills(sums, n_starts)
        n_starts = inner.shape[1]
        inner = inner.flatten(0, 1)
        shape, image = (each.repeat_interleave(n_starts, dim=0) for each in (shape, image))
        turned = torus.rotate(shape, torus.phases(self.frequencies, inner))
        there = (turned.flatten(1) @ turn.T).unflatten(1, (-1, 2))
        natural = natural_parameters(there, image, noise_std, torch.zeros(image.shape[1:]).to(image))
        poses = torch.cat((self.outer.modes(natural).poses[:, 0], inner), dim=1)
        left = self.linearise(shape, image, turn, poses)[0].square().sum(dim=1)
        if refine:
            poses, left = self.refine(shape, image, turn, poses)
        return poses.unflatten(0, (-1, n_starts)), left.view(-1, n_starts)

    def _hills(self, sums: Sums, n_starts: int) -> Points:
        """Return the best point of each fine cell, then the best of all others."""
        if self.whole:
            return self._best(sums, n_starts)
        n_fine = N_CELLS * self.n_fine**self.inner_dim
        in_cells = sums.log_weights[:, :n_fine].unflatten(1, (N_CELLS, -1)).argmax(dim=2)
        first = in_cells + torch.arange(N_CELLS).to(in_cells) * self.n_fine**self.inner_dim
        others = sums.log_weights[:, n_fine:].argsort(dim=1, descending=True) + n_fine
        return _take(sums.points, torch.cat((first, others), dim=1)[:, :n_starts])

    def refine(self, shape: Planes, image: Seen, turn: Turn, poses: Poses) -> tuple[Poses, PerImage]:
        """Lower ‖v - R₂(s₂)MR₁(s₁)u₁‖² by steps of Levenberg and Marquardt; return the poses and what is left."""
        residual, slopes = self.linearise(shape, image, turn, poses)
        left = residual.square().sum(dim=1)
        damping = torch.full_like(left, 1e-3)
        for _ in range(N_STEPS):
            normal = slopes.mT @ slopes
            ridge = (damping[:, None] * normal.diagonal(dim1=1, dim2=2) + 1e-9).diag_embed()
            step = torch.linalg.solve(normal + ridge, slopes.mT @ residual[..., None])[..., 0]
            trial = poses + step.nan_to_num(0.0).clamp(-0.5, 0.5)
            residual_there, slopes_there = self.linearise(shape, image, turn, trial)
            left_there = residual_there.square().sum(dim=1)
            better = left_there < left
            poses, residual = (
                torch.where(better[:, None], new, old) for new, old in ((trial, poses), (residual_there, residual))
            )
            slopes = torch.where(better[:, None, None], slopes_there, slopes)
            left = torch.where(better, left_there, left)
            damping = torch.where(better, damping / 4, 4 * damping + 1e-3)
        return poses, left

    def linearise(
        self, shape: Planes, image: Seen, turn: Turn, poses: Poses
    ) -> tuple[Float[Tensor, "batch outer_column"], Float[Tensor, "batch outer_column torus"]]:
        """Return v - R₂MR₁u₁, and the derivative of what is taken away by each coordinate of the pose."""
        n = self.outer.torus_dim
        outer_angles = torus.phases(self.outer.frequencies, poses[:, :n])
        turned = torus.rotate(shape, torus.phases(self.frequencies, poses[:, n:]))
        along = [turned, *(torus.quarter(turned) * omega[:, None] for omega in self.frequencies.to(shape).T)]
        there = (torch.stack(along, dim=1).flatten(2) @ turn.T).unflatten(-1, (-1, 2))
        there = torus.rotate(there, outer_angles[:, None].expand(-1, there.shape[1], -1))
        moved, by_inner = there[:, 0], there[:, 1:]
        omega = self.outer.frequencies.to(shape)
        by_outer = torus.quarter(moved)[:, None] * omega.T[:, :, None]
        slopes = torch.cat((by_outer, by_inner), dim=1).flatten(2).mT
        return (image - moved).flatten(1), slopes


def _take(part: Float[Tensor, "#batch point *rest"], places: Int[Tensor, "batch chosen"]) -> Tensor:
    """Return some points of each image."""
    part = part.expand(len(places), *part.shape[1:])
    return part.take_along_dim(places.view(*places.shape, *[1] * (part.ndim - 2)), dim=1)


def turn_between(parameters: Parameters) -> Turn:
    """Return M = W₂ᵀW₁."""
    assert parameters.outer is not None  # for compositions only
    return parameters.outer.group_basis.T @ parameters.group_basis


def log_likelihood(parameters: Parameters, images: Images, codes: Codes, engine: Engine | CompositeEngine) -> PerImage:
    """Return ln P(I | α) with the pose integrated out [Chau20, app. B, last line]."""
    engine.check_fits(parameters)
    check_images(images, parameters.n_pixels, parameters.dtype)
    shape, variance = parameters.to_planes(compose(parameters, codes)), parameters.noise_std**2
    constant = 0.5 * parameters.n_pixels * math.log(2 * math.pi * variance)
    energy = images.square().sum(dim=1) / (2 * variance)
    seen = parameters.seen_planes(images)
    if isinstance(engine, CompositeEngine):
        found = engine.expect(shape, seen, turn_between(parameters), parameters.noise_std).log_partition
        return found - engine.torus_dim * math.log(2 * math.pi) - energy - constant
    energy = energy + shape.square().sum(dim=(1, 2)) / (2 * variance)
    prior = engine.log_partition(parameters.pose_prior[None])
    natural = natural_parameters(shape, seen, parameters.noise_std, parameters.pose_prior)
    return engine.log_partition(natural) - prior - energy - constant
