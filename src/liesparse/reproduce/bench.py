"""How fast and how accurate: ratios of things measured side by side in one run."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.benchmark import set_torch_threads

from liesparse import em, stiefel
from liesparse.data import embedded_digits, translations, translations_rotations
from liesparse.groups import Rotations
from liesparse.inference import expect_pose, infer_codes
from liesparse.initialization import known_translation, random_start
from liesparse.learning import learn
from liesparse.model import Outer, Parameters
from liesparse.posterior import AdaptiveEngine, Engine, GridEngine, Moments, engine_of, make_engine, pose_natural
from liesparse.posterior.base import ReferenceEngine
from liesparse.posterior.kernels.library import KERNEL_NAMES, choose, runnable
from liesparse.posterior.separable import normalize_
from liesparse.settings import Settings, load_recipe

REFERENCE_GRID = 600
SHARPNESS = {"sharp": 10.0, "middle": 1.0, "tenth": 0.1, "twentieth": 0.05, "flat": 0.01}  # on η̂; 1: paper's σ
MEMORY_IMAGES = 60_000
N_STEPS = 20  # of the training that is timed
AT_PEAK = 10  # sums of a round, as in kernel.c
Job = Callable[[], Any]


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

    @cached_property
    def _table(self) -> Float[Tensor, "point column"]:
        return self._statistics(torch.empty(0)).flatten(1)

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


def make_problem(shape: Shape) -> Problem:
    """Make translated digits and a model with sharp posteriors: the known group where there is one, else random."""
    rng = torch.Generator().manual_seed(0)
    if shape.side == 28 and shape.torus_dim == 2 and shape.multiplicity == 1 and shape.n_irreps <= 128:
        others = translations(shape.n_components, max_shift=3, generator=rng).images.view(-1, 28, 28)
        shapes = torch.cat((embedded_digits(), others))[: shape.n_components]
        model = known_translation(shapes, n_irreps=shape.n_irreps)
        return Problem(model, translations(shape.batch, generator=rng).images)
    images = normalize(torch.rand(shape.batch, shape.side**2, generator=rng), dim=1)
    sizes = {name: getattr(shape, name) for name in ("n_components", "n_irreps", "torus_dim", "multiplicity")}
    return Problem(random_start(shape.side**2, **sizes, generator=rng), images)


def alternate(jobs: Mapping[Any, Job], *, repeats: int = 15, clock: Job = time.perf_counter) -> dict[Any, float]:
    """Time jobs in turn and return the least milliseconds of each: other work on the machine can only add to them."""
    times: dict[Any, list[float]] = {name: [] for name in jobs}
    for _ in range(2 + repeats):
        for name, job in jobs.items():
            began = clock()
            job()
            times[name].append(1000 * (clock() - began))
    return {name: min(values[2:]) for name, values in times.items()}  # the first two warm up


def measure_speed(
    shape: Shape, kernels: Sequence[str | None] = (None,), *, repeats: int = 15
) -> list[dict[str, float]]:
    """Time FISTA inference of a batch with the dense product, and for each kernel on the grid and adaptively."""
    parameters, images = make_problem(shape)
    engines: dict[Any, Engine] = {"dense": DenseEngine(parameters.frequencies, shape.n_grid)}
    for kernel in kernels:
        engines["grid", kernel] = GridEngine(parameters.frequencies, shape.n_grid, kernel=kernel)
        engines["adaptive", kernel] = AdaptiveEngine(parameters.frequencies, kernel=kernel)
    jobs = {name: partial(infer_codes, parameters, images, engine) for name, engine in engines.items()}
    times = alternate(jobs, repeats=repeats)
    rows = []
    for kernel in kernels:
        dense, grid, adaptive = times["dense"], times["grid", kernel], times["adaptive", kernel]
        ratios = {"grid_speedup": dense / grid, "adaptive_time_ratio": adaptive / grid}
        rows.append(ratios | {"dense_ms": dense, "grid_ms": grid, "adaptive_ms": adaptive})
    return rows


def relative_error(found: Float[Tensor, "image irrep 2"], truth: Float[Tensor, "image irrep 2"]) -> float:
    """Return the mean over the images of ‖R̄ - truth‖ / ‖truth‖."""
    found, truth = found.double().flatten(1), truth.double().flatten(1)
    return float(((found - truth).norm(dim=1) / truth.norm(dim=1)).mean())


def compare_engines(
    natural: Float[Tensor, "image irrep 2"], engines: dict[str, Engine], sizes: dict[str, int]
) -> dict[str, dict[str, float]]:
    """Return the error of R̄ by engine and sharpness, against a grid that resolves each: ``sizes``, points per axis."""
    errors: dict[str, dict[str, float]] = {name: {} for name in engines}
    frequencies = next(iter(engines.values())).frequencies
    for label, n_grid in sizes.items():
        scaled, exact = SHARPNESS[label] * natural, GridEngine(frequencies, n_grid, dtype=torch.float64)
        truth = torch.cat([exact.moments(row.double()).rotation for row in scaled.split(1)])
        for name, engine in engines.items():
            errors[name][label] = relative_error(engine.moments(scaled).rotation, truth)
    return errors


def measure_errors(*, n_images: int = 60) -> dict[str, dict[str, float]]:
    """Return the mean relative error of R̄ against a 600-point grid, for three sharpnesses and three ways."""
    parameters, images = make_problem(Shape(batch=n_images))
    adaptive = AdaptiveEngine(parameters.frequencies)
    grids: dict[str, Engine] = {f"grid{n}_error": GridEngine(parameters.frequencies, n) for n in (50, 100)}
    natural = pose_natural(parameters, images, infer_codes(parameters, images, adaptive))
    sizes = dict.fromkeys(("sharp", "middle", "flat"), REFERENCE_GRID)
    return compare_engines(natural, {"adaptive_error": adaptive} | grids, sizes)


def measure_step(shape: Shape, recipe: str, *, repeats: int = 15) -> dict[str, float]:
    """Time a training step of a recipe, and the shares of inference, of the update of W, and of all the rest in it."""
    parameters, images = make_problem(replace(shape, batch=N_STEPS * shape.batch))
    chosen: dict[str, Any] = {"n_epochs": 1, "batch_size": shape.batch, "n_grid": shape.n_grid, "metric": "euclidean"}
    settings = replace(load_recipe(recipe).learning, **chosen, reseed_overlap=1.0)
    engine = make_engine(settings.posterior, parameters.frequencies, settings.n_grid)
    codes = infer_codes(parameters, images, engine)
    expectation = expect_pose(parameters, images, codes, engine)
    averages = em.average(em.Averages.zero(parameters), codes, expectation, 1.0)
    adam, downhill = stiefel.AdamState.zero(parameters.group_basis), torch.randn_like(parameters.group_basis)
    jobs: dict[str, Job] = {
        "epoch": lambda: learn(parameters, images, settings, generator=torch.Generator()),
        "inference": partial(infer_codes, parameters, images[: shape.batch], engine),
        "maximize": lambda: em.maximize(parameters, averages),
        "adam": lambda: stiefel.adam_step(parameters.group_basis, downhill, adam, rate=0.1, metric="euclidean"),
    }
    times = alternate(jobs, repeats=repeats)
    step = times["epoch"] / N_STEPS
    inference = times["inference"] / step
    manifold = (times["maximize"] / settings.batches_per_update if settings.method == "em" else times["adam"]) / step
    shares = {"inference_share": inference, "gradients_share": 1 - inference - manifold, "stiefel_share": manifold}
    return {"batch_ms": step} | shares


def measure_composition(shape: Shape, *, repeats: int = 5) -> dict[str, float]:
    """Time codes and moments of a batch with a rotation inside the translations, over those with these alone."""
    parameters, _ = make_problem(shape)
    rng = torch.Generator().manual_seed(0)
    images = translations_rotations(shape.batch, max_shift=4, max_degrees=40, generator=rng).images
    basis = Rotations(shape.side, shape.side).make_basis(images, shape.n_irreps)
    outer = Outer(parameters.group_basis, parameters.frequencies)
    both = replace(parameters, group_basis=basis.group_basis, frequencies=basis.frequencies, outer=outer)

    def e_step(model: Parameters) -> None:
        engine = engine_of(model)
        expect_pose(model, images, infer_codes(model, images, engine), engine)

    times = alternate({"both": partial(e_step, both), "alone": partial(e_step, parameters)}, repeats=repeats)
    return {"composition_ms": times["both"], "composition_time_ratio": times["both"] / times["alone"]}


def count_multiply_adds(frequencies: Int[Tensor, "irrep 2"], shape: Shape, *, compiled: bool) -> int:
    """Count the multiply-adds of one image and one step of FISTA: both ways through the grid, Aα and its transpose.

    The kernels have half of the columns and a quarter of the rows; the rest follows by symmetry.
    """
    n = shape.n_grid
    first, last = (frequencies.amax(dim=0) - frequencies.amin(dim=0) + 1).tolist()
    rows, columns, planes = n, n, 2 * len(frequencies)
    if compiled:
        last = int(frequencies[:, 1].abs().max()) + 1
        rows, columns, planes = n // 4 + 1, n // 2 + 1, 4 * first * last
    one_way = 4 * first * last * columns + 2 * first * rows * n
    return int(2 * one_way + 2 * planes * shape.n_components)


def measure_limit(shape: Shape, kernel: str, *, repeats: int = 15) -> dict[str, float]:
    """Compare grid inference, on one thread, with the time that its multiply-adds and exponentials need at the peak."""
    parameters, images = make_problem(shape)
    engine, library = GridEngine(parameters.frequencies, shape.n_grid, kernel=kernel), choose(kernel).library
    jobs: dict[str, Job] = {"inference": partial(infer_codes, parameters, images, engine)}
    if library is None:
        large, numbers = torch.randn(1024, 1024), -torch.rand(1 << 20)
        jobs |= {"product": lambda: large @ large, "exp": numbers.exp}
        n_products, n_exponentials = 1024**3, 1 << 20
    else:  # the kernel's own code, in registers
        exercise, rounds = library.functions.exercise, 50_000
        jobs |= {"product": partial(exercise, rounds, 0), "exp": partial(exercise, rounds, 1)}
        n_products = n_exponentials = rounds * AT_PEAK * library.lane
    with set_torch_threads(1):
        times = alternate(jobs, repeats=repeats)
    ns_per_product, ns_per_exponential = 1e6 * times["product"] / n_products, 1e6 * times["exp"] / n_exponentials
    n_steps, projection = 20, 2 * shape.n_irreps * shape.side**2  # WᵀI
    each = count_multiply_adds(parameters.frequencies, shape, compiled=engine.kernel != "torch")
    needed_ns = (n_steps * each + projection) * ns_per_product + n_steps * shape.n_grid**2 * ns_per_exponential
    needed = shape.batch * needed_ns / 1e6
    speeds = {"gflops": 2 / ns_per_product, "ns_per_exponential": ns_per_exponential}
    return {"limit_fraction": needed / times["inference"], "limit_ms": needed} | speeds


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


def memory_of(pid: int | str = "self", account: str = "status") -> dict[str, float]:
    """Return the kernel's account of a process's memory, in MB under its own names (Linux only, else empty)."""
    try:
        lines = Path("/proc", str(pid), account).read_text().splitlines()
    except OSError:  # another system, or the process has just ended
        return {}
    return {line.split(":")[0]: float(line.split()[1]) / 1024 for line in lines if line.endswith(" kB")}


def peak_memory(job: Job) -> float:
    """Return the peak memory in MB that a job takes above what is there before it (Linux only, else NaN)."""
    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        return float("nan")
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)  # of the GNU library
    trim(0)  # else a job that takes freed memory again seems to take nothing
    forget.write_text("5")  # the peak so far
    before = memory_of()["VmRSS"]
    job()
    return memory_of()["VmHWM"] - before


def measure_memory(n_images: int = MEMORY_IMAGES) -> float:
    """Return the peak memory in MB that training takes above the images themselves (Linux only, else NaN)."""
    rng = torch.Generator().manual_seed(0)
    images = normalize(torch.rand(n_images, 784, generator=rng), dim=1)
    start = random_start(784, generator=rng)
    return peak_memory(lambda: learn(start, images, Settings(n_epochs=1, metric="euclidean"), generator=rng))


def measure_growth(*, repeats: int = 5) -> list[dict[str, Any]]:
    """Time inference of a batch while one size grows and the others keep the paper's values."""
    rows = []
    for name, size in ((name, size) for name, sizes in GROWTH.items() for size in sizes):
        n_grid = 20 if name == "torus_dim" else Shape.n_grid  # 20³ points for n = 3, the same N for all n
        shape = replace(Shape(n_grid=n_grid), **{name: size})
        parameters, images = make_problem(shape)
        job = partial(infer_codes, parameters, images, GridEngine(parameters.frequencies, shape.n_grid))
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
    composition = measure_composition(Shape())
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
        **composition,
        **{name: limit[name] for name in ("limit_fraction", "limit_ms", "gflops", "ns_per_exponential")},
        "kernels": kernels,
        "peak_memory_mb": memory,
        "growth": measure_growth(),
    }
