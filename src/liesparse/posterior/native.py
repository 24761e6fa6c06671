"""Builds and calls ``codes.c`` and what it includes: the pose integrated out on the 2-torus, as compiled code.

In torch the loop over the codes spends most of its time between small operations, and cannot use the
symmetries of sine and cosine; one compiled pass for each image is several times faster. It needs a C
compiler once; without one, or with LIESPARSE_NATIVE=0 in the environment, torch does the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import math
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import reject
from liesparse.devices import is_cpu

SOURCES = ("grid.c", "adaptive.c", "codes.c")  # each includes the one before; the last is compiled
LANE = 16  # floats per vector, as in grid.c
# Points per axis, a half of them and one more just filling whole vectors.
LEVELS = (30, 38, 46, 54, 62, 70, 78, 94, 110, 126, 142, 158, 190, 222, 254, 318, 382, 446, 510, 638, 766, 1022)
# No -ffast-math: linking with it would flush denormals in the whole process.
FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp", "-Wno-psabi"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-ffp-contract=fast"),
)
_FloatPointer = ctypes.POINTER(ctypes.c_float)
_IntPointer = ctypes.POINTER(ctypes.c_int)
_log = logging.getLogger(__name__)


class _Level(ctypes.Structure):
    """The struct of the same name in grid.c."""

    _fields_ = (("n", ctypes.c_int), *((name, _FloatPointer) for name in ("first", "columns", "rows", "keep")))


class _Plan(ctypes.Structure):
    """The struct of the same name in grid.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("n_irreps", "n_layers", "n_first", "lowest", "n_last", "half", "zero")),
        ("place", _IntPointer),
        ("squares", _FloatPointer),
        ("n_levels", ctypes.c_int),
        ("levels", ctypes.POINTER(_Level)),
        *((name, ctypes.c_float) for name in ("least_points", "points_per_width", "tail")),
    )


