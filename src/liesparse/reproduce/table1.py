"""Table 1 of the paper: its four data sets, models learned once and found again, and held-out SNR [Chau20, sec. 5]."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from liesparse.baselines import SparseCodingSettings, learn_sparse_coding
from liesparse.data import embedded_digits, load_mnist, rotations_scalings, translations
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.files import hash_tensor, need, read_sealed, write_sealed
from liesparse.initialization import known_translation
from liesparse.reproduce.parts import Job, Results, Step, Tell, over_seeds
from liesparse.reproduce.recognition import learn_by_scikit_learn
from liesparse.run_directory import CHECKPOINTS, Run, load_run, measure, measure_baseline, save_run
from liesparse.settings import ModelSettings, Recipe
from liesparse.state import Progress
from liesparse.training import N_MONITORED, CheckpointPolicy, History, learn_model

N_TRAIN, N_TEST, IMAGE_SHAPE = 60_000, 10_000, (28, 28)
FOUND = Step(1.0, "found, not learned again", end_of_epoch=True)


@dataclass(frozen=True)
class Row:
    """One row of Table 1, with the paper's figures."""

    data: str
    model: ModelSettings
    paper_lsc: float
    paper_sparse_coding: float
    sparse_coding_rate: float = 0.001  # of our own baseline, tuned for each row
    sparse_coding_epochs: int = 10


ROWS = {
    "translation": Row("translation", ModelSettings(noise_std=0.1), 28.5, 2.2),
    "rotation-scaling": Row("rotation-scaling", ModelSettings(noise_std=0.1), 20.5, 2.6),
    "mnist-10": Row("mnist", ModelSettings(multiplicity=2, noise_std=0.1), 4.8, 3.0),
    "mnist-100": Row("mnist", ModelSettings(100, sparsity=1.0, multiplicity=2, noise_std=0.1), 16.7, 15.3, 0.0004, 40),
}


class RowImages(NamedTuple):
    """Training images, and held-out ones that no training sees."""

    train: Float[Tensor, "image pixel"]
    test: Float[Tensor, "test pixel"]


def load_images(row: Row, seed: int, data_dir: Path | None = None, n_train: int | None = None) -> RowImages:
    """Make or read a row's images; the synthetic test set has other draws of the transformation."""
    if row.data == "mnist":
        return RowImages(load_mnist("train", data_dir)[:n_train], load_mnist("test", data_dir))
    make = translations if row.data == "translation" else rotations_scalings
    generator = torch.Generator().manual_seed(seed)
    return RowImages(make(n_train or N_TRAIN, generator=generator).images, make(N_TEST, generator=generator).images)


class Order(NamedTuple):
    """Which model is wanted, and the folder in which it may be."""

    name: str  # of the row
    row: Row
    recipe: Recipe
    seed: int
    folder: Path

    @property
    def run_directory(self) -> Path:
        """Where the run of the model is."""
        return self.folder / f"{self.name}.{self.seed}"

    @property
    def dictionary_path(self) -> Path:
        """Where the dictionary of plain sparse coding is."""
        return self.folder / f"{self.name}.{self.seed}.sparse-coding.safetensors"

    def generator(self) -> torch.Generator:
        """Return a new generator, the same for everything that is learned with this seed."""
        return torch.Generator().manual_seed(1000 + self.seed)

    def identity(self, images: RowImages, **learning: Any) -> dict[str, Any]:
        """Return what must be equal for a file to count; another data set may have MNIST's names and size."""
        settings = {"row": self.name, "model": asdict(self.row.model), "seed": self.seed}
        return json.loads(json.dumps(settings | learning)) | {"data": hash_tensor(images.train)}


def find_or_learn(order: Order, images: RowImages, tell: Tell) -> Run:
    """Return the run of a model, from the folder if it was learned with the same settings from the same images."""
    settings, folder = order.identity(images, recipe=asdict(order.recipe)), order.run_directory
    try:
        run = load_run(folder)
        if run.settings == settings:
            tell(FOUND)
            return run
    except ValueError:  # none, or a damaged one
        pass

    def watch(progress: Progress, history: History) -> None:
        note = f"epoch {progress.epoch}/{order.recipe.learning.n_epochs}"
        tell(Step(progress.share, note + (f", SNR {history[-1]['snr']:.1f}" if history else ""), progress.end_of_epoch))

    began = time.monotonic()
    chosen = torch.randperm(len(images.test), generator=torch.Generator().manual_seed(order.seed))[:N_MONITORED]
    trained = learn_model(
        images.train,
        order.row.model,
        order.recipe,
        generator=order.generator(),
        monitor_images=images.test[chosen],
        checkpoints=CheckpointPolicy(folder / CHECKPOINTS),
        callback=watch,
    )
    seconds = time.monotonic() - began
    coder = LieSparseCoder.from_model(trained.parameters, IMAGE_SHAPE, history=trained.history, verdict=trained.verdict)
    metrics = measure(coder, None, images.test, order.recipe.evaluation) | {"training_seconds": round(seconds, 1)}
    run = Run(folder, coder, None, settings, metrics)
    save_run(run)
    shutil.rmtree(folder / CHECKPOINTS)  # other settings, later, must not meet this run's leftovers
    return run


