"""How fast and how accurate: ratios of things measured side by side in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import em, stiefel
from liesparse.data import embedded_digits, translations
from liesparse.gradients import parameter_gradients
from liesparse.inference import expect_pose, infer_codes
from liesparse.initialization import known_translation, random_start
from liesparse.learning import learn, update
from liesparse.model import Parameters
from liesparse.posterior import AdaptiveEngine, Engine, GridEngine, Moments, ReferenceEngine, make_engine, pose_natural
from liesparse.posterior.kernels import KERNEL_NAMES, Library, choose, runnable
from liesparse.posterior.separable import normalize_
from liesparse.recipes import load_recipe
from liesparse.reproduce.memory import peak_memory
from liesparse.settings import Settings

REFERENCE_GRID = 600
SHARPNESS = {"sharp": 10.0, "middle": 1.0, "flat": 0.01}  # factor on η̂; 1 is the paper's σ
MEMORY_IMAGES = 60_000
N_BEFORE = 20  # batches
AT_PEAK = 10  # sums of a round, as in kernel.c


@dataclass(frozen=True)
class Shape:
    """One problem size; the defaults are the paper's [Chau20, app. E]."""

    batch: int = 100
    side: int = 28
    n_components: int = 10
    n_irreps: int = 128
    multiplicity: int = 1
    torus_dim: int = 2
    n_grid: int = 50


SHAPES = {"paper": Shape(), "k100": Shape(n_components=100), "multiplicity2": Shape(multiplicity=2)}
GROWTH: dict[str, list[int]] = {
    "batch": [25, 50, 100, 200, 400],
    "n_components": [10, 30, 100, 300],
    "n_irreps": [32, 64, 128, 256],
    "n_grid": [26, 50, 100, 200],
    "torus_dim": [1, 2, 3],
    "side": [24, 28, 40, 64],
}


