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

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from liesparse import torus
from liesparse.estimators import LieSparseCoder
from liesparse.groups import Shifts
from liesparse.metrics import d_lsbd, snr
from liesparse.posterior import Evidence, GridEngine
from liesparse.reproduce import recognition
from liesparse.reproduce.parts import Job, Results, over_seeds
from liesparse.reproduce.recognition import Found, find_digits

Table = tuple[list[str], list[list[str]]]  # head and lines

# ---- heterogeneous multi-reference alignment: several signals, seen shifted and under noise [Boumal18]
#
# The model is that of the publication: each signal is one of K shapes, shifted by one of its L whole samples, all
# equally probable, with white noise of known σ. In terms of this package: the known group Shifts(L), a grid of L points
# as the posterior of the pose, code 1 for one shape and 0 for the others, and all shapes weighed softly.

LENGTH, NOISE = 50, 1.0
N_STARTS, N_TRIED, START_STEPS = 10, 1000, 20  # signals and steps with which the starts are compared
MOST_STEPS, TOLERANCE, CHUNK = 50, 1e-5, 20_000
Signals = Float[Tensor, "signal sample"]
Shapes = Float[Tensor, "shape sample"]


class Mixture(NamedTuple):
    """Shapes, in the planes of the group, and how often each occurs."""

    planes: Float[Tensor, "shape irrep 2"]
    weights: Float[Tensor, " shape"]


class Alignment:
    """Expectation maximization for signals of one length and noise of one σ."""

    def __init__(self, length: int, noise_std: float) -> None:
        self.noise_std = noise_std
        self.basis = Shifts(length).make_basis(torch.zeros(1, length), length)
        self.engine = GridEngine(self.basis.frequencies, length)

    def planes(self, signals: Signals) -> Float[Tensor, "signal irrep 2"]:
        """Return signals in the planes of the group."""
        return torus.to_planes(self.basis.group_basis, signals)

    def step(self, mixture: Mixture, signals: Float[Tensor, "signal irrep 2"]) -> tuple[Mixture, float]:
        """Return the next shapes and weights, and the mean log likelihood of the old ones, up to a constant."""
        sums, counts, total = torch.zeros_like(mixture.planes), torch.zeros_like(mixture.weights), 0.0
        still = torch.zeros_like(mixture.planes[0])
        energies = mixture.planes.square().sum(dim=(1, 2)) / (2 * self.noise_std**2)
        for some in signals.split(CHUNK):
            evidence, returned = [], []
            for shape in mixture.planes:
                found = self.engine.moments(Evidence(shape[None], some, self.noise_std, still).natural)
                evidence.append(found.log_partition)
                returned.append(torus.apply_mean_rotation_transposed(some, found.rotation))
            logits = torch.stack(evidence, dim=1) - energies + mixture.weights.log()
            total += float(logits.logsumexp(dim=1).sum())
            share = logits.softmax(dim=1)
            sums += torch.stack(
                [(mine[:, None, None] * back).sum(dim=0) for mine, back in zip(share.T, returned, strict=True)]
            )
            counts += share.sum(dim=0)
        planes = self.planes((sums / counts.clamp(min=1e-9)[:, None, None]).flatten(1) @ self.basis.group_basis.T)
        return Mixture(planes, (counts / len(signals)).clamp(min=1e-9)), total / len(signals)

    def fit(self, signals: Signals, n_shapes: int, *, generator: torch.Generator) -> Shapes:
        """Return the shapes, from the best of several starts at signals that are drawn."""
        planes = self.planes(signals)
        tried = planes[torch.randperm(len(planes), generator=generator)[:N_TRIED]]
        best, highest = None, -torch.inf
        for _ in range(N_STARTS):
            drawn = torch.randperm(len(tried), generator=generator)[:n_shapes]
            mixture, likelihood = Mixture(tried[drawn], torch.full((n_shapes,), 1 / n_shapes)), 0.0
            for _ in range(START_STEPS):
                mixture, likelihood = self.step(mixture, tried)
            if likelihood > highest:
                best, highest = mixture, likelihood
        assert best is not None
        for _ in range(MOST_STEPS):
            last = best
            best, _ = self.step(last, planes)
            if float((best.planes - last.planes).norm()) < TOLERANCE * float(last.planes.norm()):
                break
        return best.planes.flatten(1) @ self.basis.group_basis.T


