"""How time and memory grow with the size of the job: ``python benchmarks/scale.py --json FILE``.

Four parts: ``images`` grow in pixels, ``engines`` in transformations, ``streaming`` in images and processes,
``server`` in clients of the explorer.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import normalize, one_hot
from torch.utils.benchmark import set_torch_threads
from torch.utils.flop_counter import FlopCounterMode

from liesparse import stiefel, torus
from liesparse.devices import DRY
from liesparse.inference import infer_codes
from liesparse.initialization import random_start, start_from_data
from liesparse.lattice import half_lattice
from liesparse.learning import advance, learn
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, Engine, Evidence, GridEngine, SamplingEngine, make_engine
from liesparse.reproduce.bench import SHARPNESS, Problem, Shape, alternate, compare_engines, make_problem, peak_memory
from liesparse.settings import Settings, load_recipe
from liesparse.state import State
from processes import Found, Report, call, measure_server, measure_streaming

BATCH, N_IRREPS, N_COMPONENTS, NOISE = 100, 128, 10, 0.3  # noise of an image over its norm
PIXELS = {"28 × 28": 784, "14 × 14": 196, "32 × 32 × 3": 3072, "64 × 64": 4096}  # ratios are to the first
N_GRID = 50  # of the grid on which operations are counted
MEMORY_IMAGES = 1000
BYTES = 4  # of a float32
SMALL = 40  # planes of the small lattice for brute force on the 3-torus
N_BRUTE = {  # points per axis that resolve such posteriors; the sharp ones on the 4-torus would need too many
    3: {"sharp": 200, "middle": 100, "tenth": 60, "twentieth": 60, "flat": 60},
    4: {"middle": 64, "tenth": 40, "twentieth": 40, "flat": 30},
}


def own_images(torus_dim: int, *, n_pixels: int = 784, n_irreps: int = N_IRREPS, n_images: int = BATCH) -> Problem:
    """Return a random model and noisy images of its own, one shape in each: posteriors as a good model has them.

    For any number of pixels the shapes and poses are the same in the plane coordinates, under another W.
    """
    rng = torch.Generator().manual_seed(0)
    sizes: dict[str, Any] = {"n_components": N_COMPONENTS, "n_irreps": n_irreps, "torus_dim": torus_dim}
    drawn = random_start(2 * n_irreps, **sizes, include_zero=True, generator=rng)
    poses = 2 * math.pi * torch.rand(n_images, torus_dim, generator=rng)
    group_basis = stiefel.random_point(n_pixels, 2 * n_irreps, generator=rng)
    model = replace(drawn, group_basis=group_basis, dictionary=group_basis @ drawn.dictionary)
    images = reconstruct(model, one_hot(torch.arange(n_images) % N_COMPONENTS, N_COMPONENTS).float(), poses)
    noise = torch.randn(images.shape, generator=rng) / math.sqrt(n_pixels)
    return Problem(model, normalize(images + NOISE * noise, dim=1))


def own_naturals(torus_dim: int, n_irreps: int, n_images: int) -> tuple[Tensor, Tensor]:
    """Return frequencies and η̂ of noisy images of random shapes, at the paper's σ."""
    rng = torch.Generator().manual_seed(0)
    frequencies = half_lattice(torus_dim, n_irreps, include_zero=True)
    shapes = normalize(torch.randn(n_images, 2 * n_irreps, generator=rng), dim=1).unflatten(1, (-1, 2))
    noise = NOISE * torch.randn(shapes.shape, generator=rng) / math.sqrt(2 * n_irreps)
    poses = 2 * math.pi * torch.rand(n_images, torus_dim, generator=rng)
    moved = torus.rotate(shapes, torus.phases(frequencies, poses)) + noise
    images = normalize(moved.flatten(1), dim=1).view_as(moved)
    return frequencies, Evidence(shapes, images, 0.1, torch.zeros(n_irreps, 2)).natural


def learning_settings() -> Settings:
    """Return the default recipe without what happens only now and then: two steps have one M-step."""
    values: dict[str, Any] = {"batch_size": 100, "reseed_overlap": 1.0, "first_memory": 20.0}
    return replace(load_recipe("best").learning, **values)


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


