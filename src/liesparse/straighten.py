"""New axes for the pose: the group is the same, but its coordinates fit the torus.

Where the images move within bounds, say by ±7 pixels, the poses fill a parallelogram somewhere on the torus, and
which one is decided by chance early in training. Frequencies are integer in these coordinates, so a slanted or
narrow parallelogram wastes them, and neither gradient steps nor EM leave it. Here a linear map takes it to a square
with sides along the axes, every shape is put into the middle of its own poses, and W and Φ are derived anew from
the poses alone: plane l is the leading component of E[I exp(-iω_l·s)] over the shapes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from liesparse import stiefel, torus
from liesparse.inference import infer_codes, map_poses
from liesparse.model import Parameters, unit_columns
from liesparse.posterior import Engine

FILL = 0.5  # share of each axis that the poses are to fill
BULK = 0.98  # share of the poses that count as within the bounds
CYCLIC = 0.8  # poses that fill so much of an axis may go around it
DOMINANT = 0.8  # an image is of one shape if the largest code has this share of their sum
SINGLE = 0.9  # share of images of one shape that is needed
LEAST_IMAGES = 5  # a shape with fewer stays as it is
N_ANGLES = 45


def straighten(parameters: Parameters, images: Float[Tensor, "image pixel"], engine: Engine) -> Parameters:
    """Return the model in straight coordinates, or unchanged where that makes no sense.

    It makes none if images mix shapes (their common pose has no middle for each of them), or if the poses
    go around the torus (then only integer maps are allowed).
    """
    codes = infer_codes(parameters, images, engine)
    largest, shapes = codes.max(dim=1)
    poses = map_poses(parameters, images, codes, engine)
    offsets, counts = centred(poses, shapes, parameters.n_components)
    mixed = float((largest > DOMINANT * codes.sum(dim=1)).float().mean()) < SINGLE
    if mixed or float((extents(offsets) / math.pi).max()) > CYCLIC:
        return parameters
    straight = square(offsets) * (FILL * math.pi)
    return _derive(parameters, images, largest, shapes, straight, counts)


def centred(
    poses: Float[Tensor, "image torus"], shapes: Int[Tensor, " image"], n_components: int
) -> tuple[Float[Tensor, "image torus"], Int[Tensor, " component"]]:
    """Return each pose relative to the middle of the poses of its shape, and the number of images of each shape."""
    offsets = torch.zeros_like(poses)
    for shape in range(n_components):
        own = shapes == shape
        if bool(own.any()):
            turned = torus.wrap(poses[own] - torch.atan2(poses[own].sin().mean(dim=0), poses[own].cos().mean(dim=0)))
            offsets[own] = torus.wrap(turned - turned.median(dim=0).values)
    return offsets, torch.bincount(shapes, minlength=n_components)


def extents(offsets: Float[Tensor, "image torus"]) -> Float[Tensor, " torus"]:
    """Return how far from the middle the bulk of the poses reaches on each axis."""
    return offsets.abs().quantile(BULK, dim=0)


def square(offsets: Float[Tensor, "image torus"]) -> Float[Tensor, "image torus"]:
    """Map a parallelotope of poses linearly onto the cube with extents 1, sides along the axes.

    Whitening makes it a turned cube. It is turned back one pair of axes after the other, by the angle at which the
    product of the extents is smallest.
    """
    energies, axes = torch.linalg.eigh(offsets.T @ offsets / len(offsets))
    white = offsets @ axes / energies.clamp(min=1e-12).sqrt()
    n = white.shape[1]
    angles = torch.arange(N_ANGLES) * (math.pi / 2 / N_ANGLES)
    for first, second in [(i, j) for _ in range(2 if n > 2 else 1) for i in range(n) for j in range(i + 1, n)]:
        x, y = white[:, first], white[:, second]
        turned = [torch.stack((x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos()), dim=1) for a in angles]
        best = min(turned, key=lambda pair: float(extents(pair).prod()))
        white = white.clone()
        white[:, first], white[:, second] = best.unbind(1)
    return white / extents(white)


def _derive(
    parameters: Parameters,
    images: Float[Tensor, "image pixel"],
    largest: Float[Tensor, " image"],
    shapes: Int[Tensor, " image"],
    poses: Float[Tensor, "image torus"],
    counts: Int[Tensor, " component"],
) -> Parameters:
    """Derive W and Φ from images of one shape each at known poses."""
    n_components = parameters.n_components
    angles = torus.phases(parameters.frequencies, poses)
    weights = torch.nn.functional.one_hot(shapes, n_components).to(images) * largest[:, None]
    weights = weights / counts.clamp(min=1).to(images).sqrt()
    columns, seen = [], list[tuple[int, ...]]()
    for omega, angle in zip(parameters.frequencies.tolist(), angles.unbind(1), strict=True):
        components = _components(images, weights, angle)
        wave = components[:, min(seen.count(tuple(omega)), n_components - 1)]  # repeated ω: the next component
        seen.append(tuple(omega))
        columns.append(torch.stack((wave.real, -wave.imag), dim=1))
    raw = torch.cat(columns, dim=1)
    # A touch of the old basis completes what has no direction of its own, as the second column of ω = 0.
    group_basis = stiefel.polar(raw + 1e-5 * raw.norm() / parameters.group_basis.norm() * parameters.group_basis)
    planes = torus.apply_mean_rotation_transposed(
        (images @ group_basis).unflatten(1, (-1, 2)), torus.features(angles)
    ).flatten(1)
    learned = unit_columns(group_basis @ (planes.T @ weights))
    dictionary = torch.where(counts >= LEAST_IMAGES, learned, parameters.dictionary)
    return replace(parameters, group_basis=group_basis, dictionary=dictionary)


def _components(
    images: Float[Tensor, "image pixel"], weights: Float[Tensor, "image component"], angle: Float[Tensor, " image"]
) -> Complex[Tensor, "pixel component"]:
    """Return the principal components, best first and scaled, of Σ I exp(-iωs) over the shapes."""
    fourier = torch.complex(images.T @ (weights * angle.cos()[:, None]), -(images.T @ (weights * angle.sin()[:, None])))
    _, vectors = torch.linalg.eigh(fourier.mH @ fourier)
    return (fourier @ vectors).flip(1)
