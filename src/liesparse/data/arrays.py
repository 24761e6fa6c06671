"""Arrays in files: NumPy's .npy and .npz, and MNIST's idx. Mapped into memory where possible, never unpickled."""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from liesparse._checks import reject
from liesparse.data.images import choose_labels, first_line

_MAX_BYTES = 16 * 2**30  # of a compressed array, which must be read whole
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_DEFLATE_RATIO = 1040  # deflate cannot shrink further: a header that asks for more lies


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def read_npy(path: Path) -> np.memmap[Any, Any]:
    """Map the array of a .npy file into memory."""
    with _saying_what_is_damaged(path), path.open("rb") as file:
        header = _read_header(file)
    _check_array(header, str(path))
    with _saying_what_is_damaged(path):
        mapped: np.memmap[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped


def read_npz(path: Path, key: str | None, label_key: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return one array of images, and one of labels if there is one, from a .npz file."""
    with _saying_what_is_damaged(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        headers = {name: _member_header(archive, info) for name, info in members.items()}
    key = _choose_key(path, key, headers)
    flat = [name for name, header in headers.items() if len(header.shape) == 1 and header.dtype.kind in "biuf"]
    label_key = choose_labels(label_key, headers, flat, "under the key", f"the keys {', '.join(headers)} in {path}")
    arrays = {name: _read_member(path, members[name], headers[name]) for name in (key, label_key) if name}
    return arrays[key], arrays[label_key] if label_key else None


@contextmanager
def _saying_what_is_damaged(path: Path) -> Iterator[None]:
    """Reject a file for whatever goes wrong inside: NumPy and zipfile raise almost anything for damaged ones."""
    try:
        yield
    except Exception as error:
        fix = "Save it anew with numpy.save or numpy.savez."
        reject("data", f"a {path.suffix.lower()} file", f"{path} ({first_line(error)})", fix)


def _read_header(file: Any) -> _Header:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return _Header(*np.lib.format.read_array_header_1_0(file))
    if version == (2, 0):
        return _Header(*np.lib.format.read_array_header_2_0(file))
    raise ValueError(f"format version {version}")


def _member_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header:
    with archive.open(info) as file:
        header = _read_header(file)
    if math.prod(header.shape) * header.dtype.itemsize > info.file_size:
        raise ValueError(f"{info.filename} is cut short")
    return header


def _check_array(header: _Header, where: str) -> None:
    """Reject an array that holds no numbers, or none at all: it can be neither mapped nor learned from."""
    if header.dtype.hasobject:
        got = f"Python objects in {where}, which would run code"
        reject("data", "an array of numbers", got, "Stack equally large images and save them as uint8 or float32.")
    if header.dtype.kind not in "biuf":
        reject("data", "an array of numbers", f"{header.dtype} in {where}", "Save it as uint8 or float32.")
    if 0 in header.shape:
        reject("data", "at least 2 images", f"an array of shape {header.shape} in {where}", "Pass more images.")


def _choose_key(path: Path, key: str | None, headers: Mapping[str, _Header]) -> str:
    """Take the given key, the only one, or the only one that is no list of labels."""
    names = ", ".join(headers) or "none"
    if key is None:
        found = list(headers) if len(headers) == 1 else [name for name, header in headers.items() if header.shape[1:]]
        if len(found) == 1:
            return found[0]
        reject("data", "one array of images", f"the keys {names} in {path}", "Choose one with key=NAME.")
    if key not in headers:
        reject("data", f"the key {key}", f"the keys {names} in {path}", "Choose one of them with key=NAME.")
    return key


def _read_member(path: Path, info: zipfile.ZipInfo, header: _Header) -> NDArray[Any]:
    """Map a stored array, as numpy.savez writes it; let NumPy read a compressed one whole."""
    _check_array(header, f"{path}, key {info.filename.removesuffix('.npy')}")
    n_bytes = math.prod(header.shape) * header.dtype.itemsize
    stored = info.compress_type == zipfile.ZIP_STORED
    if n_bytes > _MAX_BYTES and not stored:
        expected = f"a compressed array of at most {_MAX_BYTES // 2**30} GiB"
        reject("data", expected, f"{n_bytes / 2**30:.0f} GiB in {path}", "Save it as .npy, which is memory-mapped.")
    with _saying_what_is_damaged(path):
        if not stored:
            with zipfile.ZipFile(path) as archive, archive.open(info) as file:
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        with path.open("rb") as file:
            file.seek(info.header_offset)
            name, extra = struct.unpack("<26xHH", file.read(30))  # the lengths that end a member's own header
        # An array ends where its member ends, so its place follows from the sizes.
        offset = info.header_offset + 30 + name + extra + info.file_size - n_bytes
        return np.memmap(path, header.dtype, "r", offset, header.shape, "F" if header.fortran else "C")


def looks_like_idx(path: Path) -> bool:
    """Tell whether a file's name or its first bytes are those of an idx file."""
    with path.open("rb") as file:
        start = file.read(4)
    return _is_idx(start) or start[:2] == _GZIP_MAGIC or "idx" in path.name or "ubyte" in path.name


def _is_idx(start: bytes) -> bool:
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in _IDX_TYPES and start[3] > 0


def read_idx(path: Path, *, argument: str = "data", kind: str = "images", n_axes: int | None = None) -> NDArray[Any]:
    """Return the array in an idx file: memory-mapped if plain, read into memory if gzipped."""

    def refuse(reason: str) -> NoReturn:
        reject(argument, f"an idx file of {kind}", f"{path} ({reason})", "Fetch it anew; it may be cut short.")

    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP_MAGIC
    size = path.stat().st_size
    try:
        with gzip.open(path) if compressed else path.open("rb") as stream:
            start = stream.read(4)
            if not _is_idx(start):
                refuse("no idx header")
            lengths = stream.read(4 * start[3])
            if len(lengths) < 4 * start[3]:
                refuse("cut short in its header")
            shape, dtype = struct.unpack(f">{start[3]}I", lengths), np.dtype(_IDX_TYPES[start[2]])
            offset, n_bytes = 4 + len(lengths), math.prod(shape) * dtype.itemsize
            if n_axes not in (None, len(shape)):
                refuse(f"an array of shape {shape}")
            if not compressed and size != offset + n_bytes:
                refuse(f"{size:,} bytes instead of {offset + n_bytes:,}")
            if not compressed and n_bytes:  # an empty file cannot be mapped
                return np.memmap(path, dtype, "r", offset, shape)
            if n_bytes > _MAX_DEFLATE_RATIO * size:
                refuse("a header that promises more than the file can hold")
            content = stream.read(n_bytes + 1)  # never more than promised
    except (EOFError, gzip.BadGzipFile, zlib.error):
        refuse("cut short")
    if len(content) != n_bytes:
        refuse(f"not the {n_bytes:,} bytes that its header promises")
    return np.frombuffer(content, dtype).reshape(shape)
