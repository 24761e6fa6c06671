"""The battery: many kinds of images with a known motion, learned at the defaults and compared with the truth.

A cell is one problem, one number of templates and one seed. It is learned from the images alone; only the number of
templates and of torus axes is given. Then the truth says whether it is solved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from liesparse.data import (
    TransformedImages,
    embedded_digits,
    rotations_scalings,
    shears_stretches,
    translations,
    translations_rotations,
)
from liesparse.groups import Composition, KnownGroup, Rotations, Translations
from liesparse.metrics import infer, snr, torus_match
from liesparse.model import Parameters
from liesparse.recipes import Recipe, load_recipe
from liesparse.settings import ModelSettings
from liesparse.training import learn_model

N_TEST = 1000
MEDIAN_R, WORST_R, PURE = 0.95, 0.9, 0.95
SIZE, FINER = 28, 8  # pixels of a drawn shape, and how much finer it is drawn before it is averaged
Make = Callable[[int, torch.Generator], TransformedImages]


@dataclass(frozen=True)
class Problem:
    """Images with a known motion; ``period`` is that of a circular factor, None for one that does not come round."""

    make: Make
    n_images: int = 10_000
    n_shapes: int = 10
    torus_dim: int = 2
    period: float | None = None
    control: bool = False  # nothing is to be found, or not yet
    group: KnownGroup | Composition | None = None  # as the user knows it
    values: Mapping[str, Any] = field(default_factory=dict)  # of the recipe


class Cell(NamedTuple):
    """What was found in one cell."""

    problem: str
    n_components: int
    seed: int
    solved: bool
    snr: float
    R: tuple[float, ...]
    worst_R: float  # noqa: N815, over the templates in use and the factors
    purity: float
    missing: int  # shapes that are the main one of no template
    starts: int
    seconds: float
    found: bool  # what the verdict says, without the truth
    explained: float
    effects: tuple[float, ...]
    plain_snr: float


def drawn_shapes() -> Tensor:
    """Draw five shapes without symmetry: an L, an arrow, an F, a triangle, and an open ring with a dot."""
    stroke: dict[str, Any] = {"fill": 255, "width": 2 * FINER + FINER // 2}
    shapes: tuple[list[tuple[str, tuple[int, ...], dict[str, Any]]], ...] = (
        [("line", (8, 6, 8, 22, 19, 22), stroke)],
        [("line", (14, 5, 14, 23), stroke), ("line", (8, 11, 14, 5, 20, 11), stroke)],
        [("line", (8, 6, 20, 6), stroke), ("line", (9, 6, 9, 23), stroke), ("line", (9, 14, 17, 14), stroke)],
        [("polygon", (9, 4, 20, 23, 9, 23), {"fill": 255})],
        [("arc", (6, 6, 22, 22), stroke | {"start": 0, "end": 250}), ("ellipse", (12, 12, 17, 17), {"fill": 255})],
    )
    pictures = []
    for parts in shapes:
        picture, pen = _canvas()
        for kind, places, how in parts:
            getattr(pen, kind)([FINER * place for place in places], **how)
        pictures.append(picture)
    return _shrink(pictures)


def letters(alphabet: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", height: int = 20) -> Tensor:
    """Draw letters in the font that matplotlib ships."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    font = ImageFont.truetype(str(path), height * FINER)
    pictures = []
    for letter in alphabet:
        picture, pen = _canvas()
        pen.text((FINER * SIZE / 2, FINER * SIZE / 2), letter, fill=255, font=font, anchor="mm")
        pictures.append(picture)
    return _shrink(pictures)


def _canvas() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    picture = Image.new("L", (FINER * SIZE, FINER * SIZE))
    return picture, ImageDraw.Draw(picture)


def _shrink(pictures: list[Image.Image]) -> Tensor:
    small = [picture.resize((SIZE, SIZE), Image.Resampling.BOX) for picture in pictures]
    return torch.from_numpy(np.stack([np.asarray(picture, dtype=np.float32) / 255 for picture in small]))


def turned(n_images: int, sources: Tensor, generator: torch.Generator) -> TransformedImages:
    """Turn shapes by any angle."""
    made = translations_rotations(n_images, max_shift=0, max_degrees=180, sources=sources, generator=generator)
    return made._replace(factors=made.factors[:, 2:], factor_names=made.factor_names[2:])


