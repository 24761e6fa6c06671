"""Sheets of images, from which the pictures are put together, and how a Figure becomes a file."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image  # comes with matplotlib

FRAME = "#dfe3e8"  # between the images of a sheet
INK = "Greys"  # images: dark ink on white paper
SIGNED = "RdBu_r"  # columns of W: negative blue, positive red
FEW_COLOURS = 600  # two colour maps and some: at 256 the eye sees no difference

Array = NDArray[np.floating]


def mosaic(images: Array, n_columns: int, *, gap: int = 2) -> Array:
    """Lay images, of shape (n, height, width) or (n, height, width, 3), out in rows, with NaN for the frame."""
    n_rows = -(-len(images) // n_columns)
    height, width = images.shape[1] + gap, images.shape[2] + gap
    size = (n_rows * height + gap, n_columns * width + gap, *images.shape[3:])
    sheet = np.full(size, np.nan, dtype=images.dtype)
    for place, image in enumerate(images):
        top, left = gap + place // n_columns * height, gap + place % n_columns * width
        sheet[top : top + height - gap, left : left + width - gap] = image
    return sheet


def to_unit_peak(images: Array, apart: int | None = 0) -> Array:
    """Scale so that the largest absolute value is 1, for each place along the axis ``apart``, or for all together.

    Blank images stay blank.
    """
    axes = tuple(axis for axis in range(images.ndim) if axis != apart)
    peak = np.abs(images).max(axis=axes, keepdims=True)
    return images / np.maximum(peak, np.finfo(images.dtype).tiny)


def paint(sheet: Array, *, signed: bool = False) -> Array:
    """Return a sheet of colour images as red, green and blue from 0 to 1; a signed 0 is grey, NaN the frame."""
    shown = np.clip((sheet + 1) / 2 if signed else sheet, 0, 1)
    return np.where(np.isnan(sheet), to_rgb(FRAME), shown)


def draw_sheet(
    axes: Axes, images: Array, n_columns: int, title: str, *, signed: bool = False, row_labels: Sequence[str] = ()
) -> None:
    """Draw a mosaic of images with values up to 1: ink on paper, in signed colours, or in colours of their own."""
    colours = colormaps[SIGNED if signed else INK].with_extremes(bad=FRAME)
    sheet = mosaic(images, n_columns)
    sheet = paint(sheet, signed=signed) if sheet.ndim == 3 else sheet
    axes.imshow(sheet, cmap=colours, vmin=-1 if signed else 0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=11, loc="left", pad=5)
    axes.set_xticks([])
    row_height = images.shape[1] + 2
    axes.set_yticks([2 + row_height * row + row_height / 2 for row in range(len(row_labels))], row_labels, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def to_png(figure: Figure, *, dpi: int = 150) -> bytes:
    """Render a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def to_small_png(figure: Figure) -> bytes:
    """Render a figure at its own resolution; one of few colours gets a palette, which halves the file or better."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(to_png(figure, dpi=int(figure.dpi)))) as image:
        plain = image.convert("RGB")
    if plain.getcolors(FEW_COLOURS):
        plain = plain.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    plain.save(buffer, format="png", optimize=True, dpi=(figure.dpi, figure.dpi))
    return buffer.getvalue()


def to_pdf(figure: Figure, *, dpi: int = 720) -> bytes:
    """Render a figure as PDF: text and bars are vectors, and equal figures give equal files."""
    buffer = io.BytesIO()
    with mpl.rc_context({"pdf.fonttype": 42}):  # TrueType: text stays text, as publishers ask
        figure.savefig(buffer, format="pdf", dpi=dpi, metadata={"CreationDate": None})
    return buffer.getvalue()
