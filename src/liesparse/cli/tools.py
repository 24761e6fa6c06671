"""``liesparse data``, ``doctor`` and ``bench``: what images there are, does all work, and how fast."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from liesparse.cli import common
from liesparse.cli.common import DataArgument, DataDir, JsonOption, console, count, explained, print_table

PACKAGES = ("torch", "numpy", "scikit-learn", "matplotlib", "safetensors", "pillow", "pooch", "pyarrow", "fastapi")
N_PREVIEW = 100
PREVIEW = {
    "ink": "shown as ink: dark is where values are large",
    "light": "shown as they are: light is light",
    "signed": "red is above 0, blue below",
}
ENGINES = ("dense", "grid", "adaptive")
ERRORS = {"adaptive": "adaptive_error", "grid N = 50": "grid50_error", "grid N = 100": "grid100_error"}
data = Typer(no_args_is_help=True, help="List data sets, fetch them, look at them.")


@data.command(name="list")
def list_command(data_dir: DataDir = None) -> None:
    """List the data sets that have a name, and where they are."""
    from liesparse.data import list_datasets

    rows = [(dataset.name, dataset.size, str(dataset.where)) for dataset in list_datasets(data_dir)]
    print_table(None, ("name", "images", "where"), rows, numbers=False)
    console.print("Or a path: .npy, .npz, .parquet, idx (gzipped or not), a folder or a zip of images.")


@data.command()
def fetch(name: Annotated[str, Argument(help="mnist or fashion-mnist.")], data_dir: DataDir = None) -> None:
    """Get a data set into the cache, its checksums checked."""
    from liesparse.data import fetch

    console.print(f"{name} is in {fetch(name, data_dir)}.")


@data.command()
def preview(
    data: DataArgument,
    out: Annotated[Path, Option(help="File for the picture.")] = Path("preview.png"),
    seed: Annotated[int, Option(min=0, help="Random seed: same seed, same images.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Draw random images of DATA as the model would see them."""
    import torch

    from liesparse import figures, files, verdict
    from liesparse.data import load_data

    loaded = load_data(data, data_dir=data_dir)
    drawn = torch.randperm(len(loaded.train), generator=torch.Generator().manual_seed(seed))[:N_PREVIEW]
    images = loaded.train[drawn].reshape(-1, *loaded.image_shape).numpy()
    title = f"{loaded.summary()}; {PREVIEW[figures.look_of(images)]}"
    files.write_atomically(out, figures.to_png(figures.sheet_figure(images, 20, title)))
    console.print(f"{loaded.summary()}. Look at {out}.")
    if warning := verdict.warn_of_ground(loaded.train, loaded.image_shape):
        console.print(warning, style="yellow")


def suggest(
    data: DataArgument,
    torus_dims: Annotated[str, Option(help="Numbers of torus axes to try, separated by commas.")] = "1,2",
    seed: Annotated[int, Option(min=0, help="Random seed: same seed, same answer.")] = 0,
    data_dir: DataDir = None,
    json: JsonOption = None,
) -> None:
    """Recommend numbers of axes and templates for DATA. Small ones are tried, and compared by held-out evidence."""
    from liesparse import suggest as find
    from liesparse import verdict
    from liesparse.data import load_data

    with explained(code=2):
        try:
            dims = [int(part) for part in torus_dims.split(",")]
        except ValueError:
            raise ValueError(f"--torus-dims: expected numbers such as 1,2, got {torus_dims}.") from None
    loaded = load_data(data, data_dir=data_dir)
    console.print(loaded.summary())
    if warning := verdict.warn_of_ground(loaded.train, loaded.image_shape):
        console.print(warning, style="yellow")
    with common.ProgressBar("trials") as bar:
        done: list[int] = []

        def tell(trial: Any) -> None:
            done.append(1)
            words = count(trial.torus_dim, "axis", "axes"), count(trial.n_components, "template")
            bar.show(", ".join(words), len(done), max(len(done), 3 * len(dims)))

        found = find(loaded.train, torus_dims=dims, random_state=seed, callback=tell)
    rows = [
        (str(t.torus_dim), str(t.n_components), f"{t.evidence:.1f}", f"{t.snr:.1f}", f"{t.pair_share:.1%}")
        for t in found.trials
    ]
    print_table("Short trials", ("torus axes", "templates", "held-out evidence", "SNR", "pairs explained"), rows)
    common.write_numbers(found._asdict() | {"trials": [trial._asdict() for trial in found.trials]}, json)
    chosen = f"--torus-dim {found.torus_dim} --components {found.n_components}"
    console.print(f"Fits best: {chosen}. Next: liesparse train {data} {chosen} --out RUN")
    sizes = [trial.n_components for trial in found.trials if trial.torus_dim == found.torus_dim]
    if found.n_components == max(sizes):
        console.print("That is the most that was tried: more may do better still. The verdict of train will tell.")
    elif found.n_components == 1:
        console.print(
            "With one template, shapes that look much alike may count as one. If there are several kinds, try as many "
            "templates; the verdict of train will tell."
        )


