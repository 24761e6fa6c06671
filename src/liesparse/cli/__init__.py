"""The command line: each command parses, calls and writes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from liesparse import __version__
from liesparse.cli import common, model_commands, reproduce, tools, train

HELP = "Learn from unlabelled images what is in them and how it moves."


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        with common.explained():  # what goes wrong in any command
            return super().invoke(ctx)


# Plain help: loading what draws boxes around it takes as long as all the rest.
plain: Any = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
app = typer.Typer(name="liesparse", cls=_Commands, help=HELP, no_args_is_help=True, **plain)
app.command()(train.demo)
app.command()(train.train)
app.command()(tools.suggest)
for command in model_commands.COMMANDS:
    app.command()(command)
app.add_typer(tools.data, name="data")
app.add_typer(reproduce.app, name="reproduce")
app.command()(tools.bench)
app.command()(tools.doctor)
main = app  # what the script and ``python -m liesparse`` call


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"liesparse {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def root(
    version: Annotated[  # noqa: ARG001, its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Note what holds for every command."""
    common.set_console()
    common.debug = debug
