"""Which engine for how many transformations: time per batch, error of the moments, effective sample size.

``liesparse bench scale --part engines`` prints it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse.inference import infer_codes
from liesparse.initialization import random_start
from liesparse.lattice import half_lattice
from liesparse.model import Parameters, reconstruct
from liesparse.posterior import AdaptiveEngine, Engine, GridEngine, SamplingEngine, make_engine, natural_parameters
from liesparse.reproduce.bench import Problem, Shape, make_problem

BATCH, N_IRREPS, NOISE = 100, 128, 0.3  # noise of an image over its norm
SHARPNESS = {  # factors on η̂; 1 is the paper's σ
    "sharp": 10.0,
    "middle": 1.0,
    "tenth": 0.1,
    "twentieth": 0.05,
    "flat": 0.01,
}
SMALL = 40  # planes of the small lattice for brute force on the 3-torus
N_BRUTE = {  # points per axis that resolve such posteriors; the sharp ones on the 4-torus would need too many
    3: {"sharp": 200, "middle": 100, "tenth": 60, "twentieth": 60, "flat": 60},
    4: {"middle": 64, "tenth": 40, "twentieth": 40, "flat": 30},
}
N_MODES = 4
N_LONG, CHUNK = 1 << 19, 1 << 14  # independent draws of the long estimate, and how many at a time


def own_images(torus_dim: int, *, n_irreps: int = N_IRREPS, seed: int = 0) -> Problem:
    """Return a random model and noisy images of its own, one shape in each: posteriors as a good model has them."""
    rng = torch.Generator().manual_seed(seed)
    model = random_start(784, n_irreps=n_irreps, torus_dim=torus_dim, include_zero=True, generator=rng)
    codes = torch.eye(model.n_components)[torch.arange(BATCH) % model.n_components]
    clean = torch.nn.functional.normalize(reconstruct(model, codes, _random_poses(BATCH, torus_dim, rng)), dim=1)
    noise = torch.randn(clean.shape, generator=rng) / math.sqrt(model.n_pixels)
    return Problem(model, torch.nn.functional.normalize(clean + NOISE * noise, dim=1))


def own_naturals(torus_dim: int, n_irreps: int, n_images: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return frequencies and η̂ of noisy images of random shapes, at the paper's σ."""
    rng = torch.Generator().manual_seed(seed)
    frequencies = half_lattice(torus_dim, n_irreps, include_zero=True)
    shapes = _unit_planes(torch.randn(n_images, n_irreps, 2, generator=rng))
    noise = NOISE * torch.randn(shapes.shape, generator=rng) / math.sqrt(2 * n_irreps)
    moved = torus.rotate(shapes, torus.phases(frequencies, _random_poses(n_images, torus_dim, rng)))
    return frequencies, natural_parameters(shapes, _unit_planes(moved + noise), 0.1, torch.zeros(n_irreps, 2))


def _random_poses(n_images: int, torus_dim: int, generator: torch.Generator) -> Tensor:
    return 2 * math.pi * torch.rand(n_images, torus_dim, generator=generator)


