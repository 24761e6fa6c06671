"""Pictures: arrays in, a matplotlib Figure out, as PNG and PDF, or as GIF and MP4; the paper's are in ``paper``."""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from liesparse._checks import reject

FRAME = "#dfe3e8"  # between the images of a sheet
INK = "Greys"  # images: dark ink on white paper
SIGNED = "RdBu_r"  # columns of W: negative blue, positive red
FRAME_SECONDS = 0.08  # of a movie
FRAME_GREY = 223
LEAST_SIZE = 96  # pixels of an image in a movie, on its longer side
N_COLOURS = 200  # of a palette
FEW_COLOURS = 600  # two colour maps and some: at 256 the eye sees no difference

Array = NDArray[np.floating]
Look = Literal["ink", "light", "signed"]  # how grey images are shown: dark where much is, or bright, or in two colours


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


def look_of(images: Array, *, inverted: bool = False) -> Look:
    """Tell how to show images (n, height, width[, 3]): values of both signs; photos, as light; figures, as ink.

    Those that were inverted had been dark on light: they are ink.
    """
    if float(images.min()) < -0.1 * float(images.max()):
        return "signed"
    bright = float(np.median(images)) > 0.1 * float(images.max()) and not inverted
    return "light" if images.ndim > 3 or bright else "ink"


