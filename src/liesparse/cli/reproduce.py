"""``liesparse reproduce``: the paper's table, figures and claims made again, published numbers, and a page of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

from liesparse.cli import common
from liesparse.cli.common import DataDir, EpochsOption, JsonOption, SetOption, check_writable, console, explained

if TYPE_CHECKING:
    from liesparse.reproduce.battery import Cell
    from liesparse.reproduce.parts import Job, Results
    from liesparse.settings import Recipe

app = Typer(no_args_is_help=True, help="Make the paper's results again.")
RecipeChoice = StrEnum("RecipeChoice", ["best", "paper", "both"])
FIGURE_ROWS = ("translation", "rotation-scaling", "mnist-10")
SeedsOption = Annotated[int, Option(min=1, help="How many seeds: 0, 1, 2, ...")]
FirstSeed = Annotated[int, Option(min=0, help="The first of them.")]
FinishedOption = Annotated[Path, Option(help="Folder for what is finished; a second run continues with it.")]
ProblemsOption = Annotated[str, Option(help="Problems, separated by commas, or all.")]


def choose_rows(rows: str | None, known: list[str]) -> list[str]:
    """Return the rows of a list with commas, or all rows without one."""
    names = known if rows in (None, "all") else list(dict.fromkeys(name.strip() for name in str(rows).split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise common.fail(f"No row {unknown[0]!r}. The rows are {', '.join(known)}.", 2)
    return names


@app.command()
def table1(
    rows: Annotated[
        str, Option(help="Rows, separated by commas: translation, rotation-scaling, mnist-10, mnist-100, or all.")
    ] = "all",
    recipe: Annotated[RecipeChoice, Option(help="Ours, the paper's, or both.")] = RecipeChoice.best,
    seeds: SeedsOption = 1,
    epochs: EpochsOption = None,
    values: SetOption = None,
    data_dir: DataDir = None,
    out: FinishedOption = Path("runs/table1"),
    json: JsonOption = None,
) -> None:
    """Measure held-out SNR as in Table 1, by recipe and over seeds.

    Finished cells are kept in the folder and not computed again, so Ctrl-C loses at most one cell.
    """
    from liesparse.reproduce import table1 as work
    from liesparse.settings import load_recipe, parse_values

    names = choose_rows(rows, list(work.ROWS))
    chosen = ["paper", "best"] if recipe == "both" else [recipe.value]
    with explained(code=2):
        changes = parse_values(values or []) | ({"learning.n_epochs": epochs} if epochs is not None else {})
        recipes = {name: dict.fromkeys(names, load_recipe(name).with_values(changes)) for name in chosen}
    jobs = work.plan(names, recipes, seeds, out, data_dir)
    found = _compute(
        "Table 1",
        jobs,
        out,
        lambda cell: f"SNR {cell.get('lsc_snr', cell.get('sparse_coding_snr')):.2f}, {cell.get('seconds', 0):.0f} s",
    )
    head, *lines = work.table(found, names, recipes)
    common.print_table("Held-out SNR: mean (lowest-highest over seeds)", head, lines)
    for job, cell in found:
        if job.names[1] == "known-group":
            console.print(f"Translation by the known Fourier group with the true digits: {cell['lsc_snr']:.1f}")
    common.write_numbers(work.flat_cells(found, recipes), json)


@app.command()
def battery(
    problems: ProblemsOption = "all",
    seeds: SeedsOption = 5,
    first_seed: FirstSeed = 0,
    values: SetOption = None,
    json: JsonOption = None,
) -> None:
    """Learn images with a known motion at the defaults. The table says which were solved.

    Each problem is learned with as many templates as shapes, and with twice as many; controls, in which nothing is to
    be found, show whether the verdict of learning notices. By name only: known-translation and known-rotation, where
    the motion is given and 500 images must do. After each cell the JSON file is written, so Ctrl-C loses
    at most the cells that were being learned.
    """
    from liesparse.reproduce import battery as work
    from liesparse.settings import load_recipe, parse_values

    usual = [*work.PROBLEMS, *work.CONTROLS]
    names = usual if problems == "all" else choose_rows(problems, [*usual, *work.KNOWN])
    with explained(code=2):
        recipe = load_recipe("best").with_values(parse_values(values or []))
    cells = _learn_cells("battery", names, range(first_seed, first_seed + seeds), recipe, json)
    common.print_table("Solved cells", *work.table(cells, [name for name in names if name not in work.CONTROLS]))
    common.print_table("The verdict, which is not told the truth", *work.verdict_table(cells))


@app.command("groups")
def compose_groups(
    problems: ProblemsOption = "all", seeds: SeedsOption = 3, first_seed: FirstSeed = 0, json: JsonOption = None
) -> None:
    """Learn pictures that are shifted and turned. Both groups are known, one of them, or none.

    Of several seeds the table has the worst. After each problem the JSON file is written.
    """
    from liesparse.reproduce import battery as work

    names = choose_rows(problems, list(work.GROUPS))
    cells = _learn_cells("groups", names, range(first_seed, first_seed + seeds), None, json)
    common.print_table("Groups, the worst of all seeds", *work.groups_table(cells))


@app.command()
def benchmarks(
    only: Annotated[
        str, Option(help="Some, separated by commas: alignment, square, clusters, shifted, turned, peers; or all.")
    ] = "all",
    seeds: SeedsOption = 1,
    first_seed: FirstSeed = 0,
    data_dir: DataDir = None,
    out: FinishedOption = Path("runs/benchmarks"),
    json: JsonOption = None,
) -> None:
    """Measure tasks for which others have published numbers.

    Digits are those of MNIST if it is here (--data-dir, LIESPARSE_DATA or `liesparse data fetch`), else the 2,000 that
    ship with the package. Finished rows are kept in the folder, so Ctrl-C loses at most one.
    """
    from liesparse.reproduce import published as work

    names = choose_rows(only, list(work.BENCHMARKS))
    jobs = work.plan(names, range(first_seed, first_seed + seeds), data_dir)
    found = _compute("benchmarks", jobs, out, lambda row: f"{row['seconds']:.0f} s {row['made_with']['data']}".rstrip())
    for name in names:
        benchmark = work.BENCHMARKS[name]
        common.print_table(benchmark.title, *work.table(name, found))
        console.print(f"Published: {benchmark.source}.")
    rows = [
        {"benchmark": job.names[0], "seed": job.seed, "found": row["found"], "seconds": row["seconds"]}
        | {"data": row["made_with"]["data"]}
        for job, row in found
    ]
    common.write_numbers(rows, json)


def _compute(title: str, jobs: list[Job], out: Path, say: Callable[[dict[str, Any]], str]) -> Results:
    """Compute or find each result and say what it is; on Ctrl-C, say what is kept."""
    from liesparse.reproduce.parts import run

    check_writable(out)
    found: Results = []
    kept = common.resumable(lambda: f"{len(found)} of {len(jobs)} are in {out}")
    with kept, common.ProgressBar(title) as bar:
        for job, result in run(jobs, out, lambda step: bar.show(step.note, step.share, 1)):
            found.append((job, result))
            console.print(f"{job}: {say(result)}")
    return found


def _learn_cells(title: str, names: list[str], seeds: range, recipe: Recipe | None, json: Path | None) -> list[Cell]:
    """Show each cell as it is done and write all there are to the file, or in the end to the screen."""
    from liesparse.reproduce import battery as work

    cells: list[Cell] = []
    planned = work.plan(names, seeds)
    with common.ProgressBar(title) as bar:
        for cell in work.run(planned, recipe):
            cells.append(cell)
            verdict = "control" if cell["problem"] in work.CONTROLS else "solved" if cell["solved"] else "not solved"
            found = f"{'' if cell['problem'] in work.GROUPS else f'{verdict}, '}SNR {cell['snr']:.1f}"
            what = f"{cell['problem']}, {cell['n_components']} templates, seed {cell['seed']}: {found}"
            bar.show(what, len(cells), len(planned), line=True)
            if str(json) != "-" or len(cells) == len(planned):
                common.write_numbers(cells, json)
    return cells


@app.command()
def figures(
    rows: Annotated[
        str | None,
        Option(help=f"Data sets, separated by commas: {', '.join(FIGURE_ROWS)}.", show_default="all there are"),
    ] = None,
    epochs: EpochsOption = None,
    seed: Annotated[int, Option(min=0, help="Random seed: same seed, same models and examples.")] = 0,
    images: Annotated[int, Option(min=100, max=60_000, help="Training images of each data set.")] = 60_000,
    data_dir: DataDir = None,
    out: Annotated[Path, Option(help="Folder for the figures; the models are kept in it too.")] = Path("runs/figures"),
) -> None:
    """Draw the paper's figures 1 to 4. They are PDF and PNG, from models made or found.

    Learned models are kept in OUT/models and used again. After Ctrl-C the same command goes on where it stopped.
    """
    from liesparse import load_recipe, training
    from liesparse.data.downloads import SIZES, find_files
    from liesparse.figures import to_pdf, to_small_png
    from liesparse.files import write_atomically
    from liesparse.reproduce import figures as work
    from liesparse.reproduce.table1 import ROWS, Order

    names = choose_rows(rows, list(FIGURE_ROWS))
    check_writable(out)
    models = out / "models"
    models.mkdir(parents=True, exist_ok=True)
    try:  # before, not after, the others are learned
        if "mnist-10" in names:
            find_files("mnist", data_dir, [file for file in SIZES if "images" in file])
    except FileNotFoundError as error:
        if rows is not None:  # it was asked for
            raise
        console.print(f"Without mnist-10. {error}")
        names.remove("mnist-10")
    recipe = load_recipe("best").with_values({} if epochs is None else {"learning.n_epochs": epochs})
    fewer: dict[str, Any] = {} if epochs is None else {"sparse_coding_epochs": epochs}
    orders = [Order(name, replace(ROWS[name], **fewer), recipe, seed, models) for name in names]
    try:
        with common.ProgressBar("figures") as bar:
            drawn = work.make(
                orders, images, data_dir, lambda step: bar.show(step.note, step.share, 1, line=step.end_of_epoch)
            )
        for name, figure in drawn.items():
            write_atomically(out / f"{name}.pdf", to_pdf(figure))
            write_atomically(out / f"{name}.png", to_small_png(figure))
            console.print(f"Wrote {out / name}.pdf and .png")
    except KeyboardInterrupt as stopped:
        where = str(stopped).replace(training.GO_ON, "") or f"Stopped. Finished models are in {models}."
        raise KeyboardInterrupt(f"{where.strip()} The same command goes on from there.") from None


@app.command()
def claims(
    only: Annotated[str, Option(help="Claims, separated by commas, or all.")] = "all",
    seeds: SeedsOption = 3,
    first_seed: FirstSeed = 0,
    full: Annotated[bool, Option("--full", help="More and larger trials, and all of MNIST instead of a part.")] = False,
    data_dir: DataDir = None,
    out: FinishedOption = Path("runs/claims"),
    json: JsonOption = None,
) -> None:
    """Measure the paper's claims. Each gets a verdict.

    Each claim of each seed is kept in the folder with its models, so Ctrl-C loses at most one; figures go there too.
    """
    from liesparse.figures import to_small_png
    from liesparse.files import write_atomically
    from liesparse.reproduce.claims import CLAIMS
    from liesparse.reproduce.parts import FULL, Size, conclude, draw, plan_claims

    chosen = {name: CLAIMS[name] for name in choose_rows(only, list(CLAIMS))}
    seen = range(first_seed, first_seed + seeds)
    jobs = plan_claims(chosen, seen, FULL if full else Size(), out, data_dir)
    rows = conclude(chosen, _compute("claims", jobs, out, lambda _: "measured"))
    for row in rows:
        figure = draw(CLAIMS[row["name"]], row["numbers"].values())
        if figure is not None:
            write_atomically(out / f"{row['name']}.png", to_small_png(figure))
        seeds_shown = common.count(len(row["seeds"]), "seed")
        console.print(f"\n{row['name']}: {row['verdict']}", style="bold")
        console.print(f"  claim     {row['sentence']} ({row['place']})\n  measured  {row['measured']}; {seeds_shown}")
        console.print(f"  found     {row['reason']}")
    common.write_numbers(rows, json)


@app.command("all")
def everything(
    out: Annotated[Path, Option(help="Folder for the page and all that it is made from.")] = Path("runs/all"),
    only: Annotated[str, Option(help="Sections: table1, figures, claims, benchmarks, or all.")] = "all",
    full: Annotated[bool, Option("--full", help="Five seeds, and the claims at their full size.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Make table, figures, claims and benchmarks as one page. It is OUT/index.html.

    It is planned for about 75 minutes on two cores. What is done is kept: after Ctrl-C the same command goes on.
    """
    from liesparse.reproduce import page as work

    names = choose_rows(only, list(work.SECTIONS))
    check_writable(out)
    plan = work.plan_page(out, data_dir, full=full)
    sections = [work.SECTIONS[name](plan) for name in names]
    command = f"liesparse reproduce all{' --full' if full else ''}" + ("" if only == "all" else f" --only {only}")
    began = time.monotonic()
    with common.resumable(lambda: f"What is done is in {out}"), common.ProgressBar("page") as bar:
        pages = work.make_page(sections, out, command, lambda step: bar.show(step.note, step.share, 1))
        for place, section in enumerate(pages, 1):
            minutes = sum(later.minutes for later in sections[place:])
            passed = (time.monotonic() - began) / 60
            left = f"{passed:.0f} min, about {minutes:.0f} left"
            bar.show(f"{section.title} done after {left}", bar.tasks[0].completed, 1, line=True)
    console.print(f"Wrote {out / work.PAGE}")
