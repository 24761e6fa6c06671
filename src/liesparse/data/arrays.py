"""Files of arrays: NumPy's .npy and .npz, MNIST's idx, and parquet with a column of images.

Mapped into memory where possible, never unpickled. A column holds encoded pictures, as Hugging Face has them, or lists
of numbers.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from liesparse._checks import listed, refusing, reject
from liesparse.data.images import ImageArray, Preprocessing
from liesparse.data.parquet import kind_of, open_table
from liesparse.data.pictures import MAX_FILE_BYTES, decode_all

SUFFIXES = (".npy", ".npz", ".parquet")
_MAX_BYTES = 16 * 2**30  # of a compressed array, which must be read whole
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_RATIO = 1040  # deflate cannot shrink further: a header that asks for more lies
_RATIO_FROM = 2**24  # bytes or values; below, a ratio does no harm
_MAX_HEADER = 2**16  # bytes of a .npy header
_LABEL_NAMES = ("labels", "label", "y", "targets")  # taken as labels unless told otherwise
Names = Collection[str]
_DAMAGED = "Save it anew with numpy.save or numpy.savez."


def read_file(path: Path, key: str | None, label_key: str | None, preprocessing: Preprocessing) -> ImageArray:
    """Read a .npy, .npz or .parquet file of images; ``key`` and ``label_key`` name its arrays or columns."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(path, key, label_key, preprocessing)
    pixels, labels = (read_npy(path), None) if suffix == ".npy" else _read_npz(path, key, label_key)
    return ImageArray(pixels, labels, preprocessing)


def read_npy(path: Path) -> np.memmap[Any, Any]:
    """Map the array of a .npy file into memory."""
    with refusing("a .npy file", path, _DAMAGED):
        with path.open("rb") as file:
            start = file.read(12)
        if start[6:7] > b"\1" and int.from_bytes(start[8:], "little") > _MAX_HEADER:
            raise ValueError("a header that is far too long")
        return np.lib.format.open_memmap(path, "r")


def _choose(
    key: str | None, label_key: str | None, names: Names, images: Names, labels: Names, kind: str, path: Path
) -> tuple[str, str | None]:
    """Return which arrays or columns hold images and labels: those asked for, the only one, one of a usual name."""
    there = f"the {kind}s {listed(names)} in {path}"
    chosen = [name for name in images if key in (None, name)]
    if len(chosen) != 1:
        expected = f"one {kind} of images" if key is None else f"images in {kind} {key}"
        reject("data", expected, f"{listed(images)} of {there}", "Choose one with key=NAME.")
    if label_key is not None and label_key not in names:
        reject("data", f"labels in {kind} {label_key}", there, "Choose one of them with labels=NAME.")
    return chosen[0], label_key or next((name for name in _LABEL_NAMES if name in labels), None)


class _Member(NamedTuple):
    """An array in a .npz file, as its header tells."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int  # bytes before the numbers

    @classmethod
    def open(cls, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
        formats = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if info.file_size > max(_RATIO_FROM, _MAX_RATIO * info.compress_size):
            raise ValueError(f"{info.filename} would unpack to {info.file_size / 2**20:,.0f} MiB: a bomb")
        with archive.open(info) as file:
            start = io.BytesIO(file.read(_MAX_HEADER))
        read_header = formats[np.lib.format.read_magic(start)]
        return cls(info, *read_header(start), start.tell())

    def read(self, path: Path) -> NDArray[Any]:
        """Return the array: mapped if it is stored, read whole if it is compressed."""
        stored, n_bytes = self.info.compress_type == zipfile.ZIP_STORED, math.prod(self.shape) * self.dtype.itemsize
        if not stored and n_bytes > _MAX_BYTES:
            expected, got = f"a compressed array of at most {_MAX_BYTES // 2**30} GiB", f"{n_bytes / 2**30:.0f} GiB"
            reject("data", expected, f"{got} in {path}", "Save it as .npy, which is memory-mapped.")
        with refusing("a .npz file", path, _DAMAGED), path.open("rb") as file:
            if self.dtype.hasobject:
                raise ValueError("Python objects, which would run code")
            if n_bytes > self.info.file_size - self.offset:
                raise ValueError("it is cut short")
            if not stored:
                with zipfile.ZipFile(file) as archive, archive.open(self.info) as member:
                    return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
            file.seek(self.info.header_offset)
            lengths = struct.unpack("<26xHH", file.read(30))  # of name and extra, which end a member's own header
            offset = self.info.header_offset + 30 + sum(lengths) + self.offset
            return np.memmap(path, self.dtype, "r", offset, self.shape, "F" if self.fortran else "C")


def _read_npz(path: Path, key: str | None, label_key: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return one array of images, and one of labels if there is one."""
    with refusing("a .npz file", path, _DAMAGED), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): _Member.open(archive, info) for info in archive.infolist()}
    images = [name for name, member in members.items() if key or member.shape[1:] or len(members) == 1]
    flat = [name for name, member in members.items() if len(member.shape) == 1 and member.dtype.kind in "biuf"]
    key, label_key = _choose(key, label_key, members, images, flat, "array", path)
    return members[key].read(path), members[label_key].read(path) if label_key else None


def looks_like_idx(path: Path) -> bool:
    """Tell whether a file's name or its first bytes are those of an idx file."""
    with path.open("rb") as file:
        start = file.read(4)
    return _is_idx(start) or start[:2] == _GZIP_MAGIC or "idx" in path.name or "ubyte" in path.name


