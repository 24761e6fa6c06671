"""From pixels as a file holds them to unit-norm rows, chunk by chunk: large files are never held twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from liesparse._checks import reject

MAX_PIXELS = 2**20  # of one image as the model sees it
_CHUNK_PIXELS = 2**20  # read at a time
_GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow has it
FITS = {
    "crop": "cropped to keep the aspect (fit=pad keeps all of it)",
    "pad": "padded by the colour of their edge to keep the aspect",
    "stretch": "stretched",
}
CHOICES = {"fit": tuple(FITS), "ground": ("keep", "subtract")}  # of the parameters that are words
_SHARE, _MOST = 0.1, 10_000  # held out for the test, unless asked otherwise
Pixels = NDArray[Any] | list[NDArray[Any]]  # one array (perhaps memory-mapped), or one array for each image
Numbers = NDArray[np.int64]


class Preprocessing(NamedTuple):
    """What to do with each image: crop to the central square, resize, invert, subtract the ground; keep colours."""

    size: tuple[int, int] | None = None  # (height, width)
    fit: str = "crop"  # what to do where that has another aspect: crop, pad or stretch
    crop: bool = False
    invert: bool = False
    colour: bool = False
    ground: str = "keep"  # or subtract: the median of the edge is taken from each image

    def shape(self, height: int, width: int, where: str) -> tuple[int, ...]:
        """Return the shape that an image of some height and width ends up with, if a model can hold it."""
        side = min(height, width)
        height, width = self.size or ((side, side) if self.crop else (height, width))
        shape = (height, width, 3) if self.colour else (height, width)
        if math.prod(shape) > MAX_PIXELS:
            size = f"{' × '.join(map(str, shape))} in {where}"
            reject("data", f"images of at most {MAX_PIXELS:,} pixels", size, "Shrink them, such as with size=28.")
        return shape

    def apply(self, images: Float[Tensor, "image height width *colour"]) -> Float[Tensor, "image _ _ *colour"]:
        """Crop, resize (bilinear, antialiased) and invert; inverting takes each image from its own maximum."""
        tall, wide = self.frame(*images.shape[1:3])
        images = reframe(images, tall, wide)
        planes = images[:, None] if images.ndim == 3 else images.movedim(3, 1)
        if self.size is not None and self.size != (tall, wide):
            planes = torch.nn.functional.interpolate(planes, self.size, mode="bilinear", antialias=True)
        images = planes[:, 0] if images.ndim == 3 else planes.movedim(1, 3)
        if self.invert:
            images = images.amax(dim=tuple(range(1, images.ndim)), keepdim=True) - images
        return images if self.ground == "keep" else images - edge_colour(images)[:, None, None]

    def frame(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width about the middle of an image that the model sees: a part of it, or more."""
        if self.crop:
            height = width = min(height, width)
        if self.size is None or self.fit == "stretch":
            return height, width
        scale = (min if self.fit == "crop" else max)(height / self.size[0], width / self.size[1])
        return max(1, round(scale * self.size[0])), max(1, round(scale * self.size[1]))

    def notes(self, sizes: Collection[tuple[int, int]]) -> tuple[str, ...]:
        """Say what was done with images of such heights and widths."""
        notes = ["cropped to the central square"] * self.crop
        changed = [size for size in sizes if self.size not in (None, size)]
        if changed:
            aspects = {(width * self.size[0] == height * self.size[1]) for height, width in changed if self.size}
            how = "" if aspects == {True} or self.crop else f", {FITS[self.fit]}"
            before = f"{len(changed)} sizes" if len(changed) > 1 else f"{changed[0][0]} × {changed[0][1]}"
            notes.append(f"resized from {before}{how}")
        return tuple(notes + ["inverted"] * self.invert + ["without their ground"] * (self.ground == "subtract"))

    def done(self) -> Preprocessing:
        """Return what is left to do once all of this was done."""
        return Preprocessing(colour=self.colour)


