"""Parts of scale.py that need processes of their own: data that does not fit, several processes, the server under load.

The memory of streaming is that of a fresh process and its workers together, sampled from the kernel's accounts: PSS,
in which pages that several processes share count once, and of it the part that is not a file (anonymous and shared
memory). Shards are read, never mapped, so the page cache is in neither.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image

from liesparse.data import ShardBatches, embedded_digits, open_shards, translations
from liesparse.estimators import LieSparseCoder
from liesparse.parallel import join
from liesparse.reproduce.bench import memory_of

SIZES, SHARD = (200_000, 1_000_000), 50_000  # streamed images, and those in a file
MODEL: dict[str, Any] = {"n_irreps": 16, "settings": {"learning.n_code_steps": 4, "start": "data"}}  # small, quick
STEPS, WARM_UP = 20, 5  # of which the time is taken, and before
BATCHES = (100, 800)
REPEATS = 3  # in turn, of which the fastest counts: other programs only ever add time
SAMPLE_SECONDS = 0.1
TIMEOUT = 60.0  # seconds for one response of the server
N_REQUESTS = 60  # different ones, made in advance, as making them takes time
Report = Callable[[str], None]
Found = dict[str, Any]
Request = tuple[str, bytes, dict[str, str]]  # path, body, headers
Exchange = tuple[float, str]  # seconds, and what was wrong


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
        "settings": {"start": "data", "learning.batch_size": batch_size, "learning.reseed_overlap": 1.0},
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


def make_request(rng: np.random.Generator) -> Request:
    """Return a digit as it is drawn, or with probability 1/3 as a picture of some size and kind."""
    digit = np.roll(embedded_digits()[rng.integers(10)].numpy(), rng.integers(-5, 6, size=2), axis=(0, 1))
    if rng.integers(3):
        body = json.dumps({"pixels": digit.round(3).flatten().tolist()}).encode()
        return "/api/drawing", body, {"Content-Type": "application/json"}
    side, buffer = int(rng.choice([28, 64, 150])), io.BytesIO()
    picture = Image.fromarray((255 * digit).astype(np.uint8)).resize((side, side))
    picture.save(buffer, str(rng.choice(["PNG", "JPEG"])))
    return "/api/picture", buffer.getvalue(), {"Content-Type": "application/octet-stream"}


def post_until(end: float, address: str, requests: list[Request], number: int) -> list[Exchange]:
    """Post until the end, and return every exchange; a problem costs the connection and a pause."""
    connection = HTTPConnection(address, timeout=TIMEOUT)
    done: list[Exchange] = []
    while (began := time.perf_counter()) < end:
        problem = ""
        try:
            connection.request("POST", *requests[(number + len(done)) % len(requests)])
            response = connection.getresponse()
            body = response.read()
            if response.status != 200 or "codes" not in json.loads(body):
                problem = f"{response.status} {response.reason} {body[:200].decode(errors='replace')}"
        except (OSError, HTTPException, ValueError) as error:  # a timeout is an OSError
            problem = f"{type(error).__name__}: {error}"
        done.append((time.perf_counter() - began, problem))
        if problem:
            connection.close()  # the next request opens another
            time.sleep(0.05)
    connection.close()
    return done


def measure_server(report: Report, *, seconds: float = 60.0, clients: int = 50) -> Found:
    """Start the explorer with the demo's model and let clients post to it, each on one connection, as fast as it can.

    Latencies are in seconds. The server's resident memory in MB is that after half the time and at the end; None where
    the system does not report it.
    """
    report(f"{clients} clients of the explorer's server for {seconds:g} seconds")
    rng = np.random.default_rng(0)
    requests = [make_request(rng) for _ in range(N_REQUESTS)]
    command = [sys.executable, "-m", "liesparse", "explore", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ThreadPoolExecutor(clients) as pool:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"http://\S+", line)
            if found is None:
                raise RuntimeError(f"The server did not start: {line.strip() or 'no output'}")
            end, address = time.perf_counter() + seconds, urlsplit(found.group()).netloc
            every = [pool.submit(post_until, end, address, requests, number) for number in range(clients)]
            time.sleep(seconds / 2)
            memory_warm = memory_of(process.pid).get("VmRSS")
            exchanges = [each for future in every for each in future.result()]
            memory_end = memory_of(process.pid).get("VmRSS")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    problems = [problem for _, problem in exchanges if problem]
    latencies = [spent for spent, problem in exchanges if not problem] or [float("nan")]
    return {
        "seconds": seconds,
        "clients": clients,
        "requests": len(exchanges),
        "errors": len(problems),
        "first_error": problems[0] if problems else None,
        "requests_per_second": round(len(exchanges) / seconds, 1),
        "median_latency": round(float(np.median(latencies)), 4),
        "p99_latency": round(float(np.percentile(latencies, 99)), 4),
        "memory_mb_warm": memory_warm,
        "memory_mb_end": memory_end,
        "exit_code": process.returncode,
    }
