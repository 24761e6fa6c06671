"""How time, memory and operations of a training step grow with the pixels D, at fixed L, K and batch.

All sizes get the same problem: equal shapes and images in the plane coordinates, under a W of their own. What grows
is then only what touches the pixels.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from liesparse import stiefel
from liesparse.devices import DRY
from liesparse.initialization import random_start, start_from_data
from liesparse.learning import advance, learn
from liesparse.model import Parameters, reconstruct
from liesparse.posterior import make_engine
from liesparse.recipes import load_recipe
from liesparse.reproduce.bench import alternate
from liesparse.reproduce.memory import peak_memory
from liesparse.reproduce.scale.operations import Sizes, count_step
from liesparse.settings import Settings
from liesparse.state import State

SHAPES = ((28, 28), (32, 32, 3), (64, 64))
PATCHES = ((28, 28), (14, 14))
N_IRREPS, N_COMPONENTS, BATCH = 128, 10, 100
N_GRID = 50  # of the grid on which operations are counted
MEMORY_IMAGES = 1000
N_PATCHES, N_WORKERS = 10**9, 64
BYTES = 4  # of a float32


@dataclass(frozen=True)
class Problem:
    """A model and a batch of images that it explains well."""

    parameters: Parameters
    images: Tensor


def make_problem(n_pixels: int, *, n_images: int = BATCH, n_irreps: int = N_IRREPS, seed: int = 0) -> Problem:
    """Return random shapes inside the span of a random W, and images of one shape each, moved, with some noise."""
    rng = torch.Generator().manual_seed(seed)
    drawn = random_start(2 * n_irreps, n_components=N_COMPONENTS, n_irreps=n_irreps, include_zero=True, generator=rng)
    poses = 2 * math.pi * torch.rand(n_images, 2, generator=rng)
    group_basis = stiefel.random_point(n_pixels, 2 * n_irreps, generator=rng)
    parameters = replace(drawn, group_basis=group_basis, dictionary=group_basis @ drawn.dictionary)
    codes = torch.nn.functional.one_hot(torch.arange(n_images) % N_COMPONENTS, N_COMPONENTS).float()
    images = reconstruct(parameters, codes, poses)
    images += 0.2 / math.sqrt(n_pixels) * torch.randn(images.shape, generator=rng)
    return Problem(parameters, torch.nn.functional.normalize(images, dim=1))


def learning_settings() -> Settings:
    """Return the default recipe without what happens only now and then: two steps have one M-step."""
    return replace(load_recipe("best").learning, single_shape_epochs=0, reseed_overlap=1.0, schedule="constant")


def two_steps(problem: Problem, settings: Settings) -> Callable[[], object]:
    """Return a job that learns from two batches, one of them with an M-step."""
    parameters = problem.parameters
    engine = make_engine(settings.posterior, parameters.frequencies, settings.n_grid, device=parameters.device)
    begin = State.begin(parameters, torch.Generator())._replace(step=100)

    def job() -> State:
        with torch.no_grad():
            state, _ = advance(begin, problem.images, settings, engine)
            return advance(state, problem.images, settings, engine)[0]

    return job


def measure_times(pixels: dict[str, tuple[int, int]], *, repeats: int = 9) -> dict[str, float]:
    """Return the milliseconds of a training step on one core for each name, given (n_pixels, n_irreps)."""
    settings = learning_settings()
    jobs = {name: two_steps(make_problem(d, n_irreps=planes), settings) for name, (d, planes) in pixels.items()}
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: found / 2 for name, found in alternate(jobs, repeats=repeats).items()}
    finally:
        torch.set_num_threads(n_threads)


def count_operations(sizes: Sizes) -> dict[str, float]:
    """Count the operations of matrix products in a training step on the grid: by a dry run, and by formulas.

    The dry run has shapes, but no values and no work.
    """
    problem = make_problem(sizes.n_pixels, n_images=2, n_irreps=sizes.n_irreps)
    dry = Problem(problem.parameters.to(DRY), torch.empty(sizes.batch, sizes.n_pixels, device=DRY))
    settings = replace(learning_settings(), posterior="grid", n_grid=sizes.n_grid)
    with FlopCounterMode(display=False) as counter:
        two_steps(dry, settings)()
    parts = count_step(sizes, problem.parameters.frequencies)
    return {"counted": counter.get_total_flops() / 2, **parts, "by_formula": sum(parts.values())}


def measure_memory(n_pixels: int, *, n_images: int = MEMORY_IMAGES) -> dict[str, float]:
    """Return the peak MB above the images of making a start from them, and of an epoch of learning."""
    images = make_problem(n_pixels, n_images=n_images).images
    rng = torch.Generator().manual_seed(0)
    start = random_start(n_pixels, n_components=N_COMPONENTS, n_irreps=N_IRREPS, include_zero=True, generator=rng)
    settings = replace(learning_settings(), n_epochs=1)
    # What loads only once, such as LAPACK and the compiled code, is not the images' doing.
    small = make_problem(2 * N_IRREPS)
    learn(start_from_data(small.parameters, small.images, generator=rng), small.images, settings, generator=rng)
    from_data = peak_memory(lambda: start_from_data(start, images, generator=rng))
    return {"start_mb": from_data, "learning_mb": peak_memory(lambda: learn(start, images, settings, generator=rng))}


def memory_of_a_process(n_pixels: int) -> dict[str, float]:
    """Measure memory in a process of its own, in which nothing else has been."""
    command = f"import json; from {__name__} import measure_memory; print(json.dumps(measure_memory({n_pixels})))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def estimate(image_shape: tuple[int, ...], n_irreps: int, step_ms: float) -> dict[str, Any]:
    """Work out what 10⁹ patches on 64 workers would take: one pass, and what is averaged between them in each step.

    A step waits for the mean over the workers of I(R̄u)ᵀ, R̄ᵀvαᵀ and ααᵀ; a ring all-reduce sends 2(P - 1)/P of their
    size from each worker. The gradients of Φ and W, the paper's method, are of nearly the same size.
    """
    n_pixels = math.prod(image_shape)
    n_steps = N_PATCHES / (N_WORKERS * BATCH)
    statistics = BYTES * (2 * n_irreps * (n_pixels + N_COMPONENTS) + N_COMPONENTS**2)
    gradients = BYTES * n_pixels * (N_COMPONENTS + 2 * n_irreps)
    sent = 2 * (N_WORKERS - 1) / N_WORKERS * statistics
    return {
        "image": describe(image_shape),
        "n_irreps": n_irreps,
        "step_ms": step_ms,
        "steps": n_steps,
        "compute_hours": n_steps * step_ms / 3.6e6,
        "statistics_mb": statistics / 1e6,
        "gradients_mb": gradients / 1e6,
        "sent_mb_per_step": sent / 1e6,
        "sent_gb": n_steps * sent / 1e9,
        "mb_per_second": sent / 1e6 / (step_ms / 1000),
    }


def describe(image_shape: tuple[int, ...]) -> str:
    """Write a shape as people do."""
    return " × ".join(map(str, image_shape))


def measure_images(*, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure everything for all shapes; ratios are to the first of them."""
    planes = {shape: min(N_IRREPS, math.prod(shape) // 2) for shape in (*SHAPES, *PATCHES)}
    report("the time of a step for all sizes")
    times = measure_times({describe(shape): (math.prod(shape), count) for shape, count in planes.items()})
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        name, n_pixels = describe(shape), math.prod(shape)
        operations = count_operations(Sizes(n_pixels, planes[shape], N_COMPONENTS, BATCH, N_GRID))
        report(f"the memory for images of {name}")
        memory = memory_of_a_process(n_pixels)
        rows.append(
            {
                "image": name,
                "n_pixels": n_pixels,
                "pixels_ratio": n_pixels / math.prod(SHAPES[0]),
                "step_ms": times[name],
                "step_ratio": times[name] / times[describe(SHAPES[0])],
                "mflop_per_image": operations["counted"] / BATCH / 1e6,
                "gflop_per_second": operations["counted"] / times[name] / 1e6,
                **memory,
                "group_basis_mb": BYTES * n_pixels * 2 * N_IRREPS / 1e6,
                "square_mb": BYTES * n_pixels**2 / 1e6,  # what a D × D matrix would take
                "operations": operations,
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
        "estimate": [estimate(shape, planes[shape], times[describe(shape)]) for shape in PATCHES],
        "settings": asdict(learning_settings()),
    }