def to_contrast(images: Array, look: Look, n_axes: int = 2) -> Array:
    """Scale each image, of so many axes, to a contrast of its own; an empty ground stays empty.

    Returns ink from 0 to 1, for grey photos less of it where light is; colours as they are, signed values up to ±1.
    """
    axes = tuple(range(images.ndim - n_axes, images.ndim))
    low: Any = 0.0
    if look == "light":
        low = np.maximum(0, np.quantile(images, 0.01, axis=axes, keepdims=True))
    high = (np.abs(images) if look == "signed" else images).max(axis=axes, keepdims=True)
    shown = (images - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    shown = np.clip(shown, -1 if look == "signed" else 0, 1).astype(images.dtype)
    return 1 - shown if look == "light" and n_axes == 2 else shown


def to_unit_peak(images: Array, apart: int | None = 0) -> Array:
    """Scale the largest absolute value to 1, for each place along the axis ``apart`` or for all; blank stays blank."""
    axes = tuple(axis for axis in range(images.ndim) if axis != apart)
    peak = np.abs(images).max(axis=axes, keepdims=True)
    return images / np.maximum(peak, np.finfo(images.dtype).tiny)


def paint(sheet: Array, *, signed: bool = False) -> Array:
    """Return a sheet of colour images as red, green and blue from 0 to 1; a signed 0 is grey, NaN the frame."""
    shown = np.clip((sheet + 1) / 2 if signed else sheet, 0, 1)
    return np.where(np.isnan(sheet), to_rgb(FRAME), shown)


def show_image(
    axes: Axes, image: Array, *, signed: bool = False, frame: str = FRAME, aspect: Literal["equal", "auto"] = "equal"
) -> None:
    """Show values up to 1: ink on paper, in signed colours, or in colours of their own; NaN is the frame."""
    colours = colormaps[SIGNED if signed else INK].with_extremes(bad=frame)
    shown = paint(image, signed=signed) if image.ndim == 3 else image
    axes.imshow(shown, cmap=colours, vmin=-1 if signed else 0, vmax=1, interpolation="nearest", aspect=aspect)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def draw_sheet(
    axes: Axes, images: Array, n_columns: int, title: str, *, signed: bool = False, row_labels: Sequence[str] = ()
) -> None:
    """Draw a mosaic of images with values up to 1, with a title and a label for each row."""
    show_image(axes, mosaic(images, n_columns), signed=signed)
    axes.set_title(title, fontsize=11, loc="left", pad=5)
    row_height = images.shape[1] + 2
    axes.set_yticks([2 + row_height * row + row_height / 2 for row in range(len(row_labels))], row_labels, fontsize=9)
    axes.tick_params(length=0)


def written(write: Callable[..., object], *values: Any, **how: Any) -> bytes:
    """Return what a function writes into a file."""
    buffer = io.BytesIO()
    write(buffer, *values, **how)
    return buffer.getvalue()


def to_png(figure: Figure, *, dpi: int = 150) -> bytes:
    """Render a figure."""
    return written(figure.savefig, format="png", dpi=dpi)


def to_small_png(figure: Figure) -> bytes:
    """Render a figure at its own resolution; one of few colours gets a palette, which halves the file or better."""
    with Image.open(io.BytesIO(to_png(figure, dpi=int(figure.dpi)))) as image:
        plain = image.convert("RGB")
    if plain.getcolors(FEW_COLOURS):
        plain = plain.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    return written(plain.save, format="png", optimize=True, dpi=(figure.dpi, figure.dpi))


def to_pdf(figure: Figure) -> bytes:
    """Render a figure as PDF: text and bars are vectors, and equal figures give equal files."""
    with mpl.rc_context({"pdf.fonttype": 42}):  # TrueType: text stays text, as publishers ask
        return written(figure.savefig, format="pdf", dpi=720, metadata={"CreationDate": None})


def to_picture(pixels: Array, *, signed: bool = False) -> Image.Image:
    """Turn values up to 1 into a picture: ink on paper or signed colours in a palette, or colours; NaN is the frame."""
    if pixels.ndim == 3:
        return Image.fromarray(np.round(255 * paint(pixels, signed=signed)).astype(np.uint8))
    share = np.clip((pixels + 1) / 2 if signed else pixels, 0, 1)
    entries = np.where(np.isnan(pixels), N_COLOURS, np.round(np.nan_to_num(share) * (N_COLOURS - 1)))
    picture = Image.fromarray(entries.astype(np.uint8))
    colours = colormaps[SIGNED if signed else INK](np.linspace(0, 1, N_COLOURS))[:, :3]
    picture.putpalette(np.round(255 * np.vstack((colours, to_rgb(FRAME)))).astype(int).flatten().tolist())
    return picture


def draw_pixels(pixels: Array, *, signed: bool = False) -> bytes:
    """Return an image of values up to 1 as PNG: ink on paper, in signed colours, or in colours of its own."""
    return written(to_picture(pixels, signed=signed).save, "PNG", optimize=True)


def image_bytes(image: NDArray[Any]) -> bytes:
    """Return one image as a PNG, in grey or in colour: bytes as they are, else 255 at the peak and black below 0."""
    pixels = np.atleast_2d(image)
    if pixels.dtype != np.uint8:
        peak = max(float(image.max()), float(np.finfo(np.float32).tiny))
        pixels = np.round(255 * np.clip(pixels / peak, 0, 1)).astype(np.uint8)
    return written(Image.fromarray(pixels).save, format="PNG")


def data_uri(content: bytes) -> str:
    """Return a picture, PNG or GIF, as a data URI."""
    kind = "gif" if content.startswith(b"GIF") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def walk_frames(walks: Array, look: Look = "ink") -> NDArray[np.uint8]:
    """Lay out (axis, image, step, height, width[, 3]) as frames, images in rows, axes in columns; grey is dark ink."""
    zoom = max(1, -(-LEAST_SIZE // max(walks.shape[3:5])))
    shown = to_contrast(walks, look, walks.ndim - 3)
    shown = (shown + 1) / 2 if look == "signed" else shown if walks.ndim == 6 else 1 - shown
    shown = shown.repeat(zoom, axis=3).repeat(zoom, axis=4)
    steps = shown.transpose(2, 1, 0, *range(3, walks.ndim))  # step, image, axis
    frames = np.stack([mosaic(step.reshape(-1, *step.shape[2:]), len(walks), gap=4) for step in steps])
    return np.where(np.isnan(frames), FRAME_GREY, np.round(255 * frames)).astype(np.uint8)


def movie_bytes(walks: Array, suffix: str, look: Look = "ink") -> bytes:
    """Return a looped movie of walks; an open walk goes there and back, a closed one round and round."""
    closed = np.allclose(walks[:, :, 0], walks[:, :, -1], atol=1e-3 * float(np.abs(walks).max()))
    frames = walk_frames(walks, look)
    frames = frames[:-1] if closed else np.concatenate((frames, frames[-2:0:-1]))
    return gif_bytes(map(Image.fromarray, frames)) if suffix == ".gif" else _mp4_bytes(frames)


def gif_bytes(pictures: Iterable[Image.Image]) -> bytes:
    """Return pictures as an endless GIF."""
    first, *rest = pictures
    how: dict[str, Any] = {"duration": round(1000 * FRAME_SECONDS), "loop": 0, "optimize": False}
    return written(first.save, "GIF", save_all=True, append_images=rest, **how)


def _mp4_bytes(frames: NDArray[np.uint8]) -> bytes:
    program = shutil.which("ffmpeg")
    if program is None:
        reject("out", "ffmpeg for .mp4 files", "none installed", "Install ffmpeg, or use .gif.")
    frames = frames[:, : frames.shape[1] // 2 * 2, : frames.shape[2] // 2 * 2]  # its encoder wants even sizes
    height, width = frames.shape[1:3]
    pixels = "rgb24" if frames.ndim == 4 else "gray"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "walk.mp4"
        size = ["-f", "rawvideo", "-pix_fmt", pixels, "-s", f"{width}x{height}", "-r", f"{1 / FRAME_SECONDS:g}"]
        command = [program, "-y", "-loglevel", "error", *size, "-i", "-", "-pix_fmt", "yuv420p", str(target)]
        done = subprocess.run(command, input=frames.tobytes(), capture_output=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            reject("out", "a movie from ffmpeg", lines[-1], "Use .gif instead.")
        return target.read_bytes()


# ---- the pictures of the commands: growth of time, sheets of images, walks along the torus


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure on white, of a size in inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def growth_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Show how the time of a batch grows with each size, all on one pair of logarithmic axes."""
    figure = new_figure(6, 4)
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
    axes.set(xlabel="size, relative to the smallest", ylabel="milliseconds per batch")
    axes.set_title("Grid inference as one size grows", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _sheets(parts: Sequence[tuple[Array, str]], n_columns: int, look: Look, width: float) -> Figure:
    """Show images (n, height, width[, 3]) in rows below each title."""
    heights = [width / n_columns * -(-len(each) // n_columns) * each.shape[1] / each.shape[2] for each, _ in parts]
    figure = new_figure(width, sum(heights) + sum(0.5 + 0.2 * title.count("\n") for _, title in parts))
    panels = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (images, title) in zip(panels, parts, strict=True):
        shown = to_contrast(images, look, images.ndim - 1)
        draw_sheet(axes, shown, n_columns, title, signed=look == "signed")
    return figure


def sheet_figure(images: Array, n_columns: int, title: str) -> Figure:
    """Show images side by side: ink on paper, or light as it is, or in signed colours."""
    lines = "\n".join(textwrap.wrap(title, 110))  # so that it is not cut off
    return _sheets([(images, lines)], n_columns, look_of(images), 10)


def sheet_html(images: Array, n_columns: int) -> str:
    """Return templates side by side as an element of HTML."""
    look = look_of(images)
    shown = mosaic(to_contrast(images, look, images.ndim - 1), min(n_columns, len(images)))
    style = f"image-rendering: pixelated; width: {2 * shown.shape[1]}px; max-width: 100%"
    return f'<img alt="templates" style="{style}" src="{data_uri(draw_pixels(shown, signed=look == "signed"))}">'


def spread(n: int, most: int) -> list[int]:
    """Return so many of n places, from the first to the last: files of one kind lie together."""
    return [place * n // min(n, most) for place in range(min(n, most))]


def before_and_after(
    before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]], uncertain: NDArray[np.bool_], inverted: bool = False
) -> Figure:
    """Show images above and what became of them below, those that the model is not sure of by themselves."""
    parts = []
    for doubted, most, words in ((False, 40, ""), (True, 20, "Uncertain, ")):
        rows = np.flatnonzero(uncertain == doubted)
        chosen = rows[spread(len(rows), most)].tolist()
        for images, title in ((before, "as they came"), (after, "in the same pose")):
            if chosen:
                small = np.stack([_shrink(images[place], before[0].shape[:2]) for place in chosen])
                parts.append((small.astype(np.float32), f"{words}{title}".capitalize()))
    return _sheets(parts, 10, look_of(np.stack(before), inverted=inverted), 8)


def _shrink(image: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an image at most a few times as large as a shape, in that shape's aspect, for a sheet."""
    if image.shape[:2] == shape:
        return image
    small = Image.fromarray(np.asarray(image)).resize((4 * shape[1], 4 * shape[0]), Image.Resampling.BOX)
    return np.asarray(small)


def walk_figure(walks: Array, titles: Sequence[str], look: Look = "ink") -> Figure:
    """Show walks (axis, image, step, height, width[, 3]) along torus axes as rows of images, one title for each."""
    parts = [(walk.reshape(-1, *walk.shape[2:]), title) for walk, title in zip(walks, titles, strict=True)]
    return _sheets(parts, walks.shape[2], look, max(8, 0.55 * walks.shape[2]))
