"""How time and memory grow with the size of the job: ``python benchmarks/scale.py --json FILE``.

Three parts: ``images`` (here) grow in pixels, ``engines`` in transformations, ``streaming`` in images and processes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from engines import BATCH, N_COMPONENTS, N_IRREPS, measure_engines, own_images
from liesparse.devices import DRY
from liesparse.initialization import random_start, start_from_data
from liesparse.learning import advance, learn
from liesparse.posterior import make_engine
from liesparse.recipes import load_recipe
from liesparse.reproduce.bench import Problem, alternate, one_thread, peak_memory
from liesparse.settings import Settings
from liesparse.state import State
from streaming import call, measure_streaming

SHAPES = ((28, 28), (32, 32, 3), (64, 64))
PATCHES = ((28, 28), (14, 14))
N_GRID = 50  # of the grid on which operations are counted
MEMORY_IMAGES = 1000
N_PATCHES, N_WORKERS = 10**9, 64
BYTES = 4  # of a float32
Report = Callable[[str], None]


def learning_settings() -> Settings:
    """Return the default recipe without what happens only now and then: two steps have one M-step."""
    return replace(load_recipe("best").learning, single_shape_share=0.0, reseed_overlap=1.0)


def two_steps(problem: Problem, settings: Settings) -> Callable[[], State]:
    """Return a job that learns from two batches, one of them with an M-step."""
    model, images = problem
    engine = make_engine(settings.posterior, model.frequencies, settings.n_grid, device=model.device)
    begin = State.begin(model, torch.Generator())._replace(step=100)

    @torch.no_grad()
    def job() -> State:
        state, _ = advance(begin, images, settings, engine)
        return advance(state, images, settings, engine)[0]

    return job


def count_operations(n_pixels: int, n_irreps: int = N_IRREPS, *, batch: int = BATCH, n_grid: int = N_GRID) -> float:
    """Count the operations of matrix products in a training step on the grid, by a dry run without values.

    A multiply-add counts as two. Decompositions, exponentials and products with a vector are left out.
    """
    model, _ = own_images(2, n_pixels=n_pixels, n_irreps=n_irreps, n_images=2)
    dry = Problem(model.to(DRY), torch.empty(batch, n_pixels, device=DRY))
    with FlopCounterMode(display=False) as counter:
        two_steps(dry, replace(learning_settings(), posterior="grid", n_grid=n_grid))()
    return counter.get_total_flops() / 2


def measure_memory(n_pixels: int) -> dict[str, float]:
    """Return the peak MB above the images of making a start from them, and of an epoch of learning."""
    images = own_images(2, n_pixels=n_pixels, n_images=MEMORY_IMAGES).images
    rng = torch.Generator().manual_seed(0)
    start = random_start(n_pixels, n_components=N_COMPONENTS, n_irreps=N_IRREPS, include_zero=True, generator=rng)
    settings = replace(learning_settings(), n_epochs=1)
    # What loads only once, such as LAPACK and the compiled code, is not the images' doing.
    small = own_images(2, n_pixels=2 * N_IRREPS)
    learn(start_from_data(small.parameters, small.images, generator=rng), small.images, settings, generator=rng)
    from_data = peak_memory(lambda: start_from_data(start, images, generator=rng))
    return {"start_mb": from_data, "learning_mb": peak_memory(lambda: learn(start, images, settings, generator=rng))}


def estimate(image_shape: tuple[int, ...], n_irreps: int, step_ms: float) -> dict[str, Any]:
    """Work out what 10⁹ patches on 64 workers would take: one pass, and what is averaged between them in each step.

    A step waits for the mean over the workers of I(R̄u)ᵀ, R̄ᵀvαᵀ and ααᵀ; a ring all-reduce sends 2(P - 1)/P of their
    size from each worker. The gradients of Φ and W, the paper's method, are of nearly the same size.
    """
    n_pixels, n_steps = math.prod(image_shape), N_PATCHES / (N_WORKERS * BATCH)
    statistics = BYTES * (2 * n_irreps * (n_pixels + N_COMPONENTS) + N_COMPONENTS**2)
    sent = 2 * (N_WORKERS - 1) / N_WORKERS * statistics
    return {
        "image": describe(image_shape),
        "n_irreps": n_irreps,
        "step_ms": step_ms,
        "steps": n_steps,
        "compute_hours": n_steps * step_ms / 3.6e6,
        "statistics_mb": statistics / 1e6,
        "gradients_mb": BYTES * n_pixels * (N_COMPONENTS + 2 * n_irreps) / 1e6,
        "sent_mb_per_step": sent / 1e6,
        "sent_gb": n_steps * sent / 1e9,
        "mb_per_second": sent / 1e6 / (step_ms / 1000),
    }


def describe(image_shape: tuple[int, ...]) -> str:
    """Write a shape as people do."""
    return " × ".join(map(str, image_shape))


def measure_images(report: Report) -> dict[str, Any]:
    """Measure a training step for all shapes at fixed L, K and batch; ratios are to the first of them."""
    planes = {shape: min(N_IRREPS, math.prod(shape) // 2) for shape in (*SHAPES, *PATCHES)}
    problems = {shape: own_images(2, n_pixels=math.prod(shape), n_irreps=n) for shape, n in planes.items()}
    report("the time of a step for all sizes")
    with one_thread():
        times = alternate({shape: two_steps(each, learning_settings()) for shape, each in problems.items()}, repeats=9)
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        report(f"the memory for images of {describe(shape)}")
        n_pixels, operations = math.prod(shape), count_operations(math.prod(shape), planes[shape])
        rows.append(
            {
                "image": describe(shape),
                "n_pixels": n_pixels,
                "pixels_ratio": n_pixels / math.prod(SHAPES[0]),
                "step_ms": times[shape] / 2,
                "step_ratio": times[shape] / times[SHAPES[0]],
                "mflop_per_image": operations / BATCH / 1e6,
                "gflop_per_second": operations / (times[shape] / 2) / 1e6,
                **call(measure_memory, n_pixels).printed,
                "group_basis_mb": BYTES * n_pixels * 2 * N_IRREPS / 1e6,
                "square_mb": BYTES * n_pixels**2 / 1e6,  # what a D × D matrix would take
            }
        )
    return {
        "n_irreps": N_IRREPS,
        "n_components": N_COMPONENTS,
        "batch": BATCH,
        "n_grid": N_GRID,
        "growth": rows,
        "workers": N_WORKERS,
        "patches": N_PATCHES,
        "estimate": [estimate(shape, planes[shape], times[shape] / 2) for shape in PATCHES],
        "settings": asdict(learning_settings()),
    }


PARTS = {"images": measure_images, "engines": measure_engines, "streaming": measure_streaming}


def main() -> None:
    """Measure how time and memory grow with the size of the job, and print all figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; again for more")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    console, found = Console(), {}
    for part in options.part or PARTS:
        with console.status(part) as status:
            found[part] = PARTS[part](status.update)
        console.print_json(data={part: found[part]})
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
