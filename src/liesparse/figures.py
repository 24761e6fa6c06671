"""Pictures: arrays in, a matplotlib Figure out; nothing is shown or saved here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

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
    """Lay images out in rows, with NaN (drawn as paper) between them."""
    n_rows = -(-len(images) // n_columns)
    height, width = images.shape[1] + gap, images.shape[2] + gap
    sheet = np.full((n_rows * height - gap, n_columns * width - gap), np.nan, dtype=images.dtype)
    for place, image in enumerate(images):
        row, column = divmod(place, n_columns)
        sheet[row * height : row * height + height - gap, column * width : column * width + width - gap] = image
    return sheet


def to_unit_peak(images: Array) -> Array:
    """Scale each image so that its largest absolute value is 1."""
    peak = np.abs(images).max(axis=(-2, -1), keepdims=True)
    return images / np.maximum(peak, np.finfo(images.dtype).tiny)


def draw_sheet(axes: Axes, images: Array, n_columns: int, title: str, *, signed: bool = False) -> None:
    """Draw a mosaic of images without ticks, ink on paper or in signed colours."""
    axes.imshow(
        mosaic(to_unit_peak(images), n_columns),
        cmap=SIGNED if signed else INK,
        vmin=-1 if signed else 0,
        vmax=1,
        interpolation="nearest",
    )
    axes.set_title(title, fontsize=11, loc="left", pad=6)
    axes.set_axis_off()


def demo_figure(panels: DemoPanels, headline: str) -> Figure:
    """Show templates, planes of W, inference examples, and a traversal along each torus axis."""
    figure = Figure(figsize=(11, 11.2), layout="constrained", facecolor="white")
    figure.suptitle(headline, fontsize=13, x=0.02, ha="left")
    top, middle, bottom = np.asarray(figure.subfigures(3, 1, height_ratios=(1.9, 1.75, 2.9)))

    left, right = top.subplots(1, 2, width_ratios=(5, 7.1))
    draw_sheet(left, panels.templates, 5, "Shapes: the learned dictionary Φ")
    title = f"Group: the first {len(panels.planes)} columns of W, slowest planes first"
    draw_sheet(right, panels.planes, 12, title, signed=True)

    axes = middle.subplots(1, 1)
    rows = np.concatenate((panels.inputs, panels.reconstructions, panels.canonical))
    draw_sheet(
        axes, rows, len(panels.inputs), "Held-out images: the input, its reconstruction T(ŝ)Φα̂, and its shape at s = 0"
    )

    for place, (axes, frames) in enumerate(
        zip(bottom.subplots(1, len(panels.traversals), squeeze=False)[0], panels.traversals, strict=True)
    ):
        n_steps = frames.shape[1]
        title = f"Traversal of s{'₁₂₃₄₅₆'[place]} from -π to π"
        draw_sheet(axes, frames.reshape(-1, *frames.shape[2:]), n_steps, title)
    return figure