def shifted_signals(
    n_images: int, generator: torch.Generator, n_signals: int = 3, length: int = 50
) -> TransformedImages:
    """Shift random signals round a circle, by any amount."""
    signals = torch.fft.rfft(torch.randn(n_signals, length, generator=generator))
    shifts = 2 * math.pi * torch.rand(n_images, 1, generator=generator)
    labels = torch.arange(n_images) % n_signals
    moved = torch.fft.irfft(signals[labels] * torch.exp(-1j * shifts * torch.arange(signals.shape[1])), n=length)
    return TransformedImages(normalize(moved, dim=1), labels, shifts, ("shift",))


def with_noise(made: TransformedImages, norm: float, generator: torch.Generator) -> TransformedImages:
    """Add pixel noise of some norm."""
    noise = norm * normalize(torch.randn(made.images.shape, generator=generator), dim=1)
    return made._replace(images=normalize(made.images + noise, dim=1))


def _shuffled(n_images: int, generator: torch.Generator) -> TransformedImages:
    """Shift digits, then shuffle the pixels of each image anew."""
    made = translations(n_images, generator=generator)
    order = torch.rand(made.images.shape, generator=generator).argsort(dim=1)
    return made._replace(images=made.images.gather(1, order))


def _noise(n_images: int, generator: torch.Generator) -> TransformedImages:
    made = translations(n_images, generator=generator)
    noise = torch.randn(made.images.shape, generator=generator)
    return made._replace(images=normalize(noise, dim=1))


def _small_digits(n_images: int, generator: torch.Generator) -> TransformedImages:
    sources = torch.nn.functional.avg_pool2d(embedded_digits()[None, :4], 2)[0]
    return translations(n_images, max_shift=3.5, sources=sources, generator=generator)


TURN = 2 * math.pi
PROBLEMS = {
    "translation": Problem(lambda n, g: translations(n, generator=g)),
    "translation-wrapped": Problem(lambda n, g: translations(n, max_shift=14, wrap=True, generator=g), period=28.0),
    "rotation-scaling": Problem(lambda n, g: rotations_scalings(n, generator=g)),
    "shear-stretch": Problem(lambda n, g: shears_stretches(n, generator=g)),
    "rotation-360": Problem(lambda n, g: turned(n, embedded_digits(), g), torus_dim=1, period=TURN),
    "rotation-360-few": Problem(lambda n, g: turned(n, drawn_shapes(), g), 3000, 5, 1, TURN),
    "miniature": Problem(_small_digits, n_shapes=4),
    "signals": Problem(shifted_signals, 5000, 3, 1, TURN),
    "noisy": Problem(lambda n, g: with_noise(translations(n, generator=g), 1.0, g)),
    "few": Problem(lambda n, g: translations(n, generator=g), 1000),
    "many-shapes": Problem(lambda n, g: translations(n, sources=letters(), generator=g), n_shapes=26),
}


EARLY = {"start": "data", "learning.n_epochs": 2}
CONTROLS = {
    "still": Problem(lambda n, g: with_noise(translations(n, max_shift=0, generator=g), 0.2, g), 3000, control=True),
    "shuffled": Problem(_shuffled, 3000, control=True),
    "noise": Problem(_noise, 3000, control=True),
    "stopped-early": Problem(lambda n, g: translations(n, generator=g), 3000, control=True, values=EARLY),
}


KNOWN = {  # the motion is given, so few images are enough; learned only if asked for by name
    "known-translation": Problem(lambda n, g: translations(n, generator=g), 500, group=Translations(SIZE, SIZE)),
    "known-rotation": Problem(
        lambda n, g: turned(n, embedded_digits(), g), 500, 10, 1, TURN, group=Rotations(SIZE, SIZE)
    ),
}
EVERY = PROBLEMS | CONTROLS | KNOWN


