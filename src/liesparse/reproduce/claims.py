"""The paper's prose, claim by claim: each is measured over seeds, and a rule fixed in code gives the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from liesparse.figures import new_figure
from liesparse.reproduce import claims_on_algorithm, claims_on_results
from liesparse.reproduce.parts import Claim, Job, Numbers, Results, Size, Trial

CLAIMS: dict[str, Claim] = claims_on_algorithm.CLAIMS | claims_on_results.CLAIMS


def plan(names: Sequence[str], seeds: Iterable[int], size: Size, folder: Path, data_dir: Path | None) -> list[Job]:
    """List what is to be measured; models are kept in the folder too."""
    trials = [Trial(seed, size, folder / "models", data_dir) for seed in seeds]
    made_with = {"size": asdict(size)}
    return [Job((name,), trial.seed, made_with, partial(_measure, name, trial)) for trial in trials for name in names]


def _measure(name: str, trial: Trial, _: object) -> dict[str, Any]:
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "numbers": CLAIMS[name].measure(trial)}


def conclude(results: Results) -> list[dict[str, Any]]:
    """Return for each claim its place, what was measured, over how many seeds, and the verdict with its reason."""
    rows = []
    for name in dict.fromkeys(job.names[0] for job, _ in results):
        claim, kept = CLAIMS[name], {job.seed: cell for job, cell in results if job.names == (name,)}
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


def draw(name: str, cells: Iterable[Numbers]) -> Figure | None:
    """Draw the curves of a claim that has some: one colour for each kind, one line for each seed."""
    curves = [cell["curves"] for cell in cells if "curves" in cell]
    if not curves:
        return None
    figure = new_figure(6, 3.6)
    axes = figure.subplots(1, 1)
    for seed, lines in enumerate(curves):
        for place, (label, (x, y)) in enumerate(lines.items()):
            axes.plot(x, y, color=f"C{place}", linewidth=1, alpha=0.8, label=None if seed else label)
    x_label, y_label = CLAIMS[name].axes
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
