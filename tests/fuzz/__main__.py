"""Feed damaged inputs to every loader, command and route: ``make fuzz`` or ``make fuzz OPTIONS="--inputs 100"``.

Each input follows from the seed and its number alone, and is made and read in a forked process that has everything
imported, with limits on its memory and on its time. What goes wrong is kept in build/fuzz, and the end is a table.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # pyarrow's own reserves 1 GiB of addresses at its first use

import numpy as np
from formats import Case, data_file, picture, run_json, spec, toml
from hostile import FLOATS, INTEGERS, TEXTS, damage, scalar, to_json, tree, word
from models import sealed_file
from samples import N_PIXELS, Samples, make_samples
from targets import FindingError, Targets, without_network

from stopwatch import Stopwatch

KEPT = Path(__file__).parents[2] / "build" / "fuzz"
SECONDS = 10  # for one input, without those in which other programs had all cores
MEMORY = 1536 * 2**20  # above what a process has before its first input
BATCH = 100  # inputs of one process
FILES = ("npy", "npz", "parquet", "png", "idx", "zip")
KINDS = (
    *FILES,
    *FILES,
    "safetensors",
    "safetensors",
    "safetensors",
    "json",
    "toml",
    "spec",
    "spec",
    "arguments",
    "http",
    "http",
)
COLUMNS = (
    "accepted",
    "refused",
    "traceback",
    "crash",
    "hang",
    "memory",
    "damaged model accepted",
    "message",
    "not finite",
)


def make_case(kind: str, rng: Random, samples: Samples, folder: Path) -> Case:
    """Write one damaged input and say who is to read it."""
    if kind in FILES:
        return data_file(rng, samples, folder, kind)
    if kind == "safetensors":
        return sealed_file(rng, samples, folder)
    if kind == "json":
        return run_json(rng, samples, folder)
    if kind == "toml":
        (folder / "recipe.toml").write_bytes(toml(rng, samples))
        return "recipe", (str(folder / "recipe.toml"),)
    if kind == "spec":
        return rng.choice(("load_data", "load_data", "load_images", "preview")), (spec(rng).replace("\0", ""),)
    return make_arguments(rng, samples) if kind == "arguments" else make_request(rng)


def make_arguments(rng: Random, samples: Samples) -> Case:
    """Draw a command with options that nobody should give; no command is let to train for long."""
    run, odd = str(samples.run), [text for text in (*TEXTS, word(rng)) if "\0" not in text and "\ud800" not in text]
    value = str(rng.choice((*odd, *INTEGERS, *FLOATS, scalar(rng)))).replace("\0", "").replace("\ud800", "")
    options = ("--components", "--irreps", "--group", "--torus-dim", "--multiplicity", "--sparsity", "--noise-std")
    options = (*options, "--epochs", "--seed", "--device", "--recipe", "--set", "--data-dir", "--json", "--nothing")
    name = rng.choice(
        ("train", "train", "evaluate", "infer", "canonicalize", "traverse", "explore", "suggest", "data", "bench")
    )
    if name == "train":
        return "arguments", ("train", "./missing.npy", "--out", "out", rng.choice(options), value)
    images = f"digits:n=100,n_test={rng.choice((1, 3))}"
    words = {
        "evaluate": (run, "--data", rng.choice((spec(rng), images)), "--data-dir", "."),
        "infer": (run, images, "--out", rng.choice((value, "x.npz", "x.csv", "x.parquet", "."))),
        "canonicalize": (run, rng.choice((images, value)), "--out", rng.choice((value, "o"))),
        "traverse": (run, images, "--out", "x.gif", rng.choice(("--axis", "--from", "--to", "--count")), value),
        "explore": (rng.choice((run, value)), "--export", rng.choice((value, "x.html", ".html"))),
        "suggest": ("./missing.npy", "--torus-dims", value),
        "data": (rng.choice(("preview", "list", "fetch", value)), value),
        "bench": (rng.choice(("--plot", "--nothing")),),
    }[name]
    return "arguments", (name, *(text.replace("\0", "").replace("\ud800", "") for text in words))


def make_request(rng: Random) -> Case:
    """Draw a request: a drawing as JSON, a picture as bytes, or neither."""
    headers = {"content-type": "application/json"}
    if rng.random() < 0.2:
        names = ("host", "origin", "content-type", "content-length", "transfer-encoding", "cookie", "range", "expect")
        headers[rng.choice(names)] = "".join(c for c in str(scalar(rng)) if c.isascii() and c.isprintable())[:50]
    url = rng.choice(
        ("/api/drawing",) * 5
        + ("/api/picture",) * 5
        + ("/", "/docs", "/openapi.json", f"/{rng.randrange(99)}", "/api/%00")
    )
    method = "POST" if rng.random() < 0.9 else rng.choice(("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE"))
    if url == "/api/picture":
        return ("upload", (picture(rng),)) if rng.random() < 0.3 else ("request", (method, url, headers, picture(rng)))
    drawing: Any = {"pixels": [rng.choice((0.0, 0.5, 1.0)) for _ in range(N_PIXELS)]}
    content = to_json(tree(drawing, rng) if rng.random() < 0.9 else drawing, rng)
    return "request", (method, url, headers, damage(content, rng) if rng.random() < 0.1 else content)


def one(number: int, seed: int, samples: Samples, targets: Targets, root: Path) -> dict[str, Any]:
    """Make an input, feed it, and tell what happened."""
    rng, folder = Random(f"{seed} {number}"), root / "case" / "files"
    shutil.rmtree(root / "case", ignore_errors=True)
    folder.mkdir(parents=True)
    np.random.seed(number)  # noqa: NPY002, Pillow's noise and others draw from it
    kind = rng.choice(KINDS)
    outcome, about, target = "accepted", "", "?"
    try:
        target, arguments = make_case(kind, rng, samples, folder)
        (root / "case" / "about.txt").write_text(f"{kind} {target} {arguments!r}\n\n", errors="replace")
        outcome = targets.call(target, arguments, folder)
    except FindingError as finding:
        outcome, about = finding.args
    except Exception:
        outcome, about = "traceback", "in the fuzzer itself: " + traceback.format_exc()
    found = {"number": number, "kind": kind, "target": target, "outcome": outcome}
    if outcome not in ("accepted", "refused"):
        keep(found, about, seed, root)
    return found


def work(numbers: range, seed: int, samples: Samples, root: Path, pipe: int) -> None:
    """Do some inputs in a forked process, and tell of each before and after."""
    faulthandler.disable()
    without_network()
    warnings.simplefilter("ignore")
    system = ctypes.CDLL(None)
    system.mallopt(-8, 2)  # few arenas: each reserves addresses that nobody uses
    gc.freeze()  # what is there already need not be looked at again
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    targets = Targets(samples)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing), contextlib.redirect_stdout(nothing):
        os.dup2(nothing.fileno(), 2)
        for number in numbers:
            gc.collect()
            system.malloc_trim(0)  # give back what the last input left free, so that it is not counted for this one
            os.write(pipe, f"{number}\n".encode())
            os.write(pipe, (json.dumps(one(number, seed, samples, targets, root)) + "\n").encode())


def watch(numbers: range, seed: int, samples: Samples, root: Path) -> tuple[list[dict[str, Any]], int]:
    """Fork, read what the process tells, and end it where it hangs; return results and the next number."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            work(numbers, seed, samples, root, writing)
        finally:
            os._exit(0)
    os.close(writing)
    results: list[dict[str, Any]] = []
    text, begun, hung, taken = b"", None, False, Stopwatch(child)
    while not hung:
        ready, _, _ = select.select([reading], [], [], 0.5)
        content = os.read(reading, 2**20) if ready else b""
        if ready and not content:
            break
        text += content
        *lines, text = text.split(b"\n")
        for line in lines:
            value = json.loads(line)
            taken.start()
            if isinstance(value, int):
                begun = value
            else:
                results, begun = [*results, value], None
        hung = taken.seconds() > SECONDS
    if hung:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if begun is not None:
        about = root / "case" / "about.txt"
        kind, name = (about.read_text(errors="replace") if about.exists() else "? ?").split(" ")[:2]
        results.append({"number": begun, "kind": kind, "target": name, "outcome": "hang" if hung else "crash"})
        keep(results[-1], f"status {status}", seed, root)
    return results, results[-1]["number"] + 1 if results else numbers.stop


