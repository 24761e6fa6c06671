"""Load test of the explorer's server: many clients at once, latency and memory.

Run it from the repository: ``python benchmarks/server_load.py --seconds 60 --clients 50``.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from liesparse.data import embedded_digits
from liesparse.reproduce.bench import memory_of

WARM_UP = 0.5  # share of the time after which memory is first measured
TIMEOUT = 60.0  # seconds for one response
N_REQUESTS = 60  # different ones, made in advance, as making them takes time
Request = tuple[str, bytes, dict[str, str]]  # path, body, headers
Exchange = tuple[float, str]  # seconds, and what was wrong


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


def exchange(connection: HTTPConnection, request: Request) -> str:
    """Send one request and return what was wrong with the response, or nothing."""
    try:
        connection.request("POST", *request)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            return f"{response.status} {response.reason} {body[:200].decode(errors='replace')}"
        return "" if "codes" in json.loads(body) else "a response without codes"
    except (OSError, HTTPException, ValueError) as error:  # a timeout is an OSError
        return f"{type(error).__name__}: {error}"


def post_until(end: float, address: str, requests: list[Request], number: int) -> list[Exchange]:
    """Post until the end, and return every exchange; a problem costs the connection and a pause."""
    connection = HTTPConnection(address, timeout=TIMEOUT)
    done: list[Exchange] = []
    while (began := time.perf_counter()) < end:
        problem = exchange(connection, requests[(number + len(done)) % len(requests)])
        done.append((time.perf_counter() - began, problem))
        if problem:
            connection.close()  # the next request opens another
            time.sleep(0.05)
    connection.close()
    return done


def measure_load(seconds: float, clients: int) -> dict[str, Any]:
    """Start a server with the demo's model and let clients post to it, each on one connection, as fast as it can.

    Latencies are in seconds. The server's resident memory in MB is that after half the time and at the end; None where
    the system does not report it.
    """
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
            time.sleep(WARM_UP * seconds)
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=50)
    print(json.dumps(measure_load(**vars(parser.parse_args())), indent=2))
