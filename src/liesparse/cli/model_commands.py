"""Commands that use a run: ``evaluate``, ``infer``, ``canonicalize``, ``traverse``, ``report``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from liesparse.cli.common import DataDir, JsonOption, ProgressBar, fail, framed, write_numbers
from liesparse.cli.train import print_metrics

if TYPE_CHECKING:
    from torch import Tensor

    from liesparse.data import LoadedData
    from liesparse.run_directory import Run

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `liesparse train` wrote.")]
ImagesArgument = Annotated[str, typer.Argument(metavar="IMAGES", help="A path of images, or a name of a data set.")]
OtherData = Annotated[str | None, typer.Option(help="Other data than the run was trained on.")]
INFERENCE_FORMATS = (".npz", ".csv", ".parquet")
MOVIE_FORMATS = (".gif", ".png", ".mp4")
CHUNK = 1000  # images between two steps of the progress bar


def _open(console: Console, run: Path, data: str | None, data_dir: Path | None) -> tuple[Run, str, LoadedData]:
    """Return a run, the name of its data or of others, and these data."""
    from liesparse.data import check_shape, load_data
    from liesparse.run_directory import load_run

    opened = load_run(run)
    spec = data or opened.settings.get("data")
    if not spec:
        raise fail(console, f"{run} does not say what it was trained on. Pass --data.", 2)
    return opened, str(spec), check_shape(load_data(str(spec), data_dir=data_dir), opened.coder.image_shape_)


def _chunks(console: Console, images: Tensor) -> Iterator[Tensor]:
    """Yield images some at a time, and show how many are done."""
    with ProgressBar(console, "images") as bar:
        done = 0
        for chunk in images.split(CHUNK):
            yield chunk
            done += len(chunk)
            bar.update(f"{done:,} of {len(images):,}", done, len(images))


def _check_suffix(console: Console, out: Path, known: tuple[str, ...]) -> str:
    if out.suffix.lower() not in known:
        raise fail(console, f"--out {out}: the name must end in {', '.join(known)}.", 2)
    return out.suffix.lower()


@framed
def evaluate(
    console: Console, run: RunArgument, data: OtherData = None, data_dir: DataDir = None, json: JsonOption = None
) -> None:
    """Measure a run on held-out images, beside plain sparse coding."""
    from liesparse.run_directory import measure

    opened, _, loaded = _open(console, run, data, data_dir)
    console.print(loaded.summary(), markup=False)
    metrics = measure(opened.coder, opened.baseline, loaded.test)
    write_numbers(metrics, json)
    print_metrics(console, metrics)


@framed
def infer(
    console: Console,
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, typer.Option(help="File for the results: .npz, .csv or .parquet.")],
    data_dir: DataDir = None,
) -> None:
    """Infer codes, the most probable pose, its width and the log likelihood of each image."""
    import numpy as np

    from liesparse.data import load_images
    from liesparse.files import write_table
    from liesparse.run_directory import load_run

    _check_suffix(console, out, INFERENCE_FORMATS)
    coder = load_run(run).coder
    rows = load_images(images, coder.image_shape_, data_dir=data_dir)
    console.print(rows.summary(), markup=False)
    parts = []
    for chunk in _chunks(console, rows.images):
        (codes, poses), posterior, scores = coder.describe(chunk)
        parts.append((codes, poses, posterior.width.to(poses), scores))
    codes, poses, widths, scores = (
        np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True)
    )
    columns = {"image": rows.places}
    columns |= {f"code{k}": codes[:, k] for k in range(codes.shape[1])}
    columns |= {f"pose{j + 1}": poses[:, j] for j in range(poses.shape[1])}
    columns |= {f"width{j + 1}": widths[:, j] for j in range(poses.shape[1])}
    columns |= {"log_likelihood": scores}
    arrays = {"image": rows.places, "codes": codes, "poses": poses, "widths": widths, "log_likelihood": scores}
    write_table(out, columns, arrays)
    console.print(f"{len(codes):,} images, in {out}.", markup=False)


@framed
def canonicalize(
    console: Console,
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, typer.Option(help="Folder for the images.")],
    keep_rest: Annotated[
        bool, typer.Option("--keep-rest", help="Keep what the group cannot represent, in its place.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Bring every image to the same pose: one PNG each, all as canonical.npy, and a sheet to look at."""
    import numpy as np

    from liesparse.data import load_images
    from liesparse.figures import before_and_after, to_png
    from liesparse.files import array_bytes, image_bytes, write_atomically
    from liesparse.run_directory import load_run

    coder = load_run(run).coder
    rows = load_images(images, coder.image_shape_, data_dir=data_dir)
    console.print(rows.summary(), markup=False)
    out.mkdir(parents=True, exist_ok=True)
    shaped = rows.images.reshape(-1, *coder.image_shape_)
    found = [coder.canonicalize(chunk, keep_rest=keep_rest).numpy() for chunk in _chunks(console, shaped)]
    canonical = np.concatenate(found)
    width = len(str(int(rows.places.max())))
    for place, image in zip(rows.places, canonical, strict=True):
        write_atomically(out / f"{place:0{width}d}.png", image_bytes(image))
    write_atomically(out / "canonical.npy", array_bytes(canonical))
    write_atomically(out / "sheet.png", to_png(before_and_after(shaped[:40].numpy(), canonical[:40])))
    console.print(f"{len(canonical):,} images, in {out}. Look at {out / 'sheet.png'}.", markup=False)


