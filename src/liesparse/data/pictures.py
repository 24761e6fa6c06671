"""Pictures such as PNG and JPEG, from a folder, a zip archive or the bytes of a table."""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from liesparse._checks import reject
from liesparse.data.images import ImageArray, Preprocessing, check_size, first_line

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # none that runs another program
MAX_SOURCE_PIXELS = 50_000_000  # of one picture before it is resized
MAX_FILE_BYTES = 256 * 2**20
MAX_MEMBERS = 1_000_000
MAX_TOTAL_BYTES = 64 * 2**30
MAX_RATIO = 200  # pictures are compressed already: a zip of them hardly shrinks
_RATIO_FROM = 2**20  # bytes; below, the ratio says nothing
_GREY_MODES = ("1", "L", "LA", "La", "I", "F")


def is_picture(name: str) -> bool:
    """Tell by its name whether a file is a picture, and not one that a system hides."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return not hidden and path.suffix.lower() in SUFFIXES


def find_pictures(folder: Path) -> Iterator[Path]:
    """Yield all pictures in a folder and below, in any order."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if is_picture(Path(parent, name).relative_to(folder).as_posix()):
                yield Path(parent, name)


def read_folder(folder: Path, preprocessing: Preprocessing) -> ImageArray:
    """Read all pictures in a folder and below, in the order of their names."""
    paths = sorted(find_pictures(folder))
    return decode_all(((str(path), _read_file(path)) for path in paths), preprocessing, str(folder))


def read_zip(path: Path, preprocessing: Preprocessing) -> ImageArray:
    """Read all pictures in a zip archive, nothing of which is ever written to disk."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
    except Exception as error:  # a damaged directory gives more than BadZipFile
        reject("data", "a zip archive", f"{path} ({first_line(error)})", "Pack it anew.")
    pictures = sorted((info for info in members if is_picture(info.filename)), key=lambda info: info.filename)
    _check_archive(path, len(members), pictures)
    return decode_all(_read_members(path, pictures), preprocessing, str(path))


def decode_all(pictures: Iterable[tuple[str, bytes]], preprocessing: Preprocessing, where: str) -> ImageArray:
    """Decode, grey if need be, and preprocess pictures that come with their names; all must end up equally large."""
    found: list[NDArray[Any]] = []
    sizes: set[tuple[int, ...]] = set()
    n_coloured = 0
    for name, content in pictures:
        pixels, coloured = _decode(content, name, preprocessing.colour)
        sizes.add(pixels.shape[:2])
        shape = check_size(preprocessing.shape(*pixels.shape[:2]), name)
        if found and shape != found[0].shape:
            first = " × ".join(map(str, found[0].shape))
            reject("data", f"images of one size ({first})", f"{shape[0]} × {shape[1]} in {name}", "Pass size=N.")
        found.append(_preprocess(pixels, preprocessing))
        n_coloured += coloured
    if not found:
        fix = f"Pass pictures ({' '.join(SUFFIXES)}); for the idx files of MNIST pass mnist and their folder."
        reject("data", "at least 2 pictures", f"none in {where}", fix)
    greyed = (f"{n_coloured:,} greyed",) if n_coloured and not preprocessing.colour else ()
    changed = [f"{size[0]} × {size[1]}" for size in sizes if size != preprocessing.size]
    before = f"{len(changed)} sizes" if len(changed) > 1 else "".join(changed)
    return ImageArray(found, None, preprocessing.done(), greyed + preprocessing.notes(before))


def _preprocess(pixels: NDArray[Any], preprocessing: Preprocessing) -> NDArray[Any]:
    if preprocessing == preprocessing.done():
        return pixels
    fitted = preprocessing.apply(torch.from_numpy(pixels.astype(np.float32))[None])[0].numpy()
    # Back to bytes, a quarter of the memory, and what a picture of this size would hold.
    return fitted.round().astype(np.uint8) if pixels.dtype == np.uint8 else fitted


def _decode(content: bytes, name: str, colour: bool) -> tuple[NDArray[Any], bool]:
    """Return the pixels, (height, width) or (height, width, 3), and whether the picture had colours."""
    from PIL import Image, UnidentifiedImageError  # only who reads pictures waits for it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata is no concern of ours
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
                size = picture.size
                found = _to_pixels(picture, colour) if size[0] * size[1] <= MAX_SOURCE_PIXELS else None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        found = None
    except Exception as error:  # Pillow raises almost anything for damaged bytes
        unknown = isinstance(error, UnidentifiedImageError)
        detail = "no picture of a known format" if unknown else first_line(error)
        reject("data", "a readable picture", f"{name} ({detail})", "Repair or remove it.")
    if found is None:
        reject("data", f"pictures of at most {MAX_SOURCE_PIXELS:,} pixels", f"more in {name}", "Shrink or remove it.")
    return found


def _to_pixels(picture: Any, colour: bool) -> tuple[NDArray[Any], bool]:
    """Turn as the camera was held, put on white where transparent, and grey unless colours are to be kept."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(picture)
    coloured = picture.mode not in _GREY_MODES and not picture.mode.startswith("I;16")
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        deep = np.asarray(picture).astype(np.float32)
        return np.stack([deep] * 3, axis=-1) if colour else deep, False
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return np.asarray(picture.convert("RGB" if colour else "L")), coloured


def _read_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            reject("data", f"files of at most {MAX_FILE_BYTES // 2**20} MiB", f"a larger {path}", "Remove it.")
        return path.read_bytes()
    except OSError as error:
        reject("data", "a readable picture", f"{path} ({error.strerror})", "Repair or remove it.")


def _read_members(path: Path, members: list[zipfile.ZipInfo]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in members:
            yield f"{info.filename} in {path}", _read_member(path, archive, info)


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(info) as file:
            return file.read(info.file_size)  # the size that was checked, whatever the member really holds
    except Exception as error:  # each compression has errors of its own; a password is a RuntimeError
        got = f"{info.filename} in {path} ({first_line(error)})"
        reject("data", "a readable member", got, "Pack the archive anew, without a password.")


def _check_archive(path: Path, n_members: int, pictures: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that would unpack to far more than it is: a zip bomb."""
    fix = "Unpack it yourself if you trust it, and pass the folder."
    if n_members > MAX_MEMBERS:
        reject("data", f"an archive of at most {MAX_MEMBERS:,} files", f"{n_members:,} in {path}", fix)
    largest = max((info.file_size for info in pictures), default=0)
    if largest > MAX_FILE_BYTES:
        limit, got = MAX_FILE_BYTES // 2**20, largest / 2**20
        reject("data", f"pictures of at most {limit} MiB unpacked", f"one of {got:,.0f} MiB in {path}", fix)
    total = sum(info.file_size for info in pictures)
    if total > MAX_TOTAL_BYTES:
        limit, got = MAX_TOTAL_BYTES // 2**30, total / 2**30
        reject("data", f"an archive of at most {limit} GiB unpacked", f"{got:,.0f} GiB in {path}", fix)
    if total > _RATIO_FROM and total > MAX_RATIO * path.stat().st_size:
        ratio = total / path.stat().st_size
        reject("data", f"an archive that shrank at most {MAX_RATIO}-fold", f"{ratio:,.0f}-fold in {path}", fix)
