"""How fast and how accurate: ratios of things measured side by side in one run."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import em, stiefel
from liesparse.data import embedded_digits, translations
from liesparse.inference import expect_pose, infer_codes
from liesparse.initialization import known_translation, random_start
from liesparse.learning import learn
from liesparse.model import Parameters
from liesparse.posterior import AdaptiveEngine, Engine, GridEngine, Moments, ReferenceEngine, make_engine, pose_natural
from liesparse.posterior.kernels.library import KERNEL_NAMES, choose, runnable
from liesparse.posterior.separable import normalize_
from liesparse.recipes import load_recipe
from liesparse.settings import Settings

REFERENCE_GRID = 600
SHARPNESS = {"sharp": 10.0, "middle": 1.0, "flat": 0.01}  # factor on η̂; 1 is the paper's σ
MEMORY_IMAGES = 60_000
N_STEPS = 20  # of the training that is timed
AT_PEAK = 10  # sums of a round, as in kernel.c
Job = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


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
        model = known_translation(shapes, n_irreps=shape.n_irreps)
        return Problem(model, translations(shape.batch, generator=rng).images)
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


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch and the kernels use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def alternate(
    jobs: dict[Name, Job], *, repeats: int = 15, clock: Callable[[], float] = time.perf_counter
) -> dict[Name, float]:
    """Time jobs in turn and return the median milliseconds of each: noise hits all of them alike."""
    times: dict[Name, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 2):
        for name, job in jobs.items():
            began = clock()
            job()
            if turn >= 2:  # the first two warm up
                times[name].append(1000 * (clock() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def inference_job(parameters: Parameters, images: Tensor, engine: Engine) -> Job:
    """Return a job that infers the codes of a batch."""
    return lambda: infer_codes(parameters, images, engine)


def measure_speed(
    shape: Shape, kernels: Sequence[str | None] = (None,), *, repeats: int = 15
) -> list[dict[str, float]]:
    """Time FISTA inference of a batch with the dense product, and for each kernel on the grid and adaptively."""
    parameters, images = make_problem(shape)
    engines: dict[Any, Engine] = {"dense": DenseEngine(parameters.frequencies, shape.n_grid)}
    for kernel in kernels:
        engines["grid", kernel] = GridEngine(parameters.frequencies, shape.n_grid, kernel=kernel)
        engines["adaptive", kernel] = AdaptiveEngine(parameters.frequencies, kernel=kernel)
    jobs = {name: inference_job(parameters, images, engine) for name, engine in engines.items()}
    times = alternate(jobs, repeats=repeats)
    return [
        {
            "grid_speedup": times["dense"] / times["grid", kernel],
            "adaptive_time_ratio": times["adaptive", kernel] / times["grid", kernel],
            "dense_ms": times["dense"],
            "grid_ms": times["grid", kernel],
            "adaptive_ms": times["adaptive", kernel],
        }
        for kernel in kernels
    ]


def relative_error(found: Float[Tensor, "image irrep 2"], truth: Float[Tensor, "image irrep 2"]) -> float:
    """Return the mean over the images of ‖R̄ - truth‖ / ‖truth‖."""
    found, truth = found.double().flatten(1), truth.double().flatten(1)
    return float(((found - truth).norm(dim=1) / truth.norm(dim=1)).mean())


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
        truth = torch.cat([exact.moments(part.double()).rotation for part in scaled.split(5)])
        for name, engine in ways.items():
            errors[name][label] = relative_error(engine.moments(scaled).rotation, truth)
    return errors


def measure_step(shape: Shape, recipe: str, *, repeats: int = 15) -> dict[str, float]:
    """Time a training step of a recipe, and the shares of inference, of the update of W, and of all the rest in it."""
    parameters, images = make_problem(replace(shape, batch=N_STEPS * shape.batch))
    chosen: dict[str, Any] = {"n_epochs": 1, "batch_size": shape.batch, "n_grid": shape.n_grid, "metric": "euclidean"}
    settings = replace(load_recipe(recipe).learning, **chosen, single_shape_epochs=0, reseed_overlap=1.0)
    engine = make_engine(settings.posterior, parameters.frequencies, settings.n_grid)
    codes = infer_codes(parameters, images, engine)
    expectation = expect_pose(parameters, images, codes, engine)
    averages = em.average(em.Averages.zero(parameters), images, codes, expectation, 1.0)
    adam, downhill = stiefel.AdamState.zero(parameters.group_basis), torch.randn_like(parameters.group_basis)
    jobs: dict[str, Job] = {
        "epoch": lambda: learn(parameters, images, settings, generator=torch.Generator()),
        "inference": inference_job(parameters, images[: shape.batch], engine),
        "maximize": lambda: em.maximize(parameters, averages),
        "adam": lambda: stiefel.adam_step(parameters.group_basis, downhill, adam, rate=0.1, metric="euclidean"),
    }
    times = alternate(jobs, repeats=repeats)
    step = times["epoch"] / N_STEPS
    inference = times["inference"] / step
    manifold = (times["maximize"] / settings.batches_per_update if settings.method == "em" else times["adam"]) / step
    return {
        "batch_ms": step,
        "inference_share": inference,
        "gradients_share": 1 - inference - manifold,
        "stiefel_share": manifold,
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


def measure_peak(kernel: str, *, repeats: int = 15) -> tuple[float, float]:
    """Return the nanoseconds of a multiply-add and of an exponential alone, by a kernel's own code or by torch's."""
    library = choose(kernel).library
    if library is None:
        large, numbers = torch.randn(1024, 1024), -torch.rand(1 << 20)
        times = alternate({"product": lambda: large @ large, "exp": lambda: numbers.exp()}, repeats=repeats)
        return times["product"] / 1024**3 * 1e6, times["exp"] / (1 << 20) * 1e6
    exercise, rounds = library.functions.exercise, 50_000
    times = alternate({"product": lambda: exercise(rounds, 0), "exp": lambda: exercise(rounds, 1)}, repeats=repeats)
    million = rounds * AT_PEAK * library.lane / 1e6
    return times["product"] / million, times["exp"] / million


def measure_limit(shape: Shape, kernel: str, *, repeats: int = 15) -> dict[str, float]:
    """Compare grid inference, on one thread, with the time that its multiply-adds and exponentials need at the peak."""
    parameters, images = make_problem(shape)
    engine = GridEngine(parameters.frequencies, shape.n_grid, kernel=kernel)
    with one_thread():
        spent = alternate({"inference": inference_job(parameters, images, engine)}, repeats=repeats)["inference"]
        ns_per_multiply_add, ns_per_exponential = measure_peak(kernel, repeats=repeats)
    n_steps, projection = 20, 2 * shape.n_irreps * shape.side**2  # WᵀI
    each = count_multiply_adds(parameters.frequencies, shape, compiled=engine.kernel != "torch")
    multiply_adds = shape.batch * (n_steps * each + projection)
    exponentials = shape.batch * n_steps * shape.n_grid**2
    needed = (ns_per_multiply_add * multiply_adds + ns_per_exponential * exponentials) / 1e6
    return {
        "limit_fraction": needed / spent,
        "limit_ms": needed,
        "gflops": 2 / ns_per_multiply_add,
        "ns_per_exponential": ns_per_exponential,
    }


def measure_kernels(shape: Shape, *, repeats: int = 15) -> dict[str, Any]:
    """Time every kernel that this machine can run, and torch, beside the dense product and beside the best of them."""
    names = (*runnable(), "torch")
    rows = measure_speed(shape, names, repeats=repeats)
    best = {way: min(row[f"{way}_ms"] for row in rows) for way in ("grid", "adaptive")}
    found: dict[str, Any] = dict.fromkeys(KERNEL_NAMES, "not measured: this processor cannot run it")
    for name, row in zip(names, rows, strict=True):
        over_best = {f"{way}_over_best": row[f"{way}_ms"] / least for way, least in best.items()}
        found[name] = row | over_best | measure_limit(shape, name, repeats=repeats)
    return found


def peak_memory(job: Job) -> float:
    """Return the peak memory in MB that a job takes above what is there before it (Linux only, else NaN)."""
    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        return float("nan")
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU library
    if trim is not None:
        trim(0)  # else a job that takes freed memory again seems to take nothing
    forget.write_text("5")  # the peak so far
    before = _memory_status("VmRSS")
    job()
    return (_memory_status("VmHWM") - before) / 1024


def _memory_status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure_memory(n_images: int = MEMORY_IMAGES) -> float:
    """Return the peak memory in MB that training takes above the images themselves (Linux only, else NaN)."""
    rng = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.rand(n_images, 784, generator=rng), dim=1)
    start = random_start(784, generator=rng)
    return peak_memory(lambda: learn(start, images, Settings(n_epochs=1, metric="euclidean"), generator=rng))


def measure_growth(*, repeats: int = 5) -> list[dict[str, Any]]:
    """Time inference of a batch while one size grows and the others keep the paper's values."""
    rows = []
    for name, size in ((name, size) for name, sizes in GROWTH.items() for size in sizes):
        n_grid = 20 if name == "torus_dim" else Shape.n_grid  # 20³ points for n = 3, the same N for all n
        shape = replace(Shape(n_grid=n_grid), **{name: size})
        parameters, images = make_problem(shape)
        job = inference_job(parameters, images, GridEngine(parameters.frequencies, shape.n_grid))
        rows.append({"size": name, "value": size, "grid_ms": alternate({"grid": job}, repeats=repeats)["grid"]})
    return rows


def run_bench(*, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure everything and return it under the names that the README uses; ``report`` is told what comes next."""
    report(f"memory of a training run on {MEMORY_IMAGES:,} images")
    memory = measure_memory()
    report(f"accuracy against a {REFERENCE_GRID}-point grid")
    errors = measure_errors()
    shapes: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        report(f"speed at shape {name}")
        shapes[name] = {"shape": asdict(shape), **measure_speed(shape)[0]}
    report("a whole training step")
    steps = {name: measure_step(Shape(), name) for name in ("paper", "best")}
    report("each kernel, and how near it comes to the machine's limit")
    kernels, used = measure_kernels(Shape()), choose().library
    limit = kernels[used.name if used else "torch"]
    report("growth with each size")
    return {
        **{name: shapes["paper"][name] for name in ("grid_speedup", "adaptive_time_ratio")},
        "threads": torch.get_num_threads(),
        **errors,
        **shapes,
        **steps["paper"],
        "best_step": steps["best"],
        **{name: limit[name] for name in ("limit_fraction", "limit_ms", "gflops", "ns_per_exponential")},
        "kernels": kernels,
        "peak_memory_mb": memory,
        "growth": measure_growth(),
    }
