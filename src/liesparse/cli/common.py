"""What all commands share: console, errors and exit codes, Ctrl-C, progress, tables, options."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from typer import Argument, Exit, Option

if TYPE_CHECKING:
    from liesparse.parallel import Group


def import_quickly() -> None:
    """Import torch, and scikit-learn without pandas and SciPy's statistics, which no command uses.

    That saves a third of the time of all imports. Both load as usual when somebody asks for them later.
    """
    gc.disable()  # a tenth of the time of large imports
    importlib.import_module("torch")
    stand_ins = {"pandas": None, "scipy.stats": ModuleType("scipy.stats")}  # None: as if it were not installed
    hidden = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules |= hidden  # type: ignore[arg-type]
    with suppress(ImportError):  # a version that needs them after all is imported later, with them
        importlib.import_module("sklearn.base")
    for name in hidden:
        del sys.modules[name]
    gc.enable()


class _Screen(Console):
    """A console on which no name from outside, such as that of a file, can do anything but be read."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(_readable(part) if isinstance(part, str) else part for part in objects), **how)


def _readable(text: str) -> str:
    from liesparse._checks import plain

    return "\n".join(plain(line, MOST_CHARACTERS) for line in text.split("\n"))


MOST_CHARACTERS = 10_000  # of a line
console = _Screen()
debug = False  # whether tracebacks are let through (``liesparse --debug …``)


def check_writable(folder: Path, option: str = "--out") -> None:
    """Find out before hours of training whether a folder can be written, and leave nothing behind."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"Cannot write to {folder}: {error.strerror}. Choose another place with {option}.") from None
    for place in made:
        place.rmdir()


def set_console(target: Path | None = None) -> Path | None:
    """Send messages to the standard output, or to the standard error where ``--json -`` needs the former.

    Of several processes only the first one prints.
    """
    another = "WORLD_SIZE" in os.environ and os.environ.get("RANK", "0") != "0"
    fresh = _Screen(soft_wrap=True, highlight=False, markup=False, stderr=str(target) == "-", quiet=another)
    console.__dict__ = fresh.__dict__  # everybody has the same one
    if not console.is_terminal:
        console.width = 120
    if target is not None and str(target) != "-":
        if target.is_dir():
            raise ValueError(f"Cannot write to {target}: it is a folder. Choose a file with --json.")
        check_writable(target.parent, "--json")
    return target


DataArgument = Annotated[str, Argument(metavar="DATA", help="A name (`liesparse data list`) or a path.")]
DataDir = Annotated[Path | None, Option(help="Folder with the files of MNIST or Fashion-MNIST.")]
EpochsOption = Annotated[int | None, Option(min=1, help="Passes over the images, instead of the recipe's.")]
JsonOption = Annotated[
    Path | None, Option("--json", callback=set_console, help="Write the numbers to this file, - for the screen.")
]
SetOption = Annotated[
    list[str] | None, Option("--set", help="Change a value of the recipe, as learning.first_memory=20.")
]


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things as one reads it: 1 image, 2 axes."""
    from liesparse._checks import count as words  # with torch, which no command loads before it must

    return words(number, noun, plural)


def fail(message: str, code: int = 1) -> Exit:
    """Print in one line what went wrong, and return the exit to be raised."""
    console.print(message.strip() or "Failed.", style="red")
    return Exit(code)


@contextmanager
def explained(*, code: int = 1, group: Group | None = None) -> Iterator[None]:
    """Turn expected errors and Ctrl-C into one line and an exit code; anything else is a bug and keeps its traceback.

    With code 2, for wrong use, a value of the wrong type is expected as well. Of the processes of ``group`` the first
    that ends prints its line, as any of them may be the one that fails.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        if group is not None and not str(stopped):  # else the first process alone says what it has saved
            console.quiet = not group.speaks_first()
        console.print(str(stopped) or "Stopped.")
        raise Exit(130) from None
    except Exception as error:
        own = type(error).__module__.startswith("liesparse.")
        kinds = (ValueError, OSError, MemoryError, *([TypeError] if code == 2 else []))
        if debug or not (own or isinstance(error, kinds) or _is_memory(error)):
            raise
        if group is not None:
            console.quiet = not group.speaks_first()
        raise fail(_explain(error), 1 if isinstance(error, OSError) else code) from None


@contextmanager
def resumable(kept: Callable[[], str]) -> Iterator[None]:
    """Say on Ctrl-C what is kept, and that the same command goes on from there."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. {kept()}; the same command goes on from there.") from None


def _is_memory(error: Exception) -> bool:
    """Tell whether memory ran out; torch says so by a RuntimeError."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in said or "out of memory" in said)
    )


def _explain(error: Exception) -> str:
    if _is_memory(error):
        return "Not enough memory. Use fewer or smaller images."
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"{error.strerror}: {error.filename}" if error.strerror else str(error)
    where = f" ({error.filename})" if error.filename else ""
    hint = "Free some space, or choose another place." if error.errno == 28 else "Choose another place."
    return f"{error.strerror or error}{where}. {hint}"


class ProgressBar(Progress):
    """A bar with the time left in a terminal; elsewhere a line for each note that is marked as one."""

    def __init__(self, name: str) -> None:
        times = (TimeElapsedColumn(), "left", TimeRemainingColumn())
        columns = ("{task.description}", BarColumn(), "{task.fields[note]}", *times)
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self.name, self.note = name, ""
        self.add_task(name, total=None, note="")

    def show(self, note: str, done: float = 0, total: float | None = None, *, line: bool = False) -> None:
        """Show how much is done, and what is being done."""
        self.note = note
        self.update(self.task_ids[0], completed=done, total=total, note=note)
        if line and not self.console.is_terminal:
            self.console.print(f"{self.name}: {note}")


class _Notes(logging.Handler):
    """Shows on a bar what is logged: a step's begin with a line of its own, and how far it has come."""

    def __init__(self, bar: ProgressBar) -> None:
        super().__init__()
        self.bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        self.bar.show(record.getMessage(), line=record.levelno >= logging.INFO)


@contextmanager
def show_start(bar: ProgressBar) -> Iterator[None]:
    """Show on a bar what is done before the first epoch."""
    notes, loggers = _Notes(bar), [logging.getLogger(f"liesparse.{name}") for name in ("start", "pairs")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(notes)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            logger.removeHandler(notes)


def print_table(title: str | None, head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> None:
    """Print a table, with or without a head; numbers stand on the right, but for the first column."""
    table = Table(title=title, show_header=any(head))
    for place, column in enumerate(head):
        table.add_column(column, justify="right" if numbers and place else "left")
    for row in rows:
        table.add_row(*map(_readable, row))
    console.print(table)


def write_numbers(numbers: Mapping[str, Any] | Sequence[Any], target: Path | None) -> None:
    """Write numbers as JSON to a file, or to the standard output for ``-``."""
    from liesparse.files import write_json

    if str(target) == "-":
        print(json.dumps(numbers, indent=2))
    elif target is not None:
        write_json(target, numbers)
