"""Ten MNIST digits that ship with the package, and their controlled transformations [Chau20, sec. 5].

``digits.npy`` holds the first image of each class of the MNIST training set (indices 1, 3, 5, 7,
2, 0, 13, 15, 17, 4), by Y. LeCun, C. Cortes and C. Burges, licensed CC BY-SA 3.0.
"""

from __future__ import annotations

import math
from importlib import resources
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse._checks import check_count, check_images, check_real, reject

_CHUNK = 4096  # images warped at a time: bounds the sampling grid in memory


class TransformedImages(NamedTuple):
    """Images with the truth that made them.

    ``factors`` holds one column per name in ``factor_names``, ``labels`` the source image.
    """

    images: Float[Tensor, "image pixel"]
    labels: Int[Tensor, " image"]
    factors: Float[Tensor, "image factor"]
    factor_names: tuple[str, ...]


def unit_norm(images: Float[Tensor, "image pixel"]) -> Float[Tensor, "image pixel"]:
    """Divide each image by its L2 norm, the paper's "normalized image"; a blank image is refused."""
    return images / check_images(images).norm(dim=1, keepdim=True)


def embedded_digits() -> Float[Tensor, "digit height width"]:
    """Return the ten embedded 28 × 28 digits 0 to 9 with values in [0, 1]."""
    with resources.files(__package__).joinpath("digits.npy").open("rb") as file:
        return torch.from_numpy(np.load(file, allow_pickle=False)).float() / 255


def translations(
    n_images: int,
    *,
    max_shift: float = 7.0,
    wrap: bool = False,
    sources: Float[Tensor, "source height width"] | None = None,
    generator: torch.Generator,
) -> TransformedImages:
    """Shift digits by up to ``max_shift`` pixels both ways: the paper's 2D translation set.

    Shifts are uniform, bilinearly interpolated, with zeros from outside, or with what leaves on
    one side entering on the other if ``wrap``. ``factors`` are the shifts to the right and down.
    """
    check_real("max_shift", max_shift, minimum=0)
    shifts = max_shift * (2 * torch.rand(check_count("n_images", n_images), 2, generator=generator) - 1)
    matrices = torch.eye(2).expand(n_images, 2, 2)
    images, labels = _warp(sources, matrices, shifts, wrap)
    return TransformedImages(images, labels, shifts, ("shift_x", "shift_y"))


def rotations_scalings(
    n_images: int,
    *,
    max_degrees: float = 75.0,
    scales: tuple[float, float] = (0.5, 1.0),
    sources: Float[Tensor, "source height width"] | None = None,
    generator: torch.Generator,
) -> TransformedImages:
    """Rotate and scale digits about their centre: the paper's rotation + scaling set.

    ``factors`` are the counter-clockwise angle in radians and the natural log of the scale.
    """
    check_real("max_degrees", max_degrees, minimum=0)
    low, high = _check_range("scales", scales)
    uniform = torch.rand(check_count("n_images", n_images), 2, generator=generator)
    angles = math.radians(max_degrees) * (2 * uniform[:, 0] - 1)
    factors = low + (high - low) * uniform[:, 1]
    cos, sin = angles.cos() / factors, angles.sin() / factors
    # Where an output pixel (x right, y down) looks in the source: turned back and scaled back.
    matrices = torch.stack((torch.stack((cos, -sin), dim=-1), torch.stack((sin, cos), dim=-1)), dim=-2)
    images, labels = _warp(sources, matrices, torch.zeros(n_images, 2), wrap=False)
    return TransformedImages(images, labels, torch.stack((angles, factors.log()), dim=1), ("rotation", "log_scale"))


