"""Files: sealed ones of tensors and settings, and those that other programs read; each is written whole or not at all.

A sealed file has its tensors as safetensors and all else as JSON in the same file's header; never pickle. It is one
file, so that tensors and settings cannot part, with a digest over both, so that a changed file is noticed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from liesparse._checks import listed, refusing, reject
from liesparse.devices import to_cpu

FORMAT_VERSION = 1
TABLES = (".npz", ".csv", ".parquet")
_KEY = "liesparse"  # in safetensors' own metadata
_DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)  # of tensors that are written
Array = NDArray[Any]


class Sealed(NamedTuple):
    """What a file holds."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write bytes, or let a function write, to a temporary name; sync, and rename: nobody ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:  # with the user's own permissions
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if hasattr(os, "O_DIRECTORY"):  # the rename itself reaches the disk
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_sealed(path: str | Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file of some kind, such as "model", atomically."""
    plain = {name: to_cpu(tensor).contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"kind": kind, "version": FORMAT_VERSION, **header}, ensure_ascii=False)
    # One entry, as safetensors writes several in any order: equal contents give equal files.
    metadata = {_KEY: f"{_digest(text, plain)} {text}"}
    write_atomically(Path(path), safetensors.torch.save(plain, metadata=metadata))


def read_sealed(path: str | Path, kind: str) -> Sealed:
    """Read a file of some kind; one that is damaged, foreign or newer gives a ``ValueError``. No code is run."""
    fix = f"Pass a {kind} file that liesparse wrote."
    if not Path(path).exists():
        reject("path", f"an existing {kind} file", str(path), fix)
    damaged = (safetensors.SafetensorError, ValueError, RecursionError, OSError, RuntimeError)
    with (
        refusing("a readable safetensors file", path, fix, damaged, "path"),
        safetensors.safe_open(str(path), framework="pt") as file,
    ):
        digest, _, text = (file.metadata() or {}).get(_KEY, " null").partition(" ")
        header = json.loads(text)
        # Copies: what safetensors gives is the file itself, which may still change.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118, not a mapping
    if not isinstance(header, dict) or "kind" not in header:
        reject("path", f"a liesparse {kind}", f"{path}, which is something else", fix)
    if header.get("version") != FORMAT_VERSION:
        reject("path", f"format version {FORMAT_VERSION}", f"version {header.get('version')}", "Update liesparse.")
    if header["kind"] != kind:
        reject("path", f"a liesparse {kind}", f"{path}, a liesparse {header['kind']}", fix)
    odd = [f"{name} of {tensor.dtype}" for name, tensor in tensors.items() if tensor.dtype not in _DTYPES]
    if odd:
        reject("path", "float32, float64 or whole numbers", f"{path} with {listed(odd)}", "Use another copy.")
    if digest != _digest(text, tensors):
        reject("path", "a file as liesparse wrote it", f"{path}, changed or damaged since", "Use another copy.")
    return Sealed(header, tensors)


def need(sealed: Sealed, path: str | Path, header: Mapping[str, type], tensors: tuple[str, ...]) -> None:
    """Reject a file that lacks a value or a tensor that its kind must have."""
    missing = [name for name in tensors if name not in sealed.tensors]
    missing += [name for name, kind in header.items() if not isinstance(sealed.header.get(name), kind)]
    if missing:
        reject("path", "a complete file", f"{path} without {listed(missing)}", "Use another copy.")


def hash_tensor(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's type, shape and values, by which a data set is known again."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(to_cpu(tensor).contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(header.encode(errors="surrogatepass"))
    for name in sorted(tensors):
        digest.update(f"{name} {hash_tensor(tensors[name])} ".encode(errors="surrogatepass"))
    return digest.hexdigest()


def write_table(path: Path, columns: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    """Write ``columns`` as csv or parquet, or ``arrays``, the same numbers in their own shapes, as npz."""
    suffix, buffer = path.suffix.lower(), io.BytesIO()
    if suffix not in TABLES:
        reject("path", f"a name that ends in {', '.join(TABLES)}", str(path), "Rename it.")
    if suffix == ".npz":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:  # numpy.savez knows no array called file
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    elif suffix == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        buffer.write(text.getvalue().encode())
    else:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            reject("path", "pyarrow for .parquet files", "none installed", "pip install pyarrow, or use .npz or .csv.")
        table = pyarrow.table({name: np.ascontiguousarray(column) for name, column in columns.items()})
        pyarrow.parquet.write_table(table, buffer)
    write_atomically(path, buffer.getvalue())
