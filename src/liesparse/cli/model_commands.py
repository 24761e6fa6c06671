"""Commands that use a run: ``evaluate``, ``infer``, ``canonicalize``, ``traverse``, ``report``, ``explore``."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from liesparse.cli import common
from liesparse.cli.common import DataDir, JsonOption, console, count, fail
from liesparse.cli.train import print_metrics, print_verdict

if TYPE_CHECKING:
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
    trained = str(opened.settings.get("data") or "")
    spec = _as_trained(data, trained) if data else trained
    if not spec:
        raise fail(f"{run} does not say what it was trained on. Pass --data.", 2)
    return opened, spec, check_shape(load_data(spec, data_dir=data_dir), opened.coder.image_shape_)


def _open_images(run: Path, images: str, data_dir: Path | None) -> tuple[LieSparseCoder, ImagesInOrder]:
    """Return the model of a run, and the images for it."""
    common.import_quickly()
    from liesparse.data import load_images
    from liesparse.run_directory import load_run

    opened = load_run(run)
    spec = _as_trained(images, str(opened.settings.get("data") or ""))
    return opened.coder, load_images(spec, opened.coder.image_shape_, data_dir=data_dir)


def _as_trained(images: str, trained: str) -> str:
    """Return a folder or zip of pictures with the sizes and signs of the run's own, where nothing is said of them."""
    from liesparse.data import parse_spec
    from liesparse.data.images import Preprocessing

    pictures = Path(images).is_dir() or (Path(images).is_file() and Path(images).suffix.lower() == ".zip")
    known = [f"{key}={value}" for key, value in parse_spec(trained).parameters.items() if key in Preprocessing._fields]
    return f"{images}:{','.join(known)}" if pictures and known else images


def _describe(coder: LieSparseCoder, rows: ImagesInOrder) -> tuple[Any, ...]:
    """Say what the images are, and show how many are done; return what the model infers from them, as arrays.

    That is codes, poses, widths of the poses, log likelihoods, and how sure the model is, by the names of the parts.
    """
    import numpy as np

    from liesparse.confidence import DOUBTS

    parts = []
    console.print(rows.summary())
    with common.ProgressBar("images") as bar:
        for place, chunk in enumerate(rows.images.split(CHUNK)):
            (codes, poses), posterior, scores, confidence = coder.describe(chunk)
            parts.append((codes, poses, posterior.width.to(poses), scores, *confidence))
            done = place * CHUNK + len(chunk)
            bar.show(f"{done:,} of {len(rows.images):,}", done, len(rows.images))
    found = [np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True)]
    how_sure = dict(zip(confidence._fields, found[4:], strict=True))
    return *found[:4], how_sure | {"doubt": np.array(DOUBTS)[how_sure["doubt"]]}


def _check_suffix(option: str, out: Path, *known: str) -> str:
    if out.suffix.lower() not in known:
        raise fail(f"{option} {out}: the name must end in {', '.join(known)}.", 2)
    return out.suffix.lower()


def evaluate(run: RunArgument, data: OtherData = None, data_dir: DataDir = None, json: JsonOption = None) -> None:
    """Measure a run on held-out images, and plain sparse coding."""
    from liesparse.run_directory import measure

    opened, _, loaded = _open(run, data, data_dir)
    console.print(loaded.summary())
    metrics = measure(opened.coder, opened.baseline, loaded.test, large_baseline=opened.large_baseline)
    common.write_numbers(metrics, json)
    print_metrics(metrics)
    print_verdict(opened.coder, metrics)


def infer(
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, Option(help="File for the results: .npz, .csv or .parquet.")],
    data_dir: DataDir = None,
) -> None:
    """Infer the codes and the pose of each image. Also how sure they are: width, log likelihood, confidence."""
    from liesparse.files import TABLES, write_table

    _check_suffix("--out", out, *TABLES)
    coder, rows = _open_images(run, images, data_dir)
    codes, poses, widths, scores, how_sure = _describe(coder, rows)
    columns = _whose(rows) | {"template": codes.argmax(axis=1)}
    arrays = columns | {"codes": codes, "poses": poses, "widths": widths, "log_likelihood": scores}
    for name, first, values in (("code", 0, codes), ("pose", 1, poses), ("width", 1, widths)):
        columns |= {f"{name}{place}": column for place, column in enumerate(values.T, first)}
    if coder.group != "learned":
        columns |= coder.poses_in_units(poses)  # in pixels or degrees
    columns["log_likelihood"] = scores
    write_table(out, columns | how_sure, arrays | how_sure)
    console.print(f"{count(len(codes), 'image')}, in {out}.{_doubts(how_sure['doubt'])}")