def translations_rotations(
    n_images: int,
    *,
    max_shift: float = 3.0,
    max_degrees: float = 25.0,
    sources: Float[Tensor, "source height width"] | None = None,
    generator: torch.Generator,
) -> TransformedImages:
    """Rotate digits about their centre, then shift them: three factors at once, not in the paper.

    ``factors`` are the shifts to the right and down in pixels and the counter-clockwise angle in radians.
    """
    check_real("max_shift", max_shift, minimum=0)
    check_real("max_degrees", max_degrees, minimum=0)
    uniform = 2 * torch.rand(check_count("n_images", n_images), 3, generator=generator) - 1
    shifts, angles = max_shift * uniform[:, :2], math.radians(max_degrees) * uniform[:, 2]
    cos, sin = angles.cos(), angles.sin()
    matrices = torch.stack((torch.stack((cos, -sin), dim=-1), torch.stack((sin, cos), dim=-1)), dim=-2)
    images, labels = _warp(sources, matrices, shifts, wrap=False)
    return TransformedImages(
        images, labels, torch.cat((shifts, angles[:, None]), dim=1), ("shift_x", "shift_y", "rotation")
    )


def shears_stretches(
    n_images: int,
    *,
    max_shear: float = 0.5,
    stretches: tuple[float, float] = (0.6, 1.2),
    sources: Float[Tensor, "source height width"] | None = None,
    generator: torch.Generator,
) -> TransformedImages:
    """Shear digits sideways, then stretch them sideways: not in the paper, and the two do not commute.

    A point that lies ``right`` and ``up`` of the centre goes to ``stretch * (right + shear * up)``, as in italics.
    ``factors`` are the shear and the natural log of the stretch.
    """
    check_real("max_shear", max_shear, minimum=0)
    low, high = _check_range("stretches", stretches)
    uniform = torch.rand(check_count("n_images", n_images), 2, generator=generator)
    shears = max_shear * (2 * uniform[:, 0] - 1)
    factors = low + (high - low) * uniform[:, 1]
    zeros, ones = torch.zeros(n_images), torch.ones(n_images)
    # Where an output pixel (x right, y down) looks in the source: stretched back, then sheared back.
    matrices = torch.stack((torch.stack((1 / factors, shears), dim=-1), torch.stack((zeros, ones), dim=-1)), dim=-2)
    images, labels = _warp(sources, matrices, torch.zeros(n_images, 2), wrap=False)
    return TransformedImages(images, labels, torch.stack((shears, factors.log()), dim=1), ("shear", "log_stretch"))


def _check_range(argument: str, bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = (check_real(argument, bound, above=0) for bound in bounds)
    if low > high:
        reject(argument, "(lowest, highest)", str(bounds), "Swap them.")
    return low, high


def _warp(
    sources: Float[Tensor, "source height width"] | None,
    matrices: Float[Tensor, "image 2 2"],
    shifts: Float[Tensor, "image 2"],
    wrap: bool,
) -> tuple[Float[Tensor, "image pixel"], Int[Tensor, " image"]]:
    """Sample the sources, in turn, at M(x - shift) about their centre, and normalize."""
    sources = embedded_digits() if sources is None else sources
    if sources.ndim != 3 or 0 in sources.shape:
        reject("sources", "shape (source, height, width)", str(tuple(sources.shape)), "Stack the images.")
    labels = torch.arange(len(matrices)) % len(sources)
    height, width = sources.shape[1:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2])
    targets = torch.stack((columns, rows), dim=-1).reshape(-1, 2) - centre
    chunks = []
    for matrix, shift, label in zip(matrices.split(_CHUNK), shifts.split(_CHUNK), labels.split(_CHUNK), strict=True):
        places = (targets - shift[:, None]) @ matrix.mT + centre
        chunks.append(_sample(sources[label], places, wrap))
    return unit_norm(torch.cat(chunks)), labels


def _sample(
    sources: Float[Tensor, "image height width"], places: Float[Tensor, "image pixel 2"], wrap: bool
) -> Float[Tensor, "image pixel"]:
    """Interpolate bilinearly at ``places`` = (column, row); outside is zero, or the other side if ``wrap``."""
    size = torch.tensor([sources.shape[2], sources.shape[1]])
    if wrap:
        places = places.remainder(size) + 1  # + 1 for the padding below
        sources = torch.nn.functional.pad(sources[:, None], (1, 1, 1, 1), mode="circular")[:, 0]
        size = size + 2
    normalized = (2 * places + 1) / size - 1  # grid_sample's coordinates with align_corners=False
    sampled = torch.nn.functional.grid_sample(
        sources[:, None], normalized[:, None], mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return sampled.flatten(1)
