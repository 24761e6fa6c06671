"""From pixels as a file holds them to unit-norm rows, chunk by chunk: large files are never held twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from liesparse._checks import reject

MAX_PIXELS = 2**20  # of one image as the model sees it
_CHUNK_PIXELS = 2**20  # read at a time
_GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow has it
_SHARE, _MOST = 0.1, 10_000  # held out for the test, unless asked otherwise
MIN_IMAGES = 2


def first_line(error: BaseException) -> str:
    """Return the first line of what another library says, for a message of one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Fit(NamedTuple):
    """What to do with each image: crop to the central square, resize, invert, in this order; perhaps keep colours."""

    size: tuple[int, int] | None = None  # (height, width)
    crop: bool = False
    invert: bool = False
    colour: bool = False


@dataclass(frozen=True)
class RawImages:
    """Images as a source holds them: one array (perhaps memory-mapped), or one array for each image."""

    pixels: NDArray[Any] | list[NDArray[Any]]
    labels: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Images:
    """Images whose blank ones are known, ready to be read as rows.

    ``kept`` holds the places of the images that are not blank, in order.
    """

    raw: RawImages
    fit: Fit
    image_shape: tuple[int, ...]  # (height, width), or (height, width, 3) with colours
    kept: Int[Tensor, " image"]
    notes: tuple[str, ...] = field(default=())

    @property
    def n_blank(self) -> int:
        """Return how many images were skipped."""
        return len(self.raw.pixels) - len(self.kept)

    def rows(self, places: Int[Tensor, " image"]) -> Float[Tensor, "image pixel"]:
        """Read the images at some places as unit-norm float32 rows."""
        found = torch.empty(len(places), math.prod(self.image_shape))
        done = 0
        for chunk in places.split(chunk_size(self.raw.pixels)):
            found[done : done + len(chunk)] = unit_rows(self.raw.pixels, chunk, self.fit)
            done += len(chunk)
        return found

    def labels(self, places: Int[Tensor, " image"]) -> Int[Tensor, " image"] | None:
        """Return the labels at some places, if there are any."""
        if self.raw.labels is None:
            return None
        return torch.from_numpy(np.asarray(self.raw.labels)[places.numpy()].astype(np.int64))


def open_images(raw: RawImages, fit: Fit, where: str, *, least: int = MIN_IMAGES) -> Images:
    """Check the shape, the type and every value, and find the blank images; at least so many must remain."""
    image_shape, notes = check_shape_of(raw.pixels, fit, where)
    chunks = torch.arange(len(raw.pixels)).split(chunk_size(raw.pixels))
    kept = [chunk[is_seen(raw.pixels, chunk, fit, where)] for chunk in chunks]
    found = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.int64)
    if len(found) < least:
        blank = len(raw.pixels) - len(found)
        reject(
            "data",
            f"at least {least} images that are not blank"
            + (", one to learn from and one to test" if least > 1 else ""),
            f"{len(found)} in {where} ({blank} blank)",
            "Pass more images.",
        )
    _check_labels(raw, where)
    return Images(raw, fit, image_shape, found, raw.notes + notes)


def is_seen(
    pixels: NDArray[Any] | list[NDArray[Any]], places: Int[Tensor, " image"], fit: Fit, where: str, begin: int = 0
) -> Bool[Tensor, " image"]:
    """Tell which images are not blank, and refuse what is no number; ``begin`` is the place of the first."""
    peaks = _read(pixels, places, fit).abs().amax(dim=1)
    if not bool(torch.isfinite(peaks).all()):  # NaN survives the maximum
        first = begin + int(places[(~torch.isfinite(peaks)).nonzero()[0, 0]])
        reject(
            "data",
            "finite numbers",
            f"NaN or infinite values in {where}, first in image {first}",
            "Repair or remove it.",
        )
    return peaks > 0


def unit_rows(
    pixels: NDArray[Any] | list[NDArray[Any]], places: Int[Tensor, " image"], fit: Fit
) -> Float[Tensor, "image pixel"]:
    """Return some images that are not blank as rows of norm 1, in double precision."""
    images = _read(pixels, places, fit)
    images /= images.abs().amax(dim=1, keepdim=True)  # first, so that no square over- or underflows
    return images / images.norm(dim=1, keepdim=True)


def hold_out(
    images: Images, n: int | None, n_test: int | None, seed: int
) -> tuple[Int[Tensor, " train"], Int[Tensor, " test"]]:
    """Draw places to learn from and to test, both in the order of the file, which reads fastest."""
    n_kept = len(images.kept)
    n_test = default_n_test(n_kept) if n_test is None else n_test
    n = n_kept - n_test if n is None else n
    if n < 1 or n + n_test > n_kept:
        reject(
            "n + n_test", f"at most {n_kept:,} images, one of them to learn from", f"{n:,} + {n_test:,}", "Ask less."
        )
    order = torch.randperm(n_kept, generator=torch.Generator().manual_seed(seed))
    test, train = order[:n_test].sort().values, order[n_test : n_test + n].sort().values
    return images.kept[train], images.kept[test]


def default_n_test(n_kept: int) -> int:
    """Return how many images are held out, unless asked otherwise."""
    return min(max(int(_SHARE * n_kept), 1), _MOST)


def draw(images: Images, n: int | None, seed: int, argument: str) -> Int[Tensor, " image"]:
    """Draw ``n`` places of a set with a split of its own, or take all."""
    if n is None:
        return images.kept
    if n > len(images.kept):
        reject(argument, f"at most {len(images.kept):,} images", f"{n:,}", "Ask less.")
    order = torch.randperm(len(images.kept), generator=torch.Generator().manual_seed(seed))
    return images.kept[order[:n].sort().values]