@framed
def traverse(
    console: Console,
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, typer.Option(help="File for the walk: .gif, .png, or .mp4 where ffmpeg is found.")],
    axis: Annotated[int | None, typer.Option(min=1, help="Torus axis, from 1; all of them one after another.")] = None,
    first: Annotated[float, typer.Option("--from", help="Where the walk begins, radians from the image.")] = -math.pi,
    last: Annotated[float, typer.Option("--to", help="Where it ends.")] = math.pi,
    steps: Annotated[int, typer.Option(min=2, max=500, help="Frames of the walk.")] = 25,
    count: Annotated[int, typer.Option(min=1, max=20, help="How many images, from the first.")] = 5,
    data_dir: DataDir = None,
) -> None:
    """Walk along the torus axes: what changes is what the model found to be motion."""
    import numpy as np

    from liesparse.data import load_images
    from liesparse.figures import movie_bytes, to_png, walk_figure
    from liesparse.files import write_atomically
    from liesparse.run_directory import load_run

    suffix = _check_suffix(console, out, MOVIE_FORMATS)
    coder = load_run(run).coder
    n_axes = coder.model_.torus_dim
    if axis is not None and axis > n_axes:
        raise fail(console, f"The model has {n_axes} torus axes; --axis {axis} is beyond them.", 2)
    rows = load_images(images, coder.image_shape_, data_dir=data_dir)
    chosen = rows.images[:count].reshape(-1, *coder.image_shape_)
    axes = range(n_axes) if axis is None else [axis - 1]
    values = np.linspace(first, last, steps)
    walks = np.stack([coder.traverse(chosen, place, values).numpy() for place in axes])
    content = to_png(walk_figure(walks, values, list(axes))) if suffix == ".png" else movie_bytes(walks, suffix)
    write_atomically(out, content)
    console.print(f"{len(chosen)} images along {len(walks)} axes, in {out}.", markup=False)


@framed
def report(console: Console, run: RunArgument, data: OtherData = None, data_dir: DataDir = None) -> None:
    """Write RUN/report.html: what did it learn? One file, no network."""
    from liesparse.report import write_report
    from liesparse.run_directory import measure

    opened, spec, loaded = _open(console, run, data, data_dir)
    path = write_report(
        run,
        opened.coder,
        test=loaded.test,
        image_shape=loaded.image_shape,
        baseline=opened.baseline,
        factors=loaded.test_factors,
        factor_names=loaded.factor_names or (),
        title=f"What liesparse learned from {spec}",
        facts={name: str(opened.settings.get(name, "-")) for name in ("data_summary", "recipe", "seed")},
        metrics=measure(opened.coder, opened.baseline, loaded.test) if data else opened.metrics,
    )
    console.print(f"Look at {path}.", markup=False)
