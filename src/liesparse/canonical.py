"""Pictures in the same pose: the originals, moved by the motion that was found, where it is a known one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from liesparse import symmetry
from liesparse._checks import reject
from liesparse.data import ImagesInOrder
from liesparse.data.pictures import move_picture, read_picture
from liesparse.estimators import LieSparseCoder
from liesparse.model import reconstruct
from liesparse.motions import N_FITTED, motion_generators, refine_generators, way_matrices


def picture_names(names: Sequence[str]) -> list[str]:
    """Return names for PNG files: the old ones with a new suffix, or with another one if that would be taken."""
    wanted = [str(PurePosixPath(name).with_suffix(".png")) for name in names]
    counts = Counter([*wanted, "sheet.png"])  # which lies beside them
    return [f"{name}.png" if counts[one] > 1 else one for name, one in zip(names, wanted, strict=True)]


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
