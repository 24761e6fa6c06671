"""``liesparse train``: your own images in, a model out."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from liesparse.cli.common import explained, fail, make_console, make_progress, write_numbers

if TYPE_CHECKING:
    from liesparse.data import LoadedData
    from liesparse.estimators import LieSparseCoder, SparseCoder
    from liesparse.parallel import Group
    from liesparse.state import Progress as Learning

TRUSTED = 50  # effective sample size below which the integrals are not; docs/engines.md
DataArgument = Annotated[str, typer.Argument(metavar="DATA", help="A name (`liesparse data list`) or a path.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with the files of MNIST or Fashion-MNIST.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file, - for the screen.")]


def train(
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    recipe: Annotated[str, typer.Option(help="best, paper, or a TOML file.")] = "best",
    values: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value of the recipe, as learning.em_rate=0.05.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    components: Annotated[int, typer.Option(min=1, help="Shapes in the dictionary.")] = 10,
    irreps: Annotated[int | None, typer.Option(min=1, help="Rotation planes; as many as fit, up to 128.")] = None,
    torus_dim: Annotated[int, typer.Option(min=1, max=6, help="How many transformations at once.")] = 2,
    multiplicity: Annotated[int, typer.Option(min=1, help="Planes for each frequency; 2 for handwriting.")] = 1,
    sparsity: Annotated[float, typer.Option(min=0, help="Rate of the prior on the codes.")] = 10.0,
    noise_std: Annotated[float, typer.Option(min=1e-6, help="Pixel noise of an image of norm 1.")] = 0.1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the images, instead of the recipe's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed: same seed, same numbers.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1; auto is CUDA if there is any.")] = "auto",
    data_dir: DataDir = None,
    json: JsonOption = None,
) -> None:
    """Learn shapes and transformations from DATA and write the run to a folder.

    Ctrl-C finishes the step and saves; the same command with --resume goes on from there, to the same bits.
    After `torchrun --nproc-per-node 2 -m liesparse` it learns in two processes as in one.
    """
    from liesparse.data import load_data
    from liesparse.devices import choose_device
    from liesparse.estimators import LieSparseCoder
    from liesparse.parallel import join
    from liesparse.recipes import load_recipe, parse_values
    from liesparse.run_directory import CHECKPOINTS, Run, measure, save_run

    console = make_console(quiet=str(json) == "-")
    with explained(console, code=2):  # wrong use
        settings = parse_values(values or [])
        load_recipe(recipe).with_values(settings)
        choose_device(device)
    with explained(console), join() as group, explained(console):  # twice: joining may fail as well
        if group.rank == 0:
            _check_folder(console, out, resume=resume)
        loaded = load_data(data, data_dir=data_dir)
        console.print(loaded.summary() + (f"; {group.size} processes" if group.size > 1 else ""), markup=False)
        began = time.monotonic()
        coder = LieSparseCoder(
            components,
            n_irreps=irreps or "auto",
            torus_dim=torus_dim,
            multiplicity=multiplicity,
            sparsity=sparsity,
            noise_std=noise_std,
            recipe=recipe,
            n_epochs=epochs,
            settings=settings or None,
            checkpoint_dir=out / CHECKPOINTS,
            device=device,
            random_state=seed,
        )
        _learn(console, coder, loaded, group)
        if group.rank > 0:
            return  # the first process does the rest
        seconds = time.monotonic() - began
        coder.set_params(checkpoint_dir=None)
        some = f"{len(loaded.train):,} of the" if loaded.stream else "the same"
        console.print(f"Plain sparse coding with {some} images, to compare with …")
        baseline = learn_baseline(loaded, components, sparsity, noise_std, seed)
        metrics = measure(coder, baseline, loaded.test) | {"training_seconds": round(seconds, 1)}
        how = {"data": data, "data_summary": loaded.summary(), "recipe": recipe, "seed": seed}
        save_run(Run(out, coder, baseline, how | {"settings": settings, "epochs": epochs}, metrics))
        write_numbers(metrics, json)
    print_metrics(console, metrics)
    console.print(f"The run is in {out}. Next: liesparse report {out}", markup=False)


def _check_folder(console: Console, out: Path, *, resume: bool) -> None:
    from liesparse.checkpoint import list_checkpoints
    from liesparse.run_directory import CHECKPOINTS, MODEL

    begun = bool(list_checkpoints(out / CHECKPOINTS))
    if not resume and (begun or (out / MODEL).exists()):
        raise fail(console, f"{out} already holds a run. Add --resume to go on with it, or choose another --out.")
    if resume and not begun:
        raise fail(console, f"{out} holds no run to go on with. Leave --resume away to start one.")
    _check_writable(out / CHECKPOINTS)


def _check_writable(folder: Path) -> None:
    """Find out before hours of training, and leave nothing behind."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    for place in made:
        place.rmdir()


