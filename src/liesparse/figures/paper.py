"""The paper's figures 1 to 4 [Chau20, sec. 5], at the width they are printed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from liesparse.figures import FRAME, Array, mosaic, show_image, to_unit_peak

HEAT = "magma"  # densities: perceptually uniform
BAR = "#35506b"
EDGE = "#aab2bd"
AXIS_COLOURS = ("#e08214", "#1b9e77")  # traversals of s₁ and s₂: orange and green, as in the paper

HEAD, BODY, SMALL = 9, 8, 7  # points; nothing printed is smaller
TEXT_WIDTH = 5.5  # inches, of the paper's page
# Widths at which a PNG has two dots for each pixel: of ten digits with frames, and of eleven.
SHEET_WIDTH, SHEET_DPI = 604 / 360, 360
HALF_WIDTH, HALF_DPI = 664 / 256, 256
MARGIN, LINE, AIR, CELL_GAP = 0.05, 0.05, 0.2, 0.07
BETWEEN = TEXT_WIDTH - 2 * HALF_WIDTH - 2 * MARGIN


class Page:
    """A figure of a given width; its height is what the panels need.

    Panels are placed in inches from the upper left corner, so that images keep their shape. They begin on whole dots:
    an image of two dots for each pixel is then drawn without blur.
    """

    def __init__(self, width: float, dpi: int) -> None:
        self.width, self.dpi = math.ceil(width * dpi) / dpi, dpi
        self.figure = Figure(figsize=(width, width), dpi=dpi, facecolor="white")
        self.panels: list[tuple[Axes, float, float, float, float]] = []  # with left, top, width and height
        self.lines: list[tuple[Text, float, float]] = []  # with left and baseline

    def finish(self) -> Figure:
        """Give everything its place on a page that ends below the last panel."""
        needed = max(top + tall for _, _, top, _, tall in self.panels) + MARGIN
        height = math.ceil(needed * self.dpi) / self.dpi
        self.figure.set_size_inches(self.width, height)
        for axes, left, top, wide, tall in self.panels:
            axes.set_position((left / self.width, 1 - (top + tall) / height, wide / self.width, tall / height))
        for line, left, baseline in self.lines:
            line.set_position((left / self.width, 1 - baseline / height))
        return self.figure


class Place(NamedTuple):
    """Where the next panel of a column goes."""

    page: Page
    left: float
    top: float
    width: float

    def axes(self, left: float, width: float, height: float) -> Axes:
        """Return new axes that begin here, ``left`` inches to the right."""
        page, dpi = self.page, self.page.dpi
        axes = page.figure.add_axes((0, 0, 1, 1), label=str(len(page.panels)))
        page.panels.append((axes, round((self.left + left) * dpi) / dpi, round(self.top * dpi) / dpi, width, height))
        return axes

    def write(self, words: str, size: int, *, left: float = 0.0, align: str = "left", colour: str = "black") -> None:
        """Write a line that stands here."""
        line = self.page.figure.text(0, 0, words, fontsize=size, ha=align, va="baseline", color=colour)
        self.page.lines.append((line, self.left + left, self.top))

    def down(self, inches: float) -> Place:
        """Return the place so many inches below."""
        return self._replace(top=self.top + inches)


class ModelPanels(NamedTuple):
    """The dictionary of a model, and what it infers from a few images; no ``densities`` where there is no pose."""

    templates: Array  # (component, height, width)
    inputs: Array  # (example, height, width)
    codes: Array  # (example, component)
    densities: Array | None  # (example, s₁, s₂), both from -π
    reconstructions: Array  # (example, height, width)


class RowPanels(NamedTuple):
    """What the figures show of one data set and its model."""

    title: str
    samples: Array  # (image, height, width)
    columns: Array  # of W, slowest first: (column, height, width)
    model: ModelPanels
    traversals: tuple[Array, ...]  # for each torus axis (example, step, height, width)
    span: tuple[float, float]  # of the traversals, in radians


def sheets_figure(sheets: Mapping[str, Array], *, signed: bool) -> Figure:
    """Put one sheet for each data set beside each other, ten images wide: examples in figure 1, W in figure 2."""
    between = (TEXT_WIDTH - 2 * MARGIN - 3 * SHEET_WIDTH) / 2
    page = Page(2 * MARGIN + len(sheets) * (SHEET_WIDTH + between) - between, SHEET_DPI)
    for number, (title, images) in enumerate(sheets.items()):
        place = Place(page, MARGIN + number * (SHEET_WIDTH + between), MARGIN + 0.1, SHEET_WIDTH)
        place.write(title, BODY)
        _draw_sheet(place.down(LINE), to_unit_peak(images), 10, signed=signed)
    return page.finish()


def results_figure(rows: Sequence[RowPanels]) -> Figure:
    """Show inference, dictionary and traversals of each data set, side by side: figure 3."""
    page = Page(2 * MARGIN + len(rows) * (HALF_WIDTH + BETWEEN) - BETWEEN, HALF_DPI)
    for number, row in enumerate(rows):
        place = _draw_model(page, number, row.title, row.model)
        for axis in range(len(row.traversals)):
            place = _draw_traversal(place.down(AIR), row, axis)
    return page.finish()


def comparison_figure(row: RowPanels, plain: ModelPanels) -> Figure:
    """Show the full model on the left, plain sparse coding of the same images on the right: figure 4."""
    page = Page(TEXT_WIDTH, HALF_DPI)
    places = [
        _draw_model(page, 0, f"{row.title}: Lie Group Sparse Coding", row.model),
        _draw_model(page, 1, f"{row.title}: plain sparse coding", plain),
    ]
    below = max(place.top for place in places) + AIR
    for axis in range(len(row.traversals)):
        _draw_traversal(places[axis % 2]._replace(top=below), row, axis)
    return page.finish()


def _draw_model(page: Page, number: int, title: str, panels: ModelPanels) -> Place:
    """Draw inference and dictionary of a model in one of the columns of a page."""
    place = Place(page, MARGIN + number * (HALF_WIDTH + BETWEEN), MARGIN + 0.1, HALF_WIDTH)
    place.write(title, HEAD)
    place = _draw_inference(place.down(AIR), panels).down(AIR)
    place.write(rf"dictionary $\Phi$, templates $k = 1$ to ${len(panels.templates)}$", BODY)
    return _draw_sheet(place.down(LINE), to_unit_peak(panels.templates), 5)


def _draw_sheet(place: Place, images: Array, n_columns: int, *, signed: bool = False, frame: str = FRAME) -> Place:
    """Draw images with values up to 1 over the whole width."""
    sheet = mosaic(images, n_columns)
    height = place.width * sheet.shape[0] / sheet.shape[1]
    show_image(place.axes(0, place.width, height), sheet, signed=signed, frame=frame, aspect="auto")
    return place.down(height)


def _draw_inference(place: Place, panels: ModelPanels) -> Place:
    """Draw one line for each example: input, codes as bars, the posterior of the pose if there is one, output."""
    side = (place.width - 3 * CELL_GAP) / 4
    names = [r"input $\mathbf{I}$", r"codes $\hat{\alpha}$", r"output $\hat{\mathbf{I}}$"]
    widths = [side, 2 * side + CELL_GAP, side]
    if panels.densities is not None:
        names.insert(2, r"$P(\mathbf{s}\,|\,\mathbf{I},\hat{\alpha})$")
        widths = [side] * 4
    starts = [sum(widths[:number]) + number * CELL_GAP for number in range(len(widths))]
    for name, start, width in zip(names, starts, widths, strict=True):
        place.write(name, BODY, left=start + width / 2, align="center")
    place = place.down(LINE)
    pairs = to_unit_peak(np.stack((panels.inputs, panels.reconstructions)), 1)  # one scale for both
    n_codes, highest = panels.codes.shape[1], max(1.0, float(panels.codes.max()))
    for example in range(len(panels.inputs)):
        cells = [place.axes(start, width, side) for start, width in zip(starts, widths, strict=True)]
        show_image(cells[0], pairs[0, example], aspect="auto")
        cells[1].axhline(1, color=EDGE, linewidth=0.6, linestyle=(0, (2, 2)))
        cells[1].bar(np.arange(1, n_codes + 1), panels.codes[example], width=0.8, color=BAR)
        cells[1].set(xticks=[], yticks=[], xlim=(0.3, n_codes + 0.7), ylim=(0, 1.08 * highest))
        if panels.densities is not None:
            _draw_density(cells[2], panels.densities[example])
        show_image(cells[-1], pairs[1, example], aspect="auto")
        for axes in cells:
            axes.spines[:].set(visible=True, color=EDGE, linewidth=0.6)
        place = place.down(side + CELL_GAP)
    _label(cells[1], (1, n_codes), ("1", "$k$", str(n_codes)))
    if panels.densities is not None:
        _label(cells[2], (-math.pi, math.pi), (r"$-\pi$", "$s_1$", r"$\pi$"))
    return place.down(0.12 - CELL_GAP)  # the labels


def _label(axes: Axes, ends: tuple[float, float], words: tuple[str, str, str]) -> None:
    """Write below the axes where they begin, what they show, and where they end."""
    axes.set_xticks([ends[0], sum(ends) / 2, ends[1]], words, fontsize=SMALL)
    axes.tick_params(length=0, pad=2)
    first, _, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")  # inside, so that neighbours do not touch
    last.set_horizontalalignment("right")


def _draw_density(axes: Axes, density: Array) -> None:
    """Draw P(s), each on its own scale from 0 to its peak; s₁ runs to the right and s₂ upwards."""
    step = 2 * math.pi / len(density)
    low, high = -math.pi - step / 2, math.pi - step / 2  # the first pixel is centred on -π
    box = (low, high, low, high)
    axes.imshow(density.T, cmap=HEAT, vmin=0, origin="lower", extent=box, aspect="auto", interpolation="nearest")
    s1, s2 = (step * place - math.pi for place in np.unravel_index(density.argmax(), density.shape))
    axes.scatter([s1], [s2], s=36, facecolor="none", edgecolor="white", linewidth=0.5)  # a sharp peak is but a dot
    axes.set(xticks=[], yticks=[], xlim=(low, high), ylim=(low, high))


def _draw_traversal(place: Place, row: RowPanels, axis: int) -> Place:
    frames, colour = row.traversals[axis], AXIS_COLOURS[axis % len(AXIS_COLOURS)]
    low, high = ({-math.pi: r"-\pi", math.pi: r"\pi"}.get(end, f"{end:g}") for end in row.span)
    place.write(rf"$T(\mathbf{{s}})\,\mathbf{{I}}$ with $s_{axis + 1}$ from ${low}$ to ${high}$", BODY, colour=colour)
    unmoved = int(np.abs(np.linspace(*row.span, frames.shape[1])).argmin())
    frames = frames / np.abs(frames[:, unmoved, None]).max(axis=(-2, -1), keepdims=True)
    return _draw_sheet(place.down(LINE), frames.reshape(-1, *frames.shape[2:]), frames.shape[1], frame=colour)