def reframe(images: Tensor, tall: int, wide: int) -> Tensor:
    """Cut images (image, height, width, …) about their middle, or add to them the median colour of their edge."""
    height, width = images.shape[1:3]
    if (tall, wide) == (height, width):
        return images
    found = edge_colour(images)[:, None, None].repeat(1, tall, wide, *[1] * (images.ndim - 3))
    top, left = (tall - height) // 2, (wide - width) // 2  # negative where the image is cut
    seen = images[:, max(0, -top) : max(0, -top) + tall, max(0, -left) : max(0, -left) + wide]
    found[:, max(0, top) : max(0, top) + seen.shape[1], max(0, left) : max(0, left) + seen.shape[2]] = seen
    return found


def edge_pixels(images: Tensor) -> Tensor:
    """Return the pixels at the edge of images (image, height, width, …), as (image, pixel, …)."""
    return torch.cat((images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]), dim=1)


def edge_colour(images: Tensor) -> Tensor:
    """Return the median of the edge of each image: its ground, where it has an even one."""
    return edge_pixels(images).median(dim=1).values


class ImageArray(NamedTuple):
    """Images as a file holds them, not yet checked, and what is left to do with them."""

    pixels: Pixels
    labels: NDArray[Any] | None = None
    preprocessing: Preprocessing = Preprocessing()
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # of pictures: the path of each, from the folder or archive
    label_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageSet:
    """Images that were checked, numbered without the blank ones, ready to be read as rows."""

    name: str
    array: ImageArray
    image_shape: tuple[int, ...]  # (height, width), or (height, width, 3) with colours
    places: Numbers  # in the file, of the images that are not blank, in order
    n_blank: int  # in the file
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    def rows(self) -> Float[Tensor, "image pixel"]:
        """Read the images as unit-norm float32 rows."""
        found, pixels = torch.empty(len(self), math.prod(self.image_shape)), self.array.pixels
        step = chunk_size(pixels[0].shape)
        for begin in range(0, len(self), step):
            places = self.places[begin : begin + step]
            images = [pixels[place] for place in places] if isinstance(pixels, list) else pixels[places]
            found[begin : begin + step] = unit_rows(images, self.array.preprocessing).float()
        return found

    def labels(self) -> Int[Tensor, " image"] | None:
        """Return the labels, if there are any."""
        if self.array.labels is None:
            return None
        return torch.from_numpy(np.asarray(self.array.labels)[self.places].astype(np.int64))

    def names(self) -> tuple[str, ...]:
        """Return the file of each image, or its number where one file holds all of them."""
        width = len(str(len(self.array.pixels)))
        return tuple(self.array.files[place] if self.array.files else f"{place:0{width}d}" for place in self.places)

    def draw(self, counts: Sequence[int], seed: int) -> list[ImageSet]:
        """Draw so many images for each part, each in the order of the file, which reads fastest."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).numpy()
        parts = np.split(order, np.cumsum(counts))[:-1]
        return [replace(self, places=self.places[np.sort(part)]) for part in parts]


def count_parts(n_images: int, n: int | None, n_test: int | None) -> tuple[int, int]:
    """Return how many images to learn from and to test, unless asked otherwise a tenth, and at most all others."""
    n_test = min(max(int(_SHARE * n_images), 1), _MOST) if n_test is None else n_test
    n = n_images - n_test if n is None else n
    if n < 1 or n + n_test > n_images:
        expected = f"at most {n_images:,} images, one of them to learn from"
        reject("n + n_test", expected, f"{n:,} + {n_test:,}", "Ask less.")
    return n, n_test


def check_array(array: ImageArray, where: str, *, least: int = 2) -> ImageSet:
    """Check the shape, the type and every value, and find the blank images; at least so many must remain."""
    pixels, labels = array.pixels, array.labels
    image_shape, notes = check_pixels(pixels, array.preprocessing, where)
    shape = np.shape(pixels[:1])[1:]
    seen = find_seen(lambda begin, end: pixels[begin:end], len(pixels), shape, array.preprocessing, where)
    places = np.flatnonzero(seen)
    found = ImageSet(where, array, image_shape, places, len(seen) - len(places), array.notes + notes)
    if len(found) < least:
        both = ", one to learn from and one to test" if least > 1 else ""
        got = f"{len(found)} in {where} ({found.n_blank} blank)"
        reject("data", f"at least {least} images that are not blank{both}", got, "Pass more images.")
    if labels is not None and (labels.shape != (len(pixels),) or labels.dtype.kind not in "biu"):
        got = f"{labels.dtype} of shape {labels.shape} in {where}"
        reject("labels", f"{len(pixels):,} whole numbers, one for each image", got, "Repair or rename them.")
    return found


def check_pixels(pixels: Pixels, preprocessing: Preprocessing, where: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the shape of the images as the model sees them, and what is to be said of them."""
    shape = (len(pixels), *np.shape(pixels[0])) if isinstance(pixels, list) and pixels else np.shape(pixels)
    if not isinstance(pixels, list) and pixels.dtype.kind not in "biuf":
        reject("data", "an array of numbers", f"{pixels.dtype} in {where}", "Save it as uint8 or float32.")
    if not 2 <= len(shape) <= 4 or 0 in shape[1:]:
        expected = "shape (n, height, width), (n, height, width, channels) or (n, pixels)"
        reject("data", expected, f"{shape} in {where}", "Stack the images into one array.")
    if len(shape) == 4 and shape[3] > 4:
        reject("data", "1 to 4 channels on the last axis", f"{shape} in {where}", "Use np.moveaxis(images, 1, -1).")
    if preprocessing.colour and (len(shape) != 4 or shape[3] < 3):
        reject("colour", "shape (n, height, width, 3)", f"{shape} in {where}", "Leave colour=yes away.")
    height, width = height_width(shape)
    if len(shape) == 2 and height != width and (preprocessing.size or preprocessing.crop):
        reject("size and crop", "images with height and width", f"rows of {width} pixels", "Reshape them first.")
    greyed = ("greyed",) * (len(shape) == 4 and shape[3] > 2 and not preprocessing.colour)
    return preprocessing.shape(height, width, where), greyed + preprocessing.notes([(height, width)])


