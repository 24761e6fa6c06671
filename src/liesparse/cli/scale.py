"""``liesparse bench scale``: how time and memory grow with the size of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from liesparse.cli.common import explained, make_console, write_numbers


def scale(
    part: Annotated[list[str] | None, typer.Option(help="Only this part, such as images; again for more.")] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write all figures to this file, - for the screen.")
    ] = None,
) -> None:
    """Measure how time and memory grow with the size of the job."""
    from liesparse.reproduce.scale import run_scale

    console = make_console(quiet=str(json) == "-")
    with explained(console):
        with console.status("measuring") as status:
            result = run_scale(part or (), report=lambda what: status.update(f"measuring {what}"))
        for name, found in result.items():
            print_part(console, name, found)
        write_numbers(result, json)


def print_part(console: Console, name: str, found: dict[str, Any]) -> None:
    """Show a part: its plain values in one line, each list or mapping as a table with a column for each entry."""
    plain = [f"{key} {_write(value)}" for key, value in found.items() if not isinstance(value, dict | list)]
    console.print(f"{name}: {', '.join(plain)}" if plain else name, markup=False)
    for title, value in found.items():
        entries = _entries(value)
        if entries:
            table = Table(title=f"{name}: {title}")
            first, *others = entries[0]
            table.add_column(first)
            for entry in entries:
                table.add_column(_write(entry[first]), justify="right")
            for key in others:
                table.add_row(key, *(_write(entry[key]) for entry in entries))
            console.print(table)


def _entries(value: Any) -> list[dict[str, Any]]:
    """Return the entries of a table: of a list, of a mapping of mappings under their names, or of one mapping."""
    if isinstance(value, dict) and value:
        inner = all(isinstance(entry, dict) for entry in value.values())
        value = [{"": key, **entry} for key, entry in value.items()] if inner else [{"": "value", **value}]
    return [_flat(entry) for entry in value] if isinstance(value, list) else []


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    """Write what is inside a mapping of an entry beside the rest, under both names."""
    found: dict[str, Any] = {}
    for key, value in entry.items():
        found |= {f"{key} {name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _write(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
