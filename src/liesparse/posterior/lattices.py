"""Evenly spread points on a torus of any dimension: rank-1 lattices, the many-dimensional trapezoidal rule.

The points k·(1, a, a², …)/M mod 1 integrate every wave exactly whose integer vector is not in the dual lattice. Which
a is best depends on how fast the waves of the integrand fall; for a product over the axes it is the least of a sum
over the points themselves.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

SPREAD = 0.75  # scale of the logistic proposal around a mode, in widths of the Gaussian there
NARROW = 0.9  # width of the Gaussian for which the cloud is made
FALL = 9.0  # nats by which waves fall up to the first that M even points can confuse, about M^(1/n) long
N_FINE = 4096  # points from which the waves of the cloud's integrand are read


@cache
def even_points(n_points: int, torus_dim: int) -> Float[Tensor, "point torus"]:
    """Return points in [0, 1)ⁿ that resolve waves of every direction equally well."""
    places = torch.arange(n_points, dtype=torch.float64) / n_points
    reach = n_points ** (1 / torus_dim)
    waves = torch.arange(1, math.ceil(2 * reach) + 1, dtype=torch.float64)
    kernel = 1 + 2 * (torch.exp(-FALL * (waves / reach) ** 2) * torch.cos(2 * torch.pi * places[:, None] * waves)).sum(
        dim=1
    )
    return places[best_lattice(kernel, torus_dim)]


@cache
def cloud_points(n_points: int, torus_dim: int) -> Float[Tensor, "point torus"]:
    """Return places around a mode, in its widths: draws from a logistic density on every axis, symmetric about 0.

    The lattice's point at infinity is left out; its weight is 0.
    """
    places = (torch.arange(n_points, dtype=torch.float64) / n_points + 0.5) % 1
    lattice = best_lattice(_cloud_kernel(n_points), torus_dim)
    lattice = lattice[(lattice != n_points // 2).all(dim=1)]
    return SPREAD * torch.special.logit(places)[lattice]


def best_lattice(kernel: Float[Tensor, " point"], torus_dim: int) -> Int[Tensor, "point torus"]:
    """Return k·(1, a, a², …) mod M for the odd a with the least mean over k of the kernel's product over the axes."""
    n_points = len(kernel)
    steps = torch.arange(n_points)
    least, best = float("inf"), None
    for a in range(1, max(2, n_points // 2), 2):
        powers = [1]
        for _ in range(torus_dim - 1):
            powers.append(powers[-1] * a % n_points)
        lattice = steps[:, None] * torch.tensor(powers) % n_points
        error = float(kernel[lattice].prod(dim=1).mean())
        if error < least:
            least, best = error, lattice
    assert best is not None
    return best


def _cloud_kernel(n_points: int) -> Float[Tensor, " point"]:
    """Return Σ |ĥ_k| cos(2πku) at the lattice's places, where h(u) is a Gaussian over the proposal at quantile u."""
    middles = (torch.arange(N_FINE, dtype=torch.float64) + 0.5) / N_FINE
    quantiles = SPREAD * torch.special.logit(middles)
    ratio = torch.exp(-0.5 * (quantiles / NARROW) ** 2) / (middles * (1 - middles))
    sizes = torch.fft.rfft(ratio).abs()
    sizes = sizes / sizes[0]
    waves = torch.arange(1, 200, dtype=torch.float64)
    places = torch.arange(n_points, dtype=torch.float64) / n_points
    return 1 + 2 * (sizes[1:200] * torch.cos(2 * torch.pi * places[:, None] * waves)).sum(dim=1)