def find_seen(
    read: Callable[[int, int], Pixels], n_images: int, shape: tuple[int, ...], preprocessing: Preprocessing, where: str
) -> NDArray[np.bool_]:
    """Tell which images are not blank, and refuse what is no number; ``read`` takes the first place and the end."""
    seen, step = np.zeros(n_images, dtype=bool), chunk_size(shape)
    for begin in range(0, n_images, step):
        peaks = _to_rows(read(begin, begin + step), preprocessing).abs().amax(dim=1).numpy()
        if not np.isfinite(peaks).all():  # NaN survives the maximum
            got = f"NaN or infinite values in {where}, first in image {begin + np.isfinite(peaks).argmin()}"
            reject("data", "finite numbers", got, "Repair or remove it.")
        seen[begin : begin + step] = peaks > 0
    return seen


def unit_rows(images: Pixels, preprocessing: Preprocessing) -> Float[Tensor, "image pixel"]:
    """Return some images that are not blank as rows of norm 1, in double precision."""
    rows = _to_rows(images, preprocessing)
    rows /= rows.abs().amax(dim=1, keepdim=True)  # first, so that no square over- or underflows
    return rows / rows.norm(dim=1, keepdim=True)


def chunk_size(shape: tuple[int, ...]) -> int:
    """Return how many images of some shape to read at a time."""
    return max(1, _CHUNK_PIXELS // max(math.prod(shape), 1))


def height_width(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the height and width of images in an array of some shape; a row is a square if it can be."""
    if len(shape) > 2:
        return shape[1], shape[2]
    side = math.isqrt(shape[1])
    return (side, side) if side * side == shape[1] else (1, shape[1])


def _to_rows(images: Pixels, preprocessing: Preprocessing) -> Float[Tensor, "image pixel"]:
    """Return images in double precision, greyed or not, and preprocessed: a chunk is small, and no value overflows."""
    chunk = np.array(images, dtype=np.float64)
    if preprocessing.colour:
        chunk = chunk[..., :3]
    elif chunk.ndim == 4:
        # One or two channels are grey and perhaps opacity; three or four colour and perhaps opacity.
        chunk = chunk[..., :3] @ np.array(_GREY) if chunk.shape[3] > 2 else chunk[..., 0]
    shape = (len(chunk), *height_width(chunk.shape), *(3,) * preprocessing.colour)
    return preprocessing.apply(torch.from_numpy(np.ascontiguousarray(chunk)).reshape(shape)).flatten(1)
