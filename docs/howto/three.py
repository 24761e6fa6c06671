"""More than two transformations at once: digits that are shifted both ways and turned."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import common
import torch
from matplotlib.figure import Figure

from liesparse import LieSparseCoder, embedded_digits, translations_rotations
from liesparse.data import TransformedImages
from liesparse.figures import draw_sheet, to_unit_peak
from liesparse.metrics import active_codes
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
    told = ", ".join(f"{fit.correlation:.3f} with {NAMES[fit.name]}" for fit in fits)
    quality = f"held-out SNR {float((1 / error).mean()):.1f} with {active_codes(codes):.1f} active codes"
    print(f"torus_dim = {torus_dim}, seed {seed}: {quality}; correlations {told}.")
    return Outcome(coder, codes, poses, fits)


def main(
    out: Path, *, n_images: int = 20_000, n_epochs: int = 6, n_test: int = 1000, seeds: tuple[int, ...] = (0, 1)
) -> None:
    """Learn with two and with three dimensions from the same images, for each seed, and draw the last."""
    for seed in seeds:
        train, test = moved_digits(n_images, 10 + seed), moved_digits(n_test, 20 + seed)
        outcomes = {torus_dim: learn(torus_dim, train, test, n_epochs, seed) for torus_dim in (2, 3)}
    common.save_picture(draw(outcomes, test), out / "howto-three.png")


def draw(outcomes: dict[int, Outcome], test: TransformedImages) -> Figure:
    """Show a walk along the direction of each factor, and the factor as the pose tells it."""
    figure = Figure(figsize=(10, 5.4), layout="constrained", facecolor="white")
    top, bottom = figure.subplots(2, 3, height_ratios=(1, 1.3))
    coder, codes, poses, fits = outcomes[3]
    some = [2, 4, 7]
    for column, fit in enumerate(fits):
        reach = float(test.factors[:, column].abs().max())
        steps = torch.linspace(-reach, reach, 7)[:, None] * torch.tensor(fit.direction, dtype=poses.dtype)
        frames = [coder.inverse_transform(codes[some], poses[some] + step).clamp(min=0) for step in steps]
        sheet = torch.stack(frames, dim=1).flatten(0, 1).numpy()
        draw_sheet(top[column], to_unit_peak(sheet), len(steps), f"A walk along {NAMES[fit.name]}")
        for torus_dim, outcome in outcomes.items():
            told = predict_factors(outcome.codes, outcome.poses, test.factors.double())
            label = f"torus_dim = {torus_dim}"
            bottom[column].plot(test.factors[:, column], told[:, column], ".", ms=2, c=COLOURS[torus_dim], label=label)
        bottom[column].set(xlabel=f"true {NAMES[fit.name]}, {UNITS[fit.name]}")
    bottom[0].set(ylabel="as a linear function of the pose")
    bottom[0].legend(markerscale=4, frameon=False)
    return figure


if __name__ == "__main__":
    main(common.output_folder(__doc__))
