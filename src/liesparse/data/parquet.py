"""Columns of a parquet file, read by a process of their own.

Some damaged files end the process in which pyarrow reads them: its C++ raises what nobody catches (26.0.1: "level
histogram size mismatch"). So the caller's process gets only what another one has read and checked. That other process
runs this file as a script, and imports nothing but pyarrow to start in a third of a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

_BATCH = 1024  # rows read at a time


class Table(NamedTuple):
    """A parquet file that is being read."""

    n_rows: int
    n_values: int  # in its longest column
    columns: list[tuple[str, str]]  # the name and the kind of each
    read: Callable[[str], Any]  # gives batches of the first column of a name; to be read before the next column is


@contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """Read a parquet file in another process; where that ends early, raise an OSError with its last words."""
    from pyarrow import ArrowException
    from pyarrow.ipc import open_stream

    def read(name: str) -> Any:
        process.stdin.write(b"%d\n" % [name for name, _ in columns].index(name))
        process.stdin.flush()
        return open_stream(process.stdout)

    with tempfile.TemporaryFile() as words, _start(path, words) as process:
        try:
            n_rows, n_values, columns = json.loads(process.stdout.readline())
            yield Table(n_rows, n_values, columns, read)
        except (ArrowException, OSError, json.JSONDecodeError) as error:
            process.stdout.close()
            with suppress(OSError):
                process.stdin.close()
            if process.wait() == 0:
                raise
            words.seek(0)
            said = words.read().decode(errors="replace").rpartition("what():")[2].strip()  # so C++ marks its message
            raise OSError(said or "pyarrow crashes") from error
        finally:
            process.kill()


def _start(path: Path, words: IO[bytes]) -> Any:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command, pipe = [sys.executable, "-P", __file__, str(path)], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=words, env=environment)


def kind_of(column: Any) -> str:
    """Tell what a column may hold by its type."""
    from pyarrow import types

    holder = types.is_struct(column) and column.get_field_index("bytes") >= 0
    if holder or types.is_binary(column) or types.is_large_binary(column):
        return "pictures"
    if types.is_list(column) or types.is_large_list(column) or types.is_fixed_size_list(column):
        return "lists"
    return "whole numbers" if types.is_integer(column) else "other"


def _send(path: str, asked: IO[bytes], out: IO[bytes]) -> None:
    """Tell what the file holds, then write each column whose number is asked for as a stream of batches."""
    from pyarrow import RecordBatch, ipc, schema
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, memory_map=True) as file:
        found, fields = file.metadata, list(file.schema_arrow)
        groups = [found.row_group(i) for i in range(found.num_row_groups)]
        counts = (sum(group.column(j).num_values for group in groups) for j in range(found.num_columns))
        told = found.num_rows, max(counts, default=0), [(field.name, kind_of(field.type)) for field in fields]
        out.write(json.dumps(told).encode() + b"\n")
        out.flush()
        for number in asked:
            field = fields[int(number)]
            only = schema([field.remove_metadata()])
            with ipc.new_stream(out, only) as stream:
                for batch in file.iter_batches(_BATCH, columns=[field.name]):
                    batch.validate(full=True)
                    stream.write_batch(RecordBatch.from_arrays([batch.column(0)], schema=only))
            out.flush()


if __name__ == "__main__":
    try:
        _send(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
    except Exception as error:
        sys.exit((str(error).splitlines() or [type(error).__name__])[0])
