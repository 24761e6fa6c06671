"""``liesparse train``: your own images in, a model out; ``liesparse demo``: the same with images it makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from liesparse.cli import common
from liesparse.cli.common import DataArgument, DataDir, EpochsOption, JsonOption, SetOption, console, count, explained

if TYPE_CHECKING:
    from liesparse.data import LoadedData
    from liesparse.estimators import LieSparseCoder
    from liesparse.parallel import Group
    from liesparse.state import Progress

TRUSTED = 50  # effective sample size below which the integrals are not; docs/engines.md
OPTIONS = ("n_components", "n_irreps", "group", "torus_dim", "multiplicity", "sparsity", "noise_std")
METRICS = {
    "Lie Group Sparse Coding": ("lsc_snr_exact_map", "lsc_active_codes_exact_map", "lsc_evidence"),
    "plain sparse coding": ("sparse_coding_snr", "sparse_coding_active_codes", "sparse_coding_evidence"),
    "with as many free numbers": ("large_baseline_snr", "large_baseline_active_codes", "large_baseline_evidence"),
}
EXPLAINED = """\
SNR: a picture's energy over that of what is left of it. Evidence: ln P(I|α̂) less what the codes cost, in nats an image,
with the noise that the best of the three leaves. More is better in both. Codes: at the maximum of P(α|I), as infer and
the report have them. The epochs above and the verdict below are of other pictures, kept out of learning, and of codes
after the paper's 20 steps; by these"""


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
    """Learn shapes and motions from DATA, and write the run.

    Ctrl-C finishes the step and saves. The same command with --resume continues the run; the result is byte-identical.
    After `torchrun --nproc-per-node 2 -m liesparse` two processes share each batch.
    """
    from liesparse import LieSparseCoder, devices, groups, load_recipe, run_directory
    from liesparse._checks import check_choice
    from liesparse.settings import parse_values

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
        print_verdict(coder, metrics)
        console.print(f"The run is in {out}. Next: liesparse report {out}")


def _train(
    coder: LieSparseCoder, data: str, out: Path, *, resume: bool, data_dir: Path | None
) -> dict[str, Any] | None:
    """Learn and write a run; of several processes the first one does so, and has numbers to show."""
    from liesparse import SparseCoder, checkpoint, files, parallel, run_directory, verdict
    from liesparse.data import load_data

    checkpoints = out / run_directory.CHECKPOINTS
    with parallel.join() as group, explained(group=group):  # inside, they can agree on who prints
        if group.rank == 0:
            begun = bool(checkpoint.list_checkpoints(checkpoints))
            if not resume and (begun or (out / run_directory.MODEL).exists()):
                raise ValueError(f"{out} already holds a run. Add --resume to continue it, or choose another --out.")
            if resume and not begun:
                raise ValueError(f"{out} holds no run to continue. Leave --resume away to start one.")
            if resume:
                _check_same_options(out, run_directory.read_json(out / run_directory.SETTINGS), _options(coder, data))
            common.check_writable(checkpoints)
        loaded = load_data(data, data_dir=data_dir, group=group)
        console.print(loaded.summary() + (f"; {group.size} processes" if group.size > 1 else ""))
        if group.rank == 0 and (warning := verdict.warn_of_ground(loaded.train, loaded.image_shape)):
            console.print(warning, style="yellow")
        began = time.monotonic()
        # As soon as it learns, so that to continue it by other options can be refused.
        _learn(coder, loaded, group, lambda: files.write_json(out / run_directory.SETTINGS, _options(coder, data)))
        if group.rank > 0:
            return None
        seconds = time.monotonic() - began
        some = f"{len(loaded.train):,} of the" if loaded.stream else "the same"
        console.print(f"Plain sparse coding with {some} images, to compare with …")
        shared = {name: getattr(coder, name) for name in ("n_components", "sparsity", "random_state")}
        shared["noise_std"] = coder.model_.noise_std
        baseline = SparseCoder(n_epochs=5, **shared).fit(loaded.train.reshape(-1, *loaded.image_shape))
        large = None
        if coder.plain_dictionary_ is not None:  # found with the verdict
            known = {name: shared[name] for name in ("sparsity", "noise_std")}
            large = SparseCoder.from_dictionary(coder.plain_dictionary_, loaded.image_shape, **known)
        metrics = run_directory.measure(coder, baseline, loaded.test, large_baseline=large)
        metrics["training_seconds"] = round(seconds, 1)
        how = _options(coder, data) | {"data_summary": loaded.summary()}
        run_directory.save_run(run_directory.Run(out, coder, baseline, how, metrics, large))
    return metrics


