"""Data that does not fit, and more than one process: memory, images per second, time of a step.

Every figure comes from fresh processes. Memory is that of the process and its workers together, sampled from the
kernel's accounts: PSS, in which pages that several processes share count once, and of it the part that is not a file
(anonymous and shared memory). Shards are read, never mapped, so the page cache is in neither.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from liesparse.data import ShardBatches, embedded_digits, open_shards
from liesparse.estimators import LieSparseCoder
from liesparse.learning import Progress
from liesparse.parallel import join

MODULE = "liesparse.reproduce.scale"  # whose __main__ is a process that is measured
SIZES = (200_000, 1_000_000)
SHARD = 50_000  # images in a file
MODEL: dict[str, Any] = {"n_irreps": 16, "settings": {"learning.n_code_steps": 4}}  # small, to be quick
STEPS, WARM_UP = 20, 5  # of which the time is taken, and before
BATCHES = (100, 800)
REPEATS = 3  # in turn, of which the fastest counts: other programs only ever add time
SAMPLE_SECONDS = 0.1
Report = Callable[[str], None]


def make_shards(folder: Path, n_images: int, *, seed: int = 0) -> None:
    """Write files of 28 × 28 bytes: the ten digits, each anywhere up to 7 pixels away, with a little noise."""
    digits = (255 * embedded_digits().clamp(0, 1)).byte().numpy().reshape(10, 28, 28)
    shifts = range(-7, 8)
    table = np.stack([np.roll(digits, (down, right), axis=(1, 2)) for down in shifts for right in shifts])
    table = table.reshape(-1, 28, 28) // 2
    for number, begin in enumerate(range(0, n_images, SHARD)):
        rng = np.random.default_rng((seed, number))
        n = min(SHARD, n_images - begin)
        images = table[rng.integers(len(table), size=n)] + rng.integers(8, size=(n, 28, 28), dtype=np.uint8)
        np.save(folder / f"{number:05d}.npy", images)


class Peak(NamedTuple):
    """The most memory that a process and its children took, in MB, and what the process printed."""

    total: float  # PSS
    own: float  # the part of it that is no file
    printed: dict[str, Any]


def watch(command: list[str]) -> Peak:
    """Run a command that prints JSON, and look at its memory all the while (Linux only, else NaN)."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        total = own = 0.0 if Path("/proc/self/smaps_rollup").exists() else float("nan")
        while process.poll() is None:
            found = [_memory(pid) for pid in _family(process.pid)]
            total, own = max(total, sum(f[0] for f in found)), max(own, sum(f[1] for f in found))
            time.sleep(SAMPLE_SECONDS)
        printed = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Peak(total, own, json.loads(printed))


def _family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(int(child)))]


def _memory(pid: int) -> tuple[float, float]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it has just ended
        return 0.0, 0.0
    sizes = {line.split(":")[0]: float(line.split()[1]) / 1024 for line in lines}
    return sizes.get("Pss", 0.0), sizes.get("Pss_Anon", 0.0) + sizes.get("Pss_Shmem", 0.0)


def train_on(folder: Path) -> dict[str, Any]:
    """Learn from every image of a folder once, and read all of them once more without learning."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    shards = open_shards(folder)
    opened = time.perf_counter()
    LieSparseCoder(10, n_epochs=1, random_state=0, **MODEL).fit(shards)
    learned = time.perf_counter()
    n_read = sum(len(batch) for batch in ShardBatches(shards, 100).epoch(torch.Generator()))
    done = time.perf_counter()
    return {
        "n_images": len(shards),
        "open_images_per_second": len(shards) / (opened - began),
        "learn_images_per_second": len(shards) / (learned - opened),
        "read_images_per_second": n_read / (done - learned),
    }


def time_steps(batch_size: int) -> dict[str, Any] | None:
    """Time steps of the default recipe at the paper's size; of several processes the first answers."""
    torch.set_num_threads(1)
    n_images = batch_size * (STEPS + WARM_UP)
    rows = torch.rand(n_images, 784, generator=torch.Generator().manual_seed(0))
    times: list[float] = []

    def note(_progress: Progress) -> None:
        times.append(time.perf_counter())

    settings = {"learning.batch_size": batch_size, "learning.reseed_overlap": 1.0}
    with join() as group:
        LieSparseCoder(10, n_epochs=1, settings=settings, callbacks=[note], random_state=0).fit(rows)
        if group.rank:
            return None
        steps = np.diff(times[WARM_UP - 1 : -1])  # the last has the health of the epoch with it
        return {"processes": group.size, "step_ms": 1000 * float(np.median(steps))}


def _module(*arguments: object, n_processes: int = 1) -> list[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    return [sys.executable, *(launch if n_processes > 1 else []), "-m", MODULE, *map(str, arguments)]


def measure_memory(sizes: tuple[int, ...] = SIZES, *, report: Report = lambda _: None) -> dict[str, Any]:
    """Return what learning from folders of several sizes takes."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            report(f"{size:,} images from a folder of shards")
            make_shards(Path(folder), size)
            peak = watch(_module("--train", folder))
        rows.append({**peak.printed, "peak_memory_mb": peak.total, "peak_own_memory_mb": peak.own})
    first, last = rows[0], rows[-1]
    return {
        "streaming": rows,
        "memory_ratio": last["peak_memory_mb"] / first["peak_memory_mb"],
        "own_memory_ratio": last["peak_own_memory_mb"] / first["peak_own_memory_mb"],
    }


def measure_processes(batches: tuple[int, ...] = BATCHES, *, report: Report = lambda _: None) -> dict[str, Any]:
    """Return the time of a step in one process over that in two, a thread each."""
    found: dict[str, Any] = {}
    for batch in batches:
        report(f"steps of {batch} images in one process and in two")
        times = [
            [watch(_module("--steps", batch, n_processes=n)).printed["step_ms"] for n in (1, 2)] for _ in range(REPEATS)
        ]
        one, two = (min(column) for column in zip(*times, strict=True))
        found[f"batch_{batch}"] = {"one_process_ms": one, "two_processes_ms": two, "speedup": one / two}
    return {"processes": found, "cores": os.cpu_count()}


def measure_streaming(sizes: tuple[int, ...] = SIZES, *, report: Report = lambda _: None) -> dict[str, Any]:
    """Measure everything."""
    return measure_memory(sizes, report=report) | measure_processes(report=report)


def main() -> None:
    """Be a process that is measured: train on a folder, or time some steps, and print figures as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    result = train_on(options.train) if options.train else time_steps(options.steps)
    if result is not None:
        print(json.dumps(result, indent=2))
