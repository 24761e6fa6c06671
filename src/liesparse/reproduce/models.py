"""Models of the paper's rows, made or found: a folder that has one with the same settings gives it back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.baselines import learn_sparse_coding
from liesparse.baselines.sparse_coding import SparseCodingProgress
from liesparse.checkpoint import load_model, save_model
from liesparse.files import hash_tensor, need, read_sealed, write_sealed
from liesparse.model import Parameters
from liesparse.posterior import make_engine
from liesparse.recipes import Recipe
from liesparse.reproduce.table1 import Images, Row, make_start, pick_monitor_images, sparse_coding_settings
from liesparse.state import Progress
from liesparse.training import CheckpointPolicy, History, train


class Order(NamedTuple):
    """Which model is wanted, and the folder it may lie in."""

    name: str  # of the row
    row: Row
    recipe: Recipe
    seed: int
    folder: Path

    @property
    def model_path(self) -> Path:
        """Where the model lies."""
        return self.folder / f"{self.name}.{self.seed}.safetensors"

    @property
    def checkpoints(self) -> Path:
        """Where an unfinished run lies."""
        return self.folder / f"{self.name}.{self.seed}.checkpoints"

    @property
    def dictionary_path(self) -> Path:
        """Where the dictionary of plain sparse coding lies."""
        return self.folder / f"{self.name}.{self.seed}.sparse-coding.safetensors"


class Step(NamedTuple):
    """What is told while a model is made."""

    share: float  # that is done
    note: str
    end_of_epoch: bool


Tell = Callable[[Step], None]


def find_or_learn(order: Order, images: Images, tell: Tell) -> Parameters:
    """Return the model, from the folder if it was learned with the same settings from the same images."""
    settings = _identity(order, images, {"recipe": asdict(order.recipe)})
    try:
        parameters, found = load_model(order.model_path)
    except ValueError:  # none, or a damaged one
        found = {}
    if found == settings:
        return parameters
    generator = torch.Generator().manual_seed(1000 + order.seed)  # the run of Table 1, so the same model
    start = make_start(order.row, order.recipe, images.train, generator=generator)
    evaluation, learning = order.recipe.evaluation, order.recipe.learning

    def look(progress: Progress, history: History) -> None:
        note = f"epoch {progress.epoch}/{learning.n_epochs}" + (f", SNR {history[-1]['snr']:.1f}" if history else "")
        tell(Step(progress.share, note, progress.end_of_epoch))

    parameters, _, _ = train(
        start,
        images.train,
        learning,
        generator=generator,
        monitor_images=pick_monitor_images(images, order.seed),
        evaluation_engine=make_engine(evaluation.posterior, start.frequencies, evaluation.n_grid),
        checkpoints=CheckpointPolicy(order.checkpoints),
        callback=look,
    )
    save_model(order.model_path, parameters, settings)
    shutil.rmtree(order.checkpoints)  # other settings, later, must not meet this run's leftovers
    return parameters


def find_or_learn_dictionary(order: Order, images: Images, tell: Tell) -> Float[Tensor, "pixel component"]:
    """Return the dictionary of plain sparse coding with the same K, σ and λ, made or found likewise."""
    learning = sparse_coding_settings(order.row)
    settings = _identity(order, images, {"sparse_coding": asdict(learning)})
    try:
        sealed = read_sealed(order.dictionary_path, "dictionary")
        need(sealed, order.dictionary_path, {"settings": dict}, ("dictionary",))
    except ValueError:
        pass
    else:
        if sealed.header["settings"] == settings:
            return sealed.tensors["dictionary"]

    def look(progress: SparseCodingProgress) -> None:
        per_epoch = progress.n_steps // learning.n_epochs
        epoch, place = divmod(progress.step - 1, per_epoch)
        note = f"epoch {epoch + 1}/{learning.n_epochs}"
        tell(Step(progress.step / progress.n_steps, note, place == per_epoch - 1))

    generator = torch.Generator().manual_seed(1000 + order.seed)
    dictionary = learn_sparse_coding(images.train, order.row.n_components, learning, generator=generator, callback=look)
    write_sealed(order.dictionary_path, "dictionary", {"settings": settings}, {"dictionary": dictionary})
    return dictionary


def _identity(order: Order, images: Images, learning: dict[str, Any]) -> dict[str, Any]:
    """Return what must be equal for a file to count, as JSON has it."""
    settings = {"row": order.name, "seed": order.seed, "n_images": len(images.train), **learning}
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain | {"data": hash_tensor(images.train)}  # another data set may have MNIST's names and size
