"""``liesparse demo``: watch the model discover ten digits and two-dimensional translation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from liesparse.reproduce.demo import DemoResult, DemoSettings, Glance


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model, metrics.json and the picture.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed: same seed, same numbers.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images.")] = 10,
    images: Annotated[int, typer.Option(min=1000, help="Training images to make.")] = 30_000,
) -> None:
    """Learn ten digits and 2-D translation from unlabelled images, in a few minutes."""
    from liesparse.checkpoint import save_model, write_atomically, write_json
    from liesparse.figures import to_png
    from liesparse.reproduce.demo import DemoSettings

    console = Console(soft_wrap=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.print(f"Cannot write to {out}: {error.strerror}. Pass another folder with --out.", style="red")
        raise typer.Exit(1) from None
    settings = DemoSettings(n_images=images, n_epochs=epochs, seed=seed)
    console.print(f"Making {images:,} images of ten digits shifted by up to 7 pixels; nobody tells the model so.")
    watcher = _Watcher(console)
    try:
        with watcher.progress:
            result = _run(settings, watcher)
    except KeyboardInterrupt:
        if watcher.last is None:
            raise
        save_model(out / "model.safetensors", watcher.last.parameters, {"interrupted_at_step": watcher.last.step})
        console.print(f"Stopped at step {watcher.last.step}; the model so far is in {out / 'model.safetensors'}.")
        raise typer.Exit(130) from None
    try:
        save_model(out / "model.safetensors", result.parameters, result.metrics)
        write_json(out / "metrics.json", result.metrics)
        write_atomically(out / "demo.png", to_png(result.figure))
    except OSError as error:
        _print_result(console, result)
        console.print(f"Cannot write to {out}: {error.strerror}. Free some space, or pass another --out.", style="red")
        raise typer.Exit(1) from None
    _print_result(console, result)
    console.print(f"Look at {out / 'demo.png'}; the model and metrics.json are beside it.")


class _Watcher:
    """Draws the progress bar in a terminal, or one line for each epoch elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last: Glance | None = None
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("SNR {task.fields[snr]}  active codes {task.fields[active]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("", epoch="-", snr="-", active="-")

    def __call__(self, glance: Glance) -> None:
        new_epoch = self.last is None or glance.held_out is not self.last.held_out
        self.last = glance
        snr = f"{glance.held_out.snr:.1f}" if glance.held_out else "-"
        active = f"{glance.held_out.active_codes:.1f}" if glance.held_out else "-"
        epoch = f"{glance.epoch}/{glance.n_epochs}"
        self.progress.update(
            self.task, completed=glance.step, total=glance.n_steps, epoch=epoch, snr=snr, active=active
        )
        if self.progress.disable and new_epoch and glance.held_out:
            self.console.print(f"epoch {epoch}: SNR {snr}, active codes {active}")


def _run(settings: DemoSettings, watcher: _Watcher) -> DemoResult:
    from liesparse.reproduce.demo import run_demo

    return run_demo(settings, report=watcher)


def _print_result(console: Console, result: DemoResult) -> None:
    metrics = result.metrics
    table = Table(title=f"Held-out reconstruction of {metrics['n_test_images']:,} images")
    for column in ("", "SNR", "active codes"):
        table.add_column(column, justify="right" if column else "left")
    for name, key in (("Lie Group Sparse Coding", "lsc"), ("plain sparse coding", "sparse_coding")):
        table.add_row(name, f"{metrics[f'{key}_snr']:.1f}", f"{metrics[f'{key}_active_codes']:.1f}")
    console.print(table)
    console.print(f"Took {metrics['total_seconds']:.0f} s.")
