"""The paper's four data sets and their models: learned once, kept in a folder, and found again [Chau20, sec. 5]."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.baselines import SparseCodingProgress, SparseCodingSettings, learn_sparse_coding
from liesparse.data import load_mnist, rotations_scalings, translations
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.files import hash_tensor, need, read_sealed, write_sealed
from liesparse.recipes import Recipe
from liesparse.run_directory import CHECKPOINTS, Run, load_run, measure, save_run
from liesparse.settings import ModelSettings
from liesparse.state import Progress
from liesparse.training import N_MONITORED, CheckpointPolicy, History, learn_model

N_TRAIN, N_TEST = 60_000, 10_000


@dataclass(frozen=True)
class Row:
    """One row of Table 1, with the paper's figures."""

    data: str
    model: ModelSettings
    paper_lsc: float
    paper_sparse_coding: float
    sparse_coding_rate: float = 0.001  # of our own baseline, tuned for each row
    sparse_coding_epochs: int = 10

    @property
    def sparse_coding(self) -> SparseCodingSettings:
        """How plain sparse coding is learned, with the same σ and λ as the model."""
        return SparseCodingSettings(
            noise_std=self.model.noise_std,
            sparsity=self.model.sparsity,
            dictionary_rate=self.sparse_coding_rate,
            n_epochs=self.sparse_coding_epochs,
        )


ROWS = {
    "translation": Row("translation", ModelSettings(), 28.5, 2.2),
    "rotation-scaling": Row("rotation-scaling", ModelSettings(), 20.5, 2.6),
    "mnist-10": Row("mnist", ModelSettings(multiplicity=2), 4.8, 3.0),
    "mnist-100": Row("mnist", ModelSettings(n_components=100, sparsity=1.0, multiplicity=2), 16.7, 15.3, 0.0004, 40),
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

    @property
    def generator(self) -> torch.Generator:
        """A new generator, the same for everything that is learned with this seed."""
        return torch.Generator().manual_seed(1000 + self.seed)


class Step(NamedTuple):
    """How far learning is."""

    share: float  # that is done
    note: str
    end_of_epoch: bool


Tell = Callable[[Step], None]


def find_or_learn(order: Order, images: RowImages, tell: Tell) -> Run:
    """Return the run of a model, from the folder if it was learned with the same settings from the same images."""
    settings = _identity(order, images, {"recipe": asdict(order.recipe)})
    folder, learning = order.run_directory, order.recipe.learning
    try:
        run = load_run(folder)
    except ValueError:  # none, or a damaged one
        run = None
    if run is not None and run.settings == settings:
        return run

    def watch(progress: Progress, history: History) -> None:
        note = f"epoch {progress.epoch}/{learning.n_epochs}" + (f", SNR {history[-1]['snr']:.1f}" if history else "")
        tell(Step(progress.share, note, progress.end_of_epoch))

    began = time.monotonic()
    chosen = torch.randperm(len(images.test), generator=torch.Generator().manual_seed(order.seed))[:N_MONITORED]
    trained = learn_model(
        images.train,
        order.row.model,
        order.recipe,
        generator=order.generator,
        monitor_images=images.test[chosen],
        checkpoints=CheckpointPolicy(folder / CHECKPOINTS),
        callback=watch,
    )
    seconds = time.monotonic() - began
    coder = LieSparseCoder.from_model(trained.parameters, _image_shape(images), history=trained.history)
    metrics = measure(coder, None, images.test, order.recipe.evaluation) | {"training_seconds": round(seconds, 1)}
    run = Run(folder, coder, None, settings, metrics)
    save_run(run)
    shutil.rmtree(folder / CHECKPOINTS)  # other settings, later, must not meet this run's leftovers
    return run


def find_or_learn_baseline(order: Order, images: RowImages, tell: Tell) -> SparseCoder:
    """Return plain sparse coding with the same K, σ and λ, found or learned likewise."""
    row, learning = order.row, order.row.sparse_coding
    settings = _identity(order, images, {"sparse_coding": asdict(learning)})
    try:
        sealed = read_sealed(order.dictionary_path, "dictionary")
        need(sealed, order.dictionary_path, {"settings": dict}, ("dictionary",))
        dictionary = sealed.tensors["dictionary"] if sealed.header["settings"] == settings else None
    except ValueError:
        dictionary = None

    def watch(progress: SparseCodingProgress) -> None:
        per_epoch = progress.n_steps // learning.n_epochs
        epoch, place = divmod(progress.step - 1, per_epoch)
        note = f"epoch {epoch + 1}/{learning.n_epochs}"
        tell(Step(progress.step / progress.n_steps, note, place == per_epoch - 1))

    if dictionary is None:
        dictionary = learn_sparse_coding(
            images.train, row.model.n_components, learning, generator=order.generator, callback=watch
        )
        write_sealed(order.dictionary_path, "dictionary", {"settings": settings}, {"dictionary": dictionary})
    return baseline_from(dictionary, row, images)


def baseline_from(dictionary: Float[Tensor, "pixel component"], row: Row, images: RowImages) -> SparseCoder:
    """Return plain sparse coding with a row's σ and λ around a dictionary."""
    values = {"sparsity": row.model.sparsity, "noise_std": row.model.noise_std}
    return SparseCoder.from_dictionary(dictionary, _image_shape(images), **values)


def _image_shape(images: RowImages) -> tuple[int, int]:
    side = math.isqrt(images.train.shape[1])
    return side, side


def _identity(order: Order, images: RowImages, learning: dict[str, Any]) -> dict[str, Any]:
    """Return what must be equal for a file to count, as JSON has it."""
    settings = {"row": order.name, "model": asdict(order.row.model), "seed": order.seed, **learning}
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain | {"data": hash_tensor(images.train)}  # another data set may have MNIST's names and size
