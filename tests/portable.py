"""Run the suite under the arithmetic of other processors: ``make test-portable``, or ``--fast`` for its quick part.

Each setting is a process with other environment variables: another kernel, other instructions in torch and in MKL,
one thread or two. All of the suite runs once in each of them, the numeric tests (laws, oracle, unit) three times,
each time with other examples of hypothesis.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMERIC = ("tests/laws", "tests/oracle", "tests/unit")
QUICK = ("tests/laws", "tests/oracle/test_kernels.py", "tests/oracle/test_engines.py", "tests/oracle/test_stiefel.py")
QUICK = (*QUICK, "tests/oracle/test_symmetry.py", "tests/oracle/test_em.py", "tests/unit/test_checkpoint.py")
SETTINGS = {
    "AVX2 kernel": {"LIESPARSE_KERNEL": "avx2"},
    "torch instead of a kernel": {"LIESPARSE_KERNEL": "torch"},
    "torch and MKL with AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "torch without AVX": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}
# The quick part does in one go what may go wrong apart: each setting alone is for the whole.
QUICK_SETTINGS = {
    "AVX2 kernel": SETTINGS["AVX2 kernel"],
    "torch without AVX instead of a kernel": SETTINGS["torch instead of a kernel"] | SETTINGS["torch without AVX"],
    "two threads": SETTINGS["two threads"],
}


def look() -> tuple[list[str], str]:
    """Return the kernels that this processor has, the one that is used first, and the instructions that torch uses."""
    code = "import torch; from liesparse.posterior.kernels import runnable; "
    code += "print(*runnable(), 'torch', torch.backends.cpu.get_cpu_capability())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *kernels, capability = found.stdout.split()
    return kernels, capability.lower()


def run(setting: dict[str, str], tests: tuple[str, ...], seed: int | None) -> bool:
    """Run some tests in their own processes and tell whether they passed."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | setting
    examples = [] if seed is None else [f"--hypothesis-seed={seed}", "--hypothesis-profile=random"]
    workers = max(1, (os.cpu_count() or 1) // int(environment["OMP_NUM_THREADS"]))
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "worksteal", *examples, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


def main() -> int:
    """Run all settings and say how each went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--fast",
        action="store_true",
        help="only the most sensitive numeric tests, once, and only what make test does not run here",
    )
    fast = parser.parse_args().fast
    settings = QUICK_SETTINGS if fast else SETTINGS
    rounds = [(QUICK, None)] if fast else [(("tests",), None), *((NUMERIC, seed) for seed in (1, 2))]
    results = {}
    kernels, capability = look()
    for name, setting in settings.items():
        kernel = setting.get("LIESPARSE_KERNEL", kernels[0])
        if kernel not in kernels:
            results[name] = "not run: this processor cannot"
            continue
        as_it_is = kernel == kernels[0] and setting.get("ATEN_CPU_CAPABILITY", capability) == capability
        if fast and as_it_is and "OMP_NUM_THREADS" not in setting:
            results[name] = "not run: make test has that here"
            continue
        began = time.monotonic()
        passed = all(run(setting, tests, seed) for tests, seed in rounds)
        results[name] = f"{'passed' if passed else 'FAILED'} in {time.monotonic() - began:.0f} s"
    for name, result in results.items():
        print(f"{name}: {result}")
    return int(any("FAILED" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