class _Task(ctypes.Structure):
    """The struct of the same name in codes.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("n_components", "n_steps", "exact", "subgradient")),
        *((name, ctypes.c_float) for name in ("step", "sparsity", "variance")),
        *((name, _FloatPointer) for name in ("dictionary", "prior")),
    )


class Moments(NamedTuple):
    """ln Z(η) and R̄ = E[R(s)], the latter as (E[cos ω_l·s], E[sin ω_l·s]) for each plane."""

    log_partition: Float[Tensor, " batch"]
    rotation: Float[Tensor, "batch irrep 2"]


class Refinement(NamedTuple):
    """When a posterior needs how fine a grid; see adaptive.py, which says the same in torch."""

    least_points: float
    points_per_width: float
    tail: float


class Kernel:
    """ln Z and R̄ on the 2-torus in float32 on the CPU, and the ascent on the codes, with the tables they need.

    ``sizes`` are the points per axis: of one plain grid, or of a coarse grid and its refinements.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        frequencies: Int[Tensor, "irrep 2"],
        sizes: list[int],
        refinement: Refinement,
    ) -> None:
        self._library = library
        first, last = frequencies.unbind(1)
        lowest, n_last = int(first.min()), int(last.abs().max()) + 1
        n_first = int(first.max()) - lowest + 1
        half = _pad(n_first * n_last + LANE)  # a vector written for the last p may reach behind it
        cells = (last < 0) * half + (first - lowest) * n_last + last.abs()
        layers = torch.tril(cells[:, None] == cells, diagonal=-1).sum(dim=1)  # equal ones standing before
        place = (layers * 4 * half + cells).int()
        zero = cells[(frequencies == 0).all(dim=1)]
        squares = torch.zeros(2, 2 * half)
        squares[:, cells] = frequencies.T.float().square()
        tables = [_tables(n, lowest + torch.arange(n_first), torch.arange(n_last)) for n in sizes]
        self._kept = [place, squares, *(table for level in tables for table in level)]  # the plan only points at them
        levels = (_Level(n, *(_pointer(table) for table in level)) for n, level in zip(sizes, tables, strict=True))
        self._plan = _Plan(
            *(len(frequencies), int(layers.max()) + 1, n_first, lowest, n_last, half),
            int(zero[0]) if len(zero) else -1,
            ctypes.cast(place.data_ptr(), _IntPointer),
            _pointer(squares),
            len(sizes),
            (_Level * len(sizes))(*levels),
            *refinement,
        )

    def moments(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments | None:
        """Return the moments, or None if torch must do it: another device, or too sharp for the finest level."""
        if not is_cpu(natural.device) or natural.requires_grad:
            return None
        self._check(natural)
        natural = natural.contiguous()
        rotation, log_partition = torch.empty_like(natural), natural.new_empty(len(natural))
        failed = self._library.moments(
            ctypes.byref(self._plan),
            _pointer(natural),
            len(natural),
            _pointer(rotation),
            _pointer(log_partition),
            torch.get_num_threads(),
        )
        return None if failed else Moments(log_partition, rotation)

    def ascend(
        self,
        codes: Float[Tensor, "batch component"],
        image_planes: Float[Tensor, "batch irrep 2"],
        dictionary_planes: Float[Tensor, "component irrep 2"],
        pose_prior: Float[Tensor, "irrep 2"],
        *,
        n_steps: int,
        step: float,
        sparsity: float,
        variance: float,
        exact: bool,
        subgradient: bool,
    ) -> Float[Tensor, "batch component"] | None:
        """Return the codes after ``n_steps`` of FISTA, or None if torch must do it."""
        if not is_cpu(image_planes.device):
            return None
        for planes in (image_planes, dictionary_planes, pose_prior[None]):
            self._check(planes)
        codes = codes.detach().clone(memory_format=torch.contiguous_format)
        images, dictionary, prior = (
            tensor.detach().contiguous() for tensor in (image_planes, dictionary_planes, pose_prior)
        )
        numbers = (dictionary.shape[0], n_steps, int(exact), int(subgradient), step, sparsity, variance)
        task = _Task(*numbers, _pointer(dictionary), _pointer(prior))
        failed = self._library.ascend(
            ctypes.byref(self._plan),
            ctypes.byref(task),
            _pointer(images),
            len(images),
            _pointer(codes),
            torch.get_num_threads(),
        )
        return None if failed else codes

    def _check(self, planes: Float[Tensor, "batch irrep 2"]) -> None:
        """Reject what the compiled code would read beyond its end, or as other numbers."""
        if planes.shape[1:] != (self._plan.n_irreps, 2) or planes.dtype != torch.float32:
            found = f"shape {tuple(planes.shape)}, {planes.dtype}"
            reject("planes", f"float32 of shape (batch, {self._plan.n_irreps}, 2)", found, "Make an engine for them.")


def _pad(count: int) -> int:
    return -(-count // LANE) * LANE


def _pointer(tensor: Tensor) -> Any:
    return ctypes.cast(tensor.data_ptr(), _FloatPointer)


def _tables(n: int, first: Int[Tensor, " p"], last: Int[Tensor, " q"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the tables of one level, in the order of the struct Level in grid.c."""
    spacing = 2 * math.pi / n
    stretch = spacing * torch.arange(2 * _pad(n) + LANE, dtype=torch.float64)
    by_point = torus.features(stretch[:n, None] * first)
    by_column = torus.features(stretch[:, None] * last).permute(2, 1, 0)
    by_row = torch.nn.functional.pad(by_column[:, :, :n].permute(2, 0, 1), (0, -len(last) % LANE))
    middle, side = n // 2, _pad(n // 2 + 1)
    columns = torch.arange(side)
    keep = torch.cat((columns <= middle, (columns > 0) & (columns < middle)))  # s, then -s without its twins
    first_table, column_table, row_table, mask = (
        table.float().contiguous() for table in (by_point, by_column, by_row, keep)
    )
    return first_table, column_table, row_table, mask


def make_kernel(
    frequencies: Int[Tensor, "irrep torus"],
    n_points: int,
    dtype: torch.dtype,
    device: torch.device,
    refinement: Refinement | None = None,
) -> Kernel | None:
    """Return the compiled code for a grid of ``n_points`` per axis, refined if so told; None where torch must do it."""
    fits = frequencies.shape[1] == 2 and dtype == torch.float32 and n_points % 2 == 0 and is_cpu(device)
    library = load_library() if fits else None
    if library is None:
        return None
    if refinement is None:
        return Kernel(library, frequencies, [n_points], Refinement(0, 0, 0))  # one level: nothing to refine
    finer = [n for n in LEVELS if n > n_points]
    return Kernel(library, frequencies, [n_points, *finer], refinement) if finer else None


@cache
def load_library(names: tuple[str, ...] = SOURCES) -> ctypes.CDLL | None:
    """Return a compiled library, built on first use and kept in the user's cache; None if that fails."""
    if os.environ.get("LIESPARSE_NATIVE") == "0":
        return None
    compiler = shutil.which("gcc") or shutil.which("cc")
    sources = {name: resources.files(__package__).joinpath(name).read_text() for name in names}
    key = hashlib.sha256("\0".join((*sources.values(), *FLAGS, str(compiler), _processor())).encode()).hexdigest()[:16]
    try:
        path = _cache_folder() / f"kernel-{key}.so"
        if not path.exists():
            if compiler is None:
                _log.info("no C compiler found: everything runs in torch")
                return None
            _build(compiler, sources, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("the compiled kernel is not available (%s): everything runs in torch", error)
        return None


def _processor() -> str:
    """Name this processor's abilities: code built for one may not run on another that shares the cache."""
    try:
        with open("/proc/cpuinfo") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor() + platform.machine()


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(root) / "liesparse"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="liesparse-"))


def _build(compiler: str, sources: dict[str, str], path: Path) -> None:
    """Compile to a temporary name and rename, so that two processes never see half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, source in sources.items():
            (Path(folder) / name).write_text(source)
        library = Path(folder) / "kernel.so"
        command = [compiler, *FLAGS, str(Path(folder) / list(sources)[-1]), "-o", str(library), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.replace(library, path)
