"""``liesparse reproduce claims`` and ``reproduce all``: the paper's prose, and everything on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

from liesparse.cli import common
from liesparse.cli.common import DataDir, JsonOption, check_writable, console
from liesparse.cli.reproduce import FirstSeed, SeedsOption, choose_rows

if TYPE_CHECKING:
    from liesparse.reproduce.claim_parts import Size

FullOption = Annotated[bool, Option("--full", help="More and larger trials, and all of MNIST instead of a part.")]


def claims(
    only: Annotated[str, Option(help="Claims, separated by commas, or all.")] = "all",
    seeds: SeedsOption = 3,
    first_seed: FirstSeed = 0,
    full: FullOption = False,
    data_dir: DataDir = None,
    out: Annotated[Path, Option(help="Folder for what is measured; a second run continues with it.")] = Path(
        "runs/claims"
    ),
    json: JsonOption = None,
) -> None:
    """Measure the paper's claims. Each gets a verdict.

    Each claim of each seed is kept in the folder with its models, so Ctrl-C loses at most one; figures go there too.
    """
    from liesparse.reproduce import claims as work
    from liesparse.reproduce.claim_parts import FULL, Size

    names = choose_rows(only, list(work.CLAIMS))
    check_writable(out)
    rows = measure_claims(names, range(first_seed, first_seed + seeds), FULL if full else Size(), out, data_dir)
    for row in rows:
        seeds_shown = common.count(len(row["seeds"]), "seed")
        console.print(f"\n{row['name']}: {row['verdict']}", style="bold")
        console.print(f"  claim     {row['sentence']} ({row['place']})\n  measured  {row['measured']}; {seeds_shown}")
        console.print(f"  found     {row['reason']}")
    common.write_numbers(rows, json)


def measure_claims(
    names: list[str], seeds: range, size: Size, folder: Path, data_dir: Path | None
) -> list[dict[str, Any]]:
    """Measure claims with a bar, and write their figures to the folder."""
    from liesparse.figures import to_small_png
    from liesparse.files import write_atomically
    from liesparse.reproduce import claims as work

    found: work.Cells = {name: {} for name in names}
    total, done = len(names) * len(seeds), 0
    with common.ProgressBar("claims") as bar:

        def watch(name: str, seed: int) -> None:
            bar.show(f"{name}, seed {seed}", done, total)

        try:
            for name, seed, numbers in work.run(names, seeds, size, folder, data_dir, watch):
                found[name][seed] = numbers
                done += 1
                bar.show(f"{name}, seed {seed}: {done} of {total} measured", done, total, line=True)
        except KeyboardInterrupt:
            kept = f"{done} of {total} are in {folder}"
            raise KeyboardInterrupt(f"Stopped. {kept}; the same command goes on from there.") from None
    for name, cells in found.items():
        figure = work.draw(name, list(cells.values()))
        if figure is not None:
            write_atomically(folder / f"{name}.png", to_small_png(figure))
    return work.conclude(found)


def everything(
    out: Annotated[Path, Option(help="Folder for the page and all that it is made from.")] = Path("runs/all"),
    only: Annotated[str, Option(help="Sections: table1, figures, claims, benchmarks, or all.")] = "all",
    full: Annotated[bool, Option("--full", help="Five seeds, and the claims at their full size.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Make table, figures, claims and benchmarks as one page. It is OUT/index.html.

    It is planned for about 75 minutes on two cores. What is done is kept: after Ctrl-C the same command goes on.
    """
    import time

    from liesparse.reproduce import page as work

    names = choose_rows(only, list(work.SECTIONS))
    check_writable(out)
    plan = work.plan_page(out, data_dir, full=full)
    sections = [work.SECTIONS[name](plan) for name in names]
    command = f"liesparse reproduce all{' --full' if full else ''}" + ("" if only == "all" else f" --only {only}")
    began = time.monotonic()
    with common.ProgressBar("page") as bar:

        def tell(share: float, note: str) -> None:
            bar.show(note, share, 1)

        try:
            for place, section in enumerate(work.make_page(sections, out, command, tell), 1):
                minutes = sum(later.minutes for later in sections[place:])
                passed = (time.monotonic() - began) / 60
                left = f"{passed:.0f} min, about {minutes:.0f} left"
                bar.show(f"{section.title} done after {left}", bar.tasks[0].completed, 1, line=True)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Stopped. What is done is in {out}; the same command goes on from there."
            ) from None
    console.print(f"Wrote {out / work.PAGE}")


def add_to(app: Typer) -> None:
    """Add the commands of this file."""
    app.command()(claims)
    app.command("all")(everything)
