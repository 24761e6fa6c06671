"""``liesparse reproduce``: the paper's results, made again."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from liesparse.cli.figures import figures

if TYPE_CHECKING:
    from liesparse.reproduce.table1 import Job, Recipes

app = typer.Typer(no_args_is_help=True, help="Make the paper's results again.")
app.command()(figures)


TABLE_WIDTH = 120  # where there is no terminal to fit


class RecipeChoice(StrEnum):
    """Which recipes to run."""

    best = "best"
    paper = "paper"
    both = "both"


@app.callback()
def root() -> None:
    """Make the paper's results again."""


@app.command()
def table1(
    rows: Annotated[
        str, typer.Option(help="Rows, separated by commas: translation, rotation-scaling, mnist-10, mnist-100, or all.")
    ] = "all",
    recipe: Annotated[RecipeChoice, typer.Option(help="Ours, the paper's, or both.")] = RecipeChoice.best,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, 2, ...")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the images, instead of the recipe's.")] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value of the recipes, as learning.em_rate=0.05.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the MNIST idx files.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the finished cells; a second run goes on from them.")] = Path(
        "runs/table1"
    ),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the cells of the recipes to this file.")
    ] = None,
) -> None:
    """Held-out SNR of LSC and of plain sparse coding: Table 1, by recipe and over seeds.

    Finished cells are kept in the folder and not computed again, so Ctrl-C loses at most one cell.
    """
    from liesparse.files import write_atomically
    from liesparse.learning import LearningError
    from liesparse.recipes import load_recipe, parse_values
    from liesparse.reproduce import table1 as work
    from liesparse.reproduce.rows import ROWS

    console = Console(soft_wrap=True)
    names = list(ROWS) if rows == "all" else [name.strip() for name in rows.split(",")]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        console.print(f"No row {unknown[0]!r}. The rows are {', '.join(ROWS)}.", style="red")
        raise typer.Exit(2)
    chosen = ["paper", "best"] if recipe == "both" else [recipe.value]
    try:
        changes = parse_values(values or []) | ({"learning.n_epochs": epochs} if epochs is not None else {})
        recipes = {name: {row: load_recipe(name, row).with_values(changes) for row in names} for name in chosen}
    except (ValueError, TypeError) as error:
        console.print(str(error), style="red")
        raise typer.Exit(2) from None
    jobs = work.plan(names, recipes, seeds)
    found: dict[Job, dict[str, Any]] = {}
    try:
        _compute(console, jobs, recipes, out, data_dir, found)
    except KeyboardInterrupt:
        console.print(f"Stopped. {len(found)} of {len(jobs)} cells are in {out}; the same command goes on from there.")
        raise typer.Exit(130) from None
    except (OSError, ValueError, LearningError) as error:
        console.print(str(error), style="red")
        raise typer.Exit(1) from None
    _print_table(console, work.table(found, names, recipes), found)
    if json_file is not None:
        cells = work.flat_cells(found, recipes)
        write_atomically(json_file, (json.dumps(cells, indent=2) + "\n").encode())


def _compute(
    console: Console,
    jobs: list[Job],
    recipes: Recipes,
    out: Path,
    data_dir: Path | None,
    found: dict[Job, dict[str, Any]],
) -> None:
    from liesparse.reproduce import table1 as work

    columns = (
        TextColumn("{task.fields[note]}"),
        BarColumn(),
        TextColumn("{task.completed:.1f}/{task.total} cells"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    weights = {job: 1.0 if job.method in recipes else 0.1 for job in jobs}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=round(sum(weights.values()), 1), note="")

        def watch(job: Job, share: float, note: str) -> None:
            done = sum(weights[other] for other in found) + share * weights[job]
            progress.update(task, completed=done, note=f"{job.row}, {job.method}, seed {job.seed}: {note}")

        for job, cell in work.run(jobs, recipes, out, data_dir=data_dir, watch=watch):
            found[job] = cell
            snr = cell.get("lsc_snr", cell.get("sparse_coding_snr"))
            console.print(f"{job.row}, {job.method}, seed {job.seed}: SNR {snr:.2f}, {cell.get('seconds', 0):.0f} s")


def _print_table(console: Console, lines: list[list[str]], found: dict[Job, dict[str, Any]]) -> None:
    shown = Table(title="Held-out SNR: mean (lowest-highest over seeds)")
    for number, heading in enumerate(lines[0]):
        shown.add_column(heading, justify="right" if number else "left")
    for line in lines[1:]:
        shown.add_row(*line)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(shown)
    for job, cell in found.items():
        if job.method == "known-group":
            console.print(f"Translation by the known Fourier group with the true digits: {cell['lsc_snr']:.1f}")