def doctor(
    data_dir: DataDir = None,
    test: Annotated[bool, Option(help="Whether to train a small model as a test.")] = True,
    json: JsonOption = None,
) -> None:
    """Show versions, kernel and data, and train a small model. It takes about ten seconds."""
    from importlib import metadata

    import torch

    from liesparse import __version__, devices
    from liesparse.data import list_datasets
    from liesparse.posterior import kernels

    kernel, versions = kernels.choose(), dict.fromkeys(PACKAGES, "not installed")
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    found: dict[str, Any] = {"liesparse": __version__, "python": platform.python_version(), **versions}
    found |= {"threads": torch.get_num_threads(), "device": str(devices.choose_device("auto"))}
    found["kernel"] = f"{kernel.library.name if kernel.library else 'torch, several times slower'}: {kernel.reason}"
    found |= {f"data: {source.name}": source.where for source in list_datasets(data_dir)}
    print_table(None, ("", ""), [(name, str(value)) for name, value in found.items()], numbers=False)
    if test:
        found |= _try_to_learn()
    common.write_numbers(found, json)
    if not found.get("self_test_passed", True):
        message = "The self-test failed: this installation does not learn what it should. Please report it."
        raise common.fail(message)
    console.print("All is well." if test else "Nothing was tried.")


def _try_to_learn() -> dict[str, Any]:
    import torch

    from liesparse import LieSparseCoder, embedded_digits, snr, translations

    console.print("Training a small model: four half-size digits, shifted …")
    began = time.monotonic()
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None, :4], 2)[0]
    generator = torch.Generator().manual_seed(0)
    train, held_out = (translations(n, max_shift=3.5, sources=shapes, generator=generator).images for n in (8000, 300))
    coder = LieSparseCoder(4, n_irreps=40, n_epochs=8, exact_codes=False, random_state=0).fit(train)
    found = float(snr(held_out, coder.reconstruct(held_out)).mean())
    seconds = time.monotonic() - began
    console.print(f"Held-out SNR {found:.1f} (above 8 means that it found the motion), {seconds:.0f} s.")
    return {"self_test_snr": found, "self_test_seconds": round(seconds, 1), "self_test_passed": found > 8}


def bench(
    json: JsonOption = None,
    plot: Annotated[Path | None, Option(help="Draw how time grows with each size into this PNG file.")] = None,
) -> None:
    """Measure speed, accuracy and memory, in one or two minutes."""
    from liesparse import figures, files
    from liesparse.reproduce.bench import run_bench

    with common.ProgressBar("measuring") as bar:
        result = run_bench(report=bar.show)
    _print_bench(result)
    common.write_numbers(result, json)
    if plot is not None:
        files.write_atomically(plot, figures.to_png(figures.growth_figure(result["growth"])))


def _print_bench(result: dict[str, Any]) -> None:
    rows = []
    for name in ("paper", "k100", "multiplicity2"):
        row = result[name]
        times = [f"{row[f'{engine}_ms']:.1f}" for engine in ENGINES]
        rows.append((name, *times, f"{row['grid_speedup']:.1f}×", f"{row['adaptive_time_ratio']:.2f}"))
    head = ("shape", *(f"{engine} ms" for engine in ENGINES), "grid speed-up", "adaptive / grid")
    print_table("FISTA inference of a batch", head, rows)
    numbers = ("grid_ms", "adaptive_ms", "grid_over_best", "adaptive_over_best", "limit_fraction")
    rows = [
        (name, "not measured") if isinstance(row, str) else (name, *(f"{row[key]:.2f}" for key in numbers))
        for name, row in result["kernels"].items()
    ]
    head = ("kernel", *(key.replace("_over_", " / ").replace("_", " ") for key in numbers))
    print_table("Kernels at the paper's shape", head, rows)
    labels = ("sharp", "middle", "flat")
    rows = [(name, *(f"{result[key][label]:.1e}" for label in labels)) for name, key in ERRORS.items()]
    print_table("Mean relative error of E[R(s)]", ("", *labels), rows)
    sizes: dict[str, list[str]] = {}
    for row in result["growth"]:
        sizes.setdefault(row["size"], []).append(f"{row['value']}: {row['grid_ms']:.1f}")
    rows = [(size, "   ".join(cells)) for size, cells in sizes.items()]
    print_table("Grid inference of a batch as one size grows", ("size", "value: ms"), rows, numbers=False)
    shares = ", ".join(f"{part} {result[f'{part}_share']:.0%}" for part in ("inference", "gradients", "stiefel"))
    console.print(
        f"training step: {result['batch_ms']:.1f} ms by gradients on the grid ({shares}), "
        f"{result['best_step']['batch_ms']:.1f} ms by the default recipe\n"
        f"a rotation inside a translation takes {result['composition_time_ratio']:.1f} times as long as that alone\n"
        f"limit fraction: {result['limit_fraction']:.2f} at {result['gflops']:.0f} GFLOP/s"
        f" and {result['ns_per_exponential']:.2f} ns per exponential\n"
        f"peak memory of training on 60,000 images: {result['peak_memory_mb']:.0f} MB above the data"
    )
