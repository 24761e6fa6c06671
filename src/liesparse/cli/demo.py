"""``liesparse demo``: watch the model discover ten digits and two-dimensional translation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from liesparse.reproduce.demo import DemoResult
    from liesparse.state import Progress as Learning


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model, metrics.json and the picture.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed: same seed, same numbers.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images.")] = 10,
    images: Annotated[int, typer.Option(min=1000, help="Training images to make.")] = 30_000,
) -> None:
    """Learn ten digits and 2-D translation from unlabelled images, in a few minutes."""
    from liesparse.estimators import LieSparseCoder
    from liesparse.figures import to_png
    from liesparse.files import write_atomically
    from liesparse.reproduce.demo import DemoSettings, run_demo
    from liesparse.run_directory import Run, save_run
    from liesparse.training import Interrupted

    console = Console(soft_wrap=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.print(f"Cannot write to {out}: {error.strerror}. Pass another folder with --out.", style="red")
        raise typer.Exit(1) from None
    settings = DemoSettings(n_images=images, n_epochs=epochs, seed=seed)
    console.print(f"Making {images:,} images of ten digits shifted by up to 7 pixels; nobody tells the model so.")
    watcher = _Watcher(console, epochs)
    how = {"data": f"translation:n={images},seed={seed}", "recipe": "best", "seed": seed, "epochs": epochs}
    try:
        with watcher.progress:
            result = run_demo(settings, report=watcher)
    except Interrupted as stopped:
        state, history = stopped.checkpoint.state, stopped.checkpoint.history
        coder = LieSparseCoder.from_model(state.parameters, (28, 28), history=history, random_state=seed)
        save_run(Run(out, coder, None, how | {"interrupted_at_step": state.step}, {}))
        console.print(f"Stopped at step {state.step}; the model so far is in {out}.")
        raise typer.Exit(130) from None
    try:
        save_run(Run(out, result.coder, result.baseline, how, result.metrics))
        write_atomically(out / "demo.png", to_png(result.figure))
    except OSError as error:
        _print_result(console, result)
        console.print(f"Cannot write to {out}: {error.strerror}. Free some space, or pass another --out.", style="red")
        raise typer.Exit(1) from None
    _print_result(console, result)
    console.print(f"Look at {out / 'demo.png'}; the run is beside it. Next: liesparse report {out}")


class _Watcher:
    """Draws the progress bar in a terminal, or one line for each epoch elsewhere."""

    def __init__(self, console: Console, n_epochs: int) -> None:
        self.console, self.n_epochs = console, n_epochs
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

    def __call__(self, learning: Learning, history: list[dict[str, Any]]) -> None:
        snr = f"{history[-1]['snr']:.1f}" if history else "-"
        active = f"{history[-1]['active_codes']:.1f}" if history else "-"
        epoch = f"{learning.epoch}/{self.n_epochs}"
        self.progress.update(
            self.task, completed=learning.step, total=learning.n_steps, epoch=epoch, snr=snr, active=active
        )
        if self.progress.disable and learning.end_of_epoch:
            self.console.print(f"epoch {epoch}: SNR {snr}, active codes {active}")


def _print_result(console: Console, result: DemoResult) -> None:
    metrics = result.metrics
    table = Table(title=f"Held-out reconstruction of {metrics['n_test_images']:,} images")
    for column in ("", "SNR", "active codes"):
        table.add_column(column, justify="right" if column else "left")
    for name, key in (("Lie Group Sparse Coding", "lsc"), ("plain sparse coding", "sparse_coding")):
        table.add_row(name, f"{metrics[f'{key}_snr']:.1f}", f"{metrics[f'{key}_active_codes']:.1f}")
    console.print(table)
    console.print(f"Took {metrics['total_seconds']:.0f} s.")
