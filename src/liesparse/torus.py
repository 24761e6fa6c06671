"""The torus: R(s) as a function on planes, and its trigonometric features.

A plane l carries two coordinates (x, y). Reading them as the complex number x + iy, R(s)
multiplies it by exp(i ω_l·s); the hot loops use that view, the formulas here spell it out.
"""

import math

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

Frequencies = Int[Tensor, "irrep torus"]  # ω
Planes = Float[Tensor, "*#batch irrep 2"]  # two coordinates in each plane
Angles = Float[Tensor, "*#batch irrep"]


def phases(frequencies: Frequencies, poses: Float[Tensor, "*batch torus"]) -> Angles:
    """Return the angles ω_l·s by which R(s) turns each plane [Chau20, eq. 1]."""
    return poses @ frequencies.to(poses).T


def rotate(coords: Planes, angles: Angles) -> Planes:
    """Apply R(s): turn plane l by the angle ω_l·s [Chau20, eq. 1]."""
    return apply_mean_rotation(coords, features(angles))


def apply_mean_rotation(coords: Planes, rotation: Planes) -> Planes:
    """Apply R̄ = E[R(s)], given as (E[cos ω·s], E[sin ω·s]) per plane [Chau20, app. C].

    As a product of complex numbers it is thirty times as fast as (cos x - sin y, sin x + cos y) written out.
    """
    return torch.view_as_real(_as_complex(coords) * _as_complex(rotation))


def _as_complex(planes: Planes) -> Complex[Tensor, "*#batch irrep"]:
    return torch.view_as_complex(planes.contiguous())


def apply_mean_rotation_transposed(coords: Planes, rotation: Planes) -> Planes:
    """Apply R̄ᵀ, the transpose of :func:`apply_mean_rotation` [Chau20, app. C]."""
    return torch.view_as_real(_as_complex(coords) * _as_complex(rotation).conj())


def conjugate(planes: Planes) -> Planes:
    """Mirror planes: (x, y) becomes (x, -y)."""
    return torch.view_as_real(_as_complex(planes).conj().resolve_conj())


def quarter(planes: Planes) -> Planes:
    """Turn planes by a quarter: (x, y) becomes (-y, x), the derivative of a rotation."""
    return torch.stack((-planes[..., 1], planes[..., 0]), dim=-1)


def to_planes(group_basis: Float[Tensor, "pixel column"], images: Float[Tensor, "batch pixel"]) -> Planes:
    """Return WᵀI, one coordinate pair for each plane."""
    return (images @ group_basis).unflatten(-1, (-1, 2))


def features(angles: Angles) -> Planes:
    """Return the sufficient statistics (cos ω_l·s, sin ω_l·s) [Chau20, app. B]."""
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def complex_basis(group_basis: Float[Tensor, "pixel column"]) -> Complex[Tensor, "pixel column"]:
    """Return V = W Uᴴ, whose columns T(s) only multiplies by exp(±iω_l·s) [Chau20, eq. 2 and app. A].

    Columns come in conjugate pairs, one pair for each plane: (w₁ - iw₂)/√2 belongs to +ω_l.
    """
    first, second = group_basis.unflatten(-1, (-1, 2)).unbind(-1)
    plus = torch.complex(first, -second) / math.sqrt(2)
    return torch.stack((plus, plus.conj()), dim=-1).flatten(-2)


def grid_axis(n_grid: int, *, dtype: torch.dtype = torch.float64) -> Float[Tensor, " point"]:
    """Return ``n_grid`` equally spaced angles 0, 2π/N, …, 2π - 2π/N: the quadrature points of one axis."""
    return torch.arange(n_grid, dtype=dtype) * (2 * math.pi / n_grid)


def grid_points(n_grid: int, torus_dim: int, *, dtype: torch.dtype = torch.float64) -> Float[Tensor, "point torus"]:
    """Return all ``n_grid ** torus_dim`` grid points, the last axis running fastest."""
    axis = grid_axis(n_grid, dtype=dtype)
    return torch.cartesian_prod(*[axis] * torus_dim).reshape(-1, torus_dim)


def wrap(angles: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Bring angles into [-π, π]."""
    return torch.remainder(angles + math.pi, 2 * math.pi) - math.pi


def cut_open(angles: Float[Tensor, "image circle"]) -> Float[Tensor, "image circle"]:
    """Return angles as numbers around 0, each circle cut in the middle of its largest gap."""
    turned = angles % (2 * torch.pi)
    ordered = turned.sort(dim=0).values
    gaps = torch.cat((ordered[1:], ordered[:1] + 2 * torch.pi)) - ordered
    cut = (ordered + gaps / 2).gather(0, gaps.argmax(dim=0, keepdim=True))
    opened = (turned - cut) % (2 * torch.pi)
    return opened - opened.mean(dim=0)
