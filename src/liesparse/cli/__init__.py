"""The command line: one file per command, each parses, calls and writes."""

from __future__ import annotations

from typing import Annotated

import typer

from liesparse import __version__
from liesparse.cli.bench import bench
from liesparse.cli.demo import demo
from liesparse.cli.reproduce import app as reproduce

app = typer.Typer(
    name="liesparse",
    help="Learn from unlabelled images what is in them and how it moves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(bench)
app.add_typer(reproduce, name="reproduce")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"liesparse {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Learn from unlabelled images what is in them and how it moves."""


def main() -> None:
    """Run the command line."""
    app()
