"""Builds and calls ``moments.c``, the adaptive engine on the 2-torus as compiled code.

In torch the engine spends most of its time between small operations; one compiled pass for each
posterior is about three times faster. It needs a C compiler once; without one, or with LIESPARSE_NATIVE=0
in the environment, torch does the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse.posterior.base import Moments
from liesparse.posterior.separable import FrequencyBox

LANE = 16  # floats per vector, as in moments.c
LEVELS = (40, 48, 56, 64, 72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)
# No -ffast-math: linking with it would flush denormals in the whole process.
FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp", "-Wno-psabi"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-ffp-contract=fast"),
)
_FloatPointer = ctypes.POINTER(ctypes.c_float)
_log = logging.getLogger(__name__)


class _Plan(ctypes.Structure):
    """The struct of the same name in moments.c."""

    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in ("n_first", "n_last", "lowest_first", "lowest_last", "has_zero", "n_levels")
        ),
        ("n_points", ctypes.POINTER(ctypes.c_int)),
        *((name, ctypes.POINTER(_FloatPointer)) for name in ("first", "last_columns", "last_rows")),
        *((name, ctypes.c_float) for name in ("least_points", "points_per_width", "tail")),
    )


class NativeMoments:
    """ln Z and R̄ on the 2-torus in float32 on the CPU, with the tables they need."""

    def __init__(
        self,
        library: ctypes.CDLL,
        box: FrequencyBox,
        sizes: list[int],
        least_points: float,
        points_per_width: float,
        tail: float,
    ) -> None:
        self._library = library
        has_zero = all(int(entries[0]) <= 0 <= int(entries[-1]) for entries in box.ranges)
        tables = [_tables(box, n) for n in sizes]
        self._kept = [table for level in tables for table in level]  # the plan only points at them
        pointers = [
            (_FloatPointer * len(sizes))(*(ctypes.cast(table.data_ptr(), _FloatPointer) for table in column))
            for column in zip(*tables, strict=True)
        ]
        self._plan = _Plan(
            *box.sizes,
            *(int(entries[0]) for entries in box.ranges),
            int(has_zero),
            len(sizes),
            (ctypes.c_int * len(sizes))(*sizes),
            *pointers,
            least_points,
            points_per_width,
            tail,
        )

    def __call__(self, natural: Float[Tensor, "batch folded 2"]) -> Moments | None:
        """Return the moments, or None if torch must do it: another device, or too sharp for the finest level."""
        if natural.device.type != "cpu" or natural.requires_grad:
            return None
        natural = natural.contiguous()
        rotation, log_partition = torch.empty_like(natural), natural.new_empty(len(natural))
        addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (natural, rotation, log_partition))
        first, second, third = addresses
        threads = torch.get_num_threads()
        failed = self._library.moments(ctypes.byref(self._plan), first, len(natural), second, third, threads)
        return None if failed else Moments(log_partition, rotation)


def _tables(box: FrequencyBox, n_points: int) -> tuple[Tensor, Tensor, Tensor]:
    axis = torus.grid_axis(n_points)
    first = torus.features(axis[:, None] * box.ranges[0]).float().contiguous()  # (point, p, cos|sin)
    last = torus.features(axis[:, None] * box.ranges[1]).float().permute(2, 1, 0)  # (cos|sin, q, point)
    by_column = torch.nn.functional.pad(last, (0, -n_points % LANE)).contiguous()
    by_row = torch.nn.functional.pad(last.permute(2, 0, 1), (0, -box.sizes[1] % LANE)).contiguous()
    return first, by_column, by_row


def make_native(
    box: FrequencyBox, n_coarse: int, dtype: torch.dtype, *, least_points: float, points_per_width: float, tail: float
) -> NativeMoments | None:
    """Return the compiled moments, or None where torch must do the work."""
    library = load_library() if len(box.sizes) == 2 and dtype == torch.float32 else None
    if library is None:
        return None
    sizes = [n_coarse, *(n for n in LEVELS if n > n_coarse)]
    return NativeMoments(library, box, sizes, least_points, points_per_width, tail)


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled library, built on first use and kept in the user's cache; None if that fails."""
    if os.environ.get("LIESPARSE_NATIVE") == "0":
        return None
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    source = resources.files(__package__).joinpath("moments.c").read_text()
    key = hashlib.sha256("\0".join((source, *FLAGS, str(compiler), _processor())).encode()).hexdigest()[:16]
    try:
        path = _cache_folder() / f"moments-{key}.so"
        if not path.exists():
            if compiler is None:
                _log.info("no C compiler found: the adaptive engine runs in torch")
                return None
            _build(compiler, source, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("the compiled kernel is not available (%s): the adaptive engine runs in torch", error)
        return None


def _processor() -> str:
    """Name this processor's abilities: code built for one may not run on another that shares the cache."""
    try:
        with open("/proc/cpuinfo") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor() + platform.machine()


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root) / "liesparse"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="liesparse-"))


def _build(compiler: str, source: str, path: Path) -> None:
    """Compile to a temporary name and rename, so that two processes never see half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code, library = Path(folder) / "moments.c", Path(folder) / "moments.so"
        code.write_text(source)
        command = [compiler, *FLAGS, str(code), "-o", str(library), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.replace(library, path)
