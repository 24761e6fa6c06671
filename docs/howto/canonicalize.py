"""Canonicalise a data set: bring every image to the same pose, without ever having been told what a pose is."""

from __future__ import annotations

from pathlib import Path

import common
import numpy as np
import torch
from matplotlib.figure import Figure

from liesparse.figures import draw_sheet, to_unit_peak


def spread(images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of the images' energy that differs from the mean image of their digit."""
    apart = [images[labels == label] - images[labels == label].mean(dim=0) for label in labels.unique()]
    return float(torch.cat(apart).square().sum() / images.square().sum())


def main(out: Path, *, n_images: int = 20_000, n_epochs: int = 10, n_test: int = 1000) -> None:
    """Learn from some images, bring others to s = 0, and compare."""
    train, test = common.shifted_digits(n_images, seed=0), common.shifted_digits(n_test, seed=1)
    coder = common.learn(train.images, n_epochs=n_epochs)
    images = test.images.reshape(-1, common.SIDE, common.SIDE)
    canonical = coder.canonicalize(images)
    before, after = spread(images, test.labels), spread(canonical, test.labels)
    print(f"Energy that is not the digit's mean image: {before:.1%} before, {after:.1%} after.")

    rows = [[0, 10, 20], [3, 13, 23], [5, 15, 25], [8, 18, 28]]
    chosen = [place for row in rows for place in row]
    figure = Figure(figsize=(8, 4.4), layout="constrained", facecolor="white")
    panels = figure.subplots(2, 2)
    for column, (title, shown) in enumerate((("As they came", images), ("Brought to s = 0", canonical))):
        sheet = to_unit_peak(np.maximum(shown[chosen].numpy(), 0))
        draw_sheet(panels[0, column], sheet, 6, title)
        means = torch.stack([shown[test.labels == label].mean(dim=0) for label in range(10)])
        draw_sheet(panels[1, column], to_unit_peak(np.maximum(means.numpy(), 0)), 5, "Mean image of each digit")
    common.save_picture(figure, out / "howto-canonicalize.png")


if __name__ == "__main__":
    main(common.output_folder(__doc__))
