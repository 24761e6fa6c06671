"""Pictures of what a model does with images: before and after, and walks along the torus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from liesparse.figures.sheets import Array, draw_sheet, to_unit_peak


def sheet_figure(images: Array, n_columns: int, title: str) -> Figure:
    """Show images side by side."""
    rows = -(-len(images) // n_columns)
    shape = images.shape[1] / images.shape[2]
    figure = Figure(figsize=(10, 0.5 + 10 / n_columns * rows * shape), layout="constrained", facecolor="white")
    draw_sheet(figure.subplots(1, 1), to_unit_peak(images), n_columns, title)
    return figure


def before_and_after(before: Array, after: Array, *, n_columns: int = 10) -> Figure:
    """Show images above and what became of them below."""
    rows = -(-len(before) // n_columns)
    shape = before.shape[1] / before.shape[2]
    figure = Figure(figsize=(8, 1 + 1.6 * rows * shape), layout="constrained", facecolor="white")
    top, bottom = figure.subplots(2, 1)
    draw_sheet(top, to_unit_peak(np.maximum(before, 0)), n_columns, "As they came")
    draw_sheet(bottom, to_unit_peak(np.maximum(after, 0)), n_columns, "In the same pose")
    return figure


def walk_figure(walks: Array, values: Array, axes: Sequence[int]) -> Figure:
    """Show walks (axis, image, step, height, width[, 3]) along torus axes as rows of images."""
    n_steps = walks.shape[2]
    kept = np.unique(np.linspace(0, n_steps - 1, min(n_steps, 13)).round().astype(int))
    figure = Figure(figsize=(8, 0.4 + 0.75 * walks.shape[0] * walks.shape[1]), layout="constrained", facecolor="white")
    for place, panel in enumerate(figure.subplots(len(walks), 1, squeeze=False)[:, 0]):
        frames = to_unit_peak(np.maximum(walks[place][:, kept], 0))
        title = f"Along axis {axes[place] + 1} from {values[0]:+.2f} to {values[-1]:+.2f} radians"
        draw_sheet(panel, frames.reshape(-1, *frames.shape[2:]), len(kept), title)
    return figure