def run_cell(name: str, twice: bool, seed: int, recipe: Recipe | None = None) -> Cell:
    """Learn one cell at the defaults and compare it with the truth."""
    problem = EVERY[name]
    recipe = (recipe or load_recipe("best")).with_values(problem.values)
    generator = torch.Generator().manual_seed(seed)
    together = problem.make(problem.n_images + N_TEST, generator)  # of the same shapes
    images, labels, factors = (part[problem.n_images :] for part in together[:3])
    test = TransformedImages(images, labels, factors, together.factor_names)
    n_components = problem.n_shapes * (2 if twice else 1)
    model = ModelSettings(n_components, torus_dim=problem.torus_dim, group=problem.group)
    began = time.monotonic()
    trained = learn_model(together.images[: problem.n_images], model, recipe, generator=generator)
    seconds = time.monotonic() - began
    truth = compare_with_truth(trained.parameters, test, recipe, problem)
    assert trained.verdict is not None  # this process is the only one
    said = {name: getattr(trained.verdict, name) for name in ("found", "explained", "effects", "plain_snr")}
    return Cell(name, n_components, seed, starts=recipe.n_init, seconds=seconds, **truth, **said)


def compare_with_truth(
    parameters: Parameters, test: TransformedImages, recipe: Recipe, problem: Problem
) -> dict[str, Any]:
    """Say whether the poses give the true factors, and whether shapes and templates match."""
    _, _, codes, poses, found = infer(parameters, test.images, recipe.evaluation.make_engine(parameters))
    winners, n = codes.argmax(dim=1), len(test.images)
    counts = torch.zeros(problem.n_shapes, parameters.n_components)
    counts.index_put_((test.labels, winners), torch.ones(n), accumulate=True)
    one_to_one = float(counts[linear_sum_assignment(-counts.numpy())].sum()) / n
    purity = float(counts.amax(dim=0).sum()) / n
    in_use = counts.sum(dim=0) >= max(10.0, 0.1 * n / parameters.n_components)
    missing = problem.n_shapes - len(set(counts.argmax(dim=0)[in_use].tolist()))
    matches = torch.tensor(
        [
            torus_match(test.factors[winners == k], poses[winners == k], problem.period)
            for k in in_use.nonzero().flatten().tolist()
        ]
    )
    median, worst = matches.median(dim=0).values, float(matches.min())
    sorted_well = (one_to_one if parameters.n_components == problem.n_shapes else purity) >= PURE
    return {
        "solved": not problem.control
        and bool(median.min() >= MEDIAN_R and worst >= WORST_R and sorted_well and not missing),
        "snr": float(snr(test.images, found).mean()),
        "R": tuple(median.tolist()),
        "worst_R": worst,
        "purity": purity,
        "missing": missing,
    }


def run_battery(problems: list[str], seeds: list[int], recipe: Recipe, n_processes: int) -> Iterator[Cell]:
    """Yield the cells as they are done; each has a thread of its own."""
    orders = [
        (name, twice, seed, recipe)
        for seed in seeds
        for name in problems
        for twice in ((False,) if name in CONTROLS else (False, True))
    ]
    one_thread: dict[str, Any] = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn"), **one_thread) as pool:
        for future in as_completed([pool.submit(run_cell, *order) for order in orders]):
            yield future.result()


def verdict_table(cells: list[Cell]) -> tuple[list[str], list[list[str]]]:
    """Return head and lines: how often the verdict says that a motion was found, where it was and where it was not."""
    lines = []
    for kind, solved in (("solved cells", True), ("all others, and controls without a motion", False)):
        mine = [cell for cell in cells if cell.solved == solved]
        lines.append([kind, f"{sum(cell.found for cell in mine)} of {len(mine)}"])
    return ["", "the verdict says: found"], lines


def table(cells: list[Cell], names: list[str]) -> tuple[list[str], list[list[str]]]:
    """Return head and lines: for each problem how many cells were solved, and the median SNR."""
    cells, lines = [cell for cell in cells if cell.problem not in CONTROLS], []
    for name in [*names, "all"]:
        line = [name]
        for twice in (False, True):
            mine = [
                cell
                for cell in cells
                if name in (cell.problem, "all") and twice == (cell.n_components > EVERY[cell.problem].n_shapes)
            ]
            solved = f"{sum(cell.solved for cell in mine)} of {len(mine)}"
            snrs = torch.tensor([cell.snr for cell in mine] or [math.nan])
            line += [solved] if name == "all" else [f"{solved} ({float(snrs.median()):.1f})"]
        lines.append(line)
    return ["problem", "templates = shapes (median SNR)", "twice as many"], lines
