"""More than two transformations at once: digits that are shifted both ways and turned."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import common
import numpy as np
import torch
from matplotlib.figure import Figure

from liesparse import LieSparseCoder, embedded_digits, translations_rotations
from liesparse.data import TransformedImages
from liesparse.figures import draw_sheet
from liesparse.symmetry import FactorFit, fit_factors, predict_factors

NAMES = {"shift_x": "shift to the right", "shift_y": "shift down", "rotation": "rotation"}
UNITS = {"shift_x": "pixels", "shift_y": "pixels", "rotation": "radians"}
COLOURS = {2: "0.65", 3: "tab:blue"}


class Outcome(NamedTuple):
    """What a torus of one dimension led to."""

    coder: LieSparseCoder
    codes: torch.Tensor
    poses: torch.Tensor
    fits: tuple[FactorFit, ...]


def moved_digits(n_images: int, seed: int) -> TransformedImages:
    """Return half-size digits, turned by up to 25 degrees and shifted by up to 1.5 pixels, with the truth."""
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]
    generator = torch.Generator().manual_seed(seed)
    return translations_rotations(n_images, max_shift=1.5, max_degrees=25, sources=shapes, generator=generator)


def learn(torus_dim: int, train: TransformedImages, test: TransformedImages, n_epochs: int, seed: int) -> Outcome:
    """Learn ten shapes and a group of ``torus_dim`` dimensions, and compare its poses with the truth."""
    coder = LieSparseCoder(
        10,
        torus_dim=torus_dim,
        n_epochs=n_epochs,
        settings={"learning.batch_size": 50, "learning.single_shape_epochs": min(3, n_epochs // 2)},
        random_state=seed,
    )
    coder.fit(train.images.reshape(-1, common.SIDE, common.SIDE))
    images = test.images.reshape(-1, common.SIDE, common.SIDE)
    codes, poses = coder.infer(images)
    error = (coder.inverse_transform(codes, poses) - images).flatten(1).square().sum(dim=1)
    fits = fit_factors(codes, poses, test.factors, test.factor_names)
    told = ", ".join(f"{fit.correlation:.2f} with {NAMES[fit.name]}" for fit in fits)
    print(f"torus_dim = {torus_dim}, seed {seed}: held-out SNR {float((1 / error).mean()):.1f}; the pose correlates {told}.")
    return Outcome(coder, codes, poses, fits)


def main(
    out: Path, *, n_images: int = 20_000, n_epochs: int = 8, n_test: int = 1000, seeds: tuple[int, ...] = (0, 1)
) -> None:
    """Learn with two and with three dimensions from the same images, for each seed, and draw the first."""
    outcomes = {}
    for seed in seeds:
        train, test = moved_digits(n_images, 10 + seed), moved_digits(n_test, 20 + seed)
        for torus_dim in (2, 3):
            outcomes.setdefault(torus_dim, (learn(torus_dim, train, test, n_epochs, seed), test))
            if seed != seeds[0]:
                learn(torus_dim, train, test, n_epochs, seed)
    common.save_picture(draw({n: outcome for n, (outcome, _) in outcomes.items()}, moved_digits(n_test, 20 + seeds[0])), out / "howto-three.png")


if __name__ == "__main__":
    main(common.output_folder(__doc__))
