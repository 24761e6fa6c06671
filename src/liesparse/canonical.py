"""Pictures in the same pose: the originals, moved by the motion that was found, where it is a known one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from liesparse import symmetry, torus
from liesparse._checks import reject
from liesparse.data import ImagesInOrder
from liesparse.data.pictures import move_picture, read_picture
from liesparse.estimators import LieSparseCoder
from liesparse.model import Poses, reconstruct
from liesparse.symmetry import Pictures

N_FITTED = 300  # images from whose reconstructions the motion is named
TAKEN = ("sheet.png",)


def picture_names(names: Sequence[str]) -> list[str]:
    """Return names for PNG files: the old ones with a new suffix, or with another one if that would be taken."""
    wanted = [str(PurePosixPath(name).with_suffix(".png")) for name in names]
    counts = Counter([*wanted, *TAKEN])
    return [f"{name}.png" if counts[one] > 1 else one for name, one in zip(names, wanted, strict=True)]


def motion_generators(fit: symmetry.GroupFit) -> Float[Tensor, "torus 3 3"]:
    """Return how fast known motions carry the places (x, y, 1) of a picture, from its centre, along each axis."""
    per_axis = []
    for axis in fit.axes:
        x_shift, y_shift, turn, scale, shear, stretch = axis.rates.values()
        per_axis.append([[scale + stretch, turn + shear, x_shift], [shear - turn, scale - stretch, y_shift], [0, 0, 0]])
    return torch.tensor(per_axis).double()


def motion_matrices(generators: Float[Tensor, "torus 3 3"], poses: Poses) -> Float[Tensor, "batch 3 3"]:
    """Return where they carry the places as the pose goes from 0."""
    return torch.linalg.matrix_exp(torch.einsum("ba,aij->bij", poses.double(), generators))


def way_matrices(
    generators: Float[Tensor, "torus 3 3"], poses: Poses, others: Poses, outer_dim: int = 0
) -> Float[Tensor, "batch 3 3"]:
    """Return where a picture in its pose has each place of the same picture in another pose, by the shorter way.

    Of two groups, of which the first ``outer_dim`` axes are the outer one's, T₂(s₂) T₁(s₁ - s₁') T₂(-s₂') goes there.
    """
    away = torus.wrap(poses - others)
    inner = motion_matrices(generators[outer_dim:], away[:, outer_dim:])
    if not outer_dim:
        return inner
    outer, there = generators[:outer_dim], others[:, :outer_dim]
    return motion_matrices(outer, there + away[:, :outer_dim]) @ inner @ motion_matrices(outer, -there)


def refine_generators(
    generators: Float[Tensor, "torus 3 3"],
    poses: Poses,
    middles: Poses,
    moved: Pictures,
    middle: Pictures,
    outer_dim: int = 0,
) -> Float[Tensor, "torus 3 3"]:
    """Return generators that carry pictures as far as the model does: least squares over whole ways.

    The rates of a fit at one place are a few percent off, as differences of pixels are no derivatives; that adds up.
    """
    from scipy.optimize import least_squares  # slow to import

    height, width = moved.shape[1:3]
    channels = [pictures.reshape(len(poses), height, width, -1).movedim(3, 1).double() for pictures in (moved, middle)]
    down, right = (torch.arange(n).double() - (n - 1) / 2 for n in (height, width))
    places = torch.stack([part.flatten() for part in torch.meshgrid(right, down, indexing="xy")], dim=1)
    sides = places.new_tensor([width / 2, height / 2])

    def left(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        rates = generators.clone()
        rates[:, :2] = torch.from_numpy(numbers).view(-1, 2, 3)
        matrices = way_matrices(rates, poses, middles, outer_dim)
        there = places @ matrices[:, :2, :2].mT + matrices[:, None, :2, 2]
        grid = (there / sides).view(len(poses), height, width, 2)
        found = torch.nn.functional.grid_sample(
            channels[0], grid, mode="bicubic", padding_mode="border", align_corners=False
        )
        return (found - channels[1]).flatten().numpy()

    best, start = generators.clone(), generators[:, :2].flatten().numpy()
    best[:, :2] = torch.from_numpy(least_squares(left, start, method="lm").x).view(-1, 2, 3)
    return best


def warp_pictures(
    coder: LieSparseCoder, rows: ImagesInOrder, codes: NDArray[Any], poses: NDArray[Any], middles: NDArray[Any]
) -> list[NDArray[np.uint8]]:
    """Move each picture by the known motion that takes it from its pose to another, the middle one of its template.

    Pictures of a folder come in their own size, others as the model sees them.
    """
    shape, model = coder.image_shape_, coder.model_
    alphas, places = torch.from_numpy(codes).to(model.group_basis), torch.from_numpy(poses).to(model.group_basis)
    fit = symmetry.fit_motions(model, alphas[:N_FITTED], places[:N_FITTED], shape)
    unknown = [axis.name for axis in fit.axes if axis.shares["all linear motions"] < symmetry.CLEAR]
    if unknown:
        expected = "a known motion (shift, rotation, scaling, shear or stretch) along each axis"
        reject("--warp", expected, unknown[0], "Leave --warp away: the model then draws the pictures anew.")
    there = torch.from_numpy(middles).to(places)
    few = slice(0, N_FITTED, 3)
    moved, middle = (reconstruct(model, alphas[few], pose).reshape(-1, *shape) for pose in (places[few], there[few]))
    rough, n = motion_generators(fit), model.outer_dim
    generators = refine_generators(rough, places[few], there[few], moved, middle, n)
    warped, folder = [], Path(rows.name)
    matrices = way_matrices(generators, places, there, n).numpy()
    for row, (name, matrix) in enumerate(zip(rows.names, matrices, strict=True)):
        if folder.is_dir() and (folder / name).is_file():
            pixels = read_picture(folder / name)
            frame = rows.preprocessing.frame(*pixels.shape[:2])
        else:
            image = rows.images[row].reshape(shape).numpy()
            pixels, frame = np.round(255 * np.clip(image / image.max(), 0, 1)).astype(np.uint8), (shape[0], shape[1])
            pixels = 255 - pixels if rows.preprocessing.invert else pixels  # as light and dark came
        warped.append(move_picture(pixels, matrix, shape, frame))
    return warped
