"""Ten MNIST digits that ship with the package, and their controlled transformations [Chau20, sec. 5].

``digits.npy`` holds the first image of each class of the MNIST training set (indices 1, 3, 5, 7,
2, 0, 13, 15, 17, 4), by Y. LeCun, C. Cortes and C. Burges, licensed CC BY-SA 3.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from liesparse._checks import check_count, check_images, check_real, reject

_CHUNK = 4096  # images warped at a time: bounds the sampling grid in memory
MOST_IMAGES = 10**6  # that are made at once; they are all in memory, 3 GB
Span = tuple[float, float]  # lowest, highest
Shapes = Float[Tensor, "source height width"] | None  # the ten digits unless given


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
    digits = np.load(Path(__file__).with_name("digits.npy"), allow_pickle=False)
    return torch.from_numpy(digits).float() / 255


def translations(
    n_images: int, *, max_shift: float = 7.0, wrap: bool = False, sources: Shapes = None, generator: Generator
) -> TransformedImages:
    """Shift digits by up to ``max_shift`` pixels both ways: the paper's 2D translation set.

    Shifts are uniform, bilinearly interpolated, with zeros from outside, or with what leaves on
    one side entering on the other if ``wrap``. ``factors`` are the shifts to the right and down.
    """
    check_real("max_shift", max_shift, minimum=0)
    check_count("n_images", n_images, maximum=MOST_IMAGES)
    shifts = max_shift * (2 * torch.rand(n_images, 2, generator=generator) - 1)
    factors = {"shift_x": shifts[:, 0], "shift_y": shifts[:, 1]}
    return warp(torch.eye(2).expand(n_images, 2, 2), shifts, factors, sources, wrap=wrap)


def rotations_scalings(
    n_images: int, *, max_degrees: float = 75.0, scales: Span = (0.5, 1.0), sources: Shapes = None, generator: Generator
) -> TransformedImages:
    """Rotate and scale digits about their centre: the paper's rotation + scaling set.

    ``factors`` are the counter-clockwise angle in radians and the natural log of the scale.
    """
    check_real("max_degrees", max_degrees, minimum=0)
    uniform = torch.rand(check_count("n_images", n_images, maximum=MOST_IMAGES), 2, generator=generator)
    angles = math.radians(max_degrees) * (2 * uniform[:, 0] - 1)
    scale = _between("scales", scales, uniform[:, 1])
    # Where an output pixel looks in the source: turned back and scaled back.
    cos, sin = angles.cos() / scale, angles.sin() / scale
    matrices = torch.stack((cos, -sin, sin, cos), dim=1).reshape(-1, 2, 2)
    return warp(matrices, None, {"rotation": angles, "log_scale": scale.log()}, sources)


def translations_rotations(
    n_images: int, *, max_shift: float = 3.0, max_degrees: float = 25.0, sources: Shapes = None, generator: Generator
) -> TransformedImages:
    """Rotate digits about their centre, then shift them: three factors at once, not in the paper.

    ``factors`` are the shifts to the right and down in pixels and the counter-clockwise angle in radians.
    """
    check_real("max_shift", max_shift, minimum=0)
    check_real("max_degrees", max_degrees, minimum=0)
    uniform = 2 * torch.rand(check_count("n_images", n_images, maximum=MOST_IMAGES), 3, generator=generator) - 1
    shifts, angles = max_shift * uniform[:, :2], math.radians(max_degrees) * uniform[:, 2]
    cos, sin = angles.cos(), angles.sin()
    factors = {"shift_x": shifts[:, 0], "shift_y": shifts[:, 1], "rotation": angles}
    return warp(torch.stack((cos, -sin, sin, cos), dim=1).reshape(-1, 2, 2), shifts, factors, sources)


def shears_stretches(
    n_images: int, *, max_shear: float = 0.5, stretches: Span = (0.6, 1.2), sources: Shapes = None, generator: Generator
) -> TransformedImages:
    """Shear digits sideways, then stretch them sideways: not in the paper, and the two do not commute.

    A point that lies ``right`` and ``up`` of the centre goes to ``stretch * (right + shear * up)``, as in italics.
    ``factors`` are the shear and the natural log of the stretch.
    """
    check_real("max_shear", max_shear, minimum=0)
    uniform = torch.rand(check_count("n_images", n_images, maximum=MOST_IMAGES), 2, generator=generator)
    shear = max_shear * (2 * uniform[:, 0] - 1)
    stretch = _between("stretches", stretches, uniform[:, 1])
    # Where an output pixel looks in the source: stretched back, then sheared back.
    matrices = torch.stack((1 / stretch, shear, torch.zeros(n_images), torch.ones(n_images)), dim=1)
    return warp(matrices.reshape(-1, 2, 2), None, {"shear": shear, "log_stretch": stretch.log()}, sources)


def warp(
    matrices: Float[Tensor, "image 2 2"],
    shifts: Float[Tensor, "image 2"] | None,
    factors: Mapping[str, Float[Tensor, " image"]],
    sources: Shapes = None,
    *,
    wrap: bool = False,
) -> TransformedImages:
    """Make one image per matrix: a new transformation needs only matrices, shifts and the factors behind them.

    Output pixel (x right, y down, from the centre) shows the source at ``matrix @ (pixel - shift)``, bilinearly
    interpolated. The sources, the ten digits unless given, take turns. Outside a source all is zero, or its other
    side if ``wrap``.
    """
    sources = embedded_digits() if sources is None else sources
    shifts = torch.zeros(len(matrices), 2) if shifts is None else shifts
    if sources.ndim != 3 or 0 in sources.shape:
        reject("sources", "shape (source, height, width)", str(tuple(sources.shape)), "Stack the images.")
    labels = torch.arange(len(matrices)) % len(sources)
    height, width = sources.shape[1:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    size = torch.tensor([width, height])
    centre = (size - 1) / 2
    targets = torch.stack((columns, rows), dim=-1).reshape(-1, 2) - centre
    images = sources[:, None]
    if wrap:
        images, size = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="circular"), size + 2
    chunks = []
    for matrix, shift, label in zip(matrices.split(_CHUNK), shifts.split(_CHUNK), labels.split(_CHUNK), strict=True):
        places = (targets - shift[:, None]) @ matrix.mT + centre  # (column, row) in the source
        if wrap:
            places = places.remainder(size - 2) + 1  # in the padded source
        grid = (2 * places + 1) / size - 1  # as grid_sample counts with align_corners=False
        sampled = torch.nn.functional.grid_sample(images[label], grid[:, None], align_corners=False)
        chunks.append(sampled.flatten(1))
    truth = torch.stack(tuple(factors.values()), dim=1)
    return TransformedImages(unit_norm(torch.cat(chunks)), labels, truth, tuple(factors))


def _between(argument: str, bounds: Span, uniform: Float[Tensor, " image"]) -> Float[Tensor, " image"]:
    """Bring uniform draws from [0, 1) to the range that was asked for."""
    low, high = (check_real(argument, bound, above=0) for bound in bounds)
    if low > high:
        reject(argument, "(lowest, highest)", str(bounds), "Swap them.")
    return low + (high - low) * uniform
