"""Pictures such as PNG and JPEG, from a folder, a zip archive or the bytes of a table."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Never

import numpy as np
import torch
from numpy.typing import NDArray

from liesparse._checks import listed, refusing, reject
from liesparse.data.images import ImageArray, Preprocessing, edge_colour, reframe

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # none that runs another program
MAX_SOURCE_PIXELS = 50_000_000  # of one picture before it is resized
MAX_FILE_BYTES = 256 * 2**20
MAX_MEMBERS = 1_000_000
MAX_OTHERS = 50_000  # files in a folder that are no pictures
MAX_TOTAL_BYTES = 64 * 2**30
MAX_RATIO = 200  # pictures are compressed already: a zip of them hardly shrinks
_RATIO_FROM = 2**20  # bytes; below, the ratio says nothing
_STRIP = 2**20  # pixels of a large picture that are converted at a time
_GREY_MODES = ("1", "L", "LA", "La")


def find_pictures(folder: Path) -> Iterator[Path]:
    """Return all pictures in a folder and below, in any order; a whole disk is none."""
    n_others = 0
    for path in folder.rglob("*"):
        if _is_picture(path.relative_to(folder)) and not path.is_dir():
            yield path
        else:
            n_others += 1
        if n_others > MAX_OTHERS:
            got = f"more than {MAX_OTHERS:,} other files in {folder}"
            reject("data", "a folder of pictures", got, "Pass a folder further down.")


def _is_picture(path: PurePath) -> bool:
    """Tell by its name whether a file is a picture, and not one that a system hides."""
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return not hidden and path.suffix.lower() in SUFFIXES


def read_pictures(path: Path, preprocessing: Preprocessing) -> ImageArray:
    """Read all pictures in a folder and below, or in a zip archive, in the order of their names.

    Where all of them lie in sub-folders, two or more of them, the sub-folders are their labels.
    """
    files: list[str] = []
    found = decode_all((_from_folder if path.is_dir() else _from_zip)(path, files), preprocessing, str(path))
    parents = [PurePosixPath(file).parent for file in files]
    folders = sorted(set(parents))
    if len(folders) < 2 or PurePosixPath() in folders or len(files) < 2 * len(folders):
        return found._replace(files=tuple(files))
    names = [folder.name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    labels = np.array([folders.index(parent) for parent in parents])
    return found._replace(files=tuple(files), labels=labels, label_names=tuple(names))


def _from_folder(folder: Path, files: list[str]) -> Iterator[tuple[str, bytes]]:
    for path in sorted(find_pictures(folder)):
        with refusing("a readable picture", path, "Repair or remove it.", OSError):
            if not path.is_file():  # a device or a pipe may have no end
                reject("data", "a folder of plain files", f"{path}, which is none", "Remove it.")
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                reject("data", f"files of at most {MAX_FILE_BYTES // 2**20} MiB", f"a larger {path}", "Remove it.")
        files.append(path.relative_to(folder).as_posix())
        yield str(path), content


def _from_zip(path: Path, files: list[str]) -> Iterator[tuple[str, bytes]]:
    """Read pictures in memory: nothing of an archive is ever written to disk."""
    with refusing("a zip archive", path, "Pack it anew."):  # a damaged directory gives more than BadZipFile
        archive = zipfile.ZipFile(path)
    with archive:
        members = [info for info in archive.infolist() if not info.filename.endswith("/")]
        pictures = [info for info in members if _is_picture(PurePosixPath(info.filename))]
        pictures.sort(key=lambda info: info.filename)
        _check_archive(path, len(members), [info.file_size for info in pictures])
        for info in pictures:
            name = f"{info.filename} in {path}"
            # Each compression has errors of its own; a password is a RuntimeError.
            fix = "Pack the archive anew, without a password."
            with refusing("a readable member", name, fix), archive.open(info) as file:
                content = file.read(info.file_size)  # the size that was checked, whatever the member really holds
            files.append(info.filename)
            yield name, content


def _check_archive(path: Path, n_members: int, sizes: list[int]) -> None:
    """Refuse an archive that would unpack to far more than it is: a zip bomb."""
    largest, total, packed = max(sizes, default=0), sum(sizes), path.stat().st_size
    mib, gib, much = MAX_FILE_BYTES // 2**20, MAX_TOTAL_BYTES // 2**30, max(_RATIO_FROM, MAX_RATIO * packed)
    for exceeded, expected, got in (
        (n_members > MAX_MEMBERS, f"an archive of at most {MAX_MEMBERS:,} files", f"{n_members:,}"),
        (largest > MAX_FILE_BYTES, f"pictures of at most {mib} MiB unpacked", f"one of {largest / 2**20:,.0f} MiB"),
        (total > MAX_TOTAL_BYTES, f"an archive of at most {gib} GiB unpacked", f"{total / 2**30:,.0f} GiB"),
        (total > much, f"an archive that shrank at most {MAX_RATIO}-fold", f"{total / packed:,.0f}-fold"),
    ):
        if exceeded:
            reject("data", expected, f"{got} in {path}", "Unpack it yourself if you trust it, and pass the folder.")


def move_picture(
    pixels: NDArray[Any], matrix: NDArray[np.floating], shape: tuple[int, ...], frame: tuple[int, int]
) -> NDArray[Any]:
    """Show a picture so that each place p, from its centre, shows what was at ``matrix @ p``; beyond, its edge colour.

    The matrix counts in pixels of images of some ``shape``, which show this ``frame`` of the picture.
    """
    from PIL import Image

    height, width = pixels.shape[:2]
    size, centre = np.diag([frame[1] / shape[1], frame[0] / shape[0], 1]), np.eye(3)
    centre[:2, 2] = width / 2, height / 2
    whole = centre @ size @ matrix @ np.linalg.inv(size) @ np.linalg.inv(centre)
    fill: Any = edge_colour(torch.tensor(pixels[None]))[0].tolist()  # a number, or one for each colour
    affine = tuple(whole[:2].flatten().tolist())
    picture, how = Image.fromarray(pixels), (Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
    return np.asarray(picture.transform((width, height), *how, fillcolor=tuple(fill) if pixels.ndim == 3 else fill))


def read_picture(path: Path) -> NDArray[Any]:
    """Read one picture as it is: in its own size, and neither inverted nor greyed."""
    picture = _open(path.read_bytes(), str(path))
    if picture is None:
        _reject_large([str(path)])
    pixels, coloured = _decode(picture, str(path), colour=True)
    return pixels if coloured else pixels[..., 0]


def decode_all(pictures: Iterable[tuple[str, bytes]], preprocessing: Preprocessing, where: str) -> ImageArray:
    """Decode, grey if need be, and preprocess pictures that come with their names; all must end up equally large."""
    found: list[NDArray[Any]] = []
    sizes: set[tuple[int, int]] = set()
    n_coloured, too_large = 0, []
    for name, content in pictures:
        picture = _open(content, name)
        if picture is None:
            too_large.append(name)
        if too_large:  # look for others that are, so that all can be named
            continue
        preprocessing.shape(picture.height, picture.width, name)  # before anything is decompressed
        pixels, coloured = _decode(picture, name, preprocessing.colour)
        n_coloured += coloured
        height, width = pixels.shape[:2]
        sizes.add((height, width))
        shape = preprocessing.shape(height, width, name)
        if found and shape != found[0].shape:
            first = " × ".join(map(str, found[0].shape))
            reject("data", f"images of one size ({first})", f"{shape[0]} × {shape[1]} in {name}", "Pass size=N.")
        if preprocessing != preprocessing.done():
            fitted = _fit(pixels, preprocessing)
            # Back to bytes, a quarter of the memory, and what a picture of this size would hold.
            whole = pixels.dtype == np.uint8 and preprocessing.ground == "keep"
            pixels = fitted.round().astype(np.uint8) if whole else fitted
        found.append(pixels)
    if too_large:
        _reject_large(too_large)
    if not found:
        fix = f"Pass pictures ({' '.join(SUFFIXES)}); for the idx files of MNIST pass mnist and their folder."
        reject("data", "at least 2 pictures", f"none in {where}", fix)
    greyed = (f"{n_coloured:,} greyed",) if n_coloured and not preprocessing.colour else ()
    return ImageArray(found, None, preprocessing.done(), greyed + preprocessing.notes(sizes))


def _open(content: bytes, name: str) -> Any:
    """Open a picture without decompressing it; None if it has too many pixels."""
    from PIL import Image, UnidentifiedImageError  # only who reads pictures waits for it

    with _readable(name):
        try:
            picture = Image.open(io.BytesIO(content), formats=_FORMATS)
        except UnidentifiedImageError:
            raise ValueError("no picture of a known format") from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            return None
    return picture if picture.width * picture.height <= MAX_SOURCE_PIXELS else None


def _reject_large(names: Sequence[str]) -> Never:
    """Refuse pictures with too many pixels, all at once."""
    got = f"more in {listed(names)}"
    reject("data", f"pictures of at most {MAX_SOURCE_PIXELS:,} pixels", got, "Shrink or remove them.")


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Reject a picture for what Pillow raises: almost anything. Odd metadata is no concern of ours."""
    from PIL import Image

    with refusing("a readable picture", name, "Repair or remove it."), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _decode(picture: Any, name: str, colour: bool) -> tuple[NDArray[Any], bool]:
    """Turn as the camera was held, put on white where transparent, and grey unless colours are to be kept.

    Returned are the pixels, (height, width) or (height, width, 3), and whether the picture had colours.
    """
    from PIL import Image, ImageOps

    with picture, _readable(name):
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
            deep = np.asarray(picture).astype(np.float32)
            return np.stack([deep] * 3, axis=-1) if colour else deep, False
        (width, height), transparent = picture.size, picture.has_transparency_data
        found = np.empty((height, width, *(3,) * colour), np.uint8)
        for top, end in _strips(height, width):
            strip = picture.crop((0, top, width, end))
            if transparent:
                strip = strip.convert("RGBA")
                strip = Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip)
            found[top:end] = np.asarray(strip.convert("RGB" if colour else "L"))
        return found, picture.mode not in _GREY_MODES


def _fit(pixels: NDArray[Any], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Crop, resize and invert; the width first, some rows at a time: the same sums, without all of it as floats."""
    frame = preprocessing.frame(*pixels.shape[:2])
    pixels = reframe(torch.from_numpy(pixels)[None], *frame)[0].numpy()
    height, width = pixels.shape[:2]
    narrow = (preprocessing.size or (height, width))[1]
    parts = []
    for first, end in _strips(height, width):
        rows = torch.from_numpy(pixels[first:end].astype(np.float32))[None]
        parts.append(Preprocessing(size=(end - first, narrow), fit="stretch").apply(rows))
    return preprocessing._replace(crop=False, fit="stretch").apply(torch.cat(parts, dim=1))[0].numpy()


def _strips(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Return the first row and the end of parts of a picture."""
    step = max(1, _STRIP // width)
    return ((top, min(top + step, height)) for top in range(0, height, step))
