"""Load test of the explorer's server: many clients at once, latency and memory.

Run it from the repository: ``python benchmarks/server_load.py --seconds 60 --clients 50``.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

SIDE = 28  # of the demo's images
WARM_UP = 0.5  # share of the time after which memory is first measured
TIMEOUT = 60.0  # seconds for one response
N_REQUESTS = 60  # different ones, made in advance, as making them takes time


class _Exchange(NamedTuple):
    seconds: float
    problem: str  # "" if the response was good


def measure_load(seconds: float = 60.0, clients: int = 50) -> dict[str, Any]:
    """Start a server with the demo's model and let clients post drawings and pictures, each as fast as it can.

    Parameters
    ----------
    seconds : float, default=60.0
        How long they post.
    clients : int, default=50
        How many there are, each with one connection.

    Returns
    -------
    dict
        Counts of requests and errors (the first one in words), requests per second, latencies in seconds, and the
        server's resident memory in MB after half the time and at the end (None where the system does not report it).
    """
    with _server() as (address, process):
        exchanges, memory = asyncio.run(_all_clients(address, seconds, clients, process.pid))
    problems = [exchange.problem for exchange in exchanges if exchange.problem]
    latencies = np.array([exchange.seconds for exchange in exchanges if not exchange.problem] or [np.nan])
    return {
        "seconds": seconds,
        "clients": clients,
        "requests": len(exchanges),
        "errors": len(problems),
        "first_error": problems[0] if problems else None,
        "requests_per_second": round(len(exchanges) / seconds, 1),
        "median_latency": round(float(np.median(latencies)), 4),
        "p99_latency": round(float(np.percentile(latencies, 99)), 4),
        "memory_mb_warm": memory[0],
        "memory_mb_end": memory[1],
        "exit_code": process.returncode,
    }


@contextmanager
def _server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "liesparse", "explore", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"http://\S+", line)
            if found is None:
                raise RuntimeError(f"The server did not start: {line.strip() or 'no output'}")
            yield found.group(), process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


async def _all_clients(
    address: str, seconds: float, clients: int, pid: int
) -> tuple[list[_Exchange], tuple[float | None, float | None]]:
    """Return every exchange, and the server's memory after half the time and at the end."""
    host, rng = urlsplit(address).netloc, np.random.default_rng(0)
    requests = [_request(rng, host) for _ in range(N_REQUESTS)]
    end = time.perf_counter() + seconds
    tasks = [asyncio.create_task(_client(address, requests, number, end)) for number in range(clients)]
    await asyncio.sleep(WARM_UP * seconds)
    warm = _memory(pid)
    found = await asyncio.gather(*tasks)
    return [exchange for exchanges in found for exchange in exchanges], (warm, _memory(pid))


async def _client(address: str, requests: list[bytes], number: int, end: float) -> list[_Exchange]:
    """Post until the end; an error costs the connection and a short pause."""
    done: list[_Exchange] = []
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    host, port = urlsplit(address).hostname, urlsplit(address).port
    while time.perf_counter() < end:
        request = requests[(number + len(done)) % len(requests)]
        began, problem = time.perf_counter(), ""
        try:
            async with asyncio.timeout(TIMEOUT):
                connection = connection or await asyncio.open_connection(host, port)
                problem = await _exchange(*connection, request)
        except (OSError, EOFError, ValueError) as error:  # a timeout is an OSError
            problem = f"{type(error).__name__}: {error}"
        done.append(_Exchange(time.perf_counter() - began, problem))
        if problem:
            await _close(connection)
            connection = None
            await asyncio.sleep(0.05)
    await _close(connection)
    return done


async def _close(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None) -> None:
    if connection is not None:
        connection[1].close()
        with suppress(OSError):  # the connection may be broken already
            await connection[1].wait_closed()


def _request(rng: np.random.Generator, host: str) -> bytes:
    """Return a drawing, or with probability 1/3 a picture."""
    if rng.integers(3):
        path, kind = "/api/drawing", "application/json"
        body = json.dumps({"pixels": _strokes(rng, SIDE).round(3).flatten().tolist()}).encode()
    else:
        path, kind = "/api/picture", "application/octet-stream"
        body = _picture(rng)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _strokes(rng: np.random.Generator, side: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw two soft strokes somewhere in a square."""
    rows, columns = np.mgrid[:side, :side] / side
    image = np.zeros((side, side))
    for _ in range(2):
        (y, x), (dy, dx) = rng.uniform(0.3, 0.7, 2), rng.uniform(-0.3, 0.3, 2)
        for t in np.linspace(0, 1, 8):
            image = np.maximum(image, np.exp(-(((rows - y - t * dy) ** 2 + (columns - x - t * dx) ** 2) / 0.003)))
    return image


def _picture(rng: np.random.Generator) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    pixels = (255 * _strokes(rng, int(rng.choice([SIDE, 64, 150])))).astype(np.uint8)
    Image.fromarray(pixels).save(buffer, str(rng.choice(["PNG", "JPEG"])))
    return buffer.getvalue()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> str:
    """Send one request and return what was wrong with the response."""
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"^content-length: (\d+)\r$", head, flags=re.IGNORECASE | re.MULTILINE)
    if length is None:
        raise ValueError(f"a response without a length: {head.splitlines()[0]}")
    body = await reader.readexactly(int(length[1]))
    if head.split(" ", 2)[1] != "200":
        return f"{head.splitlines()[0]} {body[:200].decode(errors='replace')}"
    return "" if "codes" in json.loads(body) else "a response without codes"


def _memory(pid: int) -> float | None:
    """Return the resident memory of a process in MB, where the system reports it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return round(int(found[1]) / 1024, 1) if found else None


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=50)
    given = parser.parse_args()
    print(json.dumps(measure_load(given.seconds, given.clients), indent=2))


if __name__ == "__main__":
    main()