def _is_idx(start: bytes) -> bool:
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in _IDX_TYPES and start[3] > 0


def read_idx(path: Path, *, argument: str = "data", kind: str = "images", n_axes: int | None = None) -> NDArray[Any]:
    """Return the array in an idx file: memory-mapped if plain, read into memory if gzipped."""
    damaged, fix = (ValueError, EOFError, gzip.BadGzipFile, zlib.error), "Fetch it anew; it may be cut short."
    with refusing(f"an idx file of {kind}", path, fix, damaged, argument), path.open("rb") as file:
        size, compressed = path.stat().st_size, file.peek(2)[:2] == _GZIP_MAGIC
        stream = gzip.GzipFile(fileobj=file) if compressed else file
        start = stream.read(4)
        if not _is_idx(start):
            raise ValueError("no idx header")
        lengths = stream.read(4 * start[3])
        if len(lengths) < 4 * start[3]:
            raise ValueError("cut short in its header")
        shape, dtype = struct.unpack(f">{start[3]}I", lengths), np.dtype(_IDX_TYPES[start[2]])
        offset, n_bytes = 4 + len(lengths), math.prod(shape) * dtype.itemsize
        if n_axes not in (None, len(shape)):
            raise ValueError(f"an array of shape {shape}")
        if compressed and n_bytes > _MAX_RATIO * size:
            raise ValueError("a header that promises more than the file can hold")
        content = stream.read(n_bytes + 1) if compressed else b""  # never more than promised
        held = len(content) if compressed else size - offset
        if held != n_bytes:
            raise ValueError(f"a header that promises {n_bytes:,} bytes, and {held:,} or more")
    return np.frombuffer(content, dtype).reshape(shape) if compressed else np.memmap(path, dtype, "r", offset, shape)


def _read_parquet(path: Path, key: str | None, label_key: str | None, preprocessing: Preprocessing) -> ImageArray:
    """Read a column of images, and one of labels if there is one."""
    try:
        from pyarrow import ArrowException
    except ImportError:
        reject("data", "pyarrow to read parquet files", "none", "Install it: pip install 'liesparse[parquet]'.")
    refuse = refusing("a parquet file", path, "Write or fetch it anew.", (ArrowException, OSError, UnicodeError))
    with refuse, open_table(path) as table:
        packed = path.stat().st_size  # which tells apart only so many rows and numbers
        if table.n_rows > max(_RATIO_FROM // 1024, packed) or table.n_values > max(_RATIO_FROM, _MAX_RATIO * packed):
            got = f"{table.n_rows:,} rows and {table.n_values:,} values in the {packed:,} bytes of {path}"
            reject("data", "a parquet file of images", got, "Use a file that you trust.")
        names, kinds = [name for name, _ in table.columns], dict(table.columns)
        images = [name for name, kind in table.columns if kind in ("pictures", "lists")]
        whole = [name for name, kind in table.columns if kind == "whole numbers"]
        column, label_column = _choose(key, label_key, names, images, whole, "column", path)
        labels = table.read(label_column).read_all().column(0).to_numpy() if label_column else None
        batches = (batch.column(0) for batch in table.read(column))
        if kinds[column] == "lists":
            return ImageArray(_numbers(batches, f"{column} of {path}"), labels, preprocessing)
        found = decode_all(_encoded(batches, f"{column} of {path}"), preprocessing, str(path))
        return found._replace(labels=labels)


def _encoded(batches: Iterator[Any], where: str) -> Iterator[tuple[str, bytes]]:
    values = (value for batch in batches for value in batch)
    for row, value in enumerate(values):
        content = (value["bytes"] if hasattr(value, "keys") and value.is_valid else value).as_py()
        if not isinstance(content, bytes) or len(content) > MAX_FILE_BYTES:
            got = f"none or more in row {row} of {where}"
            reject("data", f"a picture of at most {MAX_FILE_BYTES // 2**20} MiB", got, "Remove the row.")
        yield f"row {row} of {where}", content


def _numbers(batches: Iterator[Any], where: str) -> list[NDArray[Any]]:
    """Return lists, or lists of lists, of numbers as one array for each image."""
    images: list[NDArray[Any]] = []
    for values in batches:
        shape = [len(values)]
        while kind_of(values.type) == "lists":
            lengths = values.value_lengths().unique().to_pylist()
            shape.append(lengths[0] if len(lengths) == 1 and not values.null_count else -1)
            values = values.flatten()
        if -1 in shape or (images and tuple(shape[1:]) != images[0].shape):
            got = f"lists of several lengths, or missing ones, in {where}"
            reject("data", "equally long lists", got, "Drop or pad them.")
        found = values.to_numpy(zero_copy_only=False)  # a missing number becomes NaN, and is refused later
        if found.dtype.kind not in "biuf":
            got = f"lists of {values.type} in {where}"
            reject("data", "lists of numbers", got, "Choose another column with key=NAME.")
        # Lists in such files are often int64: bytes, or single precision, hold an image as well.
        small = found.dtype.kind in "biu" and len(found) and found.min() >= 0 and found.max() <= 255
        images.extend(found.astype(np.uint8 if small else np.float32).reshape(shape))  # views: nothing is copied
    if not images:
        reject("data", "at least 2 images", f"an empty column {where}", "Pass more images.")
    return images
