"""A page whose panels are placed in inches from its upper left corner, so that images keep their shape.

Panels begin on whole dots: an image of two dots for each pixel is then drawn without blur.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text


class Page:
    """A figure of a given width; its height is what the panels need."""

    def __init__(self, width: float, margin: float, dpi: int) -> None:
        self.width, self.margin, self.dpi = math.ceil(width * dpi) / dpi, margin, dpi
        self.figure = Figure(figsize=(width, width), dpi=dpi, facecolor="white")
        self._panels: list[tuple[Axes, float, float, float, float]] = []
        self._lines: list[tuple[Text, float, float]] = []

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Return new axes at a place."""
        axes = self.figure.add_axes((0, 0, 1, 1), label=str(len(self._panels)))
        left, top = round(left * self.dpi) / self.dpi, round(top * self.dpi) / self.dpi
        self._panels.append((axes, left, top, width, height))
        return axes

    def write(self, words: str, left: float, baseline: float, size: int, align: str, colour: str) -> None:
        """Write one line."""
        line = self.figure.text(0, 0, words, fontsize=size, ha=align, va="baseline", color=colour)
        self._lines.append((line, left, baseline))

    def finish(self) -> Figure:
        """Give everything its place on a page that ends below the last panel."""
        needed = max(top + tall for _, _, top, _, tall in self._panels) + self.margin
        height = math.ceil(needed * self.dpi) / self.dpi
        self.figure.set_size_inches(self.width, height)
        for axes, left, top, wide, tall in self._panels:
            axes.set_position((left / self.width, 1 - (top + tall) / height, wide / self.width, tall / height))
        for line, left, baseline in self._lines:
            line.set_position((left / self.width, 1 - baseline / height))
        return self.figure


class Place(NamedTuple):
    """Where the next panel of a column goes."""

    page: Page
    left: float
    top: float
    width: float

    def axes(self, left: float, width: float, height: float) -> Axes:
        """Return axes that begin here, ``left`` inches to the right."""
        return self.page.axes(self.left + left, self.top, width, height)

    def write(self, words: str, size: int, *, left: float = 0.0, align: str = "left", colour: str = "black") -> None:
        """Write a line that stands here."""
        self.page.write(words, self.left + left, self.top, size, align, colour)

    def down(self, inches: float) -> Place:
        """Return the place so many inches below."""
        return self._replace(top=self.top + inches)
