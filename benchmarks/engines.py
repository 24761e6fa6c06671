"""Which engine for how many transformations: time of a batch, error of the moments, effective sample size."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot
from torch.utils.benchmark import set_torch_threads

from liesparse import stiefel, torus
from liesparse.inference import infer_codes
from liesparse.initialization import random_start
from liesparse.lattice import half_lattice
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, Engine, GridEngine, SamplingEngine, make_engine, natural_parameters
from liesparse.reproduce.bench import SHARPNESS, Problem, Shape, alternate, compare_engines, make_problem

BATCH, N_IRREPS, N_COMPONENTS, NOISE = 100, 128, 10, 0.3  # noise of an image over its norm
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
    return frequencies, natural_parameters(shapes, images, 0.1, torch.zeros(n_irreps, 2))


def time_inference(jobs: dict[str, tuple[Problem, Engine]], *, repeats: int) -> dict[str, float]:
    """Return milliseconds on one thread, by the processor's own clock, whatever else it has to do."""
    timed = {name: partial(infer_codes, *problem, engine) for name, (problem, engine) in jobs.items()}
    with set_torch_threads(1):
        return alternate(timed, repeats=repeats, clock=time.process_time)


def measure_times(*, repeats: int = 7) -> dict[str, Any]:
    """Time the inference of a batch by the automatic engine for n = 2, 3, 4, 6, as ratios to n = 2."""
    problems = {"n2": make_problem(Shape())} | {f"n{n}": own_images(n) for n in (3, 4, 6)}
    jobs = {name: (each, make_engine("auto", each.parameters.frequencies)) for name, each in problems.items()}
    times = time_inference(jobs, repeats=repeats)
    return {"batch_ms": times, **{f"time_ratio_{name}": times[name] / times["n2"] for name in ("n3", "n4", "n6")}}


def measure_rivals() -> dict[str, Any]:
    """Compare the engines for three transformations: time to infer a few images over sampling's, and error."""
    problem, (frequencies, natural) = own_images(3, n_images=10), own_naturals(3, N_IRREPS, 3)
    engines: dict[str, Engine] = {"sampling": SamplingEngine(frequencies), "grid50": GridEngine(frequencies, 50)}
    engines["adaptive"] = AdaptiveEngine(frequencies)
    times = time_inference({name: (problem, engine) for name, engine in engines.items()}, repeats=1)
    errors = compare_engines(natural, engines, {"middle": N_BRUTE[3]["middle"]})
    ratios = {name: spent / times["sampling"] for name, spent in times.items()}
    return {name: {"time_over_sampling": ratios[name], "error": errors[name]["middle"]} for name in engines}


def measure_errors(*, n_images: int = 4) -> dict[str, Any]:
    """Compare sampling with brute force for n = 3 and n = 4, and return its effective sample size beside the error."""
    found: dict[str, Any] = {}
    for n, n_irreps in ((3, SMALL), (4, N_IRREPS)):
        frequencies, natural = own_naturals(n, n_irreps, n_images)
        engine = SamplingEngine(frequencies)
        sizes = {name: engine.effective_sample_size(factor * natural) for name, factor in SHARPNESS.items()}
        found[f"error_n{n}"] = compare_engines(natural, {"sampling": engine}, N_BRUTE[n])["sampling"]
        found[f"effective_sample_size_n{n}"] = {name: float(each.mean()) for name, each in sizes.items()}
    return found


def measure_engines(report: Callable[[str], None]) -> dict[str, Any]:
    """Return everything under the names that docs/engines.md uses."""
    report("the time of a batch for n = 2, 3, 4 and 6")
    found = measure_times()
    report("the rivals for n = 3")
    found["rivals_n3"] = measure_rivals()
    report("errors against brute force")
    return found | measure_errors()
