"""``liesparse train``: your own images in, a model out; ``liesparse demo``: the same with images it makes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from liesparse.cli import common
from liesparse.cli.common import DataArgument, DataDir, EpochsOption, JsonOption, SetOption, console, explained

if TYPE_CHECKING:
    from liesparse.data import LoadedData
    from liesparse.estimators import LieSparseCoder
    from liesparse.parallel import Group
    from liesparse.state import Progress

TRUSTED = 50  # effective sample size below which the integrals are not; docs/engines.md
METRICS = {"snr": ("SNR", ".2f"), "active_codes": ("active codes", ".2f"), "log_likelihood": ("ln P(I | α̂)", ".1f")}


def train(
    data: DataArgument,
    out: Annotated[Path, Option(help="Folder for the run.")],
    recipe: Annotated[str, Option(help="best, paper, or a TOML file.")] = "best",
    values: SetOption = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in the folder.")] = False,
    components: Annotated[int, Option(min=1, help="Shapes in the dictionary.")] = 10,
    irreps: Annotated[int | None, Option(min=1, help="Rotation planes; as many as fit, up to 128.")] = None,
    group: Annotated[
        str,
        Option(help="learned; or known: translation, rotation, shift (of signals); or two, as translation@rotation."),
    ] = "learned",
    torus_dim: Annotated[int, Option(min=1, max=6, help="How many transformations at once.")] = 2,
    multiplicity: Annotated[int | None, Option(min=1, help="Planes for each frequency; 2 for handwriting.")] = None,
    sparsity: Annotated[float, Option(min=0, help="Rate of the prior on the codes.")] = 10.0,
    noise_std: Annotated[
        float | None, Option(min=1e-6, help="Pixel noise of an image of norm 1.", show_default="from the images")
    ] = None,
    epochs: EpochsOption = None,
    seed: Annotated[int, Option(min=0, help="Random seed: same seed, same numbers.")] = 0,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:1; auto is CUDA if there is any.")] = "auto",
    data_dir: DataDir = None,
    json: JsonOption = None,
) -> None:
    """Learn shapes and transformations from DATA and write the run to a folder.

    Ctrl-C finishes the step and saves. The same command with --resume continues the run; the result is byte-identical.
    After `torchrun --nproc-per-node 2 -m liesparse` two processes share each batch.
    """
    from liesparse import LieSparseCoder, devices, groups, load_recipe, run_directory
    from liesparse._checks import check_choice
    from liesparse.recipes import parse_values

    with explained(code=2):  # wrong use
        settings = parse_values(values or [])
        load_recipe(recipe).with_values(settings)
        devices.choose_device(device)
        check_choice("--group", group, (*groups.NAMES, *groups.COMPOSED))
    model: dict[str, Any] = {"n_irreps": irreps or "auto", "torus_dim": torus_dim, "group": group}
    model |= {"multiplicity": multiplicity or "auto", "sparsity": sparsity, "noise_std": noise_std or "auto"}
    how: dict[str, Any] = {"recipe": recipe, "n_epochs": epochs, "settings": settings or None, "random_state": seed}
    coder = LieSparseCoder(components, checkpoint_dir=out / run_directory.CHECKPOINTS, device=device, **model, **how)
    metrics = _train(coder, data, out, resume=resume, data_dir=data_dir)
    if metrics is not None:  # else another process has them
        common.write_numbers(metrics, json)
        print_metrics(metrics)
        print_verdict(coder)
        console.print(f"The run is in {out}. Next: liesparse report {out}")


def _train(
    coder: LieSparseCoder, data: str, out: Path, *, resume: bool, data_dir: Path | None
) -> dict[str, Any] | None:
    """Learn and write a run; of several processes the first one does so, and has numbers to show."""
    from liesparse import SparseCoder, checkpoint, parallel, run_directory
    from liesparse.data import load_data

    checkpoints = out / run_directory.CHECKPOINTS
    with parallel.join() as group, explained(group=group):  # inside, they can agree on who prints
        if group.rank == 0:
            begun = bool(checkpoint.list_checkpoints(checkpoints))
            if not resume and (begun or (out / run_directory.MODEL).exists()):
                raise ValueError(f"{out} already holds a run. Add --resume to continue it, or choose another --out.")
            if resume and not begun:
                raise ValueError(f"{out} holds no run to continue. Leave --resume away to start one.")
            check_writable(checkpoints)
        loaded = load_data(data, data_dir=data_dir, group=group)
        console.print(loaded.summary() + (f"; {group.size} processes" if group.size > 1 else ""))
        began = time.monotonic()
        _learn(coder, loaded, group)
        if group.rank > 0:
            return None
        seconds = time.monotonic() - began
        some = f"{len(loaded.train):,} of the" if loaded.stream else "the same"
        console.print(f"Plain sparse coding with {some} images, to compare with …")
        shared = {name: getattr(coder, name) for name in ("n_components", "sparsity", "random_state")}
        shared["noise_std"] = coder.model_.noise_std
        baseline = SparseCoder(n_epochs=5, **shared).fit(loaded.train.reshape(-1, *loaded.image_shape))
        metrics = run_directory.measure(coder, baseline, loaded.test) | {"training_seconds": round(seconds, 1)}
        how = {"data": data, "data_summary": loaded.summary(), "recipe": coder.recipe, "seed": coder.random_state}
        how |= {"settings": coder.settings or {}, "epochs": coder.n_epochs}
        run_directory.save_run(run_directory.Run(out, coder, baseline, how, metrics))
    return metrics


def check_writable(folder: Path) -> None:
    """Find out before hours of training whether a folder can be written, and leave nothing behind."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"Cannot write to {folder}: {error.strerror}. Choose another folder with --out.") from None
    for place in made:
        place.rmdir()


