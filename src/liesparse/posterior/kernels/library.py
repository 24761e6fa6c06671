"""Which compiled library fits this processor, and calling it with as many threads as torch has.

The libraries are built with the package, one for each instruction set; nothing is compiled or cached at run time.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liesparse._checks import reject

KERNEL_NAMES = ("avx512", "avx2", "baseline", "neon", "torch")
VARIABLE = "LIESPARSE_KERNEL"  # names another kernel, or torch, for a test
INTERFACE = 1  # as in kernel.c
SUFFIXES = {"Windows": "dll", "Darwin": "dylib"}
FOLDER = Path(__file__).parent
_log = logging.getLogger(__name__)


class Level(ctypes.Structure):
    """The struct of the same name in grid.c."""

    _fields_ = (("n", ctypes.c_int), *((name, ctypes.c_void_p) for name in ("first", "columns", "rows", "lower")))


class Plan(ctypes.Structure):
    """The struct of the same name in grid.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("n_irreps", "n_layers", "n_first", "lowest", "n_last", "half", "zero")),
        *((name, ctypes.c_void_p) for name in ("place", "squares")),
        ("n_levels", ctypes.c_int),
        ("levels", ctypes.POINTER(Level)),
        *((name, ctypes.c_float) for name in ("least_points", "points_per_width", "tail")),
    )


class Task(ctypes.Structure):
    """The struct of the same name in fista.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("n_components", "n_steps", "exact", "subgradient")),
        *((name, ctypes.c_float) for name in ("step", "sparsity", "variance")),
        *((name, ctypes.c_void_p) for name in ("dictionary", "prior")),
    )


class Scatter(ctypes.Structure):
    """The struct of the same name in modes.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("n_axes", "n_cells")),
        *((name, ctypes.c_void_p) for name in ("parent", "turn", "omega", "pairs")),
        *((name, ctypes.c_int) for name in ("n_even", "n_pairs")),
        *((name, ctypes.c_void_p) for name in ("even", "cloud", "share", "count")),
        ("n_climbs", ctypes.c_int),
        *((name, ctypes.c_float) for name in ("spread", "ridge", "tail", "arrived", "low", "high")),
    )


STRUCTS = (Level, Plan, Task, Scatter)  # in the order in which describe() of kernel.c gives their sizes


class Library(NamedTuple):
    """A loaded library."""

    name: str
    lane: int  # floats in a vector
    functions: ctypes.CDLL

    def share(self, function: str, n_parts: int, *arguments: Any) -> None:
        """Let every thread call ``function``; they share its ``n_parts`` parts by a counter, their last argument."""
        call, counter = getattr(self.functions, function), ctypes.c_int(0)
        arguments = (*arguments, ctypes.byref(counter))
        n_others = min(torch.get_num_threads(), n_parts) - 1
        others = [_threads().submit(call, *arguments) for _ in range(n_others)]
        try:
            failed = call(*arguments)
        finally:
            wait(others)  # they write into memory of the caller
        if failed or any(other.result() for other in others):
            raise MemoryError("No memory is left to integrate the pose out. Use smaller batches.")


class Choice(NamedTuple):
    """The kernel in use, or None where torch does its work, and why."""

    library: Library | None
    reason: str


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a contiguous tensor's numbers."""
    return ctypes.c_void_p(tensor.data_ptr())


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
    can = runnable()
    if wanted == "torch":
        return Choice(None, "chosen by name" if name else f"chosen by {VARIABLE}")
    if wanted and wanted not in can:
        where = "kernel" if name else VARIABLE
        reject(where, f"one of {', '.join((*can, 'torch'))} on this processor", repr(wanted), "Leave it out.")
    for candidate in (wanted,) if wanted else can:
        found = load(candidate)
        if found is not None:
            why = f"chosen by {VARIABLE}" if wanted else "the best that this processor can run"
            return Choice(found, why)
    return Choice(None, "no compiled kernel is installed for this platform" if can else "no kernel for this processor")


@cache
def load(name: str) -> Library | None:
    """Load a library and check that it was built for this version of the package; None where there is none."""
    path = FOLDER / f"{name}.{SUFFIXES.get(platform.system(), 'so')}"
    if not path.exists():
        return None
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        _log.warning("the kernel %s cannot be loaded (%s): torch does its work, several times slower", name, error)
        return None
    numbers = (ctypes.c_int * (2 + len(STRUCTS)))()
    functions.describe(numbers)
    interface, lane, *sizes = numbers
    if interface != INTERFACE or sizes != [ctypes.sizeof(struct) for struct in STRUCTS]:
        _log.warning("the kernel %s is of another version: torch does its work. Install liesparse again.", name)
        return None
    functions.exercise.restype = ctypes.c_float
    return Library(name, lane, functions)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="liesparse")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not come along into a forked process
