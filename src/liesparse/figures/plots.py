"""The pictures of the commands: the demo, growth of time, sheets of images, walks along the torus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from liesparse.figures.sheets import Array, draw_sheet, to_unit_peak


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


class DemoPanels(NamedTuple):
    """What the demo shows; every image is an array of shape (height, width)."""

    templates: Array  # (component, height, width)
    planes: Array  # (column, height, width)
    inputs: Array  # (example, height, width)
    reconstructions: Array
    canonical: Array
    traversals: tuple[Array, ...]  # for each torus axis (example, step, height, width)


def demo_figure(panels: DemoPanels, headline: str) -> Figure:
    """Show templates, planes of W, inference examples, and a traversal along each torus axis."""
    n_axes = len(panels.traversals)
    figure = _figure(12, 7.6)
    figure.suptitle(headline, fontsize=13, x=0.01, ha="left")
    top, middle, bottom = np.asarray(figure.subfigures(3, 1, height_ratios=(2.55, 2.0, 2.3)))

    left, right = top.subplots(1, 2)
    draw_sheet(left, to_unit_peak(panels.templates), 5, "Shapes: the learned dictionary Φ")
    title = f"Group: the first {len(panels.planes)} columns of W, slowest planes first"
    draw_sheet(right, to_unit_peak(panels.planes), 12, title, signed=True)

    triples = np.stack((panels.inputs, panels.reconstructions, panels.canonical))
    rows = to_unit_peak(triples, 1).reshape(-1, *triples.shape[2:])
    title = "Inference on held-out images: the input, its reconstruction T(ŝ)Φα̂, and its shape brought to s = 0"
    labels = ("input", "reconstruction", "canonical")
    draw_sheet(middle.subplots(1, 1), rows, len(panels.inputs), title, row_labels=labels)

    for place, axes in enumerate(bottom.subplots(1, n_axes, squeeze=False)[0]):
        frames = panels.traversals[place]
        frames = frames / np.abs(frames[:, frames.shape[1] // 2, None]).max(axis=(-2, -1), keepdims=True)  # unmoved: 1
        title = f"Traversal of s{'₁₂₃₄₅₆'[place]} from -π to π"
        draw_sheet(axes, frames.reshape(-1, *frames.shape[2:]), frames.shape[1], title)
    return figure


def growth_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Show how the time of a batch grows with each size, all on one pair of logarithmic axes."""
    figure = _figure(6, 4)
    axes = figure.subplots(1, 1)
    for size in dict.fromkeys(row["size"] for row in rows):
        chosen = [row for row in rows if row["size"] == size]
        factors = [row["value"] / chosen[0]["value"] for row in chosen]
        label = f"{size} from {chosen[0]['value']} to {chosen[-1]['value']}"
        label += " (20 points per axis)" if size == "torus_dim" else ""
        axes.loglog(factors, [row["grid_ms"] for row in chosen], marker="o", markersize=4, label=label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=8)
    axes.set_xlabel("size, relative to the smallest")
    axes.set_ylabel("milliseconds per batch")
    axes.set_title("Grid inference as one size grows", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def sheet_figure(images: Array, n_columns: int, title: str) -> Figure:
    """Show images side by side."""
    figure = _figure(10, 0.5 + 10 / n_columns * _height(images, n_columns))
    draw_sheet(figure.subplots(1, 1), to_unit_peak(images), n_columns, title)
    return figure


def _height(images: Array, n_columns: int) -> float:
    """Return the height of a sheet, in widths of an image."""
    return -(-len(images) // n_columns) * images.shape[1] / images.shape[2]


def before_and_after(before: Array, after: Array, *, n_columns: int = 10) -> Figure:
    """Show images above and what became of them below."""
    figure = _figure(8, 1 + 1.6 * _height(before, n_columns))
    titles = ("As they came", "In the same pose")
    for axes, images, title in zip(figure.subplots(2, 1), (before, after), titles, strict=True):
        draw_sheet(axes, to_unit_peak(np.maximum(images, 0)), n_columns, title)
    return figure


def walk_figure(walks: Array, values: Array, axes: Sequence[int]) -> Figure:
    """Show walks (axis, image, step, height, width[, 3]) along torus axes as rows of images."""
    n_steps = walks.shape[2]
    kept = np.unique(np.linspace(0, n_steps - 1, min(n_steps, 13)).round().astype(int))
    figure = _figure(8, 0.4 + 0.75 * walks.shape[0] * walks.shape[1])
    for place, panel in enumerate(figure.subplots(len(walks), 1, squeeze=False)[:, 0]):
        frames = to_unit_peak(np.maximum(walks[place][:, kept], 0))
        title = f"Along axis {axes[place] + 1} from {values[0]:+.2f} to {values[-1]:+.2f} radians"
        draw_sheet(panel, frames.reshape(-1, *frames.shape[2:]), len(kept), title)
    return figure
