"""The progress bar, by itself as it is slow to import."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from liesparse.cli.common import console


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
