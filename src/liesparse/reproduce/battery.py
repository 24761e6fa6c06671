"""Problems with a known motion, learned at the defaults and compared with the truth.

A cell is one problem, one number of templates and one seed. It is learned from the images alone; only the number of
templates and of torus axes, or the group, is given. Then the truth says whether it is solved.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from liesparse.data import TransformedImages
from liesparse.metrics import infer, snr, torus_match
from liesparse.model import Parameters
from liesparse.reproduce.problems import CONTROLS, EVERY, GROUPS, Problem
from liesparse.settings import ModelSettings, Recipe, load_recipe
from liesparse.training import learn_model

N_TEST = 1000
MEDIAN_R, WORST_R, PURE = 0.95, 0.9, 0.95
Table = tuple[list[str], list[list[str]]]  # head and lines


class Cell(NamedTuple):
    """What was found in one cell."""

    problem: str
    n_components: int
    seed: int
    solved: bool  # by the correlations R, which say little where shapes turn by any angle
    snr: float
    R: tuple[float, ...]  # of each factor, the median over the templates in use
    worst_R: float  # noqa: N815, over the templates in use and the factors
    purity: float
    missing: int  # shapes that are the main one of no template
    starts: int
    seconds: float
    found: bool  # what the verdict says, without the truth
    explained: float
    effects: tuple[float, ...]
    plain_snr: float
    matched: float = math.nan  # share of images whose template is their shape's, one to one
    angle_error: float | None = None  # median, in degrees, after the best angle of each template
    shift_error: float | None = None  # median, in pixels, after the best place of each template
    verdict: str = ""


def run_cell(name: str, twice: bool, seed: int, recipe: Recipe | None = None) -> Cell:
    """Learn one cell at the defaults, perhaps with twice as many templates as shapes, and compare it with the truth."""
    problem = EVERY[name]
    recipe = (recipe or load_recipe("best")).with_values(problem.values)
    generator = torch.Generator().manual_seed(seed)
    together = problem.make(problem.n_images + N_TEST, generator=generator)  # of the same shapes
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
    said["verdict"] = str(trained.verdict)
    return Cell(name, n_components, seed, starts=recipe.n_init, seconds=seconds, **truth, **said)


def compare_with_truth(
    parameters: Parameters, test: TransformedImages, recipe: Recipe, problem: Problem
) -> dict[str, Any]:
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
    errors: dict[str, float] = {}
    if problem.any_angle:
        parts = zip(*(pose_errors(*pair, math.isqrt(test.images.shape[1])) for pair in each), strict=True)
        medians = (float(torch.cat(part).median()) for part in parts)
        errors = dict(zip(("angle_error", "shift_error"), medians, strict=True))
    median, worst = matches.median(dim=0).values, float(matches.min())
    sorted_well = (matched if parameters.n_components == problem.n_shapes else purity) >= PURE
    return {
        "solved": not problem.control
        and bool(median.min() >= MEDIAN_R and worst >= WORST_R and sorted_well and not missing),
        "snr": float(snr(test.images, found).mean()),
        "R": tuple(median.tolist()),
        "worst_R": worst,
        "purity": purity,
        "matched": matched,
        "missing": missing,
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
    one_thread: dict[str, Any] = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn"), **one_thread) as pool:
        for future in as_completed([pool.submit(run_cell, *cell, recipe) for cell in cells]):
            yield future.result()


def verdict_table(cells: list[Cell]) -> Table:
    """Say how often the verdict is that a motion was found, where it was and where it was not."""
    lines = []
    for kind, solved in (("solved cells", True), ("all others, and controls without a motion", False)):
        mine = [cell for cell in cells if cell.solved == solved]
        lines.append([kind, f"{sum(cell.found for cell in mine)} of {len(mine)}"])
    return ["", "the verdict says: found"], lines


def table(cells: list[Cell], names: list[str]) -> Table:
    """Say for each problem how many cells were solved, with the median SNR."""
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


def groups_table(cells: list[Cell]) -> Table:
    """Show for each problem of composed groups the worst of all seeds."""
    head = ["problem", "seeds", "bar on every seed", "SNR", "R", "purity", "one to one", "angle, °", "shift, px", "s"]
    lines = []
    for name in dict.fromkeys(name for name in GROUPS if any(cell.problem == name for cell in cells)):
        mine, problem = [cell for cell in cells if cell.problem == name], GROUPS[name]
        snrs, purity, matched = (min(getattr(cell, each) for cell in mine) for each in ("snr", "purity", "matched"))
        lowest = "" if problem.any_angle else f"{min(min(cell.R) for cell in mine):.3f}"
        errors = [[getattr(cell, each) for cell in mine] for each in ("angle_error", "shift_error")]
        worst = [f"{max(found):.2f}" if problem.any_angle else "" for found in errors]
        seconds = f"{max(cell.seconds for cell in mine):.0f}"
        quality = [f"{snrs:.1f}", lowest, f"{purity:.3f}", f"{matched:.3f}"]
        lines.append([name, str(len(mine)), problem.bar, *quality, *worst, seconds])
    return head, lines
