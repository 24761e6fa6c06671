"""Commands that use a run: ``evaluate``, ``infer``, ``canonicalize``, ``traverse``, ``report``, ``explore``."""

from __future__ import annotations

import ipaddress
import logging
import math
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from liesparse.cli.common import DataDir, JsonOption, ProgressBar, console, fail, write_numbers
from liesparse.cli.train import print_metrics, print_verdict

if TYPE_CHECKING:
    from torch import Tensor

    from liesparse.data import ImagesInOrder, LoadedData
    from liesparse.estimators import LieSparseCoder
    from liesparse.run_directory import Run

RunArgument = Annotated[Path, Argument(metavar="RUN", help="Folder that `liesparse train` wrote.")]
ImagesArgument = Annotated[str, Argument(metavar="IMAGES", help="A path of images, or a name of a data set.")]
OtherData = Annotated[str | None, Option(help="Other data than the run was trained on.")]
CHUNK = 1000  # images between two steps of the progress bar
MISSING = "The explorer needs FastAPI and uvicorn. Install them: pip install 'liesparse[web]'"


def _open(run: Path, data: str | None, data_dir: Path | None) -> tuple[Run, str, LoadedData]:
    """Return a run, the name of its data or of others, and these data."""
    from liesparse.data import check_shape, load_data
    from liesparse.run_directory import load_run

    opened = load_run(run)
    spec = data or opened.settings.get("data")
    if not spec:
        raise fail(f"{run} does not say what it was trained on. Pass --data.", 2)
    return opened, str(spec), check_shape(load_data(str(spec), data_dir=data_dir), opened.coder.image_shape_)


def _open_images(run: Path, images: str, data_dir: Path | None) -> tuple[LieSparseCoder, ImagesInOrder]:
    """Return the model of a run, and the images for it."""
    from liesparse.data import load_images
    from liesparse.run_directory import load_run

    coder = load_run(run).coder
    return coder, load_images(images, coder.image_shape_, data_dir=data_dir)


def _chunks(rows: ImagesInOrder) -> Iterator[Tensor]:
    """Say what the images are, yield them some at a time, and show how many are done."""
    console.print(rows.summary())
    with ProgressBar("images") as bar:
        for place, chunk in enumerate(rows.images.split(CHUNK)):
            yield chunk
            done = place * CHUNK + len(chunk)
            bar.show(f"{done:,} of {len(rows.images):,}", done, len(rows.images))


def _check_suffix(option: str, out: Path, *known: str) -> str:
    if out.suffix.lower() not in known:
        raise fail(f"{option} {out}: the name must end in {', '.join(known)}.", 2)
    return out.suffix.lower()


def evaluate(run: RunArgument, data: OtherData = None, data_dir: DataDir = None, json: JsonOption = None) -> None:
    """Measure a run on held-out images, beside plain sparse coding."""
    from liesparse.run_directory import measure

    opened, _, loaded = _open(run, data, data_dir)
    console.print(loaded.summary())
    metrics = measure(opened.coder, opened.baseline, loaded.test)
    write_numbers(metrics, json)
    print_metrics(metrics)
    print_verdict(opened.coder)


def infer(
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, Option(help="File for the results: .npz, .csv or .parquet.")],
    data_dir: DataDir = None,
) -> None:
    """Infer codes, the most probable pose, its width and the log likelihood of each image."""
    import numpy as np

    from liesparse.files import write_table

    _check_suffix("--out", out, ".npz", ".csv", ".parquet")
    coder, rows = _open_images(run, images, data_dir)
    parts = []
    for chunk in _chunks(rows):
        (codes, poses), posterior, scores = coder.describe(chunk)
        parts.append((codes, poses, posterior.width.to(poses), scores))
    codes, poses, widths, scores = (
        np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True)
    )
    columns = {"image": rows.places}
    for name, first, values in (("code", 0, codes), ("pose", 1, poses), ("width", 1, widths)):
        columns |= {f"{name}{place}": column for place, column in enumerate(values.T, first)}
    if coder.group != "learned":
        columns |= coder.poses_in_units(poses)  # in pixels or degrees
    columns["log_likelihood"] = scores
    arrays = {"image": rows.places, "codes": codes, "poses": poses, "widths": widths, "log_likelihood": scores}
    write_table(out, columns, arrays)
    console.print(f"{len(codes):,} images, in {out}.")


