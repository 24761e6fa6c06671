"""The report's pictures: pixels as PNG and GIF, and a few small plots."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from liesparse.figures import FRAME, INK, SIGNED, mosaic, paint, to_png
from liesparse.movies import gif_bytes
from liesparse.posterior import TorusPosterior

Array = NDArray[np.floating]
N_COLOURS = 200
BLUE = "#2166ac"
FLOOR = 12.0  # nats below the peak at which the map of a posterior is blank
TICKS = ((-math.pi, 0, math.pi), ("-π", "0", "π"))


def _palette(signed: bool) -> list[int]:
    """Return the colours as PIL takes them, the frame's last."""
    colours = colormaps[SIGNED if signed else INK](np.linspace(0, 1, N_COLOURS))[:, :3]
    palette: list[int] = np.round(255 * np.vstack((colours, to_rgb(FRAME)))).astype(int).flatten().tolist()
    return palette


def _indices(pixels: Array, signed: bool) -> NDArray[np.uint8]:
    """Turn values up to 1 into palette entries; NaN is the frame."""
    blank = np.isnan(pixels)
    share = np.clip((pixels + 1) / 2 if signed else pixels, 0, 1)
    return np.where(blank, N_COLOURS, np.round(np.where(blank, 0, share) * (N_COLOURS - 1))).astype(np.uint8)


def _picture(pixels: Array, signed: bool) -> Image.Image:
    if pixels.ndim == 3:
        return Image.fromarray(np.round(255 * paint(pixels, signed=signed)).astype(np.uint8))
    picture = Image.fromarray(_indices(pixels, signed))
    picture.putpalette(_palette(signed))
    return picture


def draw_pixels(pixels: Array, *, signed: bool = False) -> bytes:
    """Return an image of values up to 1 as PNG: ink on paper, in signed colours, or in colours of its own."""
    buffer = io.BytesIO()
    _picture(pixels, signed).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _sheet(images: Array, n_columns: int, width: int) -> Array:
    """Lay images out in rows, each pixel as large as the width allows, the lines between them thin."""
    scale = max(1, width // (n_columns * images.shape[2]))
    return mosaic(images.repeat(scale, axis=1).repeat(scale, axis=2), n_columns, gap=2)


def draw_sheet(images: Array, n_columns: int, *, signed: bool = False) -> bytes:
    """Return images in rows as one PNG, large enough to look at by itself."""
    return draw_pixels(_sheet(images, n_columns, 900), signed=signed)


def draw_loop(frames: Array, *, signed: bool = False) -> bytes:
    """Return frames of shape (frame, image, height, width[, 3]), images side by side, as an endless GIF."""
    return gif_bytes(_picture(_sheet(images, len(images), 480), signed) for images in frames)


def _small_figure(width: float = 3.2, height: float = 2.2) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots(1, 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def draw_curve(values: Sequence[float], label: str, *, from_zero: bool = False) -> bytes:
    """Return how a number went over the epochs."""
    figure, axes = _small_figure()
    axes.plot(range(1, len(values) + 1), values, color=BLUE, marker="o", markersize=3)
    axes.set_title(label, fontsize=10, loc="left")
    axes.set_xlabel("epoch", fontsize=8)
    if from_zero:
        axes.set_ylim(0, 1.1 * max(*values, 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return to_png(figure)


def draw_scatter(truth: Array, prediction: Array, name: str) -> bytes:
    """Return the factor read from the pose against the true one."""
    figure, axes = _small_figure(3.2, 3.0)
    ends = [float(np.nanmin(truth)), float(np.nanmax(truth))]
    axes.plot(ends, ends, color="#b0b7bf", linewidth=1)
    axes.plot(truth, prediction, ".", markersize=3, color=BLUE, alpha=0.6)
    axes.set_title(name, fontsize=10, loc="left", parse_math=False)
    axes.set_xlabel("true", fontsize=8)
    axes.set_ylabel("read from the pose", fontsize=8)
    return to_png(figure)


def draw_posterior(posterior: TorusPosterior) -> bytes:
    """Return P(s | I, α̂) of one image: a curve, a map, or the curve of each coordinate."""
    n = posterior.torus_dim
    figure, axes = _small_figure(2.6, 2.4)
    axes.set_xticks(*TICKS)
    if n == 2:
        density = posterior.density(180)[0].clamp(min=1e-300).log()
        depth = (density - density.max()).clamp(min=-FLOOR).T.numpy()  # s₁ to the right
        axes.imshow(depth, cmap="Blues", extent=(-math.pi, math.pi, -math.pi, math.pi), origin="lower")
        axes.set_yticks(*TICKS)
        axes.set_ylabel("s₂", fontsize=9)
        axes.spines[:].set_visible(True)
    else:
        angles = posterior.axis(180).numpy()
        for axis in range(n):
            density = posterior.density(180)[0] if n == 1 else posterior.marginal(axis, 180)[0]
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
