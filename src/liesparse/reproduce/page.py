"""Table 1, figures, claims and benchmarks as one page that needs no other file.

Each section keeps what it has computed in a folder of its own, so a second run goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from liesparse import __version__
from liesparse.data.downloads import SIZES, find_files
from liesparse.figures import to_small_png
from liesparse.files import write_atomically
from liesparse.report.page import render
from liesparse.reproduce import claims, figures, published, table1
from liesparse.reproduce.parts import FULL, Size, Step, Tell, conclude, draw, part_of, plan_claims, run
from liesparse.settings import Recipe, load_recipe

TITLE = "Disentangling images with Lie group transformations and sparse coding: made again"
PAGE = "index.html"
FIGURES = {
    "figure1": "Figure 1: images of each data set",
    "figure2": "Figure 2: columns of W",
    "figure3": "Figure 3: inference, shapes and motion",
    "figure4": "Figure 4: MNIST, beside plain sparse coding",
}


class Part(NamedTuple):
    """A piece of a section: a heading, text, a table, a picture, or some of them."""

    heading: str = ""
    text: Sequence[str] = ()
    head: Sequence[str] = ()
    lines: Sequence[Sequence[str]] = ()
    picture: bytes | None = None


class Section(NamedTuple):
    """A section of the page, and how to make it."""

    title: str
    command: str  # that makes it alone
    seeds: str
    minutes: float  # about, on two cores
    folder: Path  # with what it has computed
    make: Callable[[Tell], list[Part]]
    parts: list[Part] | None = None  # once it is made
    date: str = ""


class Plan(NamedTuple):
    """What the page is made of, and where it goes."""

    folder: Path
    data_dir: Path | None
    rows: list[str]  # of Table 1
    size: Size = Size()
    n_seeds: int = 1
    n_claim_seeds: int = 3
    recipe: Recipe = load_recipe("best")


def plan_page(folder: Path, data_dir: Path | None, *, full: bool = False) -> Plan:
    """Return the usual plan; without MNIST, its rows are left out."""
    try:
        find_files("mnist", data_dir, [file for file in SIZES if "images" in file])
        rows = list(table1.ROWS)
    except FileNotFoundError:
        rows = [name for name, row in table1.ROWS.items() if row.data != "mnist"]
    return Plan(folder, data_dir, rows, *((FULL, 5, 5) if full else ()))


def make_page(sections: Sequence[Section], folder: Path, command: str, tell: Tell) -> Iterator[Section]:
    """Make one section after another and yield it; the page is written anew after each, with all that there is."""
    done, total = list(sections), sum(section.minutes for section in sections)
    passed = 0.0
    for place, section in enumerate(sections):
        tell_part = part_of(tell, section.title, passed, section.minutes, total)
        tell_part(Step(0.0, "begins"))
        parts = section.make(tell_part)
        passed += section.minutes
        newest = max((path.stat().st_mtime for path in section.folder.rglob("*.json")), default=0.0)
        date = f"{datetime.fromtimestamp(newest, UTC):%Y-%m-%d}" if newest else "without a date"
        done[place] = section._replace(parts=parts, date=date)
        values = {"title": TITLE, "command": command, "version": __version__, "sections": done}
        write_atomically(folder / PAGE, render("reproduce", **values).encode())
        yield done[place]


def _table1(plan: Plan) -> Section:
    """Return Table 1 by our recipe."""
    recipes, folder = {"best": dict.fromkeys(plan.rows, plan.recipe)}, plan.folder / "table1"

    def make(tell: Tell) -> list[Part]:
        jobs = table1.plan(plan.rows, recipes, plan.n_seeds, folder, plan.data_dir)
        head, *lines = table1.table(list(run(jobs, folder, tell)), plan.rows, recipes)
        missing = [name for name in table1.ROWS if name not in plan.rows]
        text = [f"Held-out SNR. Without {', '.join(missing)}: MNIST is not here." if missing else "Held-out SNR."]
        return [Part("", text, head, lines)]

    command = f"liesparse reproduce table1 --rows {','.join(plan.rows)} --seeds {plan.n_seeds}"
    return Section("Table 1", command, _seeds(plan.n_seeds), 6.0 * len(plan.rows) * plan.n_seeds, folder, make)


def _figures(plan: Plan) -> Section:
    """Return figures 1 to 4, from the models of Table 1."""
    folder = plan.folder / "table1"
    names = [name for name in figures.TITLES if name in plan.rows]

    def make(tell: Tell) -> list[Part]:
        orders = [table1.Order(name, table1.ROWS[name], plan.recipe, 0, folder / "best") for name in names]
        drawn = figures.make(orders, table1.N_TRAIN, plan.data_dir, tell)
        return [Part(FIGURES[name], picture=to_small_png(figure)) for name, figure in drawn.items()]

    return Section("Figures 1 to 4", "liesparse reproduce figures", "seed 0", 2.0, folder, make)


def _claims(plan: Plan) -> Section:
    """Return the paper's prose, claim by claim."""
    folder, n_seeds = plan.folder / "claims", plan.n_claim_seeds

    def make(tell: Tell) -> list[Part]:
        jobs = plan_claims(claims.CLAIMS, range(n_seeds), plan.size, folder, plan.data_dir)
        rows = conclude(claims.CLAIMS, list(run(jobs, folder, tell)))
        lines = [[row[key] for key in ("sentence", "place", "verdict", "reason", "measured")] for row in rows]
        drawn = {row["sentence"]: draw(claims.CLAIMS[row["name"]], row["numbers"].values()) for row in rows}
        pictures = [Part(sentence, picture=to_small_png(figure)) for sentence, figure in drawn.items() if figure]
        return [Part("", (), ["claim", "where", "verdict", "found", "measured"], lines), *pictures]

    command = f"liesparse reproduce claims --seeds {n_seeds}" + (" --full" if plan.size == FULL else "")
    return Section("Claims", command, _seeds(n_seeds), 8.0 * n_seeds, folder, make)


def _benchmarks(plan: Plan) -> Section:
    """Return tasks for which others have published numbers."""
    folder, known = plan.folder / "benchmarks", published.BENCHMARKS

    def make(tell: Tell) -> list[Part]:
        jobs = published.plan(known, range(plan.n_seeds), plan.data_dir)
        results, parts = list(run(jobs, folder, tell)), []
        for name, benchmark in known.items():
            digits = {row["made_with"]["data"] for job, row in results if job.names == (name,)} - {""}
            source = [f"Published: {benchmark.source}.", *(f"Digits: {each}." for each in sorted(digits))]
            parts.append(Part(benchmark.title, source, *published.table(name, results)))
        return parts

    minutes = plan.n_seeds * sum(benchmark.minutes for benchmark in known.values())
    command = f"liesparse reproduce benchmarks --seeds {plan.n_seeds}"
    return Section("Benchmarks", command, _seeds(plan.n_seeds), minutes, folder, make)


SECTIONS = {"table1": _table1, "figures": _figures, "claims": _claims, "benchmarks": _benchmarks}


def _seeds(n: int) -> str:
    return "seed 0" if n == 1 else f"seeds 0 to {n - 1}"
