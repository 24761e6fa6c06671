"""Learning Φ and W: the paper's Algorithm 1. START HERE.

Each batch: find the codes with the pose integrated out, take the expectation over the pose, then
improve Φ and W. The paper climbs ln P(I|α̂) by gradient steps, projected to unit columns in Φ and by
Riemannian Adam on the Stiefel manifold in W; online EM goes to the maximum in one step, and is much faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from liesparse import em, stiefel
from liesparse._checks import check_choice, check_count, check_images, check_real, check_unit_norm
from liesparse.devices import aligned, full_precision, read_numbers
from liesparse.files import hash_tensor
from liesparse.gradients import Gradients, parameter_gradients
from liesparse.inference import (
    CODE_UPDATES,
    GRADIENTS,
    CodeUpdate,
    Gradient,
    expect_pose,
    infer_codes,
)
from liesparse.model import Parameters, unit_columns
from liesparse.parallel import ALONE, Group
from liesparse.posterior import Engine, engine_names, make_engine
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
    posterior: str = "grid"
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
        check_choice("posterior", self.posterior, engine_names())
        check_choice("method", self.method, METHODS)
        check_choice("code_update", self.code_update, CODE_UPDATES)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("metric", self.metric, stiefel.METRICS)


class State(NamedTuple):
    """All that decides how a run goes on: from equal states come bit-identical models.

    Between steps every tensor is as :func:`liesparse.devices.aligned` makes it, new or loaded.
    """

    parameters: Parameters
    adam: stiefel.AdamState
    averages: em.Averages
    step: int  # batches seen
    place: int  # batches seen in this epoch
    epoch: int  # epochs that are over
    random: UInt8[Tensor, " byte"]  # of the generator, as this epoch began
    code_sum: float  # of the mean over each batch of this epoch
    last_good: Parameters

    @classmethod
    def begin(cls, parameters: Parameters, generator: torch.Generator) -> State:
        """Return the state before the first batch."""
        adam, averages = stiefel.AdamState.zero(parameters.group_basis), em.Averages.zero(parameters)
        return cls(parameters, adam, averages, 0, 0, 0, generator.get_state(), 0.0, parameters).map(aligned)

    def to(self, device: torch.device) -> State:
        """Return the state on another device; that of the generator stays on the CPU."""
        return self.map(lambda tensor: tensor.to(device) if tensor.is_floating_point() else tensor)

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """Return the state with a function applied to each tensor."""
        return self._replace(
            parameters=self.parameters.map(function),
            adam=stiefel.AdamState(self.adam.step, *map(function, self.adam[1:])),
            averages=em.Averages(*map(function, self.averages)),
            random=function(self.random),
            last_good=self.last_good.map(function),
        )

    def agreed(self, group: Group) -> State:
        """Return the first process's state, where no batch has been seen since the last good model.

        Equal sums give equal updates; this is for the start, and against bits that part.
        """
        if group.size == 1:
            return self
        counts = [self.adam.step, self.step, self.place, self.epoch, self.code_sum]
        parts = [self.parameters.group_basis, self.parameters.dictionary, self.adam.momentum, self.adam.second_moment]
        basis, dictionary, momentum, second, *averages, random, numbers = group.broadcast(
            [*parts, *self.averages, self.random, torch.tensor(counts, dtype=torch.float64)]
        )
        *places, code_sum = read_numbers(numbers)
        adam_step, step, place, epoch = map(round, places)
        parameters = replace(self.parameters, group_basis=basis, dictionary=dictionary)
        adam = stiefel.AdamState(adam_step, momentum, second)
        state = State(parameters, adam, em.Averages(*averages), step, place, epoch, random, code_sum, parameters)
        return state.map(aligned)


class Progress(NamedTuple):
    """What a callback sees after each batch; ``codes`` are those of this process's part of it."""

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

    def epoch(
        self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE
    ) -> Iterator[Float[Tensor, "batch pixel"]]:
        """Yield this process's part of each unit-norm batch but the first ``skip``.

        An equal generator gives equal batches, however many processes share them; a part may be empty.
        """

    def fingerprint(self) -> str | None:
        """Return what tells these images from others, or None where nobody can know."""


