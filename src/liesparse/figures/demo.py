"""The demo's picture."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from liesparse.figures.sheets import Array, draw_sheet, to_unit_peak


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
    figure = Figure(figsize=(12, 7.6), layout="constrained", facecolor="white")
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
