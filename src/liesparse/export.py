"""Results as files that other programs read: npz, csv, parquet, png; bytes are made first and written at once."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liesparse._checks import reject
from liesparse.files import write_atomically

Array = NDArray[Any]


def write_table(path: Path, columns: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    """Write ``columns`` as csv or parquet, or ``arrays``, the same numbers in their own shapes, as npz."""
    make = {".npz": lambda: _npz(arrays), ".csv": lambda: _csv(columns), ".parquet": lambda: _parquet(columns)}
    if path.suffix.lower() not in make:
        reject("path", f"a name that ends in {', '.join(make)}", str(path), "Rename it.")
    write_atomically(path, make[path.suffix.lower()]())


def _npz(arrays: Mapping[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()


def _csv(columns: Mapping[str, Array]) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return buffer.getvalue().encode()


def _parquet(columns: Mapping[str, Array]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        reject("path", "pyarrow for .parquet files", "none installed", "pip install pyarrow, or use .npz or .csv.")
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table({name: np.ascontiguousarray(column) for name, column in columns.items()}), buffer
    )
    return buffer.getvalue()


def array_bytes(array: Array) -> bytes:
    """Return an array as the contents of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def image_bytes(image: Array) -> bytes:
    """Return one image as a PNG, in grey or in colour: the brightest value is 255, what is below 0 black."""
    from PIL import Image

    peak = max(float(image.max()), float(np.finfo(np.float32).tiny))
    pixels = np.round(255 * np.clip(np.atleast_2d(image) / peak, 0, 1)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
