"""The paper's prose, claim by claim: each is measured over seeds, and a rule fixed in code gives the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from liesparse.figures import new_figure
from liesparse.files import write_json
from liesparse.reproduce import claims_on_algorithm, claims_on_results
from liesparse.reproduce.claim_parts import Claim, Numbers, Size, Trial

CLAIMS: dict[str, Claim] = claims_on_algorithm.CLAIMS | claims_on_results.CLAIMS
Cells = dict[str, dict[int, Numbers]]  # by claim, then by seed
Watch = Callable[[str, int], None]  # called with a claim and a seed before it is measured


def run(
    names: Iterable[str], seeds: Iterable[int], size: Size, folder: Path, data_dir: Path | None, watch: Watch
) -> Iterator[tuple[str, int, Numbers]]:
    """Measure each claim for each seed and yield it; what ``folder`` has of the same size is not measured again."""
    names = list(names)
    for seed in seeds:
        for name in names:
            path = folder / f"{name}.{seed}.json"
            try:
                cell = json.loads(path.read_text(encoding="utf-8"))
            except (FileNotFoundError, json.JSONDecodeError):
                cell = {}
            if cell.get("size") != asdict(size):
                watch(name, seed)
                measured = CLAIMS[name].measure(Trial(seed, size, folder / "models", data_dir))
                cell = {"size": asdict(size), "date": f"{datetime.now(UTC):%Y-%m-%d}", "numbers": measured}
                write_json(path, cell)
            yield name, seed, cell["numbers"] | {"date": cell["date"], "mnist": size.mnist}


def conclude(found: Cells) -> list[dict[str, Any]]:
    """Return for each claim its place, what was measured, over how many seeds, and the verdict with its reason."""
    rows = []
    for name, cells in found.items():
        claim, judgement = CLAIMS[name], CLAIMS[name].judge(list(cells.values()))
        data = f"; data: {next(iter(cells.values()))['mnist']}" if claim.sentence.startswith("On MNIST") else ""
        rows.append(
            {
                "name": name,
                "sentence": claim.sentence,
                "place": claim.place,
                "measured": claim.measured + data,
                "seeds": sorted(cells),
                "date": max(cell["date"] for cell in cells.values()),
                **judgement._asdict(),
                "numbers": {str(seed): cell for seed, cell in cells.items()},
            }
        )
    return rows


def draw(name: str, cells: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw the curves of a claim that has some: one colour for each kind, one line for each seed."""
    curves = [cell["curves"] for cell in cells if "curves" in cell]
    if not curves:
        return None
    figure = new_figure(6, 3.6)
    axes = figure.subplots(1, 1)
    for seed, lines in enumerate(curves):
        for place, (label, (x, y)) in enumerate(lines.items()):
            colour = matplotlib.color_sequences["tab10"][place % 10]
            axes.plot(x, y, color=colour, linewidth=1, alpha=0.8, label=None if seed else label)
    x_label, y_label = CLAIMS[name].axes
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure
