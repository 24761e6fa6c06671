"""What the report is put together from: the page with its blanks filled, numbers as text, pictures as PNG and GIF."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from liesparse._checks import count
from liesparse.figures import Array, data_uri, draw_pixels, gif_bytes, mosaic, new_figure, to_picture, to_png
from liesparse.posterior import AnyPosterior, TorusPosterior

BLUE = "#2166ac"
FLOOR = 12.0  # nats below the peak at which the map of a posterior is blank
TICKS = ((-math.pi, 0, math.pi), ("-π", "0", "π"))


def render(room: str = "report", /, **values: object) -> str:
    """Return the page of a room with its blanks filled, all values escaped; every page has the report's style."""
    loader = ChoiceLoader([PackageLoader("liesparse", each) for each in (room, "report")])
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    filters = (percent, number, direction, data_uri, subscript, count, math.degrees)
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template("page.html").render(values)


def percent(share: float) -> str:
    """Return a share as one reads it: 97 %, 0.4 %, 99.96 %; 100 % only for all."""
    if not math.isfinite(share):
        return "–"
    digits = next((digits for digits in (0, 1, 2) if abs(share - 1) >= 10.0 ** -(2 + digits)), 0)
    if 0.0005 <= share < 0.0995:
        digits = 1
    return f"{100 * share:.{digits}f} %"


def number(value: float, digits: int = 3) -> str:
    """Return a number with as many digits as one reads."""
    if not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def direction(values: Sequence[float]) -> str:
    """Return a direction on the torus."""
    return f"({', '.join(f'{value:+.2f}' for value in values)})"


# ---- pictures


def _sheet(images: Array, n_columns: int, width: int) -> Array:
    """Lay images out in rows, each pixel as large as the width allows, the lines between them thin."""
    scale = max(1, width // (n_columns * images.shape[2]))
    return mosaic(images.repeat(scale, axis=1).repeat(scale, axis=2), n_columns, gap=2)


def draw_sheet(images: Array, n_columns: int, *, signed: bool = False) -> bytes:
    """Return images in rows as one PNG, large enough to look at by itself."""
    return draw_pixels(_sheet(images, n_columns, 900), signed=signed)


def draw_loop(frames: Array, *, signed: bool = False) -> bytes:
    """Return frames of shape (frame, image, height, width[, 3]), images side by side, as an endless GIF."""
    return gif_bytes(to_picture(_sheet(images, len(images), 480), signed=signed) for images in frames)


def _small_figure(width: float, height: float, title: str = "", x: str = "", y: str = "") -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    axes = figure.subplots(1, 1)
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def draw_curve(values: Sequence[float], label: str, *, from_zero: bool = False) -> bytes:
    """Return how a number went over the epochs."""
    figure, axes = _small_figure(3.2, 2.2, label, "epoch")
    axes.plot(range(1, len(values) + 1), values, color=BLUE, marker="o", markersize=3)
    if from_zero:
        axes.set_ylim(0, 1.1 * max(*values, 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return to_png(figure)


def draw_scatter(truth: Array, prediction: Array, name: str) -> bytes:
    """Return the factor read from the pose against the true one."""
    figure, axes = _small_figure(3.2, 3.0, name, "true", "read from the pose")
    ends = [float(np.nanmin(truth)), float(np.nanmax(truth))]
    axes.plot(ends, ends, color="#b0b7bf", linewidth=1)
    axes.plot(truth, prediction, ".", markersize=3, color=BLUE, alpha=0.6)
    return to_png(figure)


def draw_lattice(frequencies: NDArray[np.integer], energies: Array) -> bytes:
    """Return which frequencies carry the energy: dots with its area, of the first two axes, or bars of one."""
    if frequencies.shape[1] == 1:
        figure, axes = _small_figure(4.2, 2.4, "", "ω", "share of the energy")
        axes.bar(np.arange(frequencies.max() + 1), np.bincount(frequencies[:, 0], energies), color=BLUE)
        return to_png(figure)
    figure, axes = _small_figure(4.2, 3.6, "", "ω₁", "ω₂")
    first, second = frequencies.T[:2]
    axes.plot(first, second, ".", color="#b0b7bf", markersize=2)
    axes.scatter(first, second, s=600 * energies / max(float(energies.sum()), 1e-12), color=BLUE, alpha=0.6)
    axes.set_aspect("equal")
    return to_png(figure)


def draw_posterior(posterior: AnyPosterior) -> bytes:
    """Return P(s | I, α̂) of one image: a curve, a map, or the curve of each coordinate."""
    n = posterior.torus_dim
    figure, axes = _small_figure(2.6, 2.4)
    axes.set_xticks(*TICKS)
    if n == 2 and isinstance(posterior, TorusPosterior):
        density = posterior.density(180)[0].clamp(min=1e-300).log()
        depth = (density - density.max()).clamp(min=-FLOOR).T.numpy()  # s₁ to the right
        axes.imshow(depth, cmap="Blues", extent=(-math.pi, math.pi, -math.pi, math.pi), origin="lower")
        axes.set_yticks(*TICKS)
        axes.set_ylabel("s₂", fontsize=9)
        axes.spines[:].set_visible(True)
    else:
        angles = posterior.axis(180).numpy()
        for axis in range(n):
            density = posterior.marginal(axis, 180)[0]
            axes.plot(angles, density.numpy(), linewidth=1.2, label=f"s{subscript(axis)}", color=None if axis else BLUE)
        axes.set_yticks([])
        axes.set_ylim(bottom=0)
        if n > 1:
            axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("s₁" if n <= 2 else "s", fontsize=9)
    return to_png(figure, dpi=110)


def subscript(axis: int) -> str:
    """Return the number of an axis, counted from 1, as a subscript."""
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(axis + 1))