def _options(coder: LieSparseCoder, data: str) -> dict[str, Any]:
    """Return what a run was asked for, as ``run.json`` keeps it."""
    named = {name: getattr(coder, name) for name in OPTIONS} | dict(coder.settings or {})
    how = {"data": data, "recipe": str(coder.recipe), "seed": coder.random_state}
    return how | {"settings": named, "epochs": coder.n_epochs}


def _check_same_options(out: Path, begun: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue a run by other options than it was started with, and name them.

    The same images may have two names: where only DATA differs, training itself compares what is in them.
    """

    def flat(how: dict[str, Any]) -> dict[str, Any]:
        settings = how.get("settings")
        return {f"--{name}": how.get(name) for name in ("recipe", "seed", "epochs")} | {
            f"--{name.removeprefix('n_').replace('_', '-')}" if name in OPTIONS else f"--set {name}": value
            for name, value in (settings.items() if isinstance(settings, dict) else ())
        }

    before, now = flat(begun), flat(wanted)
    others = [name for name in sorted({**before, **now}) if before.get(name) != now.get(name)] if begun else []
    if others and begun.get("data") != wanted["data"]:
        before, now, others = before | {"DATA": begun.get("data")}, now | {"DATA": wanted["data"]}, ["DATA", *others]
    if others:
        said = [", ".join(f"{name} {_told(how.get(name))}" for name in others) for how in (before, now)]
        raise ValueError(
            f"{out} was started with {said[0]}; now it is {said[1]}. Give the same options to continue it, or choose "
            "another --out."
        )


def _told(value: Any) -> str:
    return "left away" if value in (None, "auto") else str(value)


def _learn(coder: LieSparseCoder, loaded: LoadedData, group: Group, note_options: Callable[[], None]) -> None:
    from liesparse import training

    recipe, n_train = coder.effective_recipe(), len(loaded.train)
    n_images = None if loaded.stream else n_train - training.count_monitored(n_train)
    n_epochs = recipe.learning.resolve(coder.n_components, n_images).n_epochs
    columns = ("epoch", "SNR", "active", "alive", "objective", "width", "multimodal", "images/s", "left")
    console.print("{:>7} {:>8} {:>7} {:>6} {:>10} {:>7} {:>11} {:>9} {:>7}".format(*columns))
    with common.ProgressBar("learning") as bar:
        began, first, done = 0.0, 0, 0

        def watch(progress: Progress) -> None:
            nonlocal began, first, done
            if not began:  # what came before was the motion, or an earlier run
                began, first = time.monotonic(), progress.step
                if group.rank == 0:
                    note_options()
            done += len(progress.codes) * group.size * (progress.step > first)
            speed = done / max(time.monotonic() - began, 1e-9)
            health = coder.history_[-1] if coder.history_ else None
            epoch, snr = f"{progress.epoch}/{n_epochs}", f"{health['snr']:.1f}" if health else "-"
            bar.show(f"epoch {epoch}: SNR {snr}, {speed:,.0f} images/s", progress.step, progress.n_steps)
            if progress.end_of_epoch and health and health["epoch"] == progress.epoch:
                pace = (time.monotonic() - began) / max(progress.step - first, 1)
                left = "-"
                if progress.n_steps is not None:
                    minutes, seconds = divmod(int(pace * (progress.n_steps - progress.step)), 60)
                    left = f"{minutes}:{seconds:02d}"
                console.print(
                    f"{epoch:>7} {health['snr']:8.2f} {health['active_codes']:7.2f} {health['templates_alive']:6d} "
                    f"{health['objective']:10.1f} {health['posterior_width']:7.3f} {health['multimodal_share']:11.0%} "
                    f"{speed:9,.0f} {left:>7}"
                )

        images = loaded.stream or loaded.train.reshape(-1, *loaded.image_shape)
        try:
            with common.show_start(bar):
                coder.set_params(callbacks=[watch]).fit(images, group=group)
        except training.Interrupted as stopped:
            message = str(stopped).replace(training.GO_ON, "The same command with --resume goes on from there.")
            raise KeyboardInterrupt(message) from None
        except KeyboardInterrupt:
            kept = "The same command with --resume goes on." if began else "Nothing was learned yet: start again."
            raise KeyboardInterrupt(f"Stopped. {kept}") from None
    coder.set_params(callbacks=None, checkpoint_dir=None)


def print_verdict(coder: LieSparseCoder, metrics: dict[str, Any]) -> None:
    """Say whether learning found a motion, where somebody looked, and which one, where it has a name."""
    if coder.verdict_ is not None:
        console.print(str(coder.verdict_), style="bold" if coder.verdict_.found else "bold yellow")
    if "motion" in metrics:
        console.print(metrics["motion"], style="bold")


def print_metrics(metrics: dict[str, Any]) -> None:
    """Show the model beside plain sparse coding with as many templates, and with as many free numbers."""
    rows = []
    for name, keys in METRICS.items():
        if all(key in metrics for key in keys):
            values = [metrics[key] for key in keys]
            shapes = metrics.get(keys[0].replace("_snr", "_components"))
            shown = f"{name}, {count(shapes, 'template')}" if shapes else name
            rows.append((shown, f"{values[0]:.2f}", f"{values[1]:.2f}", f"{values[2]:.1f}"))
    head = ("", "SNR", "active codes", "evidence")
    common.print_table(count(metrics["n_test_images"], "held-out image"), head, rows)
    others = [metrics[keys[2]] for keys in list(METRICS.values())[1:] if keys[2] in metrics]
    if others and metrics["lsc_evidence"] < max(others):
        console.print("By evidence, shapes that do not move explain these images better.", style="yellow")
        if metrics.get("verdict_found"):
            console.print(
                "The verdict is of other images: there the shapes that move do better. So it is a close call."
            )
    console.print(EXPLAINED.replace("\n", " ") + f" the SNR of the table would be {metrics['lsc_snr']:.2f}.")
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
    """Learn ten digits and their shifts from unlabelled images."""
    from liesparse import LieSparseCoder, figures, files
    from liesparse.data import load_data
    from liesparse.reproduce.figures import run_demo
    from liesparse.run_directory import MODEL, Run, save_run
    from liesparse.training import Interrupted

    common.check_writable(out)
    console.print(f"Making {images:,} images of ten digits shifted by up to 7 pixels; nobody tells the model so.")
    how = {"data": f"translation:n={images},seed={seed}", "recipe": "best", "seed": seed, "epochs": epochs}
    with common.ProgressBar("learning") as bar:

        def watch(progress: Progress, history: list[dict[str, Any]]) -> None:
            note = f"epoch {progress.epoch}/{epochs}"
            if history:
                note += f": SNR {history[-1]['snr']:.1f}, active codes {history[-1]['active_codes']:.1f}"
            bar.show(note, progress.step, progress.n_steps, line=progress.end_of_epoch)

        try:
            with common.show_start(bar):
                coder, baseline, metrics, figure = run_demo(images, epochs, seed, callback=watch)
        except Interrupted as stopped:
            state, history = stopped.checkpoint.state, stopped.checkpoint.history
            coder = LieSparseCoder.from_model(state.parameters, (28, 28), history=history, random_state=seed)
            if (out / MODEL).exists():
                raise KeyboardInterrupt(f"Stopped at step {state.step}; {out} still has its earlier run.") from None
            save_run(Run(out, coder, None, how | {"interrupted_at_step": state.step}, {}))
            raise KeyboardInterrupt(f"Stopped at step {state.step}; the model so far is in {out}.") from None
    print_metrics(metrics)
    print_verdict(coder, metrics)
    console.print(f"Took {metrics['total_seconds']:.0f} s.")
    coder.pose_ranges_ = coder.pose_ranges(load_data(f"{how['data']},n_test=1000").test)
    save_run(Run(out, coder, baseline, how, metrics))
    files.write_atomically(out / "demo.png", figures.to_png(figure))
    console.print(f"Look at {out / 'demo.png'}; the run is beside it. Next: liesparse report {out}")
