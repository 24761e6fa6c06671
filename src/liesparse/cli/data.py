"""``liesparse data``: what there is, how to get it, what it looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from liesparse.cli.common import explained, make_console
from liesparse.cli.train import DataArgument, DataDir

app = typer.Typer(no_args_is_help=True)


@app.callback()
def root() -> None:
    """List data sets, fetch them, look at them."""


@app.command(name="list")
def list_command(data_dir: DataDir = None) -> None:
    """List the data sets that have a name, and where they are."""
    from liesparse.data import list_datasets

    console = make_console()
    table = Table()
    for column in ("name", "images", "where"):
        table.add_column(column)
    with explained(console):
        for source in list_datasets(data_dir):
            table.add_row(source.name, source.size, source.where)
    console.print(table)
    console.print("Or a path: .npy, .npz, .parquet, idx (gzipped or not), a folder or a zip of images.")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mnist or fashion-mnist.")],
    data_dir: DataDir = None,
) -> None:
    """Get a data set into the cache, its checksums checked."""
    from liesparse.data import fetch as get

    console = make_console()
    with explained(console):
        folder = get(name, data_dir)
    console.print(f"{name} is in {folder}.", markup=False)


@app.command()
def preview(
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="File for the picture.")] = Path("preview.png"),
    data_dir: DataDir = None,
) -> None:
    """Draw the first images of DATA as the model would see them."""
    from liesparse.data import load_data
    from liesparse.figures import sheet_figure, to_png
    from liesparse.files import write_atomically

    console = make_console()
    with explained(console):
        loaded = load_data(data, data_dir=data_dir)
        images = loaded.train[:100].reshape(-1, *loaded.image_shape).numpy()
        write_atomically(out, to_png(sheet_figure(images, 20, loaded.summary())))
    console.print(f"{loaded.summary()} Look at {out}.", markup=False)
