"""What the commands share: one line for what went wrong, exit codes, and where progress is drawn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_debug = False


def set_debug(wanted: bool) -> None:
    """Let tracebacks through (``liesparse --debug …``)."""
    global _debug
    _debug = wanted


def make_console(*, quiet: bool = False) -> Console:
    """Return where people read; with ``--json -`` numbers own the standard output, and words go to the other one.

    Of several processes only the first says anything.
    """
    return Console(soft_wrap=True, stderr=quiet, highlight=False, quiet=_rank() > 0)


def fail(console: Console, message: object, code: int = 1) -> typer.Exit:
    """Say in one line what went wrong, and return the exit to be raised."""
    _tell(console, str(message).strip() or "Failed.", style="red")
    return typer.Exit(code)


def _rank() -> int:
    return int(os.environ.get("RANK", "0")) if "WORLD_SIZE" in os.environ else 0


def _tell(console: Console, message: str, style: str | None = None) -> None:
    """Say how it ended; of several processes whichever is first, as any of them may be the one that fails."""
    if "WORLD_SIZE" in os.environ:
        from liesparse.parallel import current

        group = current()
        console.quiet = not group.speaks_first() if group.size > 1 else _rank() > 0
    console.print(message, style=style, markup=False)


@contextmanager
def explained(console: Console, *, code: int = 1) -> Iterator[None]:
    """Turn expected errors into one line and an exit code; anything else is a bug and keeps its traceback."""
    from liesparse.learning import LearningError
    from liesparse.parallel import LostError
    from liesparse.training import Interrupted

    if _debug:
        yield
        return
    try:
        yield
    except Interrupted as stopped:
        console.print(str(stopped), markup=False)  # the first process alone, as it has saved
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        _tell(console, "Stopped.")
        raise typer.Exit(130) from None
    except (ValueError, LearningError, LostError) as error:
        raise fail(console, error, code) from None
    except FileNotFoundError as error:
        raise fail(console, (error.strerror and f"{error.strerror}: {error.filename}") or error) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        hint = "Free some space, or choose another place." if error.errno == 28 else "Choose another place."
        raise fail(console, f"{error.strerror or error}{where}. {hint}") from None
    except MemoryError:
        raise fail(console, "Not enough memory. Use fewer or smaller images.") from None


def make_progress(console: Console, *texts: str) -> Progress:
    """Return a bar with the time left, drawn only in a terminal."""
    return Progress(
        *(TextColumn(text) for text in texts[:1]),
        BarColumn(),
        *(TextColumn(text) for text in texts[1:]),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def write_numbers(numbers: Mapping[str, Any], target: Path | None) -> None:
    """Write numbers as JSON to a file, or to the standard output for ``-``."""
    from liesparse.files import write_json

    if target is None:
        return
    if str(target) == "-":
        sys.stdout.write(json.dumps(numbers, indent=2) + "\n")
    else:
        write_json(target, numbers)
