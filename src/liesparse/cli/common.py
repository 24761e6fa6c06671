"""What all commands share: console, errors and exit codes, Ctrl-C, progress, tables, options."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from liesparse.parallel import Group

DataArgument = Annotated[str, typer.Argument(metavar="DATA", help="A name (`liesparse data list`) or a path.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with the files of MNIST or Fashion-MNIST.")]
EpochsOption = Annotated[int | None, typer.Option(min=1, help="Passes over the images, instead of the recipe's.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file, - for the screen.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Change a value of the recipe, as learning.first_memory=20.")
]
WIDTH = 120  # of what is printed, where there is no terminal to fit

Options = ParamSpec("Options")
_debug = False


def set_debug(wanted: bool) -> None:
    """Let tracebacks through (``liesparse --debug …``)."""
    global _debug
    _debug = wanted


def framed(command: Callable[Concatenate[Console, Options], None]) -> Callable[Options, None]:
    """Give a command its console, its error messages and its exit codes; Typer sees the other parameters."""

    @functools.wraps(command)
    def run(*args: Options.args, **options: Options.kwargs) -> None:
        console = make_console(quiet=str(options.get("json")) == "-")
        with explained(console):
            command(console, *args, **options)

    signature = inspect.signature(command, eval_str=True)
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return run


def make_console(*, quiet: bool = False) -> Console:
    """Return the console for messages: the standard output, or the standard error where ``--json -`` needs the former.

    Of several processes only the first one prints.
    """
    another = "WORLD_SIZE" in os.environ and os.environ.get("RANK", "0") != "0"
    console = Console(soft_wrap=True, stderr=quiet, highlight=False, quiet=another)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def fail(console: Console, message: object, code: int = 1) -> typer.Exit:
    """Print in one line what went wrong, and return the exit to be raised."""
    console.print(str(message).strip() or "Failed.", style="red", markup=False)
    return typer.Exit(code)


@contextmanager
def explained(console: Console, *, code: int = 1, group: Group | None = None) -> Iterator[None]:
    """Turn expected errors and Ctrl-C into one line and an exit code; anything else is a bug and keeps its traceback.

    With code 2, for wrong use, a value of the wrong type is expected as well. Of the processes of ``group`` the first
    that ends prints its line, as any of them may be the one that fails.
    """

    def choose_who_prints() -> None:
        if group is not None and group.size > 1:
            console.quiet = not group.speaks_first()

    try:
        yield
    except KeyboardInterrupt as stopped:
        if str(stopped):  # the first process alone says what it has saved
            console.print(str(stopped), markup=False)
        else:
            choose_who_prints()
            console.print("Stopped.")
        raise typer.Exit(130) from None
    except _expected_errors(wrong_use=code == 2) as error:
        if _debug:
            raise
        choose_who_prints()
        raise fail(console, _explain(error), 1 if isinstance(error, OSError) else code) from None


def _expected_errors(*, wrong_use: bool) -> tuple[type[Exception], ...]:
    from liesparse.learning import LearningError
    from liesparse.parallel import LostError

    return (ValueError, LearningError, LostError, OSError, MemoryError, *((TypeError,) if wrong_use else ()))


def _explain(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "Not enough memory. Use fewer or smaller images."
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"{error.strerror}: {error.filename}" if error.strerror else str(error)
    where = f" ({error.filename})" if error.filename else ""
    hint = "Free some space, or choose another place." if error.errno == 28 else "Choose another place."
    return f"{error.strerror or error}{where}. {hint}"


class ProgressBar:
    """A bar with the time left in a terminal; elsewhere a line for each note that is marked as one."""

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name, self.note = console, name, ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(name, total=None, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, note: str, done: float = 0, total: float | None = None, *, line: bool = False) -> None:
        """Show how much is done, and what is being done."""
        self.note = note
        self._progress.update(self._task, completed=done, total=total, note=note)
        if line and not self.console.is_terminal:
            self.console.print(f"{self.name}: {note}", markup=False)


def print_table(
    console: Console, title: str | None, head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True
) -> None:
    """Print a table, with or without a head; numbers stand on the right, but for the first column."""
    table = Table(title=title, show_header=any(head))
    for place, column in enumerate(head):
        table.add_column(column, justify="right" if numbers and place else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def write_numbers(numbers: Mapping[str, Any] | Sequence[Any], target: Path | None) -> None:
    """Write numbers as JSON to a file, or to the standard output for ``-``."""
    from liesparse.files import write_atomically

    text = json.dumps(numbers, indent=2) + "\n"
    if str(target) == "-":
        sys.stdout.write(text)
    elif target is not None:
        write_atomically(target, text.encode())
