"""Which compiled library fits this processor, and calling it with as many threads as torch has.

The libraries are built with the package, one for each instruction set; nothing is compiled or cached at run time.
"""

import logging
import os
import platform
from concurrent.futures import ThreadPoolExecutor, wait
from ctypes import CDLL, POINTER, Structure, addressof, byref, c_float, c_int, c_void_p, sizeof
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liesparse._checks import reject
from liesparse.devices import is_cpu

KERNEL_NAMES = ("avx512", "avx2", "baseline", "neon", "torch")
VARIABLE = "LIESPARSE_KERNEL"  # names another kernel, or torch, for a test
INTERFACE = 2  # as in kernel.c
GROUP = 4  # images that a thread takes at a time, as in fista.c
SUFFIXES = {"Windows": "dll", "Darwin": "dylib"}
FOLDER = Path(__file__).parent
_log = logging.getLogger(__name__)
_forked = False


class Level(Structure):
    """The struct of the same name in grid.c."""

    _fields_ = (("n", c_int), *((name, c_void_p) for name in ("first", "columns", "rows", "lower")))


class Plan(Structure):
    """The struct of the same name in grid.c."""

    _fields_ = (
        *((name, c_int) for name in ("n_axes", "n_irreps", "n_layers", "n_first", "lowest", "n_last", "half", "zero")),
        *((name, c_void_p) for name in ("place", "squares")),
        ("n_levels", c_int),
        ("levels", POINTER(Level)),
        *((name, c_float) for name in ("least_points", "points_per_width", "tail")),
    )


class Task(Structure):
    """The struct of the same name in fista.c."""

    _fields_ = (
        *((name, c_int) for name in ("n_components", "n_steps", "exact", "subgradient")),
        *((name, c_float) for name in ("step", "sparsity", "variance")),
        *((name, c_void_p) for name in ("dictionary", "prior")),
    )


class Scatter(Structure):
    """The struct of the same name in modes.c."""

    _fields_ = (
        *((name, c_int) for name in ("n_axes", "n_cells")),
        *((name, c_void_p) for name in ("parent", "turn", "omega", "pairs")),
        *((name, c_int) for name in ("n_even", "n_pairs")),
        *((name, c_void_p) for name in ("even", "cloud", "share", "count")),
        ("n_climbs", c_int),
        *((name, c_float) for name in ("spread", "ridge", "tail", "arrived", "low", "high")),
    )


class Job(Structure):
    """The struct of the same name in kernel.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("plan", "task", "input")),
        ("results", c_void_p * 5),
        *((name, c_int) for name in ("batch", "next", "failed")),
    )


STRUCTS = (Level, Plan, Task, Scatter, Job)  # in the order in which describe() of kernel.c gives their sizes


class Library(NamedTuple):
    """A loaded library."""

    name: str
    lane: int  # floats in a vector
    functions: CDLL

    def run(
        self, function: str, plan: Structure, rows: Tensor, results: tuple[Tensor, ...], task: Task | None = None
    ) -> None:
        """Let every thread call ``function`` on one job; they share its rows by a counter."""
        addresses = (c_void_p * 5)(*(tensor.data_ptr() for tensor in results))
        there = None if task is None else addressof(task)
        job = Job(addressof(plan), there, rows.data_ptr(), addresses, len(rows), 0, 0)
        n_threads = min(torch.get_num_threads(), -(-len(rows) // (1 if task is None else GROUP)))
        call = getattr(self.functions, function)
        parallel = None if _forked else _torch_runtime()
        if n_threads <= 1:
            call(byref(job))
        elif parallel is not None:
            parallel(call, byref(job), n_threads, 0)
        else:
            others = [_threads().submit(call, byref(job)) for _ in range(n_threads - 1)]
            try:
                call(byref(job))
            finally:
                wait(others)  # they write into memory of the caller
        if job.failed:
            raise MemoryError("No memory is left to integrate the pose out. Use smaller batches.")


class Choice(NamedTuple):
    """The kernel in use, or None where torch does its work, and why."""

    library: Library | None
    reason: str


def check_planes(name: str, planes: Tensor, n_irreps: int) -> None:
    """Reject what the compiled code would read beyond its end, or as other numbers."""
    if planes.shape[1:] != (n_irreps, 2) or planes.dtype != torch.float32:
        found = f"shape {tuple(planes.shape)}, {planes.dtype}"
        reject(name, f"float32 of shape (batch, {n_irreps}, 2)", found, "Make an engine for them.")


def runnable() -> tuple[str, ...]:
    """Name the kernels that this processor can run, best first."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return ("neon",)
    if machine not in ("x86_64", "amd64"):
        return ()
    ability = torch.backends.cpu.get_cpu_capability()
    return ("avx512", "avx2", "baseline")[0 if ability.startswith("AVX512") else 1 if ability == "AVX2" else 2 :]


def choose(name: str | None = None) -> Choice:
    """Choose a kernel by name; without one by LIESPARSE_KERNEL, else the best that this processor can run."""
    wanted = name or os.environ.get(VARIABLE)
    can, how = runnable(), "chosen by name" if name else f"chosen by {VARIABLE}"
    if wanted == "torch":
        return Choice(None, how)
    if wanted and wanted not in can:
        where = "kernel" if name else VARIABLE
        reject(where, f"one of {', '.join((*can, 'torch'))} on this processor", repr(wanted), "Leave it out.")
    for candidate in (wanted,) if wanted else can:
        found = load(candidate)
        if found is not None:
            return Choice(found, how if wanted else "the best that this processor can run")
    return Choice(None, "no compiled kernel is installed for this platform" if can else "no kernel for this processor")


def library_for(name: str | None, dtype: torch.dtype, device: torch.device) -> Library | None:
    """Choose a library for numbers of this type on this device; None where torch must do its work."""
    library = choose(name).library
    return library if dtype == torch.float32 and is_cpu(device) else None


@cache
def load(name: str) -> Library | None:
    """Load a library and check that it was built for this version of the package; None where there is none."""
    path = FOLDER / f"{name}.{SUFFIXES.get(platform.system(), 'so')}"
    if not path.exists():
        return None
    try:
        functions = CDLL(str(path))
    except OSError as error:
        _log.warning("the kernel %s cannot be loaded (%s): torch does its work, several times slower", name, error)
        return None
    numbers = (c_int * (2 + len(STRUCTS)))()
    functions.describe(numbers)
    interface, lane, *sizes = numbers
    if interface != INTERFACE or sizes != [sizeof(struct) for struct in STRUCTS]:
        _log.warning("the kernel %s is of another version: torch does its work. Install liesparse again.", name)
        return None
    functions.exercise.restype = c_float
    return Library(name, lane, functions)


@cache
def _torch_runtime() -> Any:
    """Return GNU OpenMP's call for parallel work from the library that came with torch, or None where it has another.

    Its threads wait for torch's next operation by spinning: threads beside them get only half of their cores.
    """
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return getattr(CDLL(str(found[0])), "GOMP_parallel", None) if found else None


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="liesparse")


def _after_fork() -> None:
    """Neither kind of threads comes along into a forked process: it gets new ones of Python's."""
    global _forked
    _forked = True
    _threads.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
