"""What table, claims and benchmarks share: results that are computed once and kept, and what all seeds say together."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from liesparse.figures import new_figure
from liesparse.files import write_json
from liesparse.settings import Recipe, Start, load_recipe

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold here"
Numbers = dict[str, Any]  # of one seed, as JSON has them; "curves" has lines for the figure: label -> [x, y]


class Step(NamedTuple):
    """How far something is."""

    share: float  # that is done
    note: str
    end_of_epoch: bool = False


Tell = Callable[[Step], None]


def part_of(tell: Tell, name: str, before: float, own: float, total: float) -> Tell:
    """Return what tells of a part, by its name, as a share of the whole: what is done before it, and its own."""
    return lambda step: tell(Step((before + own * step.share) / total, f"{name}: {step.note}", step.end_of_epoch))


class Job(NamedTuple):
    """A result of one seed that is wanted."""

    names: tuple[str, ...]
    seed: int
    made_with: dict[str, Any]  # what a file must hold to be this result: other settings are another result
    compute: Callable[[Tell], dict[str, Any]]
    minutes: float = 1.0  # about, beside others

    def __str__(self) -> str:
        """Return how a person calls it."""
        return f"{', '.join(self.names)}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """Return where it lies inside its folder."""
        return f"{'.'.join(self.names)}.{self.seed}.json"


Results = list[tuple[Job, dict[str, Any]]]


def run(jobs: Sequence[Job], folder: Path, tell: Tell) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Compute what ``folder`` does not have yet, each result written when it is done, and yield all of them."""
    total, done = sum(job.minutes for job in jobs), 0.0
    for job in jobs:
        tell_part = part_of(tell, str(job), done, job.minutes, total)
        made_with = json.loads(json.dumps(job.made_with))  # as JSON has it
        try:
            kept = json.loads((folder / job.file_name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # none, or a damaged one
            kept = {}
        if not made_with.items() <= kept.items():
            tell_part(Step(0.0, "begins"))
            kept = job.compute(tell_part) | made_with
            write_json(folder / job.file_name, kept)
        done += job.minutes
        yield job, kept


def over_seeds(
    values: Sequence[float],
    show: Callable[[float], str],
    middle: Callable[[Sequence[float]], float] = statistics.median,
    to: str = " to ",
) -> str:
    """Return the middle of the values, with the lowest and the highest if there are several."""
    shown, low, high = (show(found(values)) for found in (middle, min, max))
    return shown if len(values) == 1 else f"{shown} ({low}{to}{high})"


def middle(cells: Sequence[Numbers], key: str) -> float:
    """Return the median of a number over the seeds."""
    return statistics.median(cell[key] for cell in cells)


def spread(cells: Sequence[Numbers], key: str, digits: int = 2) -> str:
    """Return the median over the seeds, and all values if there are a few."""
    return over_seeds([cell[key] for cell in cells], lambda value: f"{value:.{digits}f}")


# ---- claims


@dataclass(frozen=True)
class Size:
    """How large the trials of claims are; the rest of each is fixed beside it."""

    n_images: int = 3000  # of 28 × 28 pixels, from which a model learns
    n_shown: int = 20_000  # that it is shown in all
    n_test: int = 300
    n_steps: int = 1000  # of the paper's gradient training, on small images
    start: Start = "pairs"
    mnist: str = "mnist-mini"

    def recipe(self, n_images: int) -> Recipe:
        """Return the defaults, for as many epochs as it takes to show what is to be shown."""
        n_epochs = math.ceil(self.n_shown / n_images)
        return load_recipe("best").with_values({"start": self.start, "learning.n_epochs": n_epochs})


FULL = Size(n_images=20_000, n_shown=60_000, n_test=2000, n_steps=3000, mnist="mnist")


class Trial(NamedTuple):
    """One seed of one claim, and the folders for its models and for MNIST."""

    seed: int
    size: Size
    folder: Path
    data_dir: Path | None = None


class Claim(NamedTuple):
    """A sentence of the paper, how it is measured for one seed, and the rule that makes the verdict."""

    sentence: str
    place: str  # in the paper
    measured: str
    measure: Callable[[Trial], Numbers]
    judge: Callable[[Sequence[Numbers]], dict[str, str]]  # of all seeds: the verdict and its reason
    axes: tuple[str, str] = ("", "")  # of its figure, if it has one


def verdict(holds: bool, in_part: bool, reason: str) -> dict[str, str]:
    """Return the verdict on a claim by its name, and why."""
    return {"verdict": HOLDS if holds else IN_PART if in_part else FAILS, "reason": reason}


def plan_claims(
    claims: Mapping[str, Claim], seeds: Iterable[int], size: Size, folder: Path, data_dir: Path | None
) -> list[Job]:
    """List what is to be measured; models are kept in the folder too."""
    made_with, trials = {"size": asdict(size)}, [Trial(seed, size, folder / "models", data_dir) for seed in seeds]

    def measure(claim: Claim, trial: Trial, _: object) -> dict[str, Any]:
        return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "numbers": claim.measure(trial)}

    every = [(name, claim, trial) for trial in trials for name, claim in claims.items()]
    return [Job((name,), trial.seed, made_with, partial(measure, claim, trial)) for name, claim, trial in every]


def conclude(claims: Mapping[str, Claim], results: Results) -> list[dict[str, Any]]:
    """Return for each claim its place, what was measured, over how many seeds, and the verdict with its reason."""
    rows = []
    for name, claim in claims.items():
        kept = {job.seed: cell for job, cell in results if job.names == (name,)}
        mnist = next(iter(kept.values()))["size"]["mnist"]
        cells = {seed: cell["numbers"] | {"date": cell["date"], "mnist": mnist} for seed, cell in kept.items()}
        rows.append(
            {
                "name": name,
                "sentence": claim.sentence,
                "place": claim.place,
                "measured": claim.measured + (f"; data: {mnist}" if claim.sentence.startswith("On MNIST") else ""),
                "seeds": sorted(cells),
                "date": max(cell["date"] for cell in cells.values()),
                **claim.judge(list(cells.values())),
                "numbers": {str(seed): cell for seed, cell in cells.items()},
            }
        )
    return rows


def draw(claim: Claim, cells: Iterable[Numbers]) -> Figure | None:
    """Draw the curves of a claim that has some: one colour for each kind, one line for each seed."""
    curves = [cell["curves"] for cell in cells if "curves" in cell]
    if not curves:
        return None
    figure = new_figure(6, 3.6)
    axes = figure.subplots(1, 1)
    for seed, lines in enumerate(curves):
        for place, (label, (x, y)) in enumerate(lines.items()):
            axes.plot(x, y, color=f"C{place}", linewidth=1, alpha=0.8, label=None if seed else label)
    axes.set(xlabel=claim.axes[0], ylabel=claim.axes[1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