def _whose(rows: ImagesInOrder) -> dict[str, Any]:
    """Return the columns that say which image a row is about."""
    import numpy as np

    labels = {"label": np.array(rows.labels)} if rows.labels else {}
    return {"image": rows.places, "file": np.array(rows.files), **labels}


def _doubts(reasons: Any) -> str:
    """Say how many images are not to be trusted, and why."""
    why = Counter(reason for reason in reasons.tolist() if reason)
    each = "; ".join(f"{n:,} {reason}" for reason, n in why.most_common())
    return f" {why.total():,} of them uncertain, do not trust these: {each}." if why else ""


def canonicalize(
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, Option(help="Folder for the images.")],
    uncertain: Annotated[Path | None, Option(metavar="DIR", help="Another folder, for the doubtful ones.")] = None,
    warp: Annotated[bool, Option("--warp", help="Move the original pictures, where the motion is known.")] = False,
    keep_rest: Annotated[bool, Option("--keep-rest", help="Keep what the group cannot represent, as it is.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Bring every image to the usual pose of its template. Writes PNGs, canonical.npy and .csv, and a sheet."""
    import numpy as np

    from liesparse import figures, files
    from liesparse._checks import reject
    from liesparse.canonical import picture_names, warp_pictures

    coder, rows = _open_images(run, images, data_dir)
    for folder, option in ((out, "--out"), (uncertain or out, "--uncertain")):
        if Path(rows.name).is_dir() and folder.resolve().is_relative_to(Path(rows.name).resolve()):
            reject(
                option, "a folder outside that of the pictures", str(folder), "The originals must stay: choose another."
            )
        if folder.is_dir() and any(folder.iterdir()):
            reject(option, "a new or an empty folder", f"{folder}, which holds files", "Choose another, or delete it.")
        common.check_writable(folder, option)  # or fail before the work is done
    ranges = coder.pose_ranges(rows.images) if coder.pose_ranges_ is None else coder.pose_ranges_
    codes, poses, _, _, how_sure = _describe(coder, rows)
    middles = ranges[codes.argmax(axis=1), :, 0]  # where pictures of its template are
    shape = coder.image_shape_
    if warp:
        canonical = list(warp_pictures(coder, rows, codes, poses, middles))
    else:
        at_zero = coder.canonicalize(rows.images, keep_rest=keep_rest, poses=poses)
        canonical = list(coder.move(at_zero, middles, keep_rest=keep_rest).reshape(-1, *shape).numpy())
    doubtful, names = how_sure["uncertain"], picture_names(rows.names)
    inverted = rows.preprocessing.invert
    for name, image, doubted in zip(names, canonical, doubtful, strict=True):
        picture = image.max() - image.clip(min=0) if inverted and not warp else image  # light and dark as they came
        files.write_atomically((uncertain if uncertain and doubted else out) / name, figures.image_bytes(picture))
    if len({image.shape for image in canonical}) == 1:
        files.write_atomically(out / "canonical.npy", lambda file: np.save(file, np.stack(canonical)))
    kinds = {"picture": np.array(names), "template": codes.argmax(axis=1)}
    columns = {"row": np.arange(len(names)), **_whose(rows), **kinds, **how_sure}
    files.write_table(out / "canonical.csv", columns, {})
    before = rows.images.reshape(-1, *shape).numpy()
    # The sheet shows all as the model sees them.
    shown = [image.max() - image for image in canonical] if warp and inverted else canonical
    sheet = figures.before_and_after(list(before), shown, doubtful, inverted)
    files.write_atomically(out / "sheet.png", figures.to_png(sheet))
    console.print(f"{count(len(names), 'image')}, in {out}.{_doubts(how_sure['doubt'])} Look at {out / 'sheet.png'}.")


def traverse(
    run: RunArgument,
    images: ImagesArgument,
    out: Annotated[Path, Option(help="File for the walk: .gif, .png, or .mp4 where ffmpeg is found.")],
    axis: Annotated[int | None, Option(min=1, help="Torus axis, from 1; all of them one after another.")] = None,
    full: Annotated[bool, Option("--full", help="Go once round, not only where the poses of the data are.")] = False,
    first: Annotated[float | None, Option("--from", help="Or: where the walk begins, radians from the image.")] = None,
    last: Annotated[float | None, Option("--to", help="Where it ends.")] = None,
    steps: Annotated[int, Option(min=2, max=500, help="Frames of the walk.")] = 13,
    count_: Annotated[int, Option("--count", min=1, max=20, help="How many images, from the first.")] = 5,
    data_dir: DataDir = None,
) -> None:
    """Walk along the torus axes, where the data is. What changes is what the model found to be motion."""
    import numpy as np

    from liesparse import figures, files

    suffix = _check_suffix("--out", out, ".gif", ".png", ".mp4")
    coder, rows = _open_images(run, images, data_dir)
    n_axes = coder.model_.torus_dim
    if axis is not None and axis > n_axes:
        raise fail(f"The model has {count(n_axes, 'torus axis', 'torus axes')}; --axis {axis} is beyond them.", 2)
    chosen = rows.images[:count_].reshape(-1, *coder.image_shape_)
    axes = list(range(n_axes)) if axis is None else [axis - 1]
    around = full or first is not None or last is not None or coder.pose_ranges_ is None
    values = np.linspace(-math.pi if first is None else first, math.pi if last is None else last, steps)
    kept = {"steps": steps} if not around else {"values": values}
    walks = np.stack([coder.traverse(chosen, place, **kept).numpy() for place in axes])
    titles = [f"Axis {place + 1}, {_extent(coder, place, None if not around else values)}" for place in axes]
    look = figures.look_of(chosen.numpy(), inverted=rows.preprocessing.invert)
    if suffix == ".png":
        files.write_atomically(out, figures.to_png(figures.walk_figure(walks, titles, look)))
    else:
        files.write_atomically(out, figures.movie_bytes(walks, suffix, look))
    console.print(f"{count(len(chosen), 'image')} along {count(len(walks), 'axis', 'axes')}, in {out}.")
    for title in titles:
        console.print(f"{title}.")


def _extent(coder: LieSparseCoder, axis: int, values: Any) -> str:
    """Say how far a walk goes, and how much of its axis that is."""
    if values is not None or coder.pose_ranges_ is None:
        return f"from {values[0]:+.2f} to {values[-1]:+.2f} radians"
    import numpy as np

    width = float(np.median(np.diff(coder.pose_ranges_[:, axis, 1:])))
    return f"where the data is: {width:.2g} radians, {width / (2 * math.pi):.1%} of the whole axis"


def report(run: RunArgument, data: OtherData = None, data_dir: DataDir = None) -> None:
    """Write RUN/report.html: what was learned, on one page."""
    from liesparse.data import parse_spec
    from liesparse.report import write_report
    from liesparse.run_directory import measure

    opened, spec, loaded = _open(run, data, data_dir)
    if data:
        opened = opened._replace(metrics=measure(opened.coder, opened.baseline, loaded.test))
    path = write_report(opened, loaded, title=f"What liesparse learned from {Path(parse_spec(spec).head).name}")
    console.print(f"Look at {path}.")


def explore(
    run: Annotated[
        Path | None, Argument(metavar="[RUN]", help="A run that `liesparse train` wrote, or a demo.")
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[str, Option(help="Address to listen on; others than this machine's own need care.")] = "127.0.0.1",
    no_open: Annotated[bool, Option("--no-open", help="Do not open the browser.")] = False,
    export: Annotated[Path | None, Option(metavar="FILE.html", help="Write the page to a file; do not serve.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Explore a model in the browser, with your own drawings."""
    import ipaddress
    import logging
    import threading
    import webbrowser

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
