"""``liesparse reproduce``: the paper's Table 1 and figures, made again."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from liesparse.cli.common import (
    DataDir,
    EpochsOption,
    JsonOption,
    ProgressBar,
    SetOption,
    explained,
    fail,
    framed,
    print_table,
    write_numbers,
)
from liesparse.cli.train import check_writable

if TYPE_CHECKING:
    from liesparse.reproduce.table1 import Job, Order, Recipes, RowImages, Tell

app = typer.Typer(no_args_is_help=True, help="Make the paper's results again.")
Made = TypeVar("Made")
FIGURE_ROWS = ("translation", "rotation-scaling", "mnist-10")


class RecipeChoice(StrEnum):
    """Which recipes to run."""

    best = "best"
    paper = "paper"
    both = "both"


def _choose_rows(console: Console, rows: str | None, known: list[str]) -> list[str]:
    """Return the rows of a list with commas, or all rows without one."""
    names = known if rows in (None, "all") else list(dict.fromkeys(name.strip() for name in str(rows).split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise fail(console, f"No row {unknown[0]!r}. The rows are {', '.join(known)}.", 2)
    return names


@app.command()
@framed
def table1(
    console: Console,
    rows: Annotated[
        str, typer.Option(help="Rows, separated by commas: translation, rotation-scaling, mnist-10, mnist-100, or all.")
    ] = "all",
    recipe: Annotated[RecipeChoice, typer.Option(help="Ours, the paper's, or both.")] = RecipeChoice.best,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, 2, ...")] = 1,
    epochs: EpochsOption = None,
    values: SetOption = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder for the finished cells; a second run continues with them.")] = Path(
        "runs/table1"
    ),
    json: JsonOption = None,
) -> None:
    """Held-out SNR of LSC and of plain sparse coding: Table 1, by recipe and over seeds.

    Finished cells are kept in the folder and not computed again, so Ctrl-C loses at most one cell.
    """
    from liesparse.recipes import load_recipe, parse_values
    from liesparse.reproduce import table1 as work
    from liesparse.reproduce.table1 import ROWS

    names = _choose_rows(console, rows, list(ROWS))
    chosen = ["paper", "best"] if recipe == "both" else [recipe.value]
    with explained(console, code=2):
        changes = parse_values(values or []) | ({"learning.n_epochs": epochs} if epochs is not None else {})
        recipes = {name: {row: load_recipe(name, row).with_values(changes) for row in names} for name in chosen}
    jobs = work.plan(names, recipes, seeds)
    found: dict[Job, dict[str, Any]] = {}
    try:
        _compute(console, jobs, recipes, out, data_dir, found)
    except KeyboardInterrupt:
        message = f"Stopped. {len(found)} of {len(jobs)} cells are in {out}; the same command goes on from there."
        raise KeyboardInterrupt(message) from None
    head, *lines = work.table(found, names, recipes)
    print_table(console, "Held-out SNR: mean (lowest-highest over seeds)", head, lines)
    for job, cell in found.items():
        if job.method == "known-group":
            console.print(f"Translation by the known Fourier group with the true digits: {cell['lsc_snr']:.1f}")
    write_numbers(work.flat_cells(found, recipes), json)


def _compute(
    console: Console,
    jobs: list[Job],
    recipes: Recipes,
    out: Path,
    data_dir: Path | None,
    found: dict[Job, dict[str, Any]],
) -> None:
    from liesparse.reproduce import table1 as work

    weights = {job: 1.0 if job.method in recipes else 0.1 for job in jobs}
    total = sum(weights.values())
    with ProgressBar(console, "Table 1") as bar:

        def watch(job: Job, share: float, note: str) -> None:
            done = sum(weights[other] for other in found) + share * weights[job]
            bar.update(f"{done:.1f}/{total:.1f} cells: {_describe(job)}: {note}", done, total)

        for job, cell in work.run(jobs, recipes, out, data_dir=data_dir, watch=watch):
            found[job] = cell
            snr = cell.get("lsc_snr", cell.get("sparse_coding_snr"))
            console.print(f"{_describe(job)}: SNR {snr:.2f}, {cell.get('seconds', 0):.0f} s", markup=False)


def _describe(job: Job) -> str:
    return f"{job.row}, {job.method}, seed {job.seed}"


@app.command()
@framed
def figures(
    console: Console,
    rows: Annotated[
        str | None,
        typer.Option(help=f"Data sets, separated by commas: {', '.join(FIGURE_ROWS)}.", show_default="all there are"),
    ] = None,
    epochs: EpochsOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed: same seed, same models and examples.")] = 0,
    images: Annotated[int, typer.Option(min=100, max=60_000, help="Training images of each data set.")] = 60_000,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures; the models are kept in it too.")] = Path(
        "runs/figures"
    ),
) -> None:
    """Draw the paper's figures 1 to 4, as PDF and PNG, from models made or found.

    Learned models are kept in OUT/models and used again. After Ctrl-C the same command goes on where it stopped.
    """
    from dataclasses import replace

    from liesparse.recipes import load_recipe
    from liesparse.reproduce.table1 import ROWS, Order

    names = _choose_rows(console, rows, list(FIGURE_ROWS))
    check_writable(out)
    (out / "models").mkdir(parents=True, exist_ok=True)
    orders = []
    for name in _rows_with_data(console, names, data_dir, asked=rows is not None):
        recipe, row = load_recipe("best", name), ROWS[name]
        if epochs is not None:
            recipe = recipe.with_values({"learning.n_epochs": epochs})
            row = replace(row, sparse_coding_epochs=epochs)
        orders.append(Order(name, row, recipe, seed, out / "models"))
    try:
        _draw_figures(console, orders, images, data_dir, out)
    except KeyboardInterrupt as stopped:
        finished = f"Stopped. Finished models are in {out / 'models'}; the same command goes on from there."
        raise KeyboardInterrupt(str(stopped) or finished) from None


def _rows_with_data(console: Console, names: list[str], data_dir: Path | None, *, asked: bool) -> list[str]:
    """Leave out the rows without data, or stop if they were asked for: before, not after, the others are learned."""
    from liesparse.data import find_mnist
    from liesparse.reproduce.table1 import ROWS

    there = []
    for name in names:
        try:
            if ROWS[name].data == "mnist":
                find_mnist("train", data_dir)
                find_mnist("test", data_dir)
            there.append(name)
        except FileNotFoundError as error:
            if asked:
                raise
            console.print(f"Without {name}. {error}", markup=False)
    return there


def _draw_figures(console: Console, orders: list[Order], n_images: int, data_dir: Path | None, out: Path) -> None:
    from liesparse.figures import to_pdf, to_small_png
    from liesparse.files import write_atomically
    from liesparse.reproduce import figures as work
    from liesparse.reproduce.table1 import find_or_learn, find_or_learn_baseline, load_images

    rows, plain = {}, None
    for order in orders:
        images = load_images(order.row, order.seed, data_dir, n_images)
        model = _find_or_learn(console, order.name, find_or_learn, order, images).coder.model_
        rows[order.name] = work.row_panels(order.name, model, images, order.seed)
        if order.name == work.COMPARED:
            name = f"{order.name}, plain sparse coding"
            baseline = _find_or_learn(console, name, find_or_learn_baseline, order, images)
            plain = work.plain_panels(baseline, images, order.seed)
    for name, figure in work.draw(rows, plain).items():
        write_atomically(out / f"{name}.pdf", to_pdf(figure))
        write_atomically(out / f"{name}.png", to_small_png(figure))
        console.print(f"Wrote {out / name}.pdf and .png", markup=False)


def _find_or_learn(
    console: Console, name: str, work: Callable[[Order, RowImages, Tell], Made], order: Order, images: RowImages
) -> Made:
    """Show how far a model is, or say that it was found."""
    with ProgressBar(console, name) as bar:
        made = work(order, images, lambda step: bar.update(step.note, step.share, 1, line=step.end_of_epoch))
    if not bar.note:
        console.print(f"{name}: found, not learned again", markup=False)
    return made
