"""How far known motions carry pictures: matrices that move the places of a picture, and the same in plain words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from liesparse import symmetry, torus
from liesparse.devices import to_cpu
from liesparse.model import Codes, Parameters, Poses, reconstruct
from liesparse.symmetry import Pictures

Generators = Float[Tensor, "torus 3 3"]  # of motions, as matrices that move the places (x, y, 1)
Matrices = Float[Tensor, "batch 3 3"]

N_FITTED = 300  # images from whose reconstructions the motion is named
N_WAYS = 40  # of these, over whose ways to the middle it is measured for the words
LEAST_SEEN = 12  # images of a template, from which it says how far its poses go
LEAST_FIT = 0.75  # share of a picture's change that the known motion must do, or nothing is said
LEAST_SHIFT, LEAST_PART = 0.5, 0.15  # pixels that a motion carries, and share of what the largest one does, to be named
ALL_ROUND = 0.9  # of a full turn
ENDS = (0.02, 0.98)  # quantiles between which the poses of a template count


def motion_generators(fit: symmetry.GroupFit) -> Generators:
    """Return how fast known motions carry the places (x, y, 1) of a picture, from its centre, along each axis."""
    per_axis = []
    for axis in fit.axes:
        x_shift, y_shift, turn, scale, shear, stretch = axis.rates.values()
        per_axis.append([[scale + stretch, turn + shear, x_shift], [shear - turn, scale - stretch, y_shift], [0, 0, 0]])
    return torch.tensor(per_axis).double()


def motion_matrices(generators: Generators, poses: Poses) -> Matrices:
    """Return where they carry the places as the pose goes from 0."""
    return torch.linalg.matrix_exp(torch.einsum("ba,aij->bij", poses.double(), generators))


def way_matrices(generators: Generators, poses: Poses, others: Poses, outer_dim: int = 0) -> Matrices:
    """Return where a picture in its pose has each place of the same picture in another pose, by the shorter way.

    Of two groups, of which the first ``outer_dim`` axes are the outer one's, T₂(s₂) T₁(s₁ - s₁') T₂(-s₂') goes there.
    """
    away = torus.wrap(poses - others)
    inner = motion_matrices(generators[outer_dim:], away[:, outer_dim:])
    if not outer_dim:
        return inner
    outer, there = generators[:outer_dim], others[:, :outer_dim]
    return motion_matrices(outer, there + away[:, :outer_dim]) @ inner @ motion_matrices(outer, -there)


def warp_tensors(pictures: Pictures, matrices: Matrices) -> Pictures:
    """Move each picture so that each place shows what the matrix, which counts from the centre, finds there."""
    height, width = pictures.shape[1:3]
    channels = pictures.reshape(len(pictures), height, width, -1).movedim(3, 1).double()
    down, right = (torch.arange(n).double() - (n - 1) / 2 for n in (height, width))
    places = torch.stack([part.flatten() for part in torch.meshgrid(right, down, indexing="xy")], dim=1)
    there = places @ matrices[:, :2, :2].mT + matrices[:, None, :2, 2]
    grid = (there / places.new_tensor([width / 2, height / 2])).view(len(pictures), height, width, 2)
    how: dict[str, Any] = {"mode": "bicubic", "padding_mode": "border", "align_corners": False}
    return torch.nn.functional.grid_sample(channels, grid, **how).movedim(1, 3).reshape(pictures.shape)


def refine_generators(
    generators: Generators, poses: Poses, middles: Poses, moved: Pictures, middle: Pictures, outer_dim: int = 0
) -> Generators:
    """Return generators that carry pictures as far as the model does: least squares over whole ways.

    The rates of a fit at one place are a few percent off, as differences of pixels are no derivatives; that adds up.
    """
    from scipy.optimize import least_squares  # slow to import

    def left(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        rates = generators.clone()
        rates[:, :2] = torch.from_numpy(numbers).view(-1, 2, 3)
        warped = warp_tensors(moved, way_matrices(rates, poses, middles, outer_dim))
        return (warped - middle.double()).flatten().numpy()

    best, start = generators.clone(), generators[:, :2].flatten().numpy()
    best[:, :2] = torch.from_numpy(least_squares(left, start, method="lm").x).view(-1, 2, 3)
    return best


@torch.no_grad()
def describe_motion(parameters: Parameters, codes: Codes, poses: Poses, image_shape: tuple[int, ...]) -> str:
    """Return in a sentence by which known motions pictures differ, and how far; nothing where it is no known one."""
    largest = symmetry.largest_code(codes)
    counts = torch.bincount(largest[largest >= 0], minlength=codes.shape[1])
    rows = ((largest >= 0) & (counts[largest.clamp(min=0)] >= LEAST_SEEN)).nonzero().flatten()
    if len(image_shape) < 2 or not len(rows):
        return ""
    largest, codes, poses = largest[rows], codes[rows], poses[rows]
    fit = symmetry.fit_motions(parameters, codes[:N_FITTED], poses[:N_FITTED], image_shape)
    middles = symmetry.pose_ranges(codes, poses)[largest, :, 0]
    some = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: 2 * N_WAYS]
    away = to_cpu(torus.wrap(poses - middles)[some].norm(dim=1))
    few, n = some[away.argsort()[: -(-len(some) // 2)]], parameters.outer_dim  # the shorter ways: none round the edge
    seen = [reconstruct(parameters, codes[few], pose[few]).reshape(-1, *image_shape) for pose in (poses, middles)]
    moved, middle = (to_cpu(part) for part in seen)
    ways = (to_cpu(poses[few]), to_cpu(middles[few]))
    generators = refine_generators(to_cpu(motion_generators(fit)), *ways, moved, middle, n)
    left = (warp_tensors(moved, way_matrices(generators, *ways, n)) - middle).flatten(1).square().sum(dim=1)
    changed = (moved - middle).flatten(1).square().sum(dim=1)
    if not float((left - (1 - LEAST_FIT) * changed).median()) < 0:
        return ""
    return motion_words(motion_spans(generators, to_cpu(poses), to_cpu(largest)), image_shape)


def motion_spans(generators: Generators, poses: Poses, templates: Int[Tensor, " batch"]) -> dict[str, float]:
    """Return how far pictures of one template go from their middle to either side, the median over templates.

    Shifts are in pixels, turns in radians, ``width`` and ``height`` in logarithms of size, and ``shear`` and
    ``stretch`` are the parts of these that are no turn and no scaling.
    """
    (a, b, x), (c, d, y) = generators[:, :2].permute(1, 2, 0)
    rates = {"x": x, "y": y, "turn": (b - c) / 2, "shear": (b + c) / 2, "slant": (b - c).abs() / 2 + (b + c).abs() / 2}
    rates |= {"width": a, "height": d, "stretch": (a - d) / 2}
    spans = []
    for template in templates.unique():
        mine = poses[templates == template].double()
        if len(mine) >= LEAST_SEEN:
            along = torus.cut_open(mine) @ torch.stack(list(rates.values()), dim=1)
            low, high = along.quantile(along.new_tensor(ENDS), dim=0)
            whole = (ENDS[1] - ENDS[0]) * (len(mine) - 1) / (len(mine) + 1)  # of the range of even poses, on average
            spans.append((high - low) / (2 * whole))
    return dict(zip(rates, torch.stack(spans).median(dim=0).values.tolist(), strict=True))


def motion_words(spans: dict[str, float], image_shape: tuple[int, ...]) -> str:
    """Say in a sentence how far pictures go, from what :func:`motion_spans` returns."""
    height, width = image_shape[:2]
    radius = (height + width) / 8
    carried = {name: span * (1 if name in "xy" else radius) for name, span in spans.items()}
    least = max(LEAST_SHIFT, LEAST_PART * max(carried.values()))
    named = {name for name, pixels in carried.items() if pixels >= least}
    ways = {"x": "to the left and right", "y": "up and down"}
    shifts = [f"{spans[name]:.{int(spans[name] < 10)}f} pixels {way}" for name, way in ways.items() if name in named]
    words = [f"shifted by up to about {' and '.join(shifts)} (of {width} × {height})"] if shifts else []
    if "shear" in named and carried["turn"] < 2 * carried["shear"]:
        words.append(f"slanted by up to about {math.degrees(math.atan(spans['slant'])):.0f} degrees to either side")
    elif "turn" in named and spans["turn"] >= ALL_ROUND * math.pi:
        words.append("turned all the way round")
    elif "turn" in named:
        words.append(f"turned by up to about {math.degrees(spans['turn']):.0f} degrees to either side")
    sizes = ("width", "height") if "stretch" in named else ("size",)
    spans = spans | {"size": (spans["width"] + spans["height"]) / 2}
    for name in sizes:
        if radius * spans[name] >= least:
            ends = (f"{math.exp(sign * spans[name]):.2f}" for sign in (-1, 1))
            words.append(f"scaled between about {' and '.join(ends)} times their middle {name}")
    return f"Shapes are {', and '.join(words)}." if words else ""