def _learn(coder: LieSparseCoder, loaded: LoadedData, group: Group) -> None:
    from liesparse import training

    recipe, n_images = coder.effective_recipe(), None if loaded.stream else len(loaded.train)
    n_epochs = recipe.learning.resolve(coder.n_components, n_images).n_epochs
    columns = ("epoch", "SNR", "active", "alive", "objective", "width", "multimodal", "|WᵀW-1|")
    console.print("{:>7} {:>8} {:>7} {:>6} {:>10} {:>7} {:>11} {:>9}".format(*columns))
    with common.ProgressBar("learning") as bar:
        if recipe.start == "pairs" and coder.group == "learned":
            bar.show(common.FIRST_THE_MOTION, line=True)

        def watch(progress: Progress) -> None:
            health = coder.history_[-1] if coder.history_ else None
            epoch, snr = f"{progress.epoch}/{n_epochs}", f"{health['snr']:.1f}" if health else "-"
            bar.show(f"epoch {epoch}: SNR {snr}", progress.step, progress.n_steps)
            if progress.end_of_epoch and health and health["epoch"] == progress.epoch:
                console.print(
                    f"{epoch:>7} {health['snr']:8.2f} {health['active_codes']:7.2f} {health['templates_alive']:6d} "
                    f"{health['objective']:10.1f} {health['posterior_width']:7.3f} {health['multimodal_share']:11.0%} "
                    f"{health['orthonormality_error']:9.0e}"
                )

        images = loaded.stream or loaded.train.reshape(-1, *loaded.image_shape)
        try:
            coder.set_params(callbacks=[watch]).fit(images, group=group)
        except training.Interrupted as stopped:
            message = str(stopped).replace(training.GO_ON, "The same command with --resume goes on from there.")
            raise KeyboardInterrupt(message) from None
    coder.set_params(callbacks=None, checkpoint_dir=None)


def print_verdict(coder: LieSparseCoder) -> None:
    """Say whether learning found a motion, where somebody looked."""
    if coder.verdict_ is not None:
        console.print(str(coder.verdict_), style="bold" if coder.verdict_.found else "bold yellow")


def print_metrics(metrics: dict[str, Any]) -> None:
    """Show the model beside plain sparse coding."""
    rows = [
        (name, *(format(metrics[f"{method}_{key}"], digits) for key, (_, digits) in METRICS.items()))
        for name, method in (("Lie Group Sparse Coding", "lsc"), ("plain sparse coding", "sparse_coding"))
        if f"{method}_snr" in metrics
    ]
    head = ("", *(column for column, _ in METRICS.values()))
    common.print_table(f"{metrics['n_test_images']:,} held-out images", head, rows)
    size = metrics.get("least_effective_sample_size", TRUSTED)
    if size < TRUSTED:
        console.print(
            f"Do not trust the integrals over the pose: the least effective sample size is {size:.0f}, "
            f"below {TRUSTED}. Train with --torus-dim 2, which needs no sampling, or with a larger --noise-std."
        )


def demo(
    out: Annotated[Path, Option(help="Folder for the model, metrics.json and the picture.")] = Path("runs/demo"),
    seed: Annotated[int, Option(min=0, help="Random seed: same seed, same numbers.")] = 0,
    epochs: Annotated[int, Option(min=1, help="Passes over the images.")] = 10,
    images: Annotated[int, Option(min=100, help="Training images to make.")] = 30_000,
) -> None:
    """Learn ten digits and 2-D translation from unlabelled images, in a few minutes."""
    from liesparse import LieSparseCoder, figures, files
    from liesparse.reproduce.figures import run_demo
    from liesparse.run_directory import Run, save_run
    from liesparse.training import Interrupted

    check_writable(out)
    console.print(f"Making {images:,} images of ten digits shifted by up to 7 pixels; nobody tells the model so.")
    how = {"data": f"translation:n={images},seed={seed}", "recipe": "best", "seed": seed, "epochs": epochs}
    with common.ProgressBar("learning") as bar:
        bar.show(common.FIRST_THE_MOTION, line=True)

        def watch(progress: Progress, history: list[dict[str, Any]]) -> None:
            note = f"epoch {progress.epoch}/{epochs}"
            if history:
                note += f": SNR {history[-1]['snr']:.1f}, active codes {history[-1]['active_codes']:.1f}"
            bar.show(note, progress.step, progress.n_steps, line=progress.end_of_epoch)

        try:
            result = run_demo(images, epochs, seed, callback=watch)
        except Interrupted as stopped:
            state, history = stopped.checkpoint.state, stopped.checkpoint.history
            coder = LieSparseCoder.from_model(state.parameters, (28, 28), history=history, random_state=seed)
            save_run(Run(out, coder, None, how | {"interrupted_at_step": state.step}, {}))
            raise KeyboardInterrupt(f"Stopped at step {state.step}; the model so far is in {out}.") from None
    print_metrics(result.metrics)
    print_verdict(result.coder)
    console.print(f"Took {result.metrics['total_seconds']:.0f} s.")
    save_run(Run(out, result.coder, result.baseline, how, result.metrics))
    files.write_atomically(out / "demo.png", figures.to_png(result.figure))
    console.print(f"Look at {out / 'demo.png'}; the run is beside it. Next: liesparse report {out}")
