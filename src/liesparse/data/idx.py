"""The idx format of MNIST: a short big-endian header, then the numbers. Gzipped or plain."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from liesparse._checks import reject

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_DEFLATE_RATIO = 1040  # deflate cannot shrink further: a header that asks for more lies


class _Header(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def looks_like_idx(path: Path) -> bool:
    """Tell whether a file's name or its first bytes are those of an idx file."""
    with path.open("rb") as file:
        start = file.read(4)
    known = len(start) == 4 and start[:2] == b"\0\0" and start[2] in _TYPES and start[3] > 0
    return known or start[:2] == _GZIP_MAGIC or "idx" in path.name or "ubyte" in path.name


def read_idx(path: Path, *, argument: str = "data", kind: str = "images", n_axes: int | None = None) -> NDArray[Any]:
    """Return the array in an idx file: memory-mapped if plain, read into memory if gzipped."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP_MAGIC
        found = _read_gzip(path) if compressed else _map_plain(path)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        found = "cut short"
    if not isinstance(found, str) and n_axes not in (None, found.ndim):
        found = f"an array of shape {found.shape}"
    if isinstance(found, str):
        reject(argument, f"an idx file of {kind}", f"{path} ({found})", "Fetch it anew; it may be cut short.")
    return found


def _map_plain(path: Path) -> NDArray[Any] | str:
    with path.open("rb") as file:
        header = _read_header(file)
    if isinstance(header, str):
        return header
    size = path.stat().st_size
    if size != header.offset + header.n_bytes:
        return f"{size:,} bytes instead of {header.offset + header.n_bytes:,}"
    if not header.n_bytes:
        return np.zeros(header.shape, header.dtype)  # an empty file cannot be mapped
    return np.memmap(path, header.dtype, mode="r", offset=header.offset, shape=header.shape)


def _read_gzip(path: Path) -> NDArray[Any] | str:
    with gzip.open(path, "rb") as file:
        header = _read_header(file)
        if isinstance(header, str):
            return header
        if header.n_bytes > _MAX_DEFLATE_RATIO * path.stat().st_size:
            return "a header that promises more than the file can hold"
        content = file.read(header.n_bytes + 1)  # never more than promised
    if len(content) != header.n_bytes:
        return f"not the {header.n_bytes:,} bytes that its header promises"
    return np.frombuffer(content, header.dtype).reshape(header.shape)


def _read_header(file: io.BufferedIOBase) -> _Header | str:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES or start[3] == 0:
        return "no idx header"
    sizes = file.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        return "cut short in its header"
    shape = tuple(int.from_bytes(sizes[at : at + 4], "big") for at in range(0, len(sizes), 4))
    return _Header(np.dtype(_TYPES[start[2]]), shape, 4 + len(sizes))
