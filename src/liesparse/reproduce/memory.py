"""How much memory a job takes at its peak."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable


def peak_memory(job: Callable[[], object]) -> float:
    """Return the peak memory in MB that a job takes above what is there before it (Linux only, else NaN)."""
    _give_back()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forget the peak so far
    except OSError:
        return float("nan")
    before = _status("VmRSS")
    job()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> float:
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(name + ":"))


def _give_back() -> None:
    """Return freed memory to the system: a job that takes it again would else seem to take nothing."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU library
    if trim is not None:
        trim(0)