def fit_images(images: Float[Tensor, "image height width *colour"], fit: Fit) -> Float[Tensor, "image _ _ *colour"]:
    """Crop, resize (bilinear, antialiased) and invert; inverting takes each image from its own maximum."""
    if fit.crop:
        height, width = images.shape[1:3]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        images = images[:, top : top + side, left : left + side]
    if fit.size is not None and fit.size != tuple(images.shape[1:3]):
        planes = images[:, None] if images.ndim == 3 else images.movedim(3, 1)
        planes = torch.nn.functional.interpolate(planes, fit.size, mode="bilinear", antialias=True)
        images = planes[:, 0] if images.ndim == 3 else planes.movedim(1, 3)
    if fit.invert:
        images = images.amax(dim=tuple(range(1, images.ndim)), keepdim=True) - images
    return images


def fitted_shape(shape: tuple[int, int], fit: Fit) -> tuple[int, ...]:
    """Return the shape that ``fit_images`` gives to an image of some height and width."""
    height, width = fit.size or ((min(shape), min(shape)) if fit.crop else shape)
    return (height, width, 3) if fit.colour else (height, width)


def fit_notes(fit: Fit, sizes: str) -> tuple[str, ...]:
    """Say what ``fit`` did; ``sizes`` tells the size before, or "" if nothing was resized."""
    notes = ["cropped to the central square"] * fit.crop
    if fit.size is not None and sizes:
        notes.append(f"resized from {sizes}")
    return tuple(notes + ["inverted"] * fit.invert)


def check_pixels(image_shape: tuple[int, ...], where: str) -> None:
    """Reject images that no model of this kind can hold."""
    if math.prod(image_shape) > MAX_PIXELS:
        size = f"{' × '.join(map(str, image_shape))} in {where}"
        reject("data", f"images of at most {MAX_PIXELS:,} pixels", size, "Shrink them, such as with size=28.")


def check_shape_of(
    pixels: NDArray[Any] | list[NDArray[Any]], fit: Fit, where: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the shape of the fitted images, and what is to be said of them."""
    shape = (len(pixels), *pixels[0].shape) if isinstance(pixels, list) else pixels.shape
    if not isinstance(pixels, list) and pixels.dtype.kind not in "biuf":
        reject("data", "an array of numbers", f"{pixels.dtype} in {where}", "Save it as uint8 or float32.")
    if not 2 <= len(shape) <= 4 or 0 in shape[1:]:
        expected = "shape (n, height, width), (n, height, width, channels) or (n, pixels)"
        reject("data", expected, f"{shape} in {where}", "Stack the images into one array.")
    if len(shape) == 4 and shape[3] > 4:
        reject("data", "1 to 4 channels on the last axis", f"{shape} in {where}", "Use np.moveaxis(images, 1, -1).")
    if fit.colour and (len(shape) != 4 or shape[3] < 3):
        reject("colour", "shape (n, height, width, 3)", f"{shape} in {where}", "Leave colour=yes away.")
    height, width = _height_width(shape)
    if len(shape) == 2 and height != width and (fit.size or fit.crop):
        reject("size and crop", "images with height and width", f"rows of {width} pixels", "Reshape them first.")
    image_shape = fitted_shape((height, width), fit)
    check_pixels(image_shape, where)
    greyed = ("greyed",) * (len(shape) == 4 and shape[3] > 2 and not fit.colour)
    return image_shape, greyed + fit_notes(fit, f"{height} × {width}" if fit.size != (height, width) else "")


def _check_labels(raw: RawImages, where: str) -> None:
    if raw.labels is None:
        return
    if raw.labels.shape != (len(raw.pixels),) or raw.labels.dtype.kind not in "biu":
        got = f"{raw.labels.dtype} of shape {raw.labels.shape} in {where}"
        reject("labels", f"{len(raw.pixels):,} whole numbers, one for each image", got, "Repair or rename them.")


def _height_width(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) > 2:
        return shape[1], shape[2]
    side = math.isqrt(shape[1])
    return (side, side) if side * side == shape[1] else (1, shape[1])


def chunk_size(pixels: NDArray[Any] | list[NDArray[Any]]) -> int:
    """Return how many images to read at a time."""
    size = math.prod(pixels.shape[1:]) if not isinstance(pixels, list) else pixels[0].size
    return max(1, _CHUNK_PIXELS // max(size, 1))


def _read(
    pixels: NDArray[Any] | list[NDArray[Any]], places: Int[Tensor, " image"], fit: Fit
) -> Float[Tensor, "image pixel"]:
    """Return some images in double precision, greyed or not, and fitted: a chunk is small, and no value overflows."""
    if isinstance(pixels, list):
        chunk = np.stack([pixels[place] for place in places.tolist()]).astype(np.float64)
    else:
        chunk = np.asarray(pixels[places.numpy()]).astype(np.float64)
    if fit.colour:
        chunk = chunk[..., :3]
    elif chunk.ndim == 4:
        # One or two channels are grey and perhaps opacity; three or four colour and perhaps opacity.
        chunk = chunk[..., :3] @ np.array(_GREY) if chunk.shape[3] > 2 else chunk[..., 0]
    colours = (3,) * fit.colour
    images = torch.from_numpy(np.ascontiguousarray(chunk)).reshape(len(chunk), *_height_width(chunk.shape), *colours)
    return fit_images(images, fit).flatten(1)
