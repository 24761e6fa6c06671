"""NumPy's .npy and .npz files, memory-mapped where possible and never unpickled."""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from liesparse._checks import reject
from liesparse.data.rows import RawImages, first_line

LABEL_NAMES = ("labels", "label", "y", "targets")  # taken as labels unless told otherwise
_MAX_BYTES = 16 * 2**30  # of a compressed array, which must be read whole
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip member: its signature, and the lengths of name and extra field
_FIX = "Save it anew with numpy.save or numpy.savez."


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def read_npy(path: Path) -> RawImages:
    """Map the array of a .npy file into memory."""
    try:
        with path.open("rb") as file:
            header = _read_header(file)
        pixels = np.load(path, mmap_mode="r", allow_pickle=False) if _plain(header) else None
    except Exception as error:  # NumPy raises almost anything for a damaged header
        reject("data", "a .npy file", f"{path} ({first_line(error)})", _FIX)
    if pixels is None:
        _refuse_array(header, str(path))
    return RawImages(pixels)


def read_npz(path: Path, key: str | None, label_key: str | None) -> RawImages:
    """Read one array of images, and one of labels if there is one, from a .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            headers = {name: _member_header(archive, info) for name, info in members.items()}
            key = _choose_key(path, key, headers)
            label_key = _choose_labels(path, label_key, headers)
            pixels = _read_member(path, archive, members[key], headers[key])
            labels = _read_member(path, archive, members[label_key], headers[label_key]) if label_key else None
    except _RefusedError as refused:
        raise ValueError(*refused.args) from None
    except Exception as error:  # as above, and each compression has errors of its own
        reject("data", "a .npz file", f"{path} ({first_line(error)})", _FIX)
    if pixels is None:
        _refuse_array(headers[key], f"{path}, key {key}")
    return RawImages(pixels, labels)


class _RefusedError(ValueError):
    """Ours, told apart from the ValueErrors that NumPy raises for damaged files."""


def _refuse(expected: str, got: str, fix: str) -> NoReturn:
    try:
        reject("data", expected, got, fix)
    except ValueError as error:
        raise _RefusedError(*error.args) from None


def _read_header(file: Any) -> _Header:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return _Header(*np.lib.format.read_array_header_1_0(file))
    if version == (2, 0):
        return _Header(*np.lib.format.read_array_header_2_0(file))
    raise ValueError(f"format version {version}")


def _plain(header: _Header) -> bool:
    """Tell whether an array holds numbers, and any at all: only then can it be mapped."""
    return header.dtype.kind in "biuf" and 0 not in header.shape


def _refuse_array(header: _Header, where: str) -> NoReturn:
    if header.dtype.hasobject:
        got = f"Python objects in {where}, which would run code"
        reject("data", "an array of numbers", got, "Stack equally large images and save them as uint8 or float32.")
    if header.dtype.kind not in "biuf":
        reject("data", "an array of numbers", f"{header.dtype} in {where}", "Save it as uint8 or float32.")
    reject("data", "at least 2 images", f"an array of shape {header.shape} in {where}", "Pass more images.")


def _member_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header:
    with archive.open(info) as file:
        return _read_header(file)


def _choose_key(path: Path, key: str | None, headers: dict[str, _Header]) -> str:
    """Take the given key, the only one, or the only one that is no list of labels."""
    names = ", ".join(headers) or "none"
    if key is None:
        found = list(headers) if len(headers) == 1 else [name for name, header in headers.items() if header[0][1:]]
        if len(found) == 1:
            return found[0]
        _refuse("one array of images", f"the keys {names} in {path}", "Choose one with key=NAME.")
    if key not in headers:
        _refuse(f"the key {key}", f"the keys {names} in {path}", "Choose one of them with key=NAME.")
    return key


def _choose_labels(path: Path, label_key: str | None, headers: dict[str, _Header]) -> str | None:
    if label_key is not None and label_key not in headers:
        got = f"the keys {', '.join(headers)} in {path}"
        _refuse(f"labels under the key {label_key}", got, "Choose one of them with labels=NAME.")
    usual = [name for name in LABEL_NAMES if name in headers and len(headers[name].shape) == 1]
    return label_key or (usual[0] if usual else None)


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: _Header) -> NDArray[Any] | None:
    """Map a stored array, as numpy.savez writes it; read a compressed one whole."""
    if not _plain(header):
        return None
    n_bytes = math.prod(header.shape) * header.dtype.itemsize
    if n_bytes > info.file_size:
        raise ValueError(f"{info.filename} is cut short")
    if info.compress_type == zipfile.ZIP_STORED:
        # An array ends where its member ends, so its place follows from the sizes.
        offset = _member_offset(path, info) + info.file_size - n_bytes
        if offset + n_bytes > path.stat().st_size:
            raise ValueError(f"{info.filename} is cut short")
        order: Literal["F", "C"] = "F" if header.fortran else "C"
        return np.memmap(path, header.dtype, mode="r", offset=offset, shape=header.shape, order=order)
    if n_bytes > _MAX_BYTES:
        _refuse(
            f"a compressed array of at most {_MAX_BYTES // 2**30} GiB",
            f"{n_bytes / 2**30:.0f} GiB in {path}",
            "Save it as .npy, which is memory-mapped.",
        )
    with archive.open(info) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _member_offset(path: Path, info: zipfile.ZipInfo) -> int:
    with path.open("rb") as file:
        file.seek(info.header_offset)
        signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise ValueError(f"{info.filename} is damaged")
    return int(info.header_offset + _LOCAL_HEADER.size + name + extra)