def find_or_learn_baseline(order: Order, images: RowImages, tell: Tell) -> SparseCoder:
    """Return plain sparse coding with the same K, σ and λ, found or learned likewise."""
    row, path = order.row, order.dictionary_path
    shared: dict[str, Any] = {"noise_std": row.model.noise_std, "sparsity": row.model.sparsity}
    learning = SparseCodingSettings(**shared, dictionary_rate=row.sparse_coding_rate, n_epochs=row.sparse_coding_epochs)
    settings = order.identity(images, sparse_coding=asdict(learning))
    try:
        sealed = read_sealed(path, "dictionary")
        need(sealed, path, {"settings": dict}, ("dictionary",))
        if sealed.header["settings"] == settings:
            tell(FOUND)
            return SparseCoder.from_dictionary(sealed.tensors["dictionary"], IMAGE_SHAPE, **shared)
    except ValueError:  # none, or a damaged one
        pass

    def watch(step: int, n_steps: int) -> None:
        epoch, rest = divmod(step * learning.n_epochs, n_steps)
        tell(Step(step / n_steps, f"epoch {epoch + (rest > 0)}/{learning.n_epochs}", rest == 0))

    dictionary = learn_sparse_coding(
        images.train, row.model.n_components, learning, generator=order.generator(), callback=watch
    )
    write_sealed(path, "dictionary", {"settings": settings}, {"dictionary": dictionary})
    return SparseCoder.from_dictionary(dictionary, IMAGE_SHAPE, **shared)


Recipes = dict[str, dict[str, Recipe]]  # by name, then by row


def compute_cell(
    name: str, method: str, seed: int, recipe: Recipe | None, folder: Path, data_dir: Path | None, tell: Tell
) -> dict[str, Any]:
    """Compute one cell of the table; the known group, with the ten true digits, is the yardstick for translation."""
    began, row = time.monotonic(), ROWS[name]
    images = load_images(row, seed, data_dir)
    shared: dict[str, Any] = {"noise_std": row.model.noise_std, "sparsity": row.model.sparsity}
    if recipe is not None:
        run = find_or_learn(Order(name, row, recipe, seed, folder / method), images, tell)
        cell = run.metrics | {"epochs": recipe.learning.n_epochs, "history": run.coder.history_}
    elif method == "known-group":
        known = known_translation(embedded_digits(), **shared)
        cell = measure(LieSparseCoder.from_model(known, IMAGE_SHAPE), None, images.test)
    elif method == "scikit-learn":
        alpha = row.model.sparsity * row.model.noise_std**2  # its loss is σ² times ours
        rows = learn_by_scikit_learn("dictionary learning", images.train, row.model.n_components, seed, alpha)
        dictionary = normalize(rows.T.contiguous(), dim=0)
        cell = measure_baseline(SparseCoder.from_dictionary(dictionary, IMAGE_SHAPE, **shared), images.test)
    else:
        order = Order(name, row, Recipe(), seed, folder)
        cell = measure_baseline(find_or_learn_baseline(order, images, tell), images.test)
    return {"row": name, "recipe": method, "seed": seed} | cell | {"seconds": time.monotonic() - began}


def plan(rows: list[str], recipes: Recipes, n_seeds: int, folder: Path, data_dir: Path | None = None) -> list[Job]:
    """List all cells of the table, the fast ones first: a recipe, or sparse-coding, scikit-learn, known-group."""
    cells = [("translation", "known-group", 0)] if "translation" in rows else []
    cells += [(row, "scikit-learn", 0) for row in rows]
    cells += [(row, "sparse-coding", seed) for seed in range(n_seeds) for row in rows]
    cells += [(row, name, seed) for seed in range(n_seeds) for name in recipes for row in rows]
    jobs = []
    for row, method, seed in cells:
        recipe = recipes[method][row] if method in recipes else None
        work = partial(compute_cell, row, method, seed, recipe, folder, data_dir)
        jobs.append(Job((row, method), seed, {"settings": asdict(recipe or ROWS[row])}, work, 5 if recipe else 1))
    return jobs


def flat_cells(found: Results, recipes: Recipes) -> list[dict[str, Any]]:
    """Return the cells of the recipes for the JSON file, sparse coding of the same row and seed beside each."""
    plain = {(*job.names, job.seed): cell.get("sparse_coding_snr") for job, cell in found}
    return [
        {key: value for key, value in cell.items() if key not in ("history", "settings")}
        | {"sparse_coding_snr": plain.get((job.names[0], "sparse-coding", job.seed))}
        for job, cell in found
        if job.names[1] in recipes
    ]


def summarize(values: list[float]) -> str:
    """Return mean and range, or the one value."""
    digits = 1 if max(values, default=0) >= 10 else 2
    return over_seeds(values, lambda value: f"{value:.{digits}f}", statistics.fmean, "-") if values else "-"


def table(found: Results, rows: list[str], recipes: Recipes) -> list[list[str]]:
    """Return the lines of the table: the paper, each recipe, and sparse coding side by side."""

    def column(row: str, method: str, key: str) -> str:
        return summarize([cell[key] for job, cell in found if job.names == (row, method)])

    lines = [["row", "published", *recipes, "published SC", "our SC", "scikit-learn"]]
    for name in rows:
        learned = [column(name, recipe, "lsc_snr") for recipe in recipes]
        plain = [column(name, method, "sparse_coding_snr") for method in ("sparse-coding", "scikit-learn")]
        lines.append([name, f"{ROWS[name].paper_lsc}", *learned, f"{ROWS[name].paper_sparse_coding}", *plain])
    return lines