def learn_baseline(loaded: LoadedData, n_components: int, sparsity: float, noise_std: float, seed: int) -> SparseCoder:
    """Learn plain sparse coding from the same images."""
    from liesparse.estimators import SparseCoder

    coder = SparseCoder(n_components, sparsity=sparsity, noise_std=noise_std, n_epochs=5, random_state=seed)
    return coder.fit(loaded.train.reshape(-1, *loaded.image_shape))


def _learn(console: Console, coder: LieSparseCoder, loaded: LoadedData, group: Group) -> None:
    n_epochs = coder.effective_recipe().learning.n_epochs
    columns = ("epoch", "SNR", "active", "alive", "objective", "width", "multimodal", "|WᵀW-1|")
    head = "{:>7} {:>8} {:>7} {:>6} {:>10} {:>7} {:>11} {:>9}".format(*columns)
    with make_progress(console, "epoch {task.fields[epoch]}", "SNR {task.fields[snr]}") as bar:
        task = bar.add_task("", epoch="-", snr="-")

        def watch(progress: Learning) -> None:
            health = coder.history_[-1] if coder.history_ else None
            epoch, snr = f"{progress.epoch}/{n_epochs}", f"{health['snr']:.1f}" if health else "-"
            bar.update(task, completed=progress.step, total=progress.n_steps, epoch=epoch, snr=snr)
            if progress.end_of_epoch and health:
                bar.console.print(_health_line(epoch, health))

        console.print(head)
        images = loaded.stream or loaded.train.reshape(-1, *loaded.image_shape)
        coder.set_params(callbacks=[watch]).fit(images, group=group)
    coder.set_params(callbacks=None)


def _health_line(epoch: str, health: dict[str, Any]) -> str:
    return (
        f"{epoch:>7} {health['snr']:8.2f} {health['active_codes']:7.2f} {health['templates_alive']:6d} "
        f"{health['objective']:10.1f} {health['posterior_width']:7.3f} {health['multimodal_share']:11.0%} "
        f"{health['orthonormality_error']:9.0e}"
    )


def print_metrics(console: Console, metrics: dict[str, Any]) -> None:
    """Show the model beside plain sparse coding."""
    table = Table(title=f"{metrics['n_test_images']:,} held-out images")
    for column in ("", "SNR", "active codes", "ln P(I | α̂)"):
        table.add_column(column, justify="right" if column else "left")
    for name, key in (("Lie Group Sparse Coding", "lsc"), ("plain sparse coding", "sparse_coding")):
        if f"{key}_snr" in metrics:
            figures = metrics[f"{key}_snr"], metrics[f"{key}_active_codes"], metrics[f"{key}_log_likelihood"]
            table.add_row(name, f"{figures[0]:.2f}", f"{figures[1]:.2f}", f"{figures[2]:.1f}")
    console.print(table)
    size = metrics.get("least_effective_sample_size", TRUSTED)
    if size < TRUSTED:
        console.print(
            f"Do not trust the integrals over the pose: the least effective sample size is {size:.0f}, "
            f"below {TRUSTED}. Train with --torus-dim 2, which needs no sampling, or with a larger --noise-std.",
            markup=False,
        )
