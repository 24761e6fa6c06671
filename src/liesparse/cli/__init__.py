"""The command line: each command parses, calls and writes, inside the frame of ``common.framed``."""

from __future__ import annotations

from typing import Annotated

import typer

from liesparse import __version__
from liesparse.cli.common import set_debug
from liesparse.cli.data import app as data
from liesparse.cli.diagnostics import bench, doctor
from liesparse.cli.explore import explore
from liesparse.cli.model_commands import canonicalize, evaluate, infer, report, traverse
from liesparse.cli.reproduce import app as reproduce
from liesparse.cli.train import demo, train

app = typer.Typer(
    name="liesparse",
    help="Learn from unlabelled images what is in them and how it moves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (demo, train, evaluate, infer, canonicalize, traverse, report, explore):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(reproduce, name="reproduce")
app.command()(bench)
app.command()(doctor)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"liesparse {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[  # noqa: ARG001, its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Learn from unlabelled images what is in them and how it moves."""
    set_debug(debug)


def main() -> None:
    """Run the command line."""
    app()
