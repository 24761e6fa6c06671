"""Problems with a known motion, learned at the defaults and compared with the truth.

A cell is one problem, one number of templates and one seed. It is learned from the images alone; only the number of
templates and of torus axes, or the group, is given. Then the truth says whether it is solved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d, normalize, pad

from liesparse.data import (
    TransformedImages,
    embedded_digits,
    rotations_scalings,
    shears_stretches,
    translations,
    translations_rotations,
)
from liesparse.groups import Composition, KnownGroup, LearnedTorus, Rotations, Translations
from liesparse.metrics import infer, snr, torus_match
from liesparse.model import Parameters
from liesparse.settings import ModelSettings, Recipe, load_recipe
from liesparse.training import learn_model

N_TEST = 1000
MEDIAN_R, WORST_R, PURE = 0.95, 0.9, 0.95
Table = tuple[list[str], list[list[str]]]  # head and lines
SIZE, FINER = 28, 8  # pixels of a drawn shape, and how much finer it is drawn before it is averaged
PARTICLE_SIZE = 40
TURN = 2 * math.pi
Part = tuple[str, tuple[int, ...], dict[str, Any]]  # of a drawing: what, where and how


@dataclass(frozen=True)
class Problem:
    """Images with a known motion; ``period`` is that of a circular factor, None for one that does not come round."""

    make: Callable[..., TransformedImages]  # of a number of images and a generator
    n_images: int = 10_000
    n_shapes: int = 10
    torus_dim: int = 2
    period: float | None = None
    control: bool = False  # nothing is to be found, or not yet
    group: KnownGroup | Composition | None = None  # as the user knows it
    values: Mapping[str, Any] = field(default_factory=dict)  # of the recipe
    bar: str = ""  # what is asked for on every seed
    any_angle: bool = False  # then errors of angle and shift say more than correlations

    def split(self, n: int, n_test: int, generator: Generator) -> tuple[Tensor, TransformedImages]:
        """Make images to learn from, and others of the same shapes with the truth behind them."""
        made = self.make(n + n_test, generator=generator)
        images, labels, factors = (part[n:] for part in made[:3])
        return made.images[:n], TransformedImages(images, labels, factors, made.factor_names)


def _drawn(parts: Sequence[Part]) -> Tensor:
    """Draw a shape finely and average."""
    picture = Image.new("L", (FINER * SIZE, FINER * SIZE))
    for kind, places, how in parts:
        getattr(ImageDraw.Draw(picture), kind)([FINER * place for place in places], **how)
    return torch.from_numpy(np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float32) / 255)


def drawn_shapes() -> Tensor:
    """Draw five shapes without symmetry: an L, an arrow, an F, a triangle, and an open ring with a dot."""
    stroke: dict[str, Any] = {"fill": 255, "width": 2 * FINER + FINER // 2}
    shapes: tuple[list[Part], ...] = (
        [("line", (8, 6, 8, 22, 19, 22), stroke)],
        [("line", (14, 5, 14, 23), stroke), ("line", (8, 11, 14, 5, 20, 11), stroke)],
        [("line", (8, 6, 20, 6), stroke), ("line", (9, 6, 9, 23), stroke), ("line", (9, 14, 17, 14), stroke)],
        [("polygon", (9, 4, 20, 23, 9, 23), {"fill": 255})],
        [("arc", (6, 6, 22, 22), stroke | {"start": 0, "end": 250}), ("ellipse", (12, 12, 17, 17), {"fill": 255})],
    )
    return torch.stack([_drawn(parts) for parts in shapes])


def letters(alphabet: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", height: int = 20) -> Tensor:
    """Draw letters in the font that matplotlib ships."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    how = {"font": ImageFont.truetype(str(path), height * FINER), "fill": 255, "anchor": "mm"}
    return torch.stack([_drawn([("text", (SIZE // 2, SIZE // 2), how | {"text": letter})]) for letter in alphabet])


def turned(n: int, generator: Generator, sources: Tensor | None = None, max_shift: float = 0) -> TransformedImages:
    """Turn shapes by any angle, and perhaps shift them."""
    how: dict[str, Any] = {"max_shift": max_shift, "max_degrees": 180, "sources": sources}
    made = translations_rotations(n, **how, generator=generator)
    return made if max_shift else made._replace(factors=made.factors[:, 2:], factor_names=made.factor_names[2:])


def shifted_signals(n_images: int, generator: Generator, n_signals: int = 3, length: int = 50) -> TransformedImages:
    """Shift random signals round a circle, by any amount."""
    signals = torch.fft.rfft(torch.randn(n_signals, length, generator=generator))
    shifts = TURN * torch.rand(n_images, 1, generator=generator)
    labels = torch.arange(n_images) % n_signals
    moved = torch.fft.irfft(signals[labels] * torch.exp(-1j * shifts * torch.arange(signals.shape[1])), n=length)
    return TransformedImages(normalize(moved, dim=1), labels, shifts, ("shift",))


def with_noise(made: TransformedImages, norm: float, generator: Generator) -> TransformedImages:
    """Add pixel noise of some norm."""
    noise = norm * normalize(torch.randn(made.images.shape, generator=generator), dim=1)
    return made._replace(images=normalize(made.images + noise, dim=1))


def particles(n_images: int, generator: Generator) -> TransformedImages:
    """Draw five shapes in any angle, anywhere within ±6 of 40 × 40 pixels, under noise of twice their norm."""
    sources = pad(drawn_shapes(), ((PARTICLE_SIZE - SIZE) // 2,) * 4)
    return with_noise(turned(n_images, generator, sources, max_shift=6.0), 2.0, generator)


def _noisy(n_images: int, generator: Generator, norm: float, **how: Any) -> TransformedImages:
    return with_noise(translations(n_images, **how, generator=generator), norm, generator)


def _shuffled(n_images: int, generator: Generator) -> TransformedImages:
    """Shift digits, then shuffle the pixels of each image anew."""
    made = translations(n_images, generator=generator)
    order = torch.rand(made.images.shape, generator=generator).argsort(dim=1)
    return made._replace(images=made.images.gather(1, order))


def _noise(n_images: int, generator: Generator) -> TransformedImages:
    made = translations(n_images, generator=generator)
    noise = torch.randn(made.images.shape, generator=generator)
    return made._replace(images=normalize(noise, dim=1))


def _small_digits(n_images: int, generator: Generator) -> TransformedImages:
    sources = avg_pool2d(embedded_digits()[None, :4], 2)[0]
    return translations(n_images, max_shift=3.5, sources=sources, generator=generator)


PROBLEMS = {
    "translation": Problem(translations),
    "translation-wrapped": Problem(partial(translations, max_shift=14, wrap=True), period=28.0),
    "rotation-scaling": Problem(rotations_scalings),
    "shear-stretch": Problem(shears_stretches),
    "rotation-360": Problem(turned, torus_dim=1, period=TURN),
    "rotation-360-few": Problem(lambda n, generator: turned(n, generator, drawn_shapes()), 3000, 5, 1, TURN),
    "miniature": Problem(_small_digits, n_shapes=4),
    "signals": Problem(shifted_signals, 5000, 3, 1, TURN),
    "noisy": Problem(partial(_noisy, norm=1.0)),
    "few": Problem(translations, 1000),
    "many-shapes": Problem(lambda n, generator: translations(n, sources=letters(), generator=generator), n_shapes=26),
}
CONTROLS = {
    "still": Problem(partial(_noisy, norm=0.2, max_shift=0), 3000, control=True),
    "shuffled": Problem(_shuffled, 3000, control=True),
    "noise": Problem(_noise, 3000, control=True),
    "stopped-early": Problem(translations, 3000, control=True, values={"start": "data", "learning.n_epochs": 2}),
}
SHIFTS, TURNS = Translations(SIZE, SIZE), Rotations(SIZE, SIZE)
KNOWN = {  # the motion is given, so few images are enough; learned only if asked for by name
    "known-translation": Problem(translations, 500, group=SHIFTS),
    "known-rotation": Problem(turned, 500, 10, 1, TURN, group=TURNS),
}
_moved_digits = partial(translations_rotations, max_shift=4, max_degrees=40)
_moved_particles = Translations(PARTICLE_SIZE, PARTICLE_SIZE) @ Rotations(PARTICLE_SIZE, PARTICLE_SIZE)
GROUPS = {  # two of them, with both known, one of them, or none
    "known@known": Problem(_moved_digits, group=SHIFTS @ TURNS, bar="SNR 18, R 0.98"),
    "known@learned": Problem(_moved_digits, group=SHIFTS @ LearnedTorus(1), bar="SNR 13, R 0.95"),
    "learned@learned": Problem(_moved_digits, group=LearnedTorus(2) @ LearnedTorus(1), bar="none (SNR 9, R 0.9)"),
    "three-axes": Problem(_moved_digits, torus_dim=3, bar="none"),
    "any-angle": Problem(
        lambda n, generator: turned(n, generator, drawn_shapes(), max_shift=4),
        n_shapes=5,
        group=SHIFTS @ TURNS,
        bar="purity 0.98, angle 3°",
        any_angle=True,
    ),
    "particles": Problem(
        particles, 5000, 5, group=_moved_particles, bar="purity 0.95, angle 5°, shift 0.5 px", any_angle=True
    ),
    "known-500": replace(KNOWN["known-translation"], bar="all ten, SNR 30"),
}
EVERY = PROBLEMS | CONTROLS | KNOWN | GROUPS

# ---- learned, and compared with the truth


Cell = dict[str, Any]  # what was found: see compare_with_truth and run_cell


def run_cell(name: str, twice: bool, seed: int, recipe: Recipe | None = None) -> Cell:
    """Learn one cell at the defaults, perhaps with twice as many templates as shapes, and compare it with the truth."""
    problem = EVERY[name]
    recipe = (recipe or load_recipe("best")).with_values(problem.values)
    generator = torch.Generator().manual_seed(seed)
    images, test = problem.split(problem.n_images, N_TEST, generator)
    n_components = problem.n_shapes * (2 if twice else 1)
    model = ModelSettings(n_components, torus_dim=problem.torus_dim, group=problem.group)
    began = time.monotonic()
    trained = learn_model(images, model, recipe, generator=generator)
    seconds = time.monotonic() - began
    truth = compare_with_truth(trained.parameters, test, recipe, problem)
    assert trained.verdict is not None  # this process is the only one
    said = {key: getattr(trained.verdict, key) for key in ("found", "explained", "effects", "plain_snr")}
    made = {"problem": name, "n_components": n_components, "seed": seed, "starts": recipe.n_init, "seconds": seconds}
    return made | truth | said | {"verdict": str(trained.verdict)}  # which is not told the truth


def compare_with_truth(parameters: Parameters, test: TransformedImages, recipe: Recipe, problem: Problem) -> Cell:
    """Say whether the poses give the true factors, and whether shapes and templates match."""
    _, _, codes, poses, found = infer(parameters, test.images, recipe.evaluation.make_engine(parameters))
    winners, n = codes.argmax(dim=1), len(test.images)
    counts = torch.zeros(problem.n_shapes, parameters.n_components)
    counts.index_put_((test.labels, winners), torch.ones(n), accumulate=True)
    matched = float(counts[linear_sum_assignment(-counts.numpy())].sum()) / n
    purity = float(counts.amax(dim=0).sum()) / n
    in_use = counts.sum(dim=0) >= max(10.0, 0.1 * n / parameters.n_components)
    missing = problem.n_shapes - len(set(counts.argmax(dim=0)[in_use].tolist()))
    each = [(test.factors[winners == k], poses[winners == k]) for k in in_use.nonzero().flatten().tolist()]
    matches = torch.tensor([torus_match(factors, mine, problem.period) for factors, mine in each])
    errors: dict[str, float | None] = {"angle_error": None, "shift_error": None}  # medians, in degrees and pixels
    if problem.any_angle:
        parts = zip(*(pose_errors(*pair, math.isqrt(test.images.shape[1])) for pair in each), strict=True)
        medians = (float(torch.cat(part).median()) for part in parts)
        errors = dict(zip(errors, medians, strict=True))
    median, worst = matches.median(dim=0).values, float(matches.min())
    sorted_well = (matched if parameters.n_components == problem.n_shapes else purity) >= PURE
    good = sorted_well and not missing and bool(median.min() >= MEDIAN_R and worst >= WORST_R)
    return {
        "solved": good and not problem.control,  # by the correlations R, which say little of shapes turned by any angle
        "snr": float(snr(test.images, found).mean()),
        "R": tuple(median.tolist()),  # of each factor, the median over the templates in use
        "worst_R": worst,  # over these and the factors
        "purity": purity,
        "matched": matched,  # share of images whose template is their shape's, one to one
        "missing": missing,  # shapes that are the main one of no template
        **errors,
    }


def pose_errors(
    factors: Float[Tensor, "image 3"], poses: Float[Tensor, "image 3"], size: int
) -> tuple[Float[Tensor, " image"], Float[Tensor, " image"]]:
    """Return the errors of angle (degrees) and shift (pixels) of one template, whose own angle and place are free.

    A template that lies d off the middle shows a shift of d - R(angle)d too: d is fitted.
    """
    angle = poses[:, 2].double() + factors[:, 2].double()  # theirs turns the other way
    middle = torch.exp(1j * angle).mean().angle()
    angle_error = torch.rad2deg(torch.exp(1j * (angle - middle)).angle().abs())
    found = torch.complex(poses[:, 0], poses[:, 1]).to(torch.complex128) * size / (2 * math.pi)
    away = found - torch.complex(factors[:, 0], factors[:, 1])
    turned = torch.stack((torch.exp(1j * poses[:, 2].double()), torch.ones_like(away)), dim=1)
    left = away
    for _ in range(3):  # shifts are known up to the picture's size
        fitted = turned @ torch.linalg.lstsq(turned, left[:, None]).solution[:, 0]
        apart = torch.view_as_real(away - fitted)
        apart = (apart + size / 2) % size - size / 2
        left = fitted + torch.view_as_complex(apart)
    return angle_error, apart.norm(dim=1)


def plan(names: Iterable[str], seeds: Iterable[int]) -> list[tuple[str, bool, int]]:
    """List the cells: a problem of the battery is also learned with twice as many templates."""
    both = {name: (False,) if name in CONTROLS or name in GROUPS else (False, True) for name in names}
    return [(name, twice, seed) for seed in seeds for name, every in both.items() for twice in every]


def run(cells: list[tuple[str, bool, int]], recipe: Recipe | None = None) -> Iterator[Cell]:
    """Yield the cells as they are done; each has a thread of its own."""
    with ProcessPoolExecutor(None, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for future in as_completed([pool.submit(run_cell, *cell, recipe) for cell in cells]):
            yield future.result()


def verdict_table(cells: list[Cell]) -> Table:
    """Say how often the verdict is that a motion was found, where it was and where it was not."""
    lines = []
    for kind, solved in (("solved cells", True), ("all others, and controls without a motion", False)):
        mine = [cell for cell in cells if cell["solved"] == solved]
        lines.append([kind, f"{sum(cell['found'] for cell in mine)} of {len(mine)}"])
    return ["", "the verdict says: found"], lines


def table(cells: list[Cell], names: list[str]) -> Table:
    """Say for each problem how many cells were solved, with the median SNR."""
    cells, lines = [cell for cell in cells if cell["problem"] not in CONTROLS], []
    for name in [*names, "all"]:
        line, mine = [name], [cell for cell in cells if name in (cell["problem"], "all")]
        for twice in (False, True):
            some = [cell for cell in mine if twice == (cell["n_components"] > EVERY[cell["problem"]].n_shapes)]
            solved = f"{sum(cell['solved'] for cell in some)} of {len(some)}"
            snrs = torch.tensor([cell["snr"] for cell in some] or [math.nan])
            line += [solved] if name == "all" else [f"{solved} ({float(snrs.median()):.1f})"]
        lines.append(line)
    return ["problem", "templates = shapes (median SNR)", "twice as many"], lines


def groups_table(cells: list[Cell]) -> Table:
    """Show for each problem of composed groups the worst of all seeds."""
    head = ["problem", "seeds", "bar on every seed", "SNR", "R", "purity", "one to one", "angle, °", "shift, px", "s"]
    lines = []
    for name in dict.fromkeys(name for name in GROUPS if any(cell["problem"] == name for cell in cells)):
        mine, problem = [cell for cell in cells if cell["problem"] == name], GROUPS[name]
        snrs, purity, matched = (min(cell[each] for cell in mine) for each in ("snr", "purity", "matched"))
        lowest = "" if problem.any_angle else f"{min(min(cell['R']) for cell in mine):.3f}"
        errors = [[cell[each] for cell in mine] for each in ("angle_error", "shift_error")]
        worst = [f"{max(found):.2f}" if problem.any_angle else "" for found in errors]
        seconds = f"{max(cell['seconds'] for cell in mine):.0f}"
        quality = [f"{snrs:.1f}", lowest, f"{purity:.3f}", f"{matched:.3f}"]
        lines.append([name, str(len(mine)), problem.bar, *quality, *worst, seconds])
    return head, lines