def measure_memory(n_pixels: int) -> Found:
    """Return the peak MB above the images of making a start from them, and of an epoch of learning."""
    n_irreps, rng = min(N_IRREPS, n_pixels // 2), torch.Generator().manual_seed(0)
    images = own_images(2, n_pixels=n_pixels, n_irreps=n_irreps, n_images=MEMORY_IMAGES).images
    start = random_start(n_pixels, n_components=N_COMPONENTS, n_irreps=n_irreps, include_zero=True, generator=rng)
    settings = replace(learning_settings(), n_epochs=1)
    # What loads only once, such as LAPACK and the compiled code, is not the images' doing.
    small = own_images(2, n_pixels=2 * N_IRREPS)
    learn(start_from_data(small.parameters, small.images, generator=rng), small.images, settings, generator=rng)
    from_data = peak_memory(lambda: start_from_data(start, images, generator=rng))
    return {"start_mb": from_data, "learning_mb": peak_memory(lambda: learn(start, images, settings, generator=rng))}


def measure_images(report: Report) -> Found:
    """Measure a training step for all sizes at fixed K and batch, with 128 planes or as many as the pixels allow."""
    planes = {name: min(N_IRREPS, n // 2) for name, n in PIXELS.items()}
    problems = {name: own_images(2, n_pixels=n, n_irreps=planes[name]) for name, n in PIXELS.items()}
    report("the time of a step for all sizes")
    with set_torch_threads(1):
        times = alternate({name: two_steps(each, learning_settings()) for name, each in problems.items()}, repeats=9)
    first, rows = next(iter(PIXELS)), []
    for name, n_pixels in PIXELS.items():
        report(f"the memory for images of {name}")
        operations, memory = count_operations(n_pixels, planes[name]), call(measure_memory, n_pixels)
        rows.append(
            {
                "image": name,
                "n_pixels": n_pixels,
                "n_irreps": planes[name],
                "pixels_ratio": n_pixels / PIXELS[first],
                "step_ms": times[name] / 2,
                "step_ratio": times[name] / times[first],
                "mflop_per_image": operations / BATCH / 1e6,
                "gflop_per_second": operations / (times[name] / 2) / 1e6,
                **{key: memory[key] for key in ("start_mb", "learning_mb")},
                "group_basis_mb": BYTES * n_pixels * 2 * planes[name] / 1e6,
                "square_mb": BYTES * n_pixels**2 / 1e6,  # what a D × D matrix would take
            }
        )
    sizes = {"n_components": N_COMPONENTS, "batch": BATCH, "n_grid": N_GRID}
    return {**sizes, "growth": rows, "settings": asdict(learning_settings())}


def time_inference(jobs: dict[str, tuple[Problem, Engine]], *, repeats: int) -> dict[str, float]:
    """Return milliseconds on one thread, by the processor's own clock, whatever else it has to do."""
    timed = {name: partial(infer_codes, *problem, engine) for name, (problem, engine) in jobs.items()}
    with set_torch_threads(1):
        return alternate(timed, repeats=repeats, clock=time.process_time)


def measure_times(*, repeats: int = 7) -> Found:
    """Time the inference of a batch by the automatic engine for n = 2, 3, 4, 6, as ratios to n = 2."""
    problems = {"n2": make_problem(Shape())} | {f"n{n}": own_images(n) for n in (3, 4, 6)}
    jobs = {name: (each, make_engine("auto", each.parameters.frequencies)) for name, each in problems.items()}
    times = time_inference(jobs, repeats=repeats)
    return {"batch_ms": times, **{f"time_ratio_{name}": times[name] / times["n2"] for name in ("n3", "n4", "n6")}}


def measure_rivals() -> Found:
    """Compare the engines for three transformations: time to infer a few images over sampling's, and error."""
    problem, (frequencies, natural) = own_images(3, n_images=10), own_naturals(3, N_IRREPS, 3)
    engines: dict[str, Engine] = {"sampling": SamplingEngine(frequencies), "grid50": GridEngine(frequencies, 50)}
    engines["adaptive"] = AdaptiveEngine(frequencies)
    times = time_inference({name: (problem, engine) for name, engine in engines.items()}, repeats=1)
    errors = compare_engines(natural, engines, {"middle": N_BRUTE[3]["middle"]})
    ratios = {name: spent / times["sampling"] for name, spent in times.items()}
    return {name: {"time_over_sampling": ratios[name], "error": errors[name]["middle"]} for name in engines}


def measure_errors(*, n_images: int = 4) -> Found:
    """Compare sampling with brute force for n = 3 and n = 4, and return its effective sample size beside the error."""
    found: Found = {}
    for n, n_irreps in ((3, SMALL), (4, N_IRREPS)):
        frequencies, natural = own_naturals(n, n_irreps, n_images)
        engine = SamplingEngine(frequencies)
        sizes = {name: engine.effective_sample_size(factor * natural) for name, factor in SHARPNESS.items()}
        found[f"error_n{n}"] = compare_engines(natural, {"sampling": engine}, N_BRUTE[n])["sampling"]
        found[f"effective_sample_size_n{n}"] = {name: float(each.mean()) for name, each in sizes.items()}
    return found


def measure_engines(report: Report) -> Found:
    """Return everything under the names that docs/engines.md uses."""
    report("the time of a batch for n = 2, 3, 4 and 6")
    found = measure_times()
    report("the rivals for n = 3")
    found["rivals_n3"] = measure_rivals()
    report("errors against brute force")
    return found | measure_errors()


PARTS: dict[str, Callable[..., Found]] = {"images": measure_images, "engines": measure_engines}
PARTS |= {"streaming": measure_streaming, "server": measure_server}


def main() -> None:
    """Measure how time and memory grow with the size of the job, and print all figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; again for more")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the server is under load")
    parser.add_argument("--clients", type=int, default=50, help="how many clients the server has")
    options = parser.parse_args()
    load = {"seconds": options.seconds, "clients": options.clients}
    console, found = Console(), {}
    for part in options.part or PARTS:
        with console.status(part) as status:
            found[part] = PARTS[part](status.update, **(load if part == "server" else {}))
        console.print_json(data={part: found[part]})
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
