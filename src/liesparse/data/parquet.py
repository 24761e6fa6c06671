"""Parquet files with a column of images: encoded pictures, as Hugging Face has them, or lists of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from liesparse._checks import reject
from liesparse.data.images import ImageArray, Preprocessing, choose_labels, first_line
from liesparse.data.pictures import MAX_FILE_BYTES, decode_all

_BATCH = 1024  # table rows read at a time


def read_parquet(path: Path, key: str | None, label_key: str | None, preprocessing: Preprocessing) -> ImageArray:
    """Read a column of images, and one of labels if there is one."""
    try:
        import pyarrow as arrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        reject("data", "pyarrow to read parquet files", "none", "Install it: pip install 'liesparse[parquet]'.")
    try:
        with ParquetFile(path, memory_map=True) as file:
            schema = file.schema_arrow
            column = _choose_column(path, key, schema)
            whole = [field.name for field in schema if arrow.types.is_integer(field.type)]
            got = f"the columns {', '.join(schema.names)} in {path}"
            label_column = choose_labels(label_key, schema.names, whole, "in column", got)
            labels = file.read([label_column])[label_column].to_numpy() if label_column else None
            batches = (batch.column(0) for batch in file.iter_batches(_BATCH, columns=[column]))
            if not _is_encoded(schema.field(column).type):
                return ImageArray(_numbers(batches, f"{column} of {path}"), labels, preprocessing)
            found = decode_all(_encoded(batches, f"{column} of {path}"), preprocessing, str(path))
            return replace(found, labels=labels)
    except (arrow.ArrowException, OSError, UnicodeError) as error:
        reject("data", "a parquet file", f"{path} ({first_line(error)})", "Write or fetch it anew.")


def _is_encoded(kind: Any) -> bool:
    import pyarrow as arrow

    if arrow.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return bool(arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as arrow

    return bool(arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind))


def _choose_column(path: Path, key: str | None, schema: Any) -> str:
    found = [field.name for field in schema if _is_encoded(field.type) or _is_list(field.type)]
    chosen = found if key is None else [name for name in found if name == key]
    if len(chosen) != 1:
        expected = "one column of images (bytes, or lists of numbers)" if key is None else f"images in column {key}"
        got = f"{', '.join(found) or 'none'} of the columns {', '.join(schema.names)} in {path}"
        reject("data", expected, got, "Choose one with key=NAME.")
    return chosen[0]


def _encoded(batches: Iterator[Any], where: str) -> Iterator[tuple[str, bytes]]:
    row = 0
    for batch in batches:
        for value in batch:
            content = (value["bytes"] if hasattr(value, "keys") and value.is_valid else value).as_py()
            if not isinstance(content, bytes) or len(content) > MAX_FILE_BYTES:
                got = f"none or more in row {row} of {where}"
                reject("data", f"a picture of at most {MAX_FILE_BYTES // 2**20} MiB", got, "Remove the row.")
            yield f"row {row} of {where}", content
            row += 1


def _numbers(batches: Iterator[Any], where: str) -> list[NDArray[Any]]:
    """Return lists, or lists of lists, of numbers as one array for each image."""
    images: list[NDArray[Any]] = []
    for batch in batches:
        part = _to_array(batch, where)
        if images and part.shape[1:] != images[0].shape:
            _refuse_lengths(where)
        images.extend(part)  # views: nothing is copied
    if not images:
        reject("data", "at least 2 images", f"an empty column {where}", "Pass more images.")
    return images


def _to_array(batch: Any, where: str) -> NDArray[Any]:
    import pyarrow as arrow

    values, shape = batch, [len(batch)]
    if isinstance(values, arrow.ExtensionArray):
        values = values.storage
    while _is_list(values.type):
        lengths = arrow.compute.list_value_length(values)
        if values.null_count or arrow.compute.count_distinct(lengths).as_py() != 1:
            _refuse_lengths(where)
        shape.append(lengths[0].as_py())
        values = values.flatten()
    numbers = values.type
    if not (arrow.types.is_integer(numbers) or arrow.types.is_floating(numbers) or arrow.types.is_boolean(numbers)):
        reject("data", "lists of numbers", f"lists of {numbers} in {where}", "Choose another column with key=NAME.")
    found = values.to_numpy(zero_copy_only=False)  # a missing number becomes NaN, and is refused later
    # Lists in such files are often int64: bytes, or single precision, hold an image as well.
    small = found.dtype.kind in "biu" and len(found) and found.min() >= 0 and found.max() <= 255
    return found.astype(np.uint8 if small else np.float32).reshape(shape)


def _refuse_lengths(where: str) -> NoReturn:
    reject("data", "equally long lists", f"lists of several lengths, or missing ones, in {where}", "Drop or pad them.")
