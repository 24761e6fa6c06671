"""Pictures: arrays in, a matplotlib Figure out; nothing is shown or saved here."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

FRAME = "#dfe3e8"  # between the images of a sheet
INK = "Greys"  # images: dark ink on white paper
SIGNED = "RdBu_r"  # columns of W: negative blue, positive red

Array = NDArray[np.floating]


class DemoPanels(NamedTuple):
    """What the demo shows; every image is an array of shape (height, width)."""

    templates: Array  # (component, height, width)
    planes: Array  # (column, height, width)
    inputs: Array  # (example, height, width)
    reconstructions: Array
    canonical: Array
    traversals: tuple[Array, ...]  # for each torus axis (example, step, height, width)


def mosaic(images: Array, n_columns: int, *, gap: int = 2) -> Array:
    """Lay images out in rows, with NaN (drawn as a grey frame) around them."""
    n_rows = -(-len(images) // n_columns)
    height, width = images.shape[1] + gap, images.shape[2] + gap
    sheet = np.full((n_rows * height + gap, n_columns * width + gap), np.nan, dtype=images.dtype)
    for place, image in enumerate(images):
        top, left = gap + place // n_columns * height, gap + place % n_columns * width
        sheet[top : top + height - gap, left : left + width - gap] = image
    return sheet


def to_unit_peak(images: Array, axes: tuple[int, ...] = (-2, -1)) -> Array:
    """Scale images so that the largest absolute value over ``axes`` is 1; blank ones stay blank."""
    peak = np.abs(images).max(axis=axes, keepdims=True)
    return images / np.maximum(peak, np.finfo(images.dtype).tiny)


def draw_sheet(
    axes: Axes, images: Array, n_columns: int, title: str, *, signed: bool = False, row_labels: Sequence[str] = ()
) -> None:
    """Draw a mosaic of images with values up to 1, ink on paper or in signed colours."""
    colours = colormaps[SIGNED if signed else INK].with_extremes(bad=FRAME)
    axes.imshow(mosaic(images, n_columns), cmap=colours, vmin=-1 if signed else 0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=11, loc="left", pad=5)
    axes.set_xticks([])
    row_height = images.shape[1] + 2
    axes.set_yticks([2 + row_height * row + row_height / 2 for row in range(len(row_labels))], row_labels, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def demo_figure(panels: DemoPanels, headline: str) -> Figure:
    """Show templates, planes of W, inference examples, and a traversal along each torus axis."""
    n_axes = len(panels.traversals)
    figure = Figure(figsize=(12, 7.6), layout="constrained", facecolor="white")
    figure.suptitle(headline, fontsize=13, x=0.01, ha="left")
    top, middle, bottom = np.asarray(figure.subfigures(3, 1, height_ratios=(2.55, 2.0, 2.3)))

    left, right = top.subplots(1, 2)
    draw_sheet(left, to_unit_peak(panels.templates), 5, "Shapes: the learned dictionary Φ")
    title = f"Group: the first {len(panels.planes)} columns of W, slowest planes first"
    draw_sheet(right, to_unit_peak(panels.planes), 12, title, signed=True)

    triples = np.stack((panels.inputs, panels.reconstructions, panels.canonical))
    rows = to_unit_peak(triples, (0, -2, -1)).reshape(-1, *triples.shape[2:])
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
    figure = Figure(figsize=(6, 4), layout="constrained", facecolor="white")
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


def to_png(figure: Figure, *, dpi: int = 150) -> bytes:
    """Render a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
