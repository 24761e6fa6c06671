"""What the claims share: how large a trial is, the verdicts, models that are kept, and numbers as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from liesparse.model import Parameters
from liesparse.reproduce.kept import over_seeds
from liesparse.reproduce.table1 import Order, Row, RowImages, find_or_learn
from liesparse.settings import ModelSettings, Recipe, Start, load_recipe

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold here"
Numbers = dict[str, Any]  # of one seed, as JSON has them; "curves" has lines for the figure: label -> [x, y]


@dataclass(frozen=True)
class Size:
    """How large the trials are; the rest of each is fixed beside it."""

    n_images: int = 3000  # of 28 × 28 pixels, from which a model learns
    n_shown: int = 20_000  # that it is shown in all
    n_test: int = 300
    n_steps: int = 1000  # of the paper's gradient training, on small images
    start: Start = "pairs"
    mnist: str = "mnist-mini"

    def recipe(self, n_images: int) -> Recipe:
        """Return the defaults, for as many epochs as it takes to show what is to be shown."""
        return load_recipe("best").with_values(
            {"start": self.start, "learning.n_epochs": math.ceil(self.n_shown / n_images)}
        )


FULL = Size(n_images=20_000, n_shown=60_000, n_test=2000, n_steps=3000, mnist="mnist")


class Trial(NamedTuple):
    """One seed of one claim, and the folders for its models and for MNIST."""

    seed: int
    size: Size
    folder: Path
    data_dir: Path | None = None


class Judgement(NamedTuple):
    """What the numbers of all seeds say."""

    verdict: str
    reason: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, how it is measured for one seed, and the rule that makes the verdict."""

    sentence: str
    place: str  # in the paper
    measured: str
    measure: Callable[[Trial], Numbers]
    judge: Callable[[Sequence[Numbers]], Judgement]
    axes: tuple[str, str] = field(default=("", ""))  # of its figure, if it has one


def learn_kept(name: str, model: ModelSettings, images: RowImages, trial: Trial) -> Parameters:
    """Learn a model at the defaults, for the time that the size allows, or find it in the folder."""
    recipe, row = trial.size.recipe(len(images.train)), Row(name, model, math.nan, math.nan)
    return find_or_learn(Order(name, row, recipe, trial.seed, trial.folder), images, lambda _: None).coder.model_


def middle(cells: Sequence[Numbers], key: str) -> float:
    """Return the median of a number over the seeds."""
    return statistics.median(cell[key] for cell in cells)


def spread(cells: Sequence[Numbers], key: str, digits: int = 2) -> str:
    """Return the median over the seeds, and all values if there are a few."""
    return over_seeds([cell[key] for cell in cells], lambda value: f"{value:.{digits}f}")


def verdict(holds: bool, in_part: bool) -> str:
    """Return the name of a verdict."""
    return HOLDS if holds else IN_PART if in_part else FAILS