def keep(result: dict[str, Any], about: str, seed: int, root: Path) -> None:
    """Keep a finding: its files, its arguments, and what happened."""
    place = KEPT / f"{seed}-{result['number']}-{result['kind']}-{result['outcome'].replace(' ', '-')}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(root / "case", place)
    with (place / "about.txt").open("a", errors="replace") as file:
        file.write(about)


def main() -> int:
    """Run until the time or the inputs are over; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--inputs", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    options = parser.parse_args()
    end, number, last = time.monotonic() + 60 * options.minutes, options.first, options.first + options.inputs
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory(prefix="liesparse-fuzz-") as place:
        root = Path(place)
        samples = make_samples(root / "samples")
        while number < last and time.monotonic() < end:
            results, number = watch(range(number, min(number + BATCH, last)), options.seed, samples, root)
            for result in results:
                counts[result["kind"]][result["outcome"]] += 1
                if result["outcome"] not in ("accepted", "refused"):
                    print(f"{result['number']} {result['kind']} {result['target']}: {result['outcome']}", flush=True)
    print_counts(counts)
    total = sum(sum(row.values()) for row in counts.values())
    bad = total - sum(row["accepted"] + row["refused"] for row in counts.values())
    print(f"{total:,} inputs from seed {options.seed}, {bad:,} findings{f', kept in {KEPT}' if bad else ''}.")
    return int(bad > 0)


def print_counts(counts: dict[str, collections.Counter[str]]) -> None:
    """Print how often each kind of input ended how."""
    print(f"{'':12}" + "".join(f"{column.split()[0]:>11}" for column in COLUMNS))
    total = sum(counts.values(), collections.Counter())
    for kind, row in [*sorted(counts.items()), ("all", total)]:
        print(f"{kind:12}" + "".join(f"{row[column]:11,}" for column in COLUMNS))


if __name__ == "__main__":
    sys.exit(main())
