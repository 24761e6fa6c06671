"""Two groups one after the other, I = T₂(s₂) T₁(s₁) Φα + ε: sums over the inner torus of integrals over the outer one.

Given s₁ the rest is the usual model of the outer group with the shape T₁(s₁)Φα. So each point of the inner torus has
the weight exp(ln Z₂(s₁) - ‖W₂ᵀT₁(s₁)Φα‖²/2σ²), where Z₂ is the outer engine's. The two actions need not commute.
All is in planes: u₁ = W₁ᵀΦα of the shape, v = W₂ᵀI of the image, and M = W₂ᵀW₁ leads from one to the other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from liesparse import torus
from liesparse._checks import reject
from liesparse.model import Codes, Numbers, Poses
from liesparse.posterior.base import Engine
from liesparse.posterior.interface import Ascent, Evidence, Modes, PoseEngine, PoseExpectation, Seen, fista
from liesparse.torus import Frequencies

COARSE = {1: 32, 2: 16}  # points of each inner axis at which every image is looked at, by the number of these axes
FINE = {1: 6, 2: 4}  # how much finer they get
# FISTA sums over all coarse points in its first steps, then over the best ones, finer ones, and the best of these.
N_ALL, N_KEPT, KEPT_UNTIL, N_FINER, FINER_UNTIL, N_LAST = 1, 5, 6, 1, 9, 2
N_CELLS = 3  # coarse ones that are made finer where moments and modes are asked for
NEGLIGIBLE = 7.0  # nats below the highest point
N_STARTS, N_STEPS = 3, 15  # points from which modes are climbed to, and steps of Levenberg and Marquardt
SAME_MODE = 0.1  # radians within which two modes are one
AT_ONCE = 16_384  # outer integrals

Points = Float[Tensor, "#batch point inner"]
SeenAtPoints = Float[Tensor, "#batch point outer_irrep 2"]


class Sums(NamedTuple):
    """What the integrals over the outer torus give at each point of the inner one."""

    points: Points
    inner: Float[Tensor, "#batch point irrep 2"]  # R₁u₁
    shapes: SeenAtPoints  # u₂ = MR₁u₁
    rotation: SeenAtPoints  # R̄₂
    log_weights: Float[Tensor, "batch point"]

    @property
    def weights(self) -> Float[Tensor, "batch point 1 1"]:
        """The probability of each point."""
        return torch.softmax(self.log_weights, dim=1)[..., None, None]

    @property
    def moved(self) -> SeenAtPoints:
        """R̄₂u₂."""
        return torus.apply_mean_rotation(self.shapes, self.rotation)

    @property
    def damped(self) -> SeenAtPoints:
        """R̄₂ᵀR̄₂u₂."""
        return self.rotation.square().sum(dim=-1, keepdim=True) * self.shapes

    def back(self, image: Seen) -> SeenAtPoints:
        """Return R̄₂ᵀv."""
        return torus.apply_mean_rotation_transposed(image[:, None], self.rotation)

    def take(self, places: Int[Tensor, "batch chosen"]) -> Sums:
        """Return some points of each image."""
        return Sums(*(_take(part, places) for part in self))


class CompositeEngine(PoseEngine):
    """Integrals over two tori.

    It is made by :func:`liesparse.posterior.engine_of`, and serves the functions that take an engine and a model.
    """

    def __init__(self, outer: Engine, frequencies: Frequencies) -> None:
        self.outer, self.frequencies = outer, frequencies
        self.tori, self.dtype, self.device = (outer.frequencies, frequencies), outer.dtype, outer.device
        self.inner_dim = frequencies.shape[1]
        self.torus_dim = outer.torus_dim + self.inner_dim
        if self.inner_dim not in COARSE:
            expected = "an inner group of one or two axes"
            reject("group", expected, f"{self.inner_dim} axes", "Put the group with more axes outside.")
        self.n_coarse, self.n_fine = COARSE[self.inner_dim], FINE[self.inner_dim]
        self._points = self._grid(self.n_coarse)
        self.at_once = max(1, AT_ONCE // len(self._points))  #: how many images are looked at together
        middle = math.pi * (1 - 1 / self.n_fine) / self.n_coarse
        self._within = self._grid(self.n_fine) / self.n_coarse - middle  # about a coarse point
        self._sparse = self._grid(self.n_coarse // self.inner_dim)  # two axes would have too many for every pair
        self.cell = 2 * math.pi / (self.n_coarse * self.n_fine)  #: side of what a fine point stands for
        self.log_cell = self.inner_dim * math.log(self.cell)

    def _grid(self, n_grid: int) -> Float[Tensor, "point inner"]:
        return torus.grid_points(n_grid, self.inner_dim, dtype=self.dtype).to(self.device)

    def given(self, evidence: Evidence, inner: Float[Tensor, "*batch irrep 2"]) -> Evidence:
        """Return the evidence for the outer pose, where the inner one is known and makes R₁u₁ of the shape."""
        image = evidence.image if inner.ndim == evidence.image.ndim else evidence.image[:, None]
        flat = torch.zeros(image.shape[-2:]).to(image)
        return Evidence(evidence.show(inner), image, evidence.noise_std, flat)

    def at(self, evidence: Evidence, points: Points) -> Sums:
        """Integrate over the outer torus at some points of the inner one."""
        shape = evidence.shape[:, None].expand(-1, points.shape[1], -1, -1)
        inner = torus.rotate(shape, torus.phases(self.frequencies, points))
        outer = self.given(evidence, inner)
        moments = self.outer.moments(outer.natural.flatten(0, 1))
        energy = outer.shape.square().sum(dim=(-2, -1)) / (2 * evidence.noise_std**2)
        size = len(evidence.image), points.shape[1]
        log_weights = moments.log_partition.view(size) - energy
        points = points.expand(size[0], -1, -1)
        return Sums(points, inner, outer.shape, moments.rotation.unflatten(0, size), log_weights)

    def look(self, evidence: Evidence) -> Sums:
        """Sum over all coarse points, of which the best are replaced by finer ones; those without mass are left out."""
        sums = self.at(evidence, self._points[None])
        chosen = sums.log_weights.topk(N_CELLS, dim=1).indices
        fine = self.at(evidence, self._finer(sums, N_CELLS))
        rest = sums.log_weights.scatter(1, chosen, -torch.inf) + self.inner_dim * math.log(self.n_fine)  # larger cells
        near = rest > fine.log_weights.amax(dim=1, keepdim=True) - NEGLIGIBLE
        others = rest.topk(max(1, int(near.sum(dim=1).amax())), dim=1).indices
        coarse = sums._replace(log_weights=rest).take(others)
        own = [part.expand(len(rest), *part.shape[1:]) for part in fine]
        return Sums(*(torch.cat(pair, dim=1) for pair in zip(own, coarse, strict=True)))

    def carry(self, evidence: Evidence) -> tuple[Seen, torus.Planes]:
        """Return E[R₂MR₁]u₁ and E[R₁ᵀMᵀR₂ᵀ]v over the best cell alone."""
        found = []
        for part in evidence.split(self.at_once):
            around = self._best(self.at(part, self._sparse[None]), 1) + self.inner_dim * self._within
            sums = self.at(part, around)
            moved, back = (sums.weights * planes for planes in (sums.moved, sums.back(part.image)))
            found.append((moved.sum(dim=1), self._turn_back(part, back, sums)))
        moved, returned = (torch.cat(parts) for parts in zip(*found, strict=True))
        return moved, returned

    def _finer(self, sums: Sums, n_cells: int) -> Points:
        return (self._best(sums, n_cells)[:, :, None] + self._within).flatten(1, 2)

    def _best(self, sums: Sums, n_points: int) -> Points:
        return _take(sums.points, sums.log_weights.topk(min(n_points, sums.log_weights.shape[1]), dim=1).indices)

    def _turn_back(self, evidence: Evidence, planes: SeenAtPoints, sums: Sums) -> torus.Planes:
        """Return Σ R₁(s₁)ᵀMᵀx over the points."""
        return torus.rotate(evidence.hide(planes), -torus.phases(self.frequencies, sums.points)).sum(dim=1)

    def expect(self, evidence: Evidence) -> PoseExpectation:
        """Integrate both poses out at fixed codes, some images at a time."""
        *of_images, cross, frames = zip(*map(self._expect, evidence.split(self.at_once)), strict=True)
        return PoseExpectation._make([*map(torch.cat, of_images), torch.stack(cross).sum(dim=0), frames[0]])

    def _expect(self, evidence: Evidence) -> PoseExpectation:
        sums, n_images = self.look(evidence), len(evidence.image)
        weights = sums.weights
        back = weights * sums.back(evidence.image)
        inner = sums.inner.expand(n_images, -1, -1, -1).flatten(0, 1).flatten(1)
        return PoseExpectation(
            evidence.shape.expand(n_images, -1, -1),
            self._turn_back(evidence, back, sums),
            self._turn_back(evidence, weights * sums.shapes, sums),
            self._turn_back(evidence, weights * sums.damped, sums),
            (weights * sums.moved).sum(dim=1),
            torch.logsumexp(sums.log_weights, dim=1) + self.log_cell,
            back.flatten(0, 1).flatten(1).T @ inner,
        )

    def log_evidence(self, evidence: Evidence) -> Numbers:
        """Return the log of the integral over both poses, whose prior is uniform."""
        return self.expect(evidence).log_partition - self.torus_dim * math.log(2 * math.pi)

    def find_codes(self, codes: Codes, ascent: Ascent) -> Codes:
        """Return the codes after all steps of FISTA: the first with all points, then with ever fewer and finer ones."""
        parts = zip(codes.split(self.at_once), ascent.image_planes.split(self.at_once), strict=True)
        return torch.cat([self._find_codes(each, ascent._replace(image_planes=rows)) for each, rows in parts])

    def _find_codes(self, codes: Codes, ascent: Ascent) -> Codes:
        noise_std, atoms = math.sqrt(ascent.variance), ascent.dictionary_planes.flatten(1)
        points, n_done = self._points[None], 0

        def advance(codes: Codes) -> Codes:
            nonlocal points, n_done
            shape = (codes @ atoms).unflatten(1, (-1, 2))
            evidence = Evidence(shape, ascent.image_planes, noise_std, ascent.pose_prior, ascent.turn)
            sums = self.at(evidence, points)
            left = sums.back(evidence.image) - (sums.shapes if ascent.exact else sums.damped)
            residual = self._turn_back(evidence, sums.weights * left, sums)
            uphill = residual.flatten(1) @ atoms.T * (ascent.step / ascent.variance).to(atoms)
            n_done += 1
            points = self._next_points(sums, n_done)
            shrink = codes.sign() if ascent.subgradient else 1.0
            return (codes + uphill - ascent.step * ascent.sparsity * shrink).clamp(min=0)

        return fista(advance, codes, ascent.n_steps)

    def _next_points(self, sums: Sums, n_done: int) -> Points:
        """Return the points over which FISTA sums after so many steps."""
        if n_done == KEPT_UNTIL:
            return self._finer(sums, N_FINER)
        kept = {N_ALL: N_KEPT, FINER_UNTIL: N_LAST * self.inner_dim}.get(n_done)
        return sums.points if kept is None else self._best(sums, kept)

    def find_poses(self, evidence: Evidence, *, refine: bool = True) -> Poses:
        """Return the most probable (s₂, s₁) of each image: from the best points, climbed in all coordinates."""
        poses, left = self._climb(evidence, N_STARTS if refine else 1, refine=refine)
        return _take(poses, left.argmin(dim=1, keepdim=True))[:, 0]

    def find_modes(self, evidence: Evidence, n_modes: int) -> Modes:
        """Return the highest distinct modes; where there are fewer, the rest have log density -inf.

        The curvature is JᵀJ/σ², as near a mode the residual is noise.
        """
        poses, left = self._climb(evidence, max(N_STARTS, 2 * n_modes))
        poses = torus.wrap(_take(poses, left.argsort(dim=1)))
        apart = torus.wrap(poses[:, :, None] - poses[:, None]).norm(dim=-1)
        repeated = torch.tril(apart < SAME_MODE, diagonal=-1).any(dim=2)
        chosen = repeated.to(torch.int8).argsort(dim=1, stable=True)[:, :n_modes]
        poses, missing = _take(poses, chosen), _take(repeated, chosen)
        log_density = self.log_density(evidence, poses).masked_fill(missing, -torch.inf)
        _, slopes = self._linearise(evidence.repeat(poses.shape[1]), poses.flatten(0, 1))
        curvature = (slopes.mT @ slopes / evidence.noise_std**2).unflatten(0, (len(poses), -1)).double()
        return Modes(poses.double(), log_density, curvature)

    def log_density(self, evidence: Evidence, poses: Float[Tensor, "batch mode torus"]) -> Float[Tensor, "batch mode"]:
        """Return (‖v‖² - ‖v - R₂MR₁u₁‖²) / 2σ² at some poses of each image."""
        residual, _ = self._linearise(evidence.repeat(poses.shape[1]), poses.flatten(0, 1))
        left = residual.double().square().sum(dim=1).unflatten(0, poses.shape[:2])
        energy = evidence.image.square().sum(dim=(1, 2)).double()[:, None]
        return (energy - left) / (2 * evidence.noise_std**2)

    def _climb(
        self, evidence: Evidence, n_starts: int, *, refine: bool = True
    ) -> tuple[Float[Tensor, "batch start torus"], Float[Tensor, "batch start"]]:
        """Return where one gets to from the best points, and ‖v - R₂MR₁u₁‖² there."""
        found = []
        for part in evidence.split(self.at_once):
            starts = self._hills(self.look(part), n_starts)
            many, inner = part.repeat(starts.shape[1]), starts.flatten(0, 1)
            outer = self.given(many, torus.rotate(many.shape, torus.phases(self.frequencies, inner)))
            poses = torch.cat((self.outer.find_poses(outer), inner), dim=1)
            poses, left = self._refine(many, poses, N_STEPS if refine else 0)
            found.append((poses.unflatten(0, (-1, starts.shape[1])), left.view(starts.shape[:2])))
        poses, left = (torch.cat(parts) for parts in zip(*found, strict=True))
        return poses, left

    def _hills(self, sums: Sums, n_starts: int) -> Points:
        """Return the best point of each fine cell, then the best of all others."""
        in_cell = self.n_fine**self.inner_dim
        n_fine = N_CELLS * in_cell
        first = sums.log_weights[:, :n_fine].unflatten(1, (N_CELLS, -1)).argmax(dim=2)
        first = first + torch.arange(N_CELLS).to(first) * in_cell
        others = sums.log_weights[:, n_fine:].argsort(dim=1, descending=True) + n_fine
        places = torch.cat((first, others), dim=1)
        chosen = torch.arange(n_starts).clamp(max=places.shape[1] - 1)  # the last one repeatedly, where there are fewer
        return _take(sums.points, places[:, chosen])

    def _refine(self, evidence: Evidence, poses: Poses, n_steps: int) -> tuple[Poses, Numbers]:
        """Lower ‖v - R₂(s₂)MR₁(s₁)u₁‖² by steps of Levenberg and Marquardt; return the poses and what is left."""
        residual, slopes = self._linearise(evidence, poses)
        left = residual.square().sum(dim=1)
        damping = torch.full_like(left, 1e-3)
        for _ in range(n_steps):
            normal = slopes.mT @ slopes
            ridge = (damping[:, None] * normal.diagonal(dim1=1, dim2=2) + 1e-9).diag_embed()
            step = torch.linalg.solve(normal + ridge, slopes.mT @ residual[..., None])[..., 0]
            trial = poses + step.nan_to_num(0.0).clamp(-0.5, 0.5)
            residual_there, slopes_there = self._linearise(evidence, trial)
            left_there = residual_there.square().sum(dim=1)
            better = left_there < left
            poses = torch.where(better[:, None], trial, poses)
            residual = torch.where(better[:, None], residual_there, residual)
            slopes = torch.where(better[:, None, None], slopes_there, slopes)
            left = torch.where(better, left_there, left)
            damping = torch.where(better, damping / 4, 4 * damping + 1e-3)
        return poses, left

    def _linearise(
        self, evidence: Evidence, poses: Poses
    ) -> tuple[Float[Tensor, "batch outer_column"], Float[Tensor, "batch outer_column torus"]]:
        """Return v - R₂MR₁u₁, and the derivative of what is taken away by each coordinate of the pose."""
        outer, inner = poses.split((self.outer.torus_dim, self.inner_dim), dim=1)
        turned = torus.rotate(evidence.shape, torus.phases(self.frequencies, inner))
        along = [turned, *(torus.quarter(turned) * omega[:, None] for omega in self.frequencies.to(poses).T)]
        angles = torus.phases(self.outer.frequencies, outer)[:, None].expand(-1, len(along), -1)
        moved, *by_inner = torus.rotate(evidence.show(torch.stack(along, dim=1)), angles).unbind(dim=1)
        by_outer = [torus.quarter(moved) * omega[:, None] for omega in self.outer.frequencies.to(poses).T]
        return (evidence.image - moved).flatten(1), torch.stack([*by_outer, *by_inner], dim=1).flatten(2).mT


def _take(part: Shaped[Tensor, "#batch point *rest"], places: Int[Tensor, "batch chosen"]) -> Tensor:
    """Return some points of each image."""
    part = part.expand(len(places), *part.shape[1:])
    return part.take_along_dim(places.view(*places.shape, *[1] * (part.ndim - 2)), dim=1)
