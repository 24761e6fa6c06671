"""Which engine for how many transformations: time of a batch, error of the moments, effective sample size."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from liesparse import stiefel, torus
from liesparse.initialization import random_start
from liesparse.lattice import half_lattice
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, Engine, GridEngine, SamplingEngine, make_engine, natural_parameters
from liesparse.reproduce.bench import Problem, Shape, alternate, inference_job, make_problem, one_thread, relative_error

BATCH, N_IRREPS, N_COMPONENTS, NOISE = 100, 128, 10, 0.3  # noise of an image over its norm
SHARPNESS = {"sharp": 10.0, "middle": 1.0, "tenth": 0.1, "twentieth": 0.05, "flat": 0.01}  # factors on η̂; 1: paper's σ
SMALL = 40  # planes of the small lattice for brute force on the 3-torus
N_BRUTE = {  # points per axis that resolve such posteriors; the sharp ones on the 4-torus would need too many
    3: {"sharp": 200, "middle": 100, "tenth": 60, "twentieth": 60, "flat": 60},
    4: {"middle": 64, "tenth": 40, "twentieth": 40, "flat": 30},
}
N_MODES = 4
N_LONG, CHUNK = 1 << 19, 1 << 14  # independent draws of the long estimate, and how many at a time


def own_images(
    torus_dim: int, *, n_pixels: int = 784, n_irreps: int = N_IRREPS, n_images: int = BATCH, seed: int = 0
) -> Problem:
    """Return a random model and noisy images of its own, one shape in each: posteriors as a good model has them.

    For any number of pixels the shapes and poses are the same in the plane coordinates, under another W.
    """
    rng = torch.Generator().manual_seed(seed)
    drawn = random_start(
        2 * n_irreps,
        n_components=N_COMPONENTS,
        n_irreps=n_irreps,
        torus_dim=torus_dim,
        include_zero=True,
        generator=rng,
    )
    poses = 2 * math.pi * torch.rand(n_images, torus_dim, generator=rng)
    group_basis = stiefel.random_point(n_pixels, 2 * n_irreps, generator=rng)
    model = replace(drawn, group_basis=group_basis, dictionary=group_basis @ drawn.dictionary)
    images = reconstruct(model, one_hot(torch.arange(n_images) % N_COMPONENTS, N_COMPONENTS).float(), poses)
    noise = torch.randn(images.shape, generator=rng) / math.sqrt(n_pixels)
    return Problem(model, normalize(images + NOISE * noise, dim=1))


def own_naturals(torus_dim: int, n_irreps: int, n_images: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return frequencies and η̂ of noisy images of random shapes, at the paper's σ."""
    rng = torch.Generator().manual_seed(seed)
    frequencies = half_lattice(torus_dim, n_irreps, include_zero=True)
    shapes = normalize(torch.randn(n_images, 2 * n_irreps, generator=rng), dim=1).unflatten(1, (-1, 2))
    noise = NOISE * torch.randn(shapes.shape, generator=rng) / math.sqrt(2 * n_irreps)
    poses = 2 * math.pi * torch.rand(n_images, torus_dim, generator=rng)
    moved = torus.rotate(shapes, torus.phases(frequencies, poses)) + noise
    images = normalize(moved.flatten(1), dim=1).view_as(moved)
    return frequencies, natural_parameters(shapes, images, 0.1, torch.zeros(n_irreps, 2))


