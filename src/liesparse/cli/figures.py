"""``liesparse reproduce figures``: the paper's figures, drawn again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from liesparse.reproduce.models import Order, Step, Tell
    from liesparse.reproduce.table1 import Images

FIGURE_ROWS = ("translation", "rotation-scaling", "mnist-10")
FINE = 10_000  # parts of the bar
Made = TypeVar("Made")


def figures(
    rows: Annotated[
        str | None,
        typer.Option(help=f"Data sets, separated by commas: {', '.join(FIGURE_ROWS)}.", show_default="all there are"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the images, instead of the recipe's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed: same seed, same models and examples.")] = 0,
    images: Annotated[int, typer.Option(min=100, max=60_000, help="Training images of each data set.")] = 60_000,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the MNIST idx files.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures; the models are kept in it too.")] = Path(
        "runs/figures"
    ),
) -> None:
    """Draw the paper's figures 1 to 4, as PDF and PNG, from models made or found.

    Learned models are kept in OUT/models and used again. After Ctrl-C the same command goes on where it stopped.
    """
    from dataclasses import replace

    from liesparse.learning import LearningError
    from liesparse.recipes import load_recipe
    from liesparse.reproduce.models import Order
    from liesparse.reproduce.table1 import ROWS
    from liesparse.training import Interrupted

    console = Console(soft_wrap=True)
    names = list(FIGURE_ROWS) if rows is None else list(dict.fromkeys(name.strip() for name in rows.split(",")))
    unknown = [name for name in names if name not in FIGURE_ROWS]
    if unknown:
        console.print(f"No row {unknown[0]!r}. The rows are {', '.join(FIGURE_ROWS)}.", style="red")
        raise typer.Exit(2)
    try:
        (out / "models").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.print(f"Cannot write to {out}: {error.strerror}. Pass another folder with --out.", style="red")
        raise typer.Exit(1) from None
    orders = []
    for name in _rows_with_data(console, names, data_dir, asked=rows is not None):
        recipe, row = load_recipe("best", name), ROWS[name]
        if epochs is not None:
            recipe = recipe.with_values({"learning.n_epochs": epochs})
            row = replace(row, sparse_coding_epochs=epochs)
        orders.append(Order(name, row, recipe, seed, out / "models"))
    try:
        _draw_figures(console, orders, images, data_dir, out)
    except Interrupted as stopped:
        console.print(str(stopped))
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        console.print(f"Stopped. Finished models are in {out / 'models'}; the same command goes on from there.")
        raise typer.Exit(130) from None
    except (OSError, ValueError, LearningError) as error:
        console.print(str(error), style="red")
        raise typer.Exit(1) from None


def _rows_with_data(console: Console, names: list[str], data_dir: Path | None, *, asked: bool) -> list[str]:
    """Leave out the rows without data, or stop if they were asked for: before, not after, the others are learned."""
    from liesparse.data import find_mnist
    from liesparse.reproduce.table1 import ROWS

    there = []
    for name in names:
        try:
            if ROWS[name].data == "mnist":
                find_mnist("train", data_dir)
                find_mnist("test", data_dir)
            there.append(name)
        except FileNotFoundError as error:
            if asked:
                console.print(str(error), style="red")
                raise typer.Exit(1) from None
            console.print(f"Without {name}. {error}")
    return there


def _draw_figures(console: Console, orders: list[Order], n_images: int, data_dir: Path | None, out: Path) -> None:
    from liesparse.figures import to_pdf, to_small_png
    from liesparse.files import write_atomically
    from liesparse.reproduce import figures as work
    from liesparse.reproduce.models import find_or_learn, find_or_learn_dictionary
    from liesparse.reproduce.table1 import load_images

    rows, plain = {}, None
    for order in orders:
        images = load_images(order.row, order.seed, data_dir, n_images)
        model = _Learning(console, order.name).run(find_or_learn, order, images)
        rows[order.name] = work.row_panels(order.name, model, images, order.seed)
        if order.name == work.COMPARED:
            learning = _Learning(console, f"{order.name}, plain sparse coding")
            dictionary = learning.run(find_or_learn_dictionary, order, images)
            plain = work.plain_panels(dictionary, model, images, order.seed)
    for name, figure in work.draw(rows, plain).items():
        write_atomically(out / f"{name}.pdf", to_pdf(figure))
        write_atomically(out / f"{name}.png", to_small_png(figure))
        console.print(f"Wrote {out / name}.pdf and .png")


class _Learning:
    """Draws how far a model is and the time left in a terminal, or one line for each epoch elsewhere."""

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name = console, name
        self.progress = Progress(
            TextColumn("{task.description}: {task.fields[note]}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task: TaskID | None = None  # until there is something to learn

    def __call__(self, step: Step) -> None:
        done = round(step.share * FINE)
        if self.task is None:
            self.task = self.progress.add_task(self.name, total=FINE, completed=done, note=step.note)
        self.progress.update(self.task, completed=done, note=step.note)
        if self.progress.disable and step.end_of_epoch:
            self.console.print(f"{self.name}: {step.note}")

    def run(self, work: Callable[[Order, Images, Tell], Made], order: Order, images: Images) -> Made:
        """Find or learn, and say which."""
        with self.progress:
            made = work(order, images, self)
        if self.task is None:
            self.console.print(f"{self.name}: found, not learned again")
        return made