def _unit_planes(planes: Tensor) -> Tensor:
    return torch.nn.functional.normalize(planes.flatten(1), dim=1).view_as(planes)


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
    frequencies, eta = engine.frequencies, natural.double().flatten()
    peak, total = float(modes.log_density[0, 0]), torch.zeros(natural.numel() + 1, dtype=torch.float64)
    for _ in range(max(1, n_draws // CHUNK)):
        which = torch.randint(len(poses), (CHUNK,), generator=rng)
        noise = torch.randn(CHUNK, poses.shape[1], 1, generator=rng, dtype=torch.float64)
        draws = poses[which] + torch.linalg.solve_triangular(roots[which].mT, noise, upper=True)[..., 0]
        along = torch.einsum("mij,pmi->pmj", roots, torus.wrap(draws[:, None] - poses))
        log_mixture = (log_density - 0.5 * along.square().sum(dim=2)).logsumexp(dim=1)
        features = torus.features(torus.phases(frequencies, draws)).flatten(1)
        weights = (features @ eta - peak - log_mixture).exp()
        total += torch.cat((weights @ features, weights.sum()[None]))
    return (total[:-1] / total[-1]).view_as(natural)


def brute_force(natural: Float[Tensor, "image irrep 2"], frequencies: Tensor, n_grid: int) -> Tensor:
    """Return R̄ on a grid that resolves every one of the posteriors."""
    engine = GridEngine(frequencies, n_grid, dtype=torch.float64)
    return torch.cat([engine.moments(row[None].double()).rotation for row in natural])


def relative_error(found: Float[Tensor, "image irrep 2"], truth: Float[Tensor, "image irrep 2"]) -> float:
    """Return the mean over the images of ‖R̄ - truth‖ / ‖truth‖."""
    found, truth = found.double().flatten(1), truth.flatten(1)
    return float(((found - truth).norm(dim=1) / truth.norm(dim=1)).mean())


def measure_errors(*, n_images: int = 4) -> dict[str, Any]:
    """Compare the moments with brute force for n = 3 and n = 4, the sharp ones for n = 4 with a long estimate."""
    found: dict[str, Any] = {}
    for torus_dim, n_irreps, sizes in ((3, SMALL, N_BRUTE[3]), (4, N_IRREPS, N_BRUTE[4])):
        frequencies, natural = own_naturals(torus_dim, n_irreps, n_images)
        engine = SamplingEngine(frequencies)
        errors, effective = {}, {}
        for name, factor in SHARPNESS.items():
            scaled = factor * natural
            if name in sizes:
                truth = brute_force(scaled, frequencies, sizes[name])
            else:
                truth = torch.stack([long_estimate(row, engine) for row in scaled])
            errors[name] = relative_error(engine.moments(scaled).rotation, truth)
            effective[name] = float(engine.effective_sample_size(scaled).mean())
        found |= {f"error_n{torus_dim}": errors, f"effective_sample_size_n{torus_dim}": effective}
        scaled = SHARPNESS["middle"] * natural
        long = torch.stack([long_estimate(row, engine) for row in scaled])
        found[f"long_estimate_error_n{torus_dim}"] = relative_error(engine.moments(scaled).rotation, long)
    return found


def measure_times(*, repeats: int = 7) -> dict[str, Any]:
    """Time the inference of a batch by the automatic engine for n = 2, 3, 4, 6, as ratios to n = 2."""
    problems = {"n2": make_problem(Shape())} | {f"n{n}": own_images(n) for n in (3, 4, 6)}
    times = processor_times({name: _inference(*problem) for name, problem in problems.items()}, repeats=repeats)
    return {"batch_ms": times, **{f"time_ratio_{name}": times[name] / times["n2"] for name in ("n3", "n4", "n6")}}


def measure_rivals(*, n_images: int = 10) -> dict[str, Any]:
    """Compare the engines for three transformations: time to infer a few images over sampling's, and error."""
    model, images = own_images(3)
    frequencies = model.frequencies
    engines: dict[str, Engine] = {
        "sampling": SamplingEngine(frequencies),
        "grid50": GridEngine(frequencies, 50),
        "adaptive": AdaptiveEngine(frequencies),
    }
    times = processor_times(
        {name: _inference(model, images[:n_images], engine) for name, engine in engines.items()}, repeats=1
    )
    _, natural = own_naturals(3, N_IRREPS, 3)
    truth = brute_force(natural, frequencies, N_BRUTE[3]["middle"])
    return {
        "rivals_n3": {
            name: {
                "time_over_sampling": times[name] / times["sampling"],
                "error": relative_error(engine.moments(natural).rotation, truth),
            }
            for name, engine in engines.items()
        }
    }


def processor_times(jobs: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Time jobs in turn on one thread; return the median milliseconds of the processor, whatever else it has to do."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for turn in range(repeats + 1):
            for name, job in jobs.items():
                began = time.process_time()
                job()
                if turn:  # the first warms up
                    times[name].append(1000 * (time.process_time() - began))
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(values) for name, values in times.items()}


def _inference(parameters: Parameters, images: Tensor, engine: Engine | None = None) -> Callable[[], object]:
    engine = engine or make_engine("auto", parameters.frequencies)
    return lambda: infer_codes(parameters, images, engine)


def measure_engines(*, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Return everything under the names that docs/engines.md uses."""
    report("the time of a batch for n = 2, 3, 4 and 6")
    found = measure_times()
    report("the rivals for n = 3")
    found |= measure_rivals()
    report("errors against brute force")
    return found | measure_errors()
