"""Learning Φ and W: the paper's Algorithm 1. START HERE.

Each batch: find the codes with the pose integrated out, take the expectation over the pose, then
improve Φ and W. The paper climbs ln P(I|α̂) by gradient steps, projected to unit columns in Φ and by
Riemannian Adam on the Stiefel manifold in W; online EM goes to the maximum in one step, and is much faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import em, stiefel
from liesparse._checks import check_choice, check_count, check_images, check_real, check_unit_norm
from liesparse.gradients import dictionary_gradient, group_basis_gradient
from liesparse.inference import (
    CODE_UPDATES,
    GRADIENTS,
    CodeUpdate,
    Gradient,
    PoseExpectation,
    expect_pose,
    infer_codes,
)
from liesparse.model import Parameters, unit_columns
from liesparse.posterior import ENGINES, EngineName, make_engine

Schedule = Literal["constant", "cosine"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine")
Method = Literal["gradient", "em"]
METHODS: tuple[Method, ...] = ("gradient", "em")

LEAST_DECAY = 1e-3  # EM goes on averaging, however little the schedule leaves


@dataclass(frozen=True)
class Settings:
    """How to learn. The defaults are the paper's [Chau20, app. E].

    Attributes
    ----------
    n_epochs, batch_size : int
        Passes over the data, and images per update (paper: B).
    posterior : {"grid", "adaptive"}
        How the pose is integrated out: the paper's grid, or as finely as each posterior needs.
    n_grid : int
        Quadrature points per torus axis of the grid (paper: N).
    n_code_steps, code_start, code_update, gradient
        Inference of the codes, see :func:`liesparse.inference.infer_codes`.
    method : {"gradient", "em"}
        Gradient steps as in the paper, or online EM.
    dictionary_rate, group_rate : float
        Gradient: learning rates of Φ and W (paper: η_Φ, η_W).
    metric : {"canonical", "euclidean"}
        Gradient: metric of the Stiefel manifold for Riemannian Adam; the paper's is canonical.
    em_rate : float
        EM: share of one batch in the running averages; 1 / em_rate batches are remembered.
    batches_per_update : int
        EM: batches averaged before W and Φ are set anew.
    schedule : {"constant", "cosine"}
        Whether all rates stay or fall to 0 along half a cosine.
    single_shape_epochs : int
        During the first so many epochs only the largest code of each image counts in the updates.
        With several shapes per image the dictionary explains motion by mixing, and W learns nothing.
    """

    n_epochs: int = 20
    batch_size: int = 100
    posterior: EngineName = "grid"
    n_grid: int = 50
    n_code_steps: int = 20
    code_start: float = 0.01
    code_update: CodeUpdate = "subgradient"
    gradient: Gradient = "approximate"
    method: Method = "gradient"
    dictionary_rate: float = 0.05
    group_rate: float = 0.3
    metric: stiefel.Metric = "canonical"
    em_rate: float = 0.1
    batches_per_update: int = 2
    schedule: Schedule = "constant"
    single_shape_epochs: int = 0

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size", "n_code_steps", "batches_per_update"):
            check_count(name, getattr(self, name))
        check_count("n_grid", self.n_grid, 2)
        check_count("single_shape_epochs", self.single_shape_epochs, 0)
        for name in ("code_start", "dictionary_rate", "group_rate"):
            check_real(name, getattr(self, name), minimum=0)
        check_real("em_rate", self.em_rate, above=0, maximum=1)
        check_choice("posterior", self.posterior, ENGINES)
        check_choice("method", self.method, METHODS)
        check_choice("code_update", self.code_update, CODE_UPDATES)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("metric", self.metric, stiefel.METRICS)


class Progress(NamedTuple):
    """What a callback sees after each batch."""

    step: int
    n_steps: int
    epoch: int
    end_of_epoch: bool
    parameters: Parameters
    codes: Float[Tensor, "batch component"]


Callback = Callable[[Progress], None]


class LearningError(RuntimeError):
    """Learning went wrong and stopped; ``last_good`` is the model at the end of the last good epoch."""

    def __init__(self, message: str, last_good: Parameters) -> None:
        super().__init__(message)
        self.last_good = last_good


@torch.no_grad()
def learn(
    parameters: Parameters,
    images: Float[Tensor, "image pixel"],
    settings: Settings,
    *,
    generator: torch.Generator,
    callback: Callback | None = None,
) -> Parameters:
    """Learn Φ and W from unit-norm images, starting from ``parameters`` [Chau20, Algorithm 1].

    The learned model is returned; ``parameters`` stay as they were. If numbers stop being finite, or all codes
    of an epoch are zero, a :class:`LearningError` says so and carries the last good model.
    """
    check_unit_norm(check_images(images, parameters.n_pixels, parameters.dtype))
    parameters.validate()
    engine = make_engine(settings.posterior, parameters.frequencies, settings.n_grid, dtype=images.dtype)
    adam, averages = stiefel.AdamState.zero(parameters.group_basis), em.Averages.zero(parameters)
    n_batches = -(-len(images) // settings.batch_size)
    n_steps = n_batches * settings.n_epochs
    last_good, total = parameters, 0.0
    for step, batch in enumerate(shuffled_batches(images, settings, generator)):
        epoch = step // n_batches
        rate_factor = decay(settings.schedule, step / n_steps)
        codes = infer_codes(  # lines 4-9
            parameters,
            batch,
            engine,
            n_code_steps=settings.n_code_steps,
            start=settings.code_start,
            update=settings.code_update,
            gradient=settings.gradient,
        )
        used = largest_only(codes) if epoch < settings.single_shape_epochs else codes
        expectation = expect_pose(parameters, batch, used, engine)  # line 10
        if settings.method == "gradient":  # lines 11-14
            parameters, adam = update(parameters, adam, batch, used, expectation, settings, rate_factor)
        else:
            share = settings.em_rate * max(rate_factor, LEAST_DECAY) if step else 1.0
            averages = em.average(averages, batch, used, expectation, share)
            due = (step + 1) % settings.batches_per_update == 0 and (step + 1) * settings.em_rate >= 1
            if due or step + 1 == n_steps:
                parameters = em.maximize(parameters, averages)
        total += float(codes.sum())
        end = (step + 1) % n_batches == 0
        _check_health(parameters, total, end, epoch, last_good)
        if end:
            last_good, total = parameters, 0.0
        if callback is not None:
            callback(Progress(step + 1, n_steps, epoch + 1, end, parameters, codes))
    return parameters


def _check_health(parameters: Parameters, total: float, end_of_epoch: bool, epoch: int, last_good: Parameters) -> None:
    checksum = float(parameters.group_basis.sum() + parameters.dictionary.sum()) + total
    if not math.isfinite(checksum):
        raise LearningError(
            f"Learning stopped in epoch {epoch + 1}: the parameters are no longer finite numbers. "
            "Use smaller rates (group_rate, dictionary_rate), or check the images for extreme values.",
            last_good,
        )
    if end_of_epoch and total == 0:
        raise LearningError(
            f"Learning stopped in epoch {epoch + 1}: every code of every image is zero, so nothing can be learned. "
            "Use a smaller sparsity, a larger code_start, or start from the data.",
            last_good,
        )


def update(
    parameters: Parameters,
    adam: stiefel.AdamState,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    expectation: PoseExpectation,
    settings: Settings,
    rate_factor: float = 1.0,
) -> tuple[Parameters, stiefel.AdamState]:
    """Take one step in Φ and one in W [Chau20, Algorithm 1, lines 11-14], both with gradients at the old parameters."""
    uphill = dictionary_gradient(parameters, codes, expectation, settings.gradient)
    dictionary = unit_columns(parameters.dictionary + settings.dictionary_rate * rate_factor * uphill)
    group_basis, adam = stiefel.adam_step(
        parameters.group_basis,
        -group_basis_gradient(parameters, images, codes, expectation, settings.gradient),
        adam,
        rate=settings.group_rate * rate_factor,
        metric=settings.metric,
    )
    return replace(parameters, dictionary=dictionary, group_basis=group_basis), adam


def largest_only(codes: Float[Tensor, "batch component"]) -> Float[Tensor, "batch component"]:
    """Set all but the largest code of each image to zero."""
    return codes * (codes == codes.amax(dim=1, keepdim=True))


def decay(schedule: Schedule, progress: float) -> float:
    """Return the factor on the learning rates after a share ``progress`` of the training."""
    return 1.0 if schedule == "constant" else 0.5 * (1 + math.cos(math.pi * progress))


def shuffled_batches(
    images: Float[Tensor, "image pixel"], settings: Settings, generator: torch.Generator
) -> Iterator[Float[Tensor, "batch pixel"]]:
    """Yield the batches of all epochs, each epoch in a new random order."""
    for _ in range(settings.n_epochs):
        order = torch.randperm(len(images), generator=generator)
        for chosen in order.split(settings.batch_size):
            yield images[chosen]
