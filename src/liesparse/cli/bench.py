"""``liesparse bench``: speed and accuracy on this machine, as ratios measured in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


def bench(
    json: Annotated[Path | None, typer.Option(help="Write all figures to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw how time grows with each size into this PNG file.")] = None,
) -> None:
    """Measure speed, accuracy and memory on this machine, in one or two minutes."""
    from liesparse.figures import growth_figure, to_png
    from liesparse.files import write_atomically, write_json
    from liesparse.reproduce.bench import run_bench

    console = Console(soft_wrap=True)
    with console.status("measuring") as status:
        result = run_bench(report=lambda what: status.update(f"measuring {what}"))
    _print(console, result)
    if json is not None:
        write_json(json, result)
    if plot is not None:
        write_atomically(plot, to_png(growth_figure(result["growth"])))


def _print(console: Console, result: dict[str, Any]) -> None:
    speed = Table(title="FISTA inference of a batch")
    for column in ("shape", "dense ms", "grid ms", "adaptive ms", "grid speed-up", "adaptive / grid"):
        speed.add_column(column, justify="left" if column == "shape" else "right")
    for name in ("paper", "k100", "multiplicity2"):
        row = result[name]
        times = [f"{row[f'{engine}_ms']:.1f}" for engine in ("dense", "grid", "adaptive")]
        speed.add_row(name, *times, f"{row['grid_speedup']:.1f}×", f"{row['adaptive_time_ratio']:.2f}")
    errors = Table(title="Mean relative error of E[R(s)]")
    for column in ("", "sharp", "middle", "flat"):
        errors.add_column(column, justify="right" if column else "left")
    for name, key in (
        ("adaptive", "adaptive_error"),
        ("grid N = 50", "grid50_error"),
        ("grid N = 100", "grid100_error"),
    ):
        errors.add_row(name, *(f"{result[key][label]:.1e}" for label in ("sharp", "middle", "flat")))
    growth = Table(title="Grid inference of a batch as one size grows")
    for column in ("size", "value: ms"):
        growth.add_column(column)
    for size in dict.fromkeys(row["size"] for row in result["growth"]):
        cells = [f"{row['value']}: {row['grid_ms']:.1f}" for row in result["growth"] if row["size"] == size]
        growth.add_row(size, "   ".join(cells))
    kernels = Table(title="Kernels at the paper's shape")
    for column in ("kernel", "grid ms", "adaptive ms", "grid / best", "adaptive / best", "limit fraction"):
        kernels.add_column(column, justify="left" if column == "kernel" else "right")
    for name, row in result["kernels"].items():
        numbers = ("grid_ms", "adaptive_ms", "grid_over_best", "adaptive_over_best", "limit_fraction")
        measured = [] if isinstance(row, str) else [f"{row[number]:.2f}" for number in numbers]
        kernels.add_row(name, *(measured or ["not measured"]))
    for table in (speed, kernels, errors, growth):
        console.print(table)
    shares = ", ".join(f"{part} {result[f'{part}_share']:.0%}" for part in ("inference", "gradients", "stiefel"))
    console.print(f"training step: {result['batch_ms']:.1f} ms by gradients on the grid ({shares}), ", end="")
    console.print(f"{result['best_step']['batch_ms']:.1f} ms by the default recipe")
    console.print(f"limit fraction: {result['limit_fraction']:.2f} at {result['gflops']:.0f} GFLOP/s", end="")
    console.print(f" and {result['ns_per_exponential']:.2f} ns per exponential")
    console.print(f"peak memory of training on 60,000 images: {result['peak_memory_mb']:.0f} MB above the data")
