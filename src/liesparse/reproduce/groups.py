"""Groups as parts: pictures that are shifted and turned, with both groups known, one of them, or none.

Each problem is learned at the defaults; the truth says how well shapes, shifts and angles were found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from liesparse.data import TransformedImages, embedded_digits, translations, translations_rotations
from liesparse.groups import Composition, KnownGroup, LearnedTorus, Rotations, Translations
from liesparse.metrics import infer, snr, torus_match
from liesparse.recipes import load_recipe
from liesparse.reproduce.battery import SIZE, drawn_shapes, with_noise
from liesparse.settings import ModelSettings
from liesparse.training import learn_model

N_TEST = 1000
PARTICLE_SIZE, PARTICLE_SHIFT, PARTICLE_NOISE = 40, 6.0, 2.0
Make = Callable[[int, torch.Generator], TransformedImages]


@dataclass(frozen=True)
class Problem:
    """Pictures with a truth, what is known of their group, and what is asked for on every seed."""

    make: Make
    group: KnownGroup | Composition | None
    n_images: int
    n_shapes: int
    bar: str
    any_angle: bool = False  # then errors of angle and shift say more than correlations
    torus_dim: int = 2


class Cell(NamedTuple):
    """What was found in one problem with one seed."""

    problem: str
    seed: int
    snr: float
    R: tuple[float, ...]  # of each factor, the median over the templates in use
    worst_R: float  # noqa: N815
    purity: float
    matched: float  # share of images whose template is their shape's, one to one
    angle_error: float | None  # median, in degrees, after the best angle of each template
    shift_error: float | None  # median, in pixels, after the best place of each template
    seconds: float
    verdict: str


def particles(n_images: int, generator: torch.Generator) -> TransformedImages:
    """Draw five shapes in any angle, anywhere within ±6 of 40 × 40 pixels, under noise of twice their norm."""
    margin = (PARTICLE_SIZE - SIZE) // 2
    sources = torch.nn.functional.pad(drawn_shapes(), (margin,) * 4)
    made = translations_rotations(
        n_images, max_shift=PARTICLE_SHIFT, max_degrees=180, sources=sources, generator=generator
    )
    return with_noise(made, PARTICLE_NOISE, generator)


def _moved_digits(n_images: int, generator: torch.Generator) -> TransformedImages:
    return translations_rotations(n_images, max_shift=4, max_degrees=40, generator=generator)


def _turned_shapes(n_images: int, generator: torch.Generator) -> TransformedImages:
    shapes = drawn_shapes()
    return translations_rotations(n_images, max_shift=4, max_degrees=180, sources=shapes, generator=generator)


SHIFTS, TURNS = Translations(SIZE, SIZE), Rotations(SIZE, SIZE)
PROBLEMS = {
    "known@known": Problem(_moved_digits, SHIFTS @ TURNS, 10_000, 10, "SNR 18, R 0.98"),
    "known@learned": Problem(_moved_digits, SHIFTS @ LearnedTorus(1), 10_000, 10, "SNR 13, R 0.95"),
    "learned@learned": Problem(_moved_digits, LearnedTorus(2) @ LearnedTorus(1), 10_000, 10, "none (SNR 9, R 0.9)"),
    "three-axes": Problem(_moved_digits, None, 10_000, 10, "none", torus_dim=3),
    "any-angle": Problem(_turned_shapes, SHIFTS @ TURNS, 10_000, 5, "purity 0.98, angle 3°", any_angle=True),
    "particles": Problem(
        particles,
        Translations(PARTICLE_SIZE, PARTICLE_SIZE) @ Rotations(PARTICLE_SIZE, PARTICLE_SIZE),
        5_000,
        5,
        "purity 0.95, angle 5°, shift 0.5 px",
        any_angle=True,
    ),
    "known-500": Problem(
        lambda n, g: translations(n, sources=embedded_digits(), generator=g), SHIFTS, 500, 10, "all ten, SNR 30"
    ),
}


def run_cell(name: str, seed: int) -> Cell:
    """Learn one problem at the defaults and compare it with the truth."""
    problem, recipe = PROBLEMS[name], load_recipe("best")
    generator = torch.Generator().manual_seed(seed)
    made = problem.make(problem.n_images + N_TEST, generator)
    model = ModelSettings(problem.n_shapes, torus_dim=problem.torus_dim, group=problem.group)
    began = time.monotonic()
    trained = learn_model(made.images[: problem.n_images], model, recipe, generator=generator)
    seconds = time.monotonic() - began
    images, labels, factors = (part[problem.n_images :] for part in made[:3])
    engine = recipe.evaluation.make_engine(trained.parameters)
    _, _, codes, poses, found = infer(trained.parameters, images, engine)
    winners = codes.argmax(dim=1)
    counts = torch.zeros(problem.n_shapes, problem.n_shapes)
    counts.index_put_((labels, winners), torch.ones(len(labels)), accumulate=True)
    in_use = [k for k in range(problem.n_shapes) if int((winners == k).sum()) >= N_TEST // (10 * problem.n_shapes)]
    matches = torch.tensor([torus_match(factors[winners == k], poses[winners == k]) for k in in_use])
    angle_error = shift_error = None
    if problem.any_angle:
        size = PARTICLE_SIZE if name == "particles" else SIZE
        errors = [pose_errors(factors[winners == k], poses[winners == k], size) for k in in_use]
        angle_error, shift_error = (float(torch.cat(part).median()) for part in zip(*errors, strict=True))
    return Cell(
        name,
        seed,
        float(snr(images, found).mean()),
        tuple(matches.median(dim=0).values.tolist()),
        float(matches.min()),
        float(counts.amax(dim=0).sum()) / len(labels),
        float(counts[linear_sum_assignment(-counts.numpy())].sum()) / len(labels),
        angle_error,
        shift_error,
        seconds,
        str(trained.verdict),
    )


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


def run(names: list[str], seeds: list[int], n_processes: int) -> Iterator[Cell]:
    """Yield the cells as they are done; each has a thread of its own."""
    one_thread: dict[str, Any] = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn"), **one_thread) as pool:
        for future in as_completed([pool.submit(run_cell, name, seed) for seed in seeds for name in names]):
            yield future.result()


def table(cells: list[Cell]) -> tuple[list[str], list[list[str]]]:
    """Return head and lines: for each problem the worst of all seeds."""
    head = ["problem", "seeds", "bar on every seed", "SNR", "R", "purity", "one to one", "angle, °", "shift, px", "s"]
    lines = []
    for name, problem in PROBLEMS.items():
        mine = [cell for cell in cells if cell.problem == name]
        if not mine:
            continue
        errors: list[str] = []
        for each in ("angle_error", "shift_error"):
            found = [value for cell in mine if (value := getattr(cell, each)) is not None]
            errors.append(f"{max(found):.2f}" if found else "")
        least = [f"{min(getattr(cell, each) for cell in mine):.3f}" for each in ("purity", "matched")]
        lowest = f"{min(min(cell.R) for cell in mine):.3f}" if not problem.any_angle else ""
        seconds = f"{max(cell.seconds for cell in mine):.0f}"
        snrs = f"{min(cell.snr for cell in mine):.1f}"
        lines.append([name, str(len(mine)), problem.bar, snrs, lowest, *least, *errors, seconds])
    return head, lines
