"""Compiles the kernels when the package is built: one library for each instruction set, by the C compiler of ziglang.

LIESPARSE_PLATFORM names another platform to build for, such as linux-aarch64; see `make wheels`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src/liesparse/posterior/kernels")
# No -ffast-math: linking with it would flush denormals in the whole process.
FLAGS = (
    *("-std=gnu11", "-O3", "-fPIC", "-shared", "-s", "-fvisibility=hidden", "-fno-sanitize=undefined", "-Wall"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-ffp-contract=fast"),
)


class InstructionSet(NamedTuple):
    """What a kernel may use, and how wide its vectors are: wider ones than the registers are ruinous."""

    cpu: str
    lane: int  # floats in a vector
    flags: tuple[str, ...] = ()


class Target(NamedTuple):
    """A platform for which wheels are made."""

    triple: str
    tag: str
    suffix: str
    kernels: dict[str, InstructionSet]


X86 = {
    "avx512": InstructionSet("x86_64_v4", 16, ("-mprefer-vector-width=512",)),
    "avx2": InstructionSet("x86_64_v3", 8),
    "baseline": InstructionSet("x86_64", 4),
}
ARM = {"neon": InstructionSet("generic", 8)}  # two registers of the 32 for a vector
TARGETS = {
    "linux-x86_64": Target("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", "so", X86),
    "linux-aarch64": Target("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", "so", ARM),
    "macos-arm64": Target("aarch64-macos.11.0", "macosx_11_0_arm64", "dylib", ARM),
    "windows-x86_64": Target("x86_64-windows-gnu", "win_amd64", "dll", X86),
}
SYSTEMS = {"Darwin": "macos"}
MACHINES = {"amd64": "x86_64"}


class KernelBuildHook(BuildHookInterface[Any]):
    """Adds the kernels to a wheel, or puts them beside their sources for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build for LIESPARSE_PLATFORM or this machine; a platform that is not listed gets a wheel without kernels."""
        target = TARGETS.get(os.environ.get("LIESPARSE_PLATFORM") or this_platform())
        if target is None:
            self.app.display_warning("No kernels for this platform: torch does their work, several times slower.")
            return
        root = Path(self.root)
        editable = version == "editable"
        self._folder = tempfile.TemporaryDirectory(prefix="liesparse-kernels-")
        folder = root / KERNELS if editable else Path(self._folder.name)
        if editable and is_fresh(target, folder):
            return  # installers ask twice
        built = build(target, root / KERNELS, folder)
        if not editable:
            inside = KERNELS.relative_to("src")
            build_data["force_include"] |= {str(path): str(inside / path.name) for path in built}
            build_data["tag"] = f"py3-none-{target.tag}"
            build_data["pure_python"] = False


def this_platform() -> str:
    """Name this machine as the keys of ``TARGETS`` do."""
    system, machine = platform.system(), platform.machine().lower()
    return f"{SYSTEMS.get(system, system.lower())}-{MACHINES.get(machine, machine)}"


def is_fresh(target: Target, folder: Path) -> bool:
    """Tell whether every kernel is there and newer than its sources."""
    built = [folder / f"{name}.{target.suffix}" for name in target.kernels]
    sources = [*folder.glob("*.c"), Path(__file__)]
    newest = max(path.stat().st_mtime for path in sources)
    return all(path.exists() and path.stat().st_mtime > newest for path in built)


def build(target: Target, sources: Path, folder: Path) -> list[Path]:
    """Compile every kernel of a target into ``folder``."""
    with tempfile.TemporaryDirectory(prefix="liesparse-zig-") as cache, ThreadPoolExecutor(2) as pool:
        environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}

        def compile_one(name: str) -> Path:
            cpu, lane, flags = target.kernels[name]
            path = folder / f"{name}.{target.suffix}"
            compiler = (sys.executable, "-m", "ziglang", "cc", "-target", target.triple, f"-mcpu={cpu}")
            command = [*compiler, *FLAGS, *flags, f"-DLANE={lane}", str(sources / "kernel.c"), "-o", str(path)]
            subprocess.run(command, check=True, env=environment)
            return path

        return list(pool.map(compile_one, target.kernels))
