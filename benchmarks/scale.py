"""How time and memory grow with the size of the job: ``python benchmarks/scale.py --json FILE``.

Three parts: ``images`` grow in pixels, ``engines`` in transformations, ``streaming`` in images and processes. The
memory of streaming is that of a fresh process and its workers together, sampled from the kernel's accounts: PSS, in
which pages that several processes share count once, and of it the part that is not a file (anonymous and shared
memory). Shards are read, never mapped, so the page cache is in neither.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch.utils.benchmark import set_torch_threads
from torch.utils.flop_counter import FlopCounterMode

from engines import BATCH, N_COMPONENTS, N_IRREPS, measure_engines, own_images
from liesparse.data import ShardBatches, open_shards, translations
from liesparse.devices import DRY
from liesparse.estimators import LieSparseCoder
from liesparse.initialization import random_start, start_from_data
from liesparse.learning import advance, learn
from liesparse.parallel import join
from liesparse.posterior import make_engine
from liesparse.recipes import load_recipe
from liesparse.reproduce.bench import Problem, alternate, memory_of, peak_memory
from liesparse.settings import Settings
from liesparse.state import State

PIXELS = {"28 × 28": 784, "14 × 14": 196, "32 × 32 × 3": 3072, "64 × 64": 4096}  # ratios are to the first
N_GRID = 50  # of the grid on which operations are counted
MEMORY_IMAGES = 1000
BYTES = 4  # of a float32
SIZES, SHARD = (200_000, 1_000_000), 50_000  # streamed images, and those in a file
MODEL: dict[str, Any] = {"n_irreps": 16, "settings": {"learning.n_code_steps": 4}}  # small, to be quick
STEPS, WARM_UP = 20, 5  # of which the time is taken, and before
BATCHES = (100, 800)
REPEATS = 3  # in turn, of which the fastest counts: other programs only ever add time
SAMPLE_SECONDS = 0.1
Report = Callable[[str], None]
Found = dict[str, Any]


def watch(command: list[str]) -> Found:
    """Run a command that prints JSON; return that and the most MB that it and its children took (Linux, else NaN)."""
    peak = np.full(2, np.nan)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as process:
        while process.poll() is None:
            found = [memory_of(pid, "smaps_rollup") for pid in _family(process.pid)]
            now = [[each["Pss"], each.get("Pss_Anon", 0) + each.get("Pss_Shmem", 0)] for each in found if each]
            peak = np.fmax(peak, np.sum(now, axis=0)) if now else peak
            time.sleep(SAMPLE_SECONDS)
        printed = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return {**json.loads(printed), "peak_memory_mb": float(peak[0]), "peak_own_memory_mb": float(peak[1])}


def _family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(int(child)))]


def call(function: Callable[[Any], Found | None], argument: int | str, *, n_processes: int = 1) -> Found:
    """Call a function of a module beside this one in fresh processes; one of them returns a dict, the others None."""
    module = Path(inspect.getfile(function)).stem
    code = f"import json, {module} as m; r = m.{function.__name__}({argument!r}); r and print(json.dumps(r))"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes), "--no-python"]
    return watch([*([sys.executable, *launch] if n_processes > 1 else []), sys.executable, "-c", code])


def learning_settings() -> Settings:
    """Return the default recipe without what happens only now and then: two steps have one M-step."""
    return replace(load_recipe("best").learning, single_shape_epochs=0, reseed_overlap=1.0, schedule="constant")


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


def make_shards(folder: Path, n_images: int) -> None:
    """Write files of 28 × 28 bytes: the ten digits, each anywhere up to 7 pixels away."""
    rng = torch.Generator().manual_seed(0)
    for number, begin in enumerate(range(0, n_images, SHARD)):
        images = translations(min(SHARD, n_images - begin), generator=rng).images.view(-1, 28, 28)
        np.save(folder / f"{number:05d}.npy", (255 * images / images.amax()).byte().numpy())


def train_on(folder: str) -> Found:
    """Learn from every image of a folder once, and read all of them once more without learning."""
    torch.set_num_threads(1)
    times = [time.perf_counter()]
    shards = open_shards(Path(folder))
    times.append(time.perf_counter())
    LieSparseCoder(10, n_epochs=1, random_state=0, **MODEL).fit(shards)
    times.append(time.perf_counter())
    n_read = sum(len(batch) for batch in ShardBatches(shards, 100).epoch(torch.Generator()))
    times.append(time.perf_counter())
    rates = (np.array([len(shards), len(shards), n_read]) / np.diff(times)).tolist()
    named = {f"{name}_images_per_second": rate for name, rate in zip(("open", "learn", "read"), rates, strict=True)}
    return {"n_images": len(shards), **named}


def time_steps(batch_size: int) -> Found | None:
    """Time steps of the default recipe at the paper's size; of several processes the first answers."""
    torch.set_num_threads(1)
    rows = torch.rand(batch_size * (STEPS + WARM_UP), 784, generator=torch.Generator().manual_seed(0))
    times: list[float] = []
    chosen: dict[str, Any] = {
        "settings": {"learning.batch_size": batch_size, "learning.reseed_overlap": 1.0},
        "callbacks": [lambda _: times.append(time.perf_counter())],
    }
    with join() as group:
        LieSparseCoder(10, n_epochs=1, random_state=0, **chosen).fit(rows, group=group)
        steps = np.diff(times[WARM_UP - 1 : -1])  # the last has the health of the epoch with it
        return None if group.rank else {"step_ms": 1000 * float(np.median(steps))}


def measure_streaming(report: Report) -> Found:
    """Return what learning from folders of several sizes takes, and the time of a step in one process and in two."""
    rows: list[Found] = []
    for size in SIZES:
        report(f"{size:,} images from a folder of shards")
        with tempfile.TemporaryDirectory() as folder:
            make_shards(Path(folder), size)
            rows.append(call(train_on, folder))
    processes = {}
    for batch in BATCHES:
        report(f"steps of {batch} images in one process and in two")
        times = [[call(time_steps, batch, n_processes=n)["step_ms"] for n in (1, 2)] for _ in range(REPEATS)]
        one, two = np.min(times, axis=0).tolist()
        processes[f"batch_{batch}"] = {"one_process_ms": one, "two_processes_ms": two, "speedup": one / two}
    return {
        "streaming": rows,
        "memory_ratio": rows[-1]["peak_memory_mb"] / rows[0]["peak_memory_mb"],
        "own_memory_ratio": rows[-1]["peak_own_memory_mb"] / rows[0]["peak_own_memory_mb"],
        "processes": processes,
        "cores": os.cpu_count(),
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
