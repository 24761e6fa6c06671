"""Run the C kernels with sanitizers on random shapes and hostile numbers: ``make sanitize``.

They are built anew into a temporary folder: with gcc by AddressSanitizer and UndefinedBehaviorSanitizer; where there is
no gcc, with zig by traps for undefined behaviour alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "src/liesparse/posterior/kernels"
MARCH = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "baseline": "x86-64"}
CHECKS = "-fsanitize=address,undefined,float-cast-overflow,float-divide-by-zero"
VALUES = (0.0, -0.0, 1.0, 1e-40, 1e-20, 1e3, 1e8, 1e20, 3e38, float("inf"), float("-inf"), float("nan"))


def build(name: str, lane: int, folder: Path) -> str:
    """Compile one kernel with checks, and return which ones it has."""
    options = ["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fno-omit-frame-pointer", f"-DLANE={lane}"]
    target = [str(KERNELS / "kernel.c"), "-o", str(folder / f"{name}.so"), "-lm"]
    if shutil.which("gcc"):
        checks = [CHECKS, "-fno-sanitize-recover=all", "-fno-sanitize=float-divide-by-zero", f"-march={MARCH[name]}"]
        subprocess.run(["gcc", *options, *checks, "-Wno-psabi", *target], check=True)
        return "gcc: addresses and undefined behaviour"
    zig = [sys.executable, "-m", "ziglang", "cc", f"-mcpu={MARCH[name].replace('-', '_')}"]
    subprocess.run([*zig, *options, "-fsanitize=undefined", "-fsanitize-trap=undefined", *target], check=True)
    return "zig: undefined behaviour alone"


def attack(name: str, folder: Path, seed: int, seconds: float) -> int:
    """Call every entry point on inputs that no honest caller has; return how many calls there were."""
    import torch

    from liesparse.lattice import half_lattice
    from liesparse.posterior import AdaptiveEngine, Ascent, GridEngine, SamplingEngine, kernels

    kernels.FOLDER = folder
    torch.set_num_threads(1)
    rng, end, calls = Random(seed), time.monotonic() + seconds, 0

    def numbers(*shape: int) -> torch.Tensor:
        found = torch.randn(*shape, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
        found *= rng.choice((0.01, 1.0, 30.0, 1e4))
        for _ in range(rng.choice((0, 0, 1, 5)) if found.numel() else 0):
            found.view(-1)[rng.randrange(found.numel())] = rng.choice(VALUES)
        return found.fill_(rng.choice(VALUES)) if rng.random() < 0.05 else found

    while time.monotonic() < end:
        n_irreps, batch = rng.choice((1, 2, 3, 7, 16, 33)), rng.choice((0, 1, 2, 3, 4, 5, 9, 17))
        axes = rng.choice((1, 2, 2))
        if rng.random() < 0.5:
            frequencies = half_lattice(axes, n_irreps, multiplicity=rng.choice((1, 1, 2)) if n_irreps > 2 else 1)
        else:
            frequencies = torch.randint(-rng.choice((1, 3, 20)), rng.choice((1, 4, 21)), (n_irreps, axes))
        if rng.random() < 0.25:
            axes = rng.choice((3, 4, 6))
            frequencies = torch.randint(-3, 4, (n_irreps, axes))
            SamplingEngine(frequencies, kernel=name)._kernel.moments(numbers(batch, n_irreps, 2))
            calls += 1
            continue
        grid = rng.random() < 0.5
        n_grid = 2 * rng.choice((1, 2, 3, 5, 16, 25, 51))
        engine = GridEngine(frequencies, n_grid, kernel=name) if grid else AdaptiveEngine(frequencies, kernel=name)
        assert engine.kernel == name
        engine._kernel.moments(numbers(batch, n_irreps, 2))
        n_components = rng.choice((1, 2, 5, 10, 31))
        rates = (rng.choice((0.0, 1e-3, 1.0, 1e30)), rng.choice((0.0, 1.0, 1e9)), rng.choice((1e-12, 0.01, 1e12)))
        flags = {"exact": rng.random() < 0.5, "subgradient": rng.random() < 0.5}
        planes = (numbers(batch, n_irreps, 2), numbers(n_components, n_irreps, 2), numbers(n_irreps, 2))
        step = torch.tensor(rates[0], dtype=torch.float64)
        engine._kernel.ascend(
            numbers(batch, n_components).abs(), Ascent(*planes, rng.choice((1, 3)), step, *rates[1:], **flags)
        )
        calls += 2
    return calls


def main() -> int:
    """Build each kernel that this processor can run, and attack it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each kernel")
    parser.add_argument("--attack", nargs=2, metavar=("KERNEL", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        print(attack(options.attack[0], Path(options.attack[1]), options.seed, 60 * options.minutes), "calls")
        return 0
    from liesparse.posterior.kernels import runnable

    specification = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hatch_build = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(hatch_build)
    failed = []
    with tempfile.TemporaryDirectory(prefix="liesparse-sanitize-") as folder:
        for name in [name for name in runnable() if name in MARCH]:
            how = build(name, hatch_build.X86[name].lane, Path(folder))
            asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
            environment = os.environ | {"OMP_NUM_THREADS": "1", "UBSAN_OPTIONS": "print_stacktrace=1"}
            environment |= {"LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0,abort_on_error=0"}
            command = [sys.executable, __file__, "--attack", name, folder, "--seed", str(options.seed)]
            done = subprocess.run([*command, "--minutes", str(options.minutes)], env=environment, check=False)
            print(f"{name} ({how}): {'clean' if done.returncode == 0 else 'FAILED'}", flush=True)
            failed += [name] * (done.returncode != 0)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
