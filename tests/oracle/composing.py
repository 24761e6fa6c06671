"""Random pairs of torus actions, and sums over the grids of both by brute force."""

import math

import torch

from liesparse import torus
from liesparse.groups import Basis
from liesparse.lattice import half_lattice
from liesparse.model import (
    Parameters,
    log_likelihood_given_pose,
    log_prior_poses,
    reconstruct,
    uniform_prior,
)
from liesparse.posterior import (
    CompositeEngine,
    ReferenceEngine,
)

F64 = torch.float64
N_OUTER = 24


def make_composition(rng, *, inner_dim=1, outer_dim=1, n_pixels=20, noise_std=0.4, inside=False):
    """Draw two random torus actions; with ``inside`` the inner one lies in the span of the outer one."""
    outer_frequencies, frequencies = half_lattice(outer_dim, 6), half_lattice(inner_dim, 4)
    outer_basis = torch.linalg.qr(torch.randn(n_pixels, 12, generator=rng, dtype=F64)).Q
    drawn = torch.randn(12 if inside else n_pixels, 8, generator=rng, dtype=F64)
    basis = torch.linalg.qr(outer_basis @ drawn if inside else drawn).Q
    dictionary = torch.nn.functional.normalize(basis @ torch.randn(8, 3, generator=rng, dtype=F64), dim=0)
    prior = uniform_prior(4, dtype=F64)
    return Parameters(basis, dictionary, frequencies, noise_std, 0.5, prior, Basis(outer_basis, outer_frequencies))


def draw(model, rng, n_images=4):
    codes = torch.rand(n_images, model.n_components, generator=rng, dtype=F64)
    poses = 2 * math.pi * torch.rand(n_images, model.torus_dim, generator=rng, dtype=F64)
    noise = model.noise_std * torch.randn(n_images, model.n_pixels, generator=rng, dtype=F64)
    return reconstruct(model, codes, poses) + noise, codes, poses


class WholeEngine(CompositeEngine):
    """Sums over all fine points of the inner torus in every step: slow, and none is left out."""

    def __init__(self, outer, frequencies):
        super().__init__(outer, frequencies)
        self._points = self._grid(self.n_coarse * self.n_fine)

    def look(self, evidence):
        return self.at(evidence, self._points[None])

    def _next_points(self, sums, _):
        return sums.points

    def _hills(self, sums, n_starts):
        return self._best(sums, n_starts)


def whole_engine(model):
    return WholeEngine(ReferenceEngine(model.outer.frequencies, N_OUTER, dtype=F64), model.frequencies)


def brute_force(model, images, codes, engine):
    """Return all poses of both grids and ln P(I, s | α) there."""
    inner = torus.grid_points(engine.n_coarse * engine.n_fine, engine.inner_dim)
    outer = torus.grid_points(N_OUTER, engine.outer.torus_dim)
    poses = torch.cat((outer.repeat(len(inner), 1), inner.repeat_interleave(len(outer), dim=0)), dim=1)
    cell = (2 * math.pi) ** model.torus_dim / len(poses)
    values = []
    for image, code in zip(images, codes, strict=True):
        rows, alphas = image.expand(len(poses), -1), code.expand(len(poses), -1)
        joint = log_likelihood_given_pose(model, rows, alphas, poses) + log_prior_poses(model, poses)
        values.append(joint + math.log(cell))
    return poses, torch.stack(values)
