"""``liesparse doctor``: see whether everything is here and works."""

from __future__ import annotations

import platform
import time
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.table import Table

from liesparse.cli.common import fail, make_console, write_numbers
from liesparse.cli.train import DataDir, JsonOption

PACKAGES = ("torch", "numpy", "scikit-learn", "matplotlib", "safetensors", "pillow", "pooch", "pyarrow", "fastapi")


def doctor(
    data_dir: DataDir = None,
    test: Annotated[bool, typer.Option(help="Whether to train a small model as a test.")] = True,
    json: JsonOption = None,
) -> None:
    """Show versions, threads, kernel and data, and train a small model as a test (about ten seconds)."""
    console = make_console(quiet=str(json) == "-")
    found = _look(data_dir)
    table = Table(show_header=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    healthy = True
    if test:
        found |= _try(console)
        healthy = bool(found["self_test_passed"])
    write_numbers(found, json)
    if not healthy:
        raise fail(console, "The self-test failed: this installation does not learn what it should. Please report it.")
    console.print("All is well." if test else "Nothing was tried.")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _look(data_dir: Any) -> dict[str, Any]:
    import torch

    from liesparse import __version__
    from liesparse.data import list_datasets
    from liesparse.devices import choose_device
    from liesparse.posterior.kernels import choose

    kernel = choose()
    found: dict[str, Any] = {"liesparse": __version__, "python": platform.python_version()}
    found |= {package: _version(package) for package in PACKAGES}
    found |= {
        "threads": torch.get_num_threads(),
        "device": str(choose_device("auto")),
        "kernel": f"{kernel.library.name if kernel.library else 'torch, several times slower'}: {kernel.reason}",
    }
    return found | {f"data: {source.name}": source.where for source in list_datasets(data_dir)}


def _try(console: Any) -> dict[str, Any]:
    import torch

    from liesparse.data import embedded_digits, translations
    from liesparse.estimators import LieSparseCoder
    from liesparse.metrics import snr

    console.print("Training a small model: four half-size digits, shifted …")
    began = time.monotonic()
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None, :4], 2)[0]
    generator = torch.Generator().manual_seed(0)
    train, held_out = (translations(n, max_shift=3.5, sources=shapes, generator=generator).images for n in (8000, 300))
    settings = {"learning.batch_size": 50, "learning.single_shape_epochs": 2}
    coder = LieSparseCoder(4, n_irreps=40, n_epochs=8, settings=settings, exact_codes=False, random_state=0).fit(train)
    found = float(snr(held_out, coder.reconstruct(held_out)).mean())
    seconds = time.monotonic() - began
    console.print(f"Held-out SNR {found:.1f} (above 8 means that it found the motion), {seconds:.0f} s.")
    return {"self_test_snr": found, "self_test_seconds": round(seconds, 1), "self_test_passed": found > 8}