def long_estimate(
    natural: Float[Tensor, "irrep 2"], engine: SamplingEngine, *, n_draws: int = N_LONG, seed: int = 0
) -> Float[Tensor, "irrep 2"]:
    """Return R̄ of one sharp posterior from many independent random draws around its modes.

    Nothing but the modes is shared with the engine: Gaussian proposals, half as wide again as the posterior there.
    They are not wrapped around the torus, so this is for posteriors much narrower than it.
    """
    rng = torch.Generator().manual_seed(seed)
    modes = engine.modes(natural[None].double(), N_MODES)
    real = modes.log_density[0].isfinite()
    poses, roots = modes.poses[0, real], torch.linalg.cholesky(modes.curvature[0, real]) / 1.5
    log_density = roots.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    eta, peak = natural.double().flatten(), float(modes.log_density[0, 0])
    total = torch.zeros(natural.numel() + 1, dtype=torch.float64)
    for _ in range(max(1, n_draws // CHUNK)):
        which = torch.randint(len(poses), (CHUNK,), generator=rng)
        noise = torch.randn(CHUNK, poses.shape[1], 1, generator=rng, dtype=torch.float64)
        draws = poses[which] + torch.linalg.solve_triangular(roots[which].mT, noise, upper=True)[..., 0]
        along = torch.einsum("mij,pmi->pmj", roots, torus.wrap(draws[:, None] - poses))
        log_mixture = (log_density - 0.5 * along.square().sum(dim=2)).logsumexp(dim=1)
        features = torus.features(torus.phases(engine.frequencies, draws)).flatten(1)
        weights = (features @ eta - peak - log_mixture).exp()
        total += torch.cat((weights @ features, weights.sum()[None]))
    return (total[:-1] / total[-1]).view_as(natural)


def brute_force(natural: Float[Tensor, "image irrep 2"], frequencies: Tensor, n_grid: int) -> Tensor:
    """Return R̄ on a grid that resolves every one of the posteriors."""
    engine = GridEngine(frequencies, n_grid, dtype=torch.float64)
    return torch.cat([engine.moments(row[None].double()).rotation for row in natural])


def measure_errors(*, n_images: int = 4) -> dict[str, Any]:
    """Compare sampling with brute force for n = 3 and n = 4, and with long estimates at the paper's σ and above."""
    found: dict[str, Any] = {}
    for torus_dim, n_irreps in ((3, SMALL), (4, N_IRREPS)):
        frequencies, natural = own_naturals(torus_dim, n_irreps, n_images)
        engine, sizes = SamplingEngine(frequencies), N_BRUTE[torus_dim]
        errors, effective = {}, {}
        for name, factor in SHARPNESS.items():
            scaled = factor * natural
            rotation = engine.moments(scaled).rotation
            if name == "middle" or name not in sizes:
                errors[name] = relative_error(rotation, torch.stack([long_estimate(row, engine) for row in scaled]))
            if name == "middle":
                found[f"long_estimate_error_n{torus_dim}"] = errors[name]
            if name in sizes:
                errors[name] = relative_error(rotation, brute_force(scaled, frequencies, sizes[name]))
            effective[name] = float(engine.effective_sample_size(scaled).mean())
        found |= {f"error_n{torus_dim}": errors, f"effective_sample_size_n{torus_dim}": effective}
    return found


def measure_times(*, repeats: int = 7) -> dict[str, Any]:
    """Time the inference of a batch by the automatic engine for n = 2, 3, 4, 6, as ratios to n = 2."""
    problems = {"n2": make_problem(Shape())} | {f"n{n}": own_images(n) for n in (3, 4, 6)}
    jobs = {name: inference_job(*each, make_engine("auto", each[0].frequencies)) for name, each in problems.items()}
    with one_thread():  # on the processor's own clock, whatever else it has to do
        times = alternate(jobs, repeats=repeats, clock=time.process_time)
    return {"batch_ms": times, **{f"time_ratio_{name}": times[name] / times["n2"] for name in ("n3", "n4", "n6")}}


def measure_rivals(*, n_images: int = 10) -> dict[str, Any]:
    """Compare the engines for three transformations: time to infer a few images over sampling's, and error."""
    model, images = own_images(3, n_images=n_images)
    engines: dict[str, Engine] = {
        "sampling": SamplingEngine(model.frequencies),
        "grid50": GridEngine(model.frequencies, 50),
        "adaptive": AdaptiveEngine(model.frequencies),
    }
    jobs = {name: inference_job(model, images, engine) for name, engine in engines.items()}
    with one_thread():
        times = alternate(jobs, repeats=1, clock=time.process_time)
    _, natural = own_naturals(3, N_IRREPS, 3)
    truth = brute_force(natural, model.frequencies, N_BRUTE[3]["middle"])
    return {
        name: {
            "time_over_sampling": times[name] / times["sampling"],
            "error": relative_error(engine.moments(natural).rotation, truth),
        }
        for name, engine in engines.items()
    }


def measure_engines(report: Callable[[str], None]) -> dict[str, Any]:
    """Return everything under the names that docs/engines.md uses."""
    report("the time of a batch for n = 2, 3, 4 and 6")
    found = measure_times()
    report("the rivals for n = 3")
    found["rivals_n3"] = measure_rivals()
    report("errors against brute force")
    return found | measure_errors()