def canonicalize(
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, Option(help="Folder for the images.")],
    keep_rest: Annotated[
        bool, Option("--keep-rest", help="Keep what the group cannot represent, in its place.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Bring every image to the same pose: one PNG each, all as canonical.npy, and a sheet to look at."""
    import numpy as np

    from liesparse import figures, files

    coder, rows = _open_images(run, images, data_dir)
    out.mkdir(parents=True, exist_ok=True)  # or fail before the work is done
    shape = coder.image_shape_
    found = [coder.canonicalize(chunk, keep_rest=keep_rest).numpy() for chunk in _chunks(rows)]
    canonical = np.concatenate(found).reshape(-1, *shape)
    width = len(str(int(rows.places.max())))
    for place, image in zip(rows.places, canonical, strict=True):
        files.write_atomically(out / f"{place:0{width}d}.png", files.image_bytes(image))
    files.write_atomically(out / "canonical.npy", lambda file: np.save(file, canonical))
    sheet = figures.before_and_after(rows.images[:40].reshape(-1, *shape).numpy(), canonical[:40])
    files.write_atomically(out / "sheet.png", figures.to_png(sheet))
    console.print(f"{len(canonical):,} images, in {out}. Look at {out / 'sheet.png'}.")


def traverse(
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, Option(help="File for the walk: .gif, .png, or .mp4 where ffmpeg is found.")],
    axis: Annotated[int | None, Option(min=1, help="Torus axis, from 1; all of them one after another.")] = None,
    first: Annotated[float, Option("--from", help="Where the walk begins, radians from the image.")] = -math.pi,
    last: Annotated[float, Option("--to", help="Where it ends.")] = math.pi,
    steps: Annotated[int, Option(min=2, max=500, help="Frames of the walk.")] = 25,
    count: Annotated[int, Option(min=1, max=20, help="How many images, from the first.")] = 5,
    data_dir: DataDir = None,
) -> None:
    """Walk along the torus axes: what changes is what the model found to be motion."""
    import numpy as np

    from liesparse import figures, files

    suffix = _check_suffix("--out", out, ".gif", ".png", ".mp4")
    coder, rows = _open_images(run, images, data_dir)
    n_axes = coder.model_.torus_dim
    if axis is not None and axis > n_axes:
        raise fail(f"The model has {n_axes} torus axes; --axis {axis} is beyond them.", 2)
    chosen = rows.images[:count].reshape(-1, *coder.image_shape_)
    axes = list(range(n_axes)) if axis is None else [axis - 1]
    values = np.linspace(first, last, steps)
    walks = np.stack([coder.traverse(chosen, place, values).numpy() for place in axes])
    if suffix == ".png":
        files.write_atomically(out, figures.to_png(figures.walk_figure(walks, values, axes)))
    else:
        files.write_atomically(out, figures.movie_bytes(walks, suffix))
    console.print(f"{len(chosen)} images along {len(walks)} axes, in {out}.")


def report(run: RunArgument, data: OtherData = None, data_dir: DataDir = None) -> None:
    """Write RUN/report.html: what did it learn? One file, no network."""
    from liesparse.report import write_report
    from liesparse.run_directory import measure

    opened, spec, loaded = _open(run, data, data_dir)
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
    console.print(f"Look at {path}.")


def explore(
    run: Annotated[
        Path | None, Argument(metavar="[RUN]", help="Folder that `liesparse train` wrote; without it, a demo.")
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[str, Option(help="Address to listen on; others than this machine's own need care.")] = "127.0.0.1",
    no_open: Annotated[bool, Option("--no-open", help="Do not open the browser.")] = False,
    export: Annotated[
        Path | None, Option(metavar="FILE.html", help="Write the page to one file, instead of serving it.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Explore a model in the browser: shapes, poses, planes, your own drawings."""
    logging.basicConfig(format="%(message)s")
    if export is not None:
        _check_suffix("--export", export, ".html", ".htm")
    try:
        import fastapi  # noqa: F401, first, as torch is slow to import
        import uvicorn  # noqa: F401

        from liesparse import files
        from liesparse.web import server, session
    except ModuleNotFoundError as error:
        raise fail(f"{error}. {MISSING}") from None
    if export is not None:
        page = session.make_document(session.open_session(run, data_dir=data_dir), live=False)
        files.write_atomically(export, page.content.encode())
        console.print(f"{export}: {export.stat().st_size / 1000:,.0f} KB. Open it in any browser.")
        return
    with closing(server.open_socket(host, port)) as listening:
        if not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
            warning = f"Warning: everyone who can reach {host} can use this server. There is no password."
            console.print(warning, style="yellow")
        address = server.address_of(listening, host)

        def announce() -> None:
            console.print(f"The explorer is at {address} Stop it with Ctrl-C.")
            if not no_open:  # in a thread, as a text browser would block
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        app = server.make_app(session.open_session(run, data_dir=data_dir), host=host, on_start=announce)
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has shut down
            server.make_server(app).run(sockets=[listening])
    console.print("Stopped.")


COMMANDS = (evaluate, infer, canonicalize, traverse, report, explore)