class Shuffled:
    """All images in memory, in a new random order in each epoch."""

    def __init__(self, images: Float[Tensor, "image pixel"], batch_size: int) -> None:
        self.images = check_unit_norm(check_images(images))
        self.batch_size = check_count("batch_size", batch_size)
        self.n_batches: int | None = -(-len(images) // batch_size)

    def epoch(
        self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE
    ) -> Iterator[Float[Tensor, "batch pixel"]]:
        """Yield the batches of one epoch; every process has all images, and knows the order of all."""
        order = torch.randperm(len(self.images), generator=generator)
        for chosen in order.split(self.batch_size)[skip:]:
            yield self.images[group.part(chosen).to(self.images.device)]

    def fingerprint(self) -> str:
        """Return the hash of the images."""
        return hash_tensor(self.images)


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
    return resume(State.begin(parameters, generator), source, settings, callback=callback).parameters


@torch.no_grad()
@full_precision
def resume(
    state: State, source: Source, settings: Settings, *, callback: Callback | None = None, group: Group = ALONE
) -> State:
    """Learn from ``state`` to the end of the last epoch, in whose middle ``state`` may lie.

    The processes of ``group`` share each batch and go on from the first one's state.
    """
    state = state.agreed(group)
    parameters = state.parameters.validate()
    engine = make_engine(
        settings.posterior, parameters.frequencies, settings.n_grid, dtype=parameters.dtype, device=parameters.device
    )
    n_steps = None if source.n_batches is None else source.n_batches * settings.n_epochs
    generator = torch.Generator()
    for epoch in range(state.epoch, settings.n_epochs):
        generator.set_state(state.random)
        for batch, last in _mark_last(source.epoch(generator, skip=state.place, group=group)):
            images = batch.to(parameters.device)  # a stream reads on the CPU
            state, codes = advance(state, images, settings, engine, n_steps=n_steps, end_of_epoch=last, group=group)
            if last:
                state = state._replace(random=generator.get_state()).agreed(group)
            if callback is not None:
                callback(Progress(state.step, n_steps, epoch + 1, last, state, codes))
    return state


@full_precision
def advance(
    state: State,
    batch: Float[Tensor, "batch pixel"],
    settings: Settings,
    engine: Engine,
    *,
    n_steps: int | None = None,
    end_of_epoch: bool = False,
    group: Group = ALONE,
) -> tuple[State, Float[Tensor, "batch component"]]:
    """Learn from one batch [Chau20, Algorithm 1, lines 4-14]; without ``n_steps`` no rate falls."""
    batch = aligned(batch)
    parameters, adam, averages = state.parameters, state.adam, state.averages
    rate_factor = decay(settings.schedule, state.step / n_steps) if n_steps is not None else 1.0
    # Who has no part of a batch looks at a shape instead, which then counts for nothing.
    images = batch if len(batch) else parameters.dictionary[:, :1].T
    codes = infer_codes(  # lines 4-9
        parameters,
        images,
        engine,
        n_code_steps=settings.n_code_steps,
        start=settings.code_start,
        update=settings.code_update,
        gradient=settings.gradient,
    )
    used = largest_only(codes) if state.epoch < settings.single_shape_epochs else codes
    expectation = expect_pose(parameters, images, used, engine)  # line 10
    step = state.step + 1
    own: Gradients | em.Averages
    if settings.method == "gradient":  # lines 11-14
        own = parameter_gradients(parameters, images, used, expectation, settings.gradient)
    else:
        share = settings.em_rate * max(rate_factor, LEAST_DECAY) if state.step else 1.0
        own = em.average(averages, images, used, expectation, share)
    *every, code_mean = group.mean([*own, codes.sum(dim=1).mean()], len(batch))
    if settings.method == "gradient":
        parameters, adam = update(parameters, adam, Gradients(*every), settings, rate_factor)
    else:
        averages = em.Averages(*every)
        due = step % settings.batches_per_update == 0 and step * settings.em_rate >= 1
        if due or step == n_steps:
            parameters = em.maximize(parameters, averages)
    checksum, batch_mean = read_numbers(
        torch.stack((parameters.group_basis.sum() + parameters.dictionary.sum(), code_mean))
    )
    code_sum = state.code_sum + batch_mean
    _check_health(checksum + code_sum, code_sum, end_of_epoch, state)
    state = State(
        parameters, adam, averages, step, state.place + 1, state.epoch, state.random, code_sum, state.last_good
    )
    codes = codes[: len(batch)]
    if end_of_epoch:
        state = _end_epoch(state, batch, codes, settings, engine, group)
    return state.map(aligned), codes


def _end_epoch(state: State, batch: Tensor, codes: Tensor, settings: Settings, engine: Engine, group: Group) -> State:
    parameters, averages = state.parameters, state.averages
    if settings.reseed_overlap < 1 and 2 * (state.epoch + 1) <= settings.n_epochs:
        every = group.gather(batch), group.gather(codes)
        parameters, wasted = reseed(parameters, *every, engine, settings.reseed_overlap)
        averages = averages.without(wasted)
    return state._replace(
        parameters=parameters, averages=averages, place=0, epoch=state.epoch + 1, code_sum=0.0, last_good=parameters
    )


def _mark_last(batches: Iterator[Tensor]) -> Iterator[tuple[Tensor, bool]]:
    held = next(batches, None)
    while held is not None:
        following = next(batches, None)
        yield held, following is None
        held = following


def _check_health(checksum: float, code_sum: float, end_of_epoch: bool, before: State) -> None:
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
    uphill: Gradients,
    settings: Settings,
    rate_factor: float = 1.0,
) -> tuple[Parameters, stiefel.AdamState]:
    """Take one step in Φ and one in W [Chau20, Algorithm 1, lines 11-14], both with gradients at the old parameters."""
    dictionary = unit_columns(parameters.dictionary + settings.dictionary_rate * rate_factor * uphill.dictionary)
    group_basis, adam = stiefel.adam_step(
        parameters.group_basis,
        -uphill.group_basis,
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
