"""``liesparse data``: what there is, how to get it, what it looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from liesparse.cli.common import DataArgument, DataDir, framed, print_table

app = typer.Typer(no_args_is_help=True, help="List data sets, fetch them, look at them.")


@app.command(name="list")
@framed
def list_command(console: Console, data_dir: DataDir = None) -> None:
    """List the data sets that have a name, and where they are."""
    from liesparse.data import list_datasets

    rows = [(dataset.name, dataset.size, str(dataset.where)) for dataset in list_datasets(data_dir)]
    print_table(console, None, ("name", "images", "where"), rows, numbers=False)
    console.print("Or a path: .npy, .npz, .parquet, idx (gzipped or not), a folder or a zip of images.")


@app.command()
@framed
def fetch(
    console: Console,
    name: Annotated[str, typer.Argument(help="mnist or fashion-mnist.")],
    data_dir: DataDir = None,
) -> None:
    """Get a data set into the cache, its checksums checked."""
    from liesparse.data import fetch as get

    folder = get(name, data_dir)
    console.print(f"{name} is in {folder}.", markup=False)


@app.command()
@framed
def preview(
    console: Console,
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="File for the picture.")] = Path("preview.png"),
    data_dir: DataDir = None,
) -> None:
    """Draw the first images of DATA as the model would see them."""
    from liesparse.data import load_data
    from liesparse.figures import sheet_figure, to_png
    from liesparse.files import write_atomically

    loaded = load_data(data, data_dir=data_dir)
    images = loaded.train[:100].reshape(-1, *loaded.image_shape).numpy()
    write_atomically(out, to_png(sheet_figure(images, 20, loaded.summary())))
    console.print(f"{loaded.summary()} Look at {out}.", markup=False)