def make_signals(n_signals: int, shapes: Shapes, noise_std: float, *, generator: torch.Generator) -> Signals:
    """Return as many signals of each shape, shifted by whole samples, under noise."""
    length = shapes.shape[1]
    labels = torch.arange(n_signals) % len(shapes)
    places = torch.arange(length) - torch.randint(length, (n_signals, 1), generator=generator)
    return shapes[labels[:, None], places % length] + noise_std * torch.randn(n_signals, length, generator=generator)


def relative_error(found: Shapes, true: Shapes) -> float:
    """Return ‖X̂ - X‖ / ‖X‖ after the best permutation of the shapes, each with its best shift by whole samples."""
    overlaps = torch.fft.irfft(torch.fft.rfft(found)[:, None].conj() * torch.fft.rfft(true), n=true.shape[1])
    best = overlaps.amax(dim=2)
    apart = found.square().sum(dim=1)[:, None] + true.square().sum(dim=1) - 2 * best
    chosen = apart[linear_sum_assignment(apart.numpy())]
    return float(chosen.sum().clamp(min=0).sqrt() / true.norm())


def measure_alignment(
    seed: int, runs: int = 10, sizes: tuple[tuple[int, int], ...] = ((3, 3), (3, 4), (3, 5), (2, 6))
) -> Found:
    """Measure for each K and M = 10ⁿ the median over ten runs; of a million signals there is one run.

    Beside the relative errors is that of averages of M / K signals, with known shapes and shifts.
    """
    found = {}
    for n_shapes, power in sizes:
        errors, seconds, n_signals = [], [], 10**power
        for run in range(runs * seed, runs * seed + (runs if power < 6 else 1)):
            generator = torch.Generator().manual_seed(run)
            shapes = torch.randn(n_shapes, LENGTH, generator=generator)
            signals = make_signals(n_signals, shapes, NOISE, generator=generator)
            began = time.monotonic()
            learned = Alignment(LENGTH, NOISE).fit(signals, n_shapes, generator=generator)
            seconds.append(time.monotonic() - began)
            errors.append(relative_error(learned, shapes))
        found[f"K = {n_shapes}, M = 10^{power}"] = {
            "here": statistics.median(errors),
            "worst": max(errors),
            "all known": NOISE * (n_shapes / n_signals) ** 0.5,
            "s": statistics.median(seconds),
        }
    return found


# ---- a square on a torus

LEARNED = "learned from the images alone"
SQUARE_STARTS = 4  # of which the best by the model's own objective goes on: one may close only in part


def measure_square(seed: int, size: int = 64, block: int = 16, n_epochs: int | None = None) -> Found:
    """Learn a block that is rolled over all shifts of a picture, and measure how its pose is encoded."""
    picture = torch.zeros(size, size)
    picture[:block, :block] = 1
    images = torch.stack([picture.roll((down, right), (0, 1)) for down in range(size) for right in range(size)])
    began = time.monotonic()
    how: dict[str, Any] = {"n_epochs": n_epochs, "settings": {"n_init": SQUARE_STARTS}, "random_state": seed}
    coder = LieSparseCoder(1, torus_dim=2, **how).fit(images)
    seconds = time.monotonic() - began
    poses = coder.infer(images).poses
    encoding = torch.cat((poses.cos(), poses.sin()), dim=1).reshape(size, size, -1)
    quality = float(snr(images.flatten(1), coder.reconstruct(images).flatten(1)).mean())
    return {LEARNED: {"D_LSBD": d_lsbd(encoding), "SNR": quality, "s": seconds}}


# ---- all tasks, and the table of one


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
        measure_square,
        bars={LEARNED: Bar("D_LSBD", 0.01)},
        minutes=6,
    ),
    "clusters": Benchmark(
        "Clusters of MNIST without labels, K = 10: share of images in the cluster of their digit, in %",
        "k-means and DTI-Clustering from Monnier, Groueix, Aubry, Deep transformation-invariant clustering (2020)",
        recognition.measure_clusters,
        {recognition.KMEANS: {"published": 54.8}, "DTI-Clustering": {"published": 97.3}},
        {line: Bar("accuracy, %", 70.0, above=True, goal=True) for line in recognition.OURS},
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
