"""Tasks for which others have published numbers, each one function, and the numbers side by side.

:data:`BENCHMARKS` names them, and :func:`table` sets what was found beside what was published.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from liesparse.reproduce import alignment, clusters, recognition
from liesparse.reproduce.kept import Job, Results, over_seeds
from liesparse.reproduce.recognition import find_digits

Found = dict[str, dict[str, float]]  # by line and column of the table
Table = tuple[list[str], list[list[str]]]  # head and lines


class Bar(NamedTuple):
    """What a number of the table must not be above, or below."""

    column: str
    limit: float
    above: bool = False  # whether more is better
    goal: bool = False  # to be tried for, not asked for

    def judge(self, value: float) -> str:
        """Say what was asked for, and whether it was reached."""
        reached = value >= self.limit if self.above else value <= self.limit
        what = "goal " if self.goal else ""
        return f"{what}{'≥' if self.above else '≤'} {self.limit:g}: {'reached' if reached else 'not reached'}"


class Benchmark(NamedTuple):
    """A task, with what others published on it."""

    title: str
    source: str
    measure: Callable[..., Found]  # of a seed and sizes, and of digits where it needs them
    published: Mapping[str, Mapping[str, float]] = {}  # by line and column
    bars: Mapping[str, Bar] = {}  # by line
    digits: bool = False
    minutes: float = 1.0  # about, on one thread: for the time left


def measure_alignment(
    seed: int, runs: int = 10, sizes: tuple[tuple[int, int], ...] = ((3, 3), (3, 4), (3, 5), (2, 6))
) -> Found:
    """Measure for each K and M = 10ⁿ the median over ten runs; of a million signals there is one run."""
    found = {}
    for n_shapes, power in sizes:
        n_runs = runs if power < 6 else 1
        seeds = range(runs * seed, runs * seed + n_runs)
        found[f"K = {n_shapes}, M = 10^{power}"] = alignment.measure_alignment(n_shapes, 10**power, seeds)
    return found


BENCHMARKS = {
    "alignment": Benchmark(
        "Heterogeneous multi-reference alignment: relative error, median of ten runs",
        "Boumal, Bendory, Lederman, Singer, Heterogeneous multireference alignment: a single pass approach (2018)",
        measure_alignment,
        {
            "K = 3, M = 10^3": {"published EM": 0.053, "published invariants": 0.077},
            "K = 3, M = 10^4": {"published EM": 0.017, "published invariants": 0.025},
            "K = 3, M = 10^5": {"published EM": 0.0056, "published invariants": 0.0076},
            "K = 2, M = 10^6": {"published invariants": 0.0014},
        },
        {
            "K = 3, M = 10^3": Bar("here", 1.2 * 0.053),
            "K = 3, M = 10^4": Bar("here", 1.2 * 0.017),
            "K = 3, M = 10^5": Bar("here", 1.2 * 0.0056, goal=True),
        },
        minutes=4,
    ),
    "square": Benchmark(
        "D_LSBD of a square on a torus of 64 × 64 shifts: 0 is perfect, 2 the worst",
        "Tonnaer, Pérez Rey, Menkovski, Holenderski, Portegies, Quantifying and learning linear symmetry-based "
        "disentanglement (2022): near 0 with labels of the transitions, not without",
        recognition.measure_square,
        bars={recognition.LEARNED: Bar("D_LSBD", 0.01)},
        minutes=6,
    ),
    "clusters": Benchmark(
        "Clusters of MNIST without labels, K = 10: share of images in the cluster of their digit, in %",
        "k-means and DTI-Clustering from Monnier, Groueix, Aubry, Deep transformation-invariant clustering (2020)",
        clusters.measure_clusters,
        {clusters.KMEANS: {"published": 54.8}, "DTI-Clustering": {"published": 97.3}},
        {line: Bar("accuracy, %", 70.0, above=True, goal=True) for line in clusters.OURS},
        digits=True,
        minutes=3,
    ),
    "shifted": Benchmark(
        "Digits shifted by up to 6 pixels on 40 × 40, from few labels: accuracy in %",
        "none with so few labels; measured here",
        partial(recognition.measure_recognition, kind="shifted"),
        digits=True,
        minutes=4,
    ),
    "turned": Benchmark(
        "Digits turned by any angle, from few labels: accuracy in %",
        "none with so few labels; measured here",
        partial(recognition.measure_recognition, kind="turned"),
        digits=True,
        minutes=3,
    ),
    "peers": Benchmark(
        "Ten digits shifted by up to 7 pixels: other tools on the same images",
        "scikit-learn's tools, run here",
        recognition.measure_peers,
        minutes=4,
    ),
}


def plan(
    names: Iterable[str],
    seeds: Sequence[int],
    data_dir: Path | None = None,
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Job]:
    """List what is to be measured. ``sizes`` are arguments of a benchmark's function, by its name.

    What is on disk counts only if it was made with the same sizes and the same set of digits.
    """
    jobs = []
    for name in names:
        benchmark, chosen = BENCHMARKS[name], dict((sizes or {}).get(name, {}))
        digits = find_digits(data_dir) if benchmark.digits else None
        made_with = {"made_with": {"sizes": chosen, "data": digits.name if digits else ""}}
        for seed in seeds:
            work = partial(_measure, partial(benchmark.measure, seed, *([digits] if digits else []), **chosen))
            jobs.append(Job((name,), seed, made_with, work, benchmark.minutes))
    return jobs


def _measure(benchmark: Callable[[], Found], _: object) -> dict[str, Any]:
    began = time.monotonic()
    return {"found": benchmark(), "seconds": round(time.monotonic() - began, 1)}


def table(name: str, results: Results) -> Table:
    """Return the lines of one benchmark: published figures, medians over seeds, and bars."""
    benchmark, found = BENCHMARKS[name], [row["found"] for job, row in results if job.names == (name,)]
    lines = list(dict.fromkeys([*(line for each in found for line in each), *benchmark.published]))
    published = list(dict.fromkeys(column for line in benchmark.published.values() for column in line))
    measured = list(dict.fromkeys(column for each in found for line in each.values() for column in line))
    head = ["", *published, *measured, *(["bar"] if benchmark.bars else [])]
    made = []
    for line in lines:
        known, rows = benchmark.published.get(line, {}), [each.get(line, {}) for each in found]
        values = {column: [row[column] for row in rows if column in row] for column in measured}
        cells = [f"{known[column]:g}" if column in known else "" for column in published]
        cells += [over_seeds(each, _short) if each else "" for each in values.values()]
        bar = benchmark.bars.get(line)
        judged = bar.judge(statistics.median(values[bar.column])) if bar and values[bar.column] else ""
        made.append([line, *cells, *([judged] if benchmark.bars else [])])
    return head, made


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
