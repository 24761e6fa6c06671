"""Learning Φ and W: the paper's Algorithm 1. START HERE.

Each batch: find the codes with the pose integrated out, take the expectation over the pose, then
improve Φ and W. The paper climbs ln P(I|α̂) by gradient steps, projected to unit columns in Φ and by
Riemannian Adam on the Stiefel manifold in W; online EM goes to the maximum in one step, and is much faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
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
from liesparse.posterior import ENGINES, Engine, EngineName, make_engine
from liesparse.reseed import reseed

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
    posterior : {"auto", "grid", "adaptive", "sampling"}
        How the pose is integrated out: on the paper's grid, as finely as each posterior needs, or by importance
        sampling; auto is adaptive for up to two transformations and sampling for more.
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
    reseed_overlap : float
        Below 1: after each epoch of the first half, a shape that no image uses, or that equals another in some
        pose up to this overlap, starts anew as the image that is explained worst.
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
    reseed_overlap: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size", "n_code_steps", "batches_per_update"):
            check_count(name, getattr(self, name))
        check_count("n_grid", self.n_grid, 2)
        check_count("single_shape_epochs", self.single_shape_epochs, 0)
        for name in ("code_start", "dictionary_rate", "group_rate"):
            check_real(name, getattr(self, name), minimum=0)
        check_real("em_rate", self.em_rate, above=0, maximum=1)
        check_real("reseed_overlap", self.reseed_overlap, above=0, maximum=1)
        check_choice("posterior", self.posterior, ENGINES)
        check_choice("method", self.method, METHODS)
        check_choice("code_update", self.code_update, CODE_UPDATES)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("metric", self.metric, stiefel.METRICS)


class State(NamedTuple):
    """All that decides how a run goes on: from equal states come bit-identical models."""

    parameters: Parameters
    adam: stiefel.AdamState
    averages: em.Averages
    step: int  # batches seen
    place: int  # batches seen in this epoch
    epoch: int  # epochs that are over
    random: UInt8[Tensor, " byte"]  # of the generator, as this epoch began
    code_sum: float  # over the batches of this epoch
    last_good: Parameters

    @classmethod
    def begin(cls, parameters: Parameters, generator: torch.Generator) -> State:
        """Return the state before the first batch."""
        adam, averages = stiefel.AdamState.zero(parameters.group_basis), em.Averages.zero(parameters)
        return cls(parameters, adam, averages, 0, 0, 0, generator.get_state(), 0.0, parameters)


class Progress(NamedTuple):
    """What a callback sees after each batch."""

    step: int
    n_steps: int | None  # None where nobody knows how long the stream is
    epoch: int
    end_of_epoch: bool
    state: State
    codes: Float[Tensor, "batch component"]

    @property
    def parameters(self) -> Parameters:
        """The model so far."""
        return self.state.parameters

    @property
    def share(self) -> float:
        """How much is done; 0 where nobody knows how long the stream is."""
        return self.step / self.n_steps if self.n_steps else 0.0


Callback = Callable[[Progress], None]


@runtime_checkable
class Source(Protocol):
    """Where the batches of an epoch come from."""

    n_batches: int | None  # in an epoch, where that is known

    def epoch(self, generator: torch.Generator) -> Iterator[Float[Tensor, "batch pixel"]]:
        """Yield unit-norm batches; an equal generator gives equal batches."""


class Shuffled:
    """All images in memory, in a new random order in each epoch."""

    def __init__(self, images: Float[Tensor, "image pixel"], batch_size: int) -> None:
        self.images = check_unit_norm(check_images(images))
        self.batch_size = check_count("batch_size", batch_size)
        self.n_batches: int | None = -(-len(images) // batch_size)

    def epoch(self, generator: torch.Generator) -> Iterator[Float[Tensor, "batch pixel"]]:
        """Yield the batches of one epoch."""
        order = torch.randperm(len(self.images), generator=generator)
        for chosen in order.split(self.batch_size):
            yield self.images[chosen.to(self.images.device)]


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
    check_images(images, parameters.n_pixels, parameters.dtype)
    source = Shuffled(images, settings.batch_size)
    return go_on(State.begin(parameters, generator), source, settings, callback=callback).parameters


@torch.no_grad()
def go_on(state: State, source: Source, settings: Settings, *, callback: Callback | None = None) -> State:
    """Learn from ``state`` to the end of the last epoch, in whose middle ``state`` may lie."""
    parameters = state.parameters.validate()
    engine = make_engine(settings.posterior, parameters.frequencies, settings.n_grid, dtype=parameters.dtype)
    n_steps = None if source.n_batches is None else source.n_batches * settings.n_epochs
    generator = torch.Generator()
    for epoch in range(state.epoch, settings.n_epochs):
        generator.set_state(state.random)
        batches = itertools.islice(source.epoch(generator), state.place, None)
        for batch, last in _mark_last(batches):
            state, codes = advance(state, batch, settings, engine, n_steps=n_steps, end_of_epoch=last)
            if last:
                state = state._replace(random=generator.get_state())
            if callback is not None:
                callback(Progress(state.step, n_steps, epoch + 1, last, state, codes))
    return state


def advance(
    state: State,
    batch: Float[Tensor, "batch pixel"],
    settings: Settings,
    engine: Engine,
    *,
    n_steps: int | None = None,
    end_of_epoch: bool = False,
) -> tuple[State, Float[Tensor, "batch component"]]:
    """Learn from one batch [Chau20, Algorithm 1, lines 4-14]; without ``n_steps`` no rate falls."""
    parameters, adam, averages = state.parameters, state.adam, state.averages
    rate_factor = decay(settings.schedule, state.step / n_steps) if n_steps is not None else 1.0
    codes = infer_codes(  # lines 4-9
        parameters,
        batch,
        engine,
        n_code_steps=settings.n_code_steps,
        start=settings.code_start,
        update=settings.code_update,
        gradient=settings.gradient,
    )
    used = largest_only(codes) if state.epoch < settings.single_shape_epochs else codes
    expectation = expect_pose(parameters, batch, used, engine)  # line 10
    step = state.step + 1
    if settings.method == "gradient":  # lines 11-14
        parameters, adam = update(parameters, adam, batch, used, expectation, settings, rate_factor)
    else:
        share = settings.em_rate * max(rate_factor, LEAST_DECAY) if state.step else 1.0
        averages = em.average(averages, batch, used, expectation, share)
        due = step % settings.batches_per_update == 0 and step * settings.em_rate >= 1
        if due or step == n_steps:
            parameters = em.maximize(parameters, averages)
    code_sum = state.code_sum + float(codes.sum())
    _check_health(parameters, code_sum, end_of_epoch, state)
    state = State(
        parameters, adam, averages, step, state.place + 1, state.epoch, state.random, code_sum, state.last_good
    )
    if end_of_epoch:
        if settings.reseed_overlap < 1 and 2 * (state.epoch + 1) <= settings.n_epochs:
            parameters, wasted = reseed(parameters, batch, codes, engine, settings.reseed_overlap)
            state = state._replace(parameters=parameters, averages=averages.without(wasted))
        state = state._replace(place=0, epoch=state.epoch + 1, code_sum=0.0, last_good=parameters)
    return state, codes


def _mark_last(batches: Iterator[Tensor]) -> Iterator[tuple[Tensor, bool]]:
    held = next(batches, None)
    while held is not None:
        following = next(batches, None)
        yield held, following is None
        held = following


def _check_health(parameters: Parameters, code_sum: float, end_of_epoch: bool, before: State) -> None:
    checksum = float(parameters.group_basis.sum() + parameters.dictionary.sum()) + code_sum
    if not math.isfinite(checksum):
        raise LearningError(
            f"Learning stopped in epoch {before.epoch + 1}: the parameters are no longer finite numbers. "
            "Use smaller rates (group_rate, dictionary_rate), or check the images for extreme values.",
            before.last_good,
        )
    if end_of_epoch and code_sum == 0:
        raise LearningError(
            f"Learning stopped in epoch {before.epoch + 1}: every code of every image is zero, so nothing can be "
            "learned. Use a smaller sparsity, a larger code_start, or start from the data.",
            before.last_good,
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