class DenseEngine(ReferenceEngine):
    """The obvious implementation: one 2L × N² product each way, its table made once.

    Like the other engines it keeps its exponentials out of the denormal range. Without that the products are
    several times slower on sharp posteriors, and the comparison would measure denormals, not sums.
    """

    def __init__(self, frequencies: Tensor, n_grid: int, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(frequencies, n_grid, dtype=dtype)
        self._table = self._statistics(torch.empty(0, dtype=dtype)).flatten(1)

    def moments(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        """Return ln Z(η) and R̄ by two large products."""
        weights = natural.flatten(1) @ self._table.T
        peak, total = normalize_(weights)
        rotation = (weights @ self._table / total).view_as(natural)
        return Moments((peak + total.log()).squeeze(1) + self.log_cell, rotation)


class Problem(NamedTuple):
    """A model and images for it."""

    parameters: Parameters
    images: Float[Tensor, "batch pixel"]


def make_problem(shape: Shape, *, seed: int = 0) -> Problem:
    """Make translated digits and a model with sharp posteriors: the known group where there is one, else random."""
    rng = torch.Generator().manual_seed(seed)
    if shape.side == 28 and shape.torus_dim == 2 and shape.multiplicity == 1 and shape.n_irreps <= 128:
        shapes = embedded_digits()
        others = translations(shape.n_components, max_shift=3, generator=rng).images.view(-1, 28, 28)
        shapes = torch.cat((shapes, others))[: shape.n_components]
        return Problem(
            known_translation(shapes, n_irreps=shape.n_irreps), translations(shape.batch, generator=rng).images
        )
    images = torch.nn.functional.normalize(torch.rand(shape.batch, shape.side**2, generator=rng), dim=1)
    parameters = random_start(
        shape.side**2,
        n_components=shape.n_components,
        n_irreps=shape.n_irreps,
        torus_dim=shape.torus_dim,
        multiplicity=shape.multiplicity,
        generator=rng,
    )
    return Problem(parameters, images)


def alternate(jobs: dict[str, Callable[[], object]], *, repeats: int = 15) -> dict[str, float]:
    """Time jobs in turn and return the median milliseconds of each: noise hits all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 2):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if turn >= 2:  # the first two warm up
                times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def measure_speed(shape: Shape, *, repeats: int = 15) -> dict[str, float]:
    """Time FISTA inference of one batch with the dense, the separable and the adaptive posterior."""
    parameters, images = make_problem(shape)
    engines: dict[str, Engine] = {
        "dense": DenseEngine(parameters.frequencies, shape.n_grid),
        "grid": GridEngine(parameters.frequencies, shape.n_grid),
        "adaptive": AdaptiveEngine(parameters.frequencies),
    }
    jobs = {name: _inference(parameters, images, engine) for name, engine in engines.items()}
    times = alternate(jobs, repeats=repeats)
    return {
        "grid_speedup": times["dense"] / times["grid"],
        "adaptive_time_ratio": times["adaptive"] / times["grid"],
        **{f"{name}_ms": value for name, value in times.items()},
    }


def _inference(parameters: Parameters, images: Tensor, engine: Engine) -> Callable[[], object]:
    return lambda: infer_codes(parameters, images, engine)


def measure_errors(*, n_images: int = 60) -> dict[str, dict[str, float]]:
    """Return the mean relative error of R̄ against a 600-point grid, for three sharpnesses and three ways."""
    parameters, images = make_problem(Shape(batch=n_images))
    codes = infer_codes(parameters, images, AdaptiveEngine(parameters.frequencies))
    natural = pose_natural(parameters, images, codes)
    exact = GridEngine(parameters.frequencies, REFERENCE_GRID, dtype=torch.float64)
    ways: dict[str, Engine] = {
        "adaptive_error": AdaptiveEngine(parameters.frequencies),
        "grid50_error": GridEngine(parameters.frequencies, 50),
        "grid100_error": GridEngine(parameters.frequencies, 100),
    }
    errors: dict[str, dict[str, float]] = {name: {} for name in ways}
    for label, factor in SHARPNESS.items():
        scaled = factor * natural
        truth = torch.cat([exact.moments(part.double()).rotation for part in scaled.split(5)]).flatten(1)
        for name, engine in ways.items():
            found = engine.moments(scaled).rotation.double().flatten(1)
            errors[name][label] = float(((found - truth).norm(dim=1) / truth.norm(dim=1)).mean())
    return errors


def measure_step(shape: Shape, recipe: str, *, repeats: int = 15) -> dict[str, float]:
    """Time the parts of a whole training step, by the paper's gradients on the grid or by our EM, and their shares."""
    parameters, images = make_problem(shape)
    settings = replace(load_recipe(recipe).learning, metric="euclidean")
    engine = make_engine(settings.posterior, parameters.frequencies, shape.n_grid)
    codes = infer_codes(parameters, images, engine)
    expectation = expect_pose(parameters, images, codes, engine)
    adam, averages = stiefel.AdamState.zero(parameters.group_basis), em.Averages.zero(parameters)
    for seed in range(1, N_BEFORE + 1):  # as in the middle of a training: the averages remember many batches
        earlier = make_problem(shape, seed=seed).images
        found = infer_codes(parameters, earlier, engine)
        averages = em.average(averages, earlier, found, expect_pose(parameters, earlier, found, engine), 0.1)
    downhill = torch.randn_like(parameters.group_basis)
    frozen, kind = replace(settings, group_rate=0.0), settings.gradient
    jobs: dict[str, Callable[[], object]] = {
        "inference": _inference(parameters, images, engine),
        "expectation": lambda: expect_pose(parameters, images, codes, engine),
    }
    if settings.method == "em":
        jobs["average"] = lambda: em.average(averages, images, codes, expectation, 0.1)
        jobs["maximize"] = lambda: em.maximize(parameters, averages)
    else:
        jobs["update"] = lambda: update(
            parameters, adam, parameter_gradients(parameters, images, codes, expectation, kind), frozen
        )
        jobs["stiefel"] = lambda: stiefel.adam_step(
            parameters.group_basis, downhill, adam, rate=0.1, metric="euclidean"
        )
    times = alternate(jobs, repeats=repeats)
    if settings.method == "em":
        manifold = times["maximize"] / settings.batches_per_update
        rest = times["expectation"] + times["average"]
    else:
        manifold = times["stiefel"]
        rest = times["expectation"] + times["update"] - manifold
    total = times["inference"] + rest + manifold
    return {
        "batch_ms": total,
        "inference_share": times["inference"] / total,
        "gradients_share": rest / total,
        "stiefel_share": manifold / total,
    }


def count_multiply_adds(frequencies: Int[Tensor, "irrep 2"], shape: Shape, *, compiled: bool) -> int:
    """Count the multiply-adds of one image and one step of FISTA: both ways through the grid, Aα and its transpose.

    The kernels have half of the columns and a quarter of the rows; the rest follows by symmetry.
    """
    n, k = shape.n_grid, shape.n_components
    first, last = (frequencies.amax(dim=0) - frequencies.amin(dim=0) + 1).tolist()
    if compiled:
        n_last = int(frequencies[:, 1].abs().max()) + 1
        one_way = 4 * first * n_last * (n // 2 + 1) + 2 * first * (n // 4 + 1) * n
        planes = 4 * first * n_last
    else:
        one_way = 4 * first * last * n + 2 * first * n * n
        planes = 2 * len(frequencies)
    return int(2 * one_way + 2 * planes * k)


class Peak(NamedTuple):
    """What one thread can do at most, for one million each."""

    multiply_adds_ms: float
    exponentials_ms: float


def measure_peak(kernel: str, *, repeats: int = 15) -> Peak:
    """Time multiply-adds and exponentials alone: in a kernel's own registers, or as torch's product and exp."""
    library = choose(kernel).library
    if library is None:
        large, numbers = torch.randn(1024, 1024), -torch.rand(1 << 20)
        times = alternate({"product": lambda: large @ large, "exp": lambda: numbers.exp()}, repeats=repeats)
        return Peak(times["product"] / 1024**3 * 1e6, times["exp"] / (1 << 20) * 1e6)
    rounds = 50_000
    jobs = {name: _exercise(library, rounds, kind) for name, kind in (("product", 0), ("exp", 1))}
    times = alternate(jobs, repeats=repeats)
    per_round = AT_PEAK * library.lane
    return Peak(*(times[name] / (rounds * per_round) * 1e6 for name in ("product", "exp")))


def _exercise(library: Library, rounds: int, exponentials: int) -> Callable[[], object]:
    return lambda: library.functions.exercise(rounds, exponentials)


def measure_limit(shape: Shape, kernel: str, *, repeats: int = 15) -> dict[str, float]:
    """Compare grid inference, on one thread, with the time that its multiply-adds and exponentials need at the peak."""
    parameters, images = make_problem(shape)
    engine = GridEngine(parameters.frequencies, shape.n_grid, kernel=kernel)
    with one_thread():
        spent = alternate({"inference": _inference(parameters, images, engine)}, repeats=repeats)["inference"]
        peak = measure_peak(kernel, repeats=repeats)
    n_steps, projection = 20, 2 * shape.n_irreps * shape.side**2  # WᵀI
    each = count_multiply_adds(parameters.frequencies, shape, compiled=engine.kernel != "torch")
    multiply_adds = shape.batch * (n_steps * each + projection)
    exponentials = shape.batch * n_steps * shape.n_grid**2
    needed = (peak.multiply_adds_ms * multiply_adds + peak.exponentials_ms * exponentials) / 1e6
    return {
        "limit_fraction": needed / spent,
        "limit_ms": needed,
        "gflops": 2 / peak.multiply_adds_ms,
        "ns_per_exponential": peak.exponentials_ms,
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch and the kernels use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_kernels(shape: Shape, *, repeats: int = 15) -> dict[str, Any]:
    """Time every kernel that this machine can run, and torch, beside the dense product and beside the best of them."""
    parameters, images = make_problem(shape)
    names = (*runnable(), "torch")
    jobs = {"dense": _inference(parameters, images, DenseEngine(parameters.frequencies, shape.n_grid))}
    for name in names:
        grid = GridEngine(parameters.frequencies, shape.n_grid, kernel=name)
        adaptive = AdaptiveEngine(parameters.frequencies, kernel=name)
        jobs |= {f"{name} grid": _inference(parameters, images, grid)}
        jobs |= {f"{name} adaptive": _inference(parameters, images, adaptive)}
    times = alternate(jobs, repeats=repeats)
    found: dict[str, Any] = dict.fromkeys(KERNEL_NAMES, "not measured: this processor cannot run it")
    for name in names:
        grid_ms, adaptive_ms = times[f"{name} grid"], times[f"{name} adaptive"]
        found[name] = {
            "grid_ms": grid_ms,
            "adaptive_ms": adaptive_ms,
            "grid_over_best": grid_ms / min(times[f"{other} grid"] for other in names),
            "adaptive_over_best": adaptive_ms / min(times[f"{other} adaptive"] for other in names),
            "grid_speedup": times["dense"] / grid_ms,
            "adaptive_time_ratio": adaptive_ms / grid_ms,
            "limit_fraction": measure_limit(shape, name, repeats=repeats)["limit_fraction"],
        }
    return found


def measure_memory(n_images: int = MEMORY_IMAGES) -> float:
    """Return the peak memory in MB that training takes above the images themselves (Linux only, else NaN)."""
    rng = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.rand(n_images, 784, generator=rng), dim=1)
    start = random_start(784, generator=rng)
    return peak_memory(lambda: learn(start, images, Settings(n_epochs=1, metric="euclidean"), generator=rng))


def measure_growth(*, repeats: int = 5) -> list[dict[str, Any]]:
    """Time inference of a batch while one size grows and the others keep the paper's values."""
    rows = []
    for name, sizes in GROWTH.items():
        for size in sizes:
            shape = replace(Shape(), **{name: size})
            if name == "torus_dim":
                shape = replace(shape, n_grid=20)  # 20³ points for n = 3, the same N for all n
            parameters, images = make_problem(shape)
            engines = {"grid": GridEngine(parameters.frequencies, shape.n_grid)}
            times = alternate({key: _inference(parameters, images, e) for key, e in engines.items()}, repeats=repeats)
            rows.append({"size": name, "value": size, "grid_ms": times["grid"]})
    return rows


def run_bench(*, report: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Measure everything and return it under the names that the README uses."""

    def say(what: str) -> None:
        if report is not None:
            report(what)

    say("memory of a training run on 60,000 images")
    memory = measure_memory()
    say("accuracy against a 600-point grid")
    result: dict[str, Any] = {"threads": torch.get_num_threads(), **measure_errors()}
    for name, shape in SHAPES.items():
        say(f"speed at shape {name}")
        result[name] = {"shape": asdict(shape), **measure_speed(shape)}
    say("a whole training step")
    steps = {name: measure_step(Shape(), name) for name in ("paper", "best")}
    say("the machine's limit")
    used = choose().library
    limit = measure_limit(Shape(), used.name if used else "torch")
    say("each kernel")
    kernels = measure_kernels(Shape())
    say("growth with each size")
    return {
        "grid_speedup": result["paper"]["grid_speedup"],
        "adaptive_time_ratio": result["paper"]["adaptive_time_ratio"],
        **result,
        **steps["paper"],
        "best_step": steps["best"],
        **limit,
        "kernels": kernels,
        "peak_memory_mb": memory,
        "growth": measure_growth(),
    }
