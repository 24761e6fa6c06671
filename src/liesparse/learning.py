"""Learning Φ and W: the paper's Algorithm 1. START HERE.

Each batch: find the codes with the pose integrated out, take the expectation over the pose, then
improve Φ and W. The paper climbs ln P(I|α̂) by gradient steps, projected to unit columns in Φ and by
Riemannian Adam on the Stiefel manifold in W; online EM goes to the maximum in one step, and is much faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import em, stiefel
from liesparse._checks import check_images
from liesparse.devices import aligned, full_precision, read_numbers
from liesparse.inference import Gradients, expect_pose, infer_codes, parameter_gradients
from liesparse.model import Parameters, unit_columns
from liesparse.parallel import ALONE, Group
from liesparse.posterior import PoseEngine, engine_of
from liesparse.reseed import reseed
from liesparse.settings import Settings
from liesparse.state import BatchSource, Callback, Progress, ShuffledArrays, State

# When wasted shapes start anew, and when the lattice is fitted, as shares of the training.
RESEEDS = tuple(twentieth / 20 for twentieth in range(1, 16))
UPDATE_SHARE = 0.1  # of what the averages remember is new, at the least, when W and Φ are set anew
LATTICE_FITS = (0.1, 0.2, 0.3)


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
    settings = settings.resolve(parameters.n_components, len(images))
    source = ShuffledArrays(images, settings.batch_size)
    return resume(State.begin(parameters, generator), source, settings, callback=callback).parameters


@torch.no_grad()
@full_precision
def resume(
    state: State,
    source: BatchSource,
    settings: Settings,
    *,
    until: int | None = None,
    callback: Callback | None = None,
    group: Group = ALONE,
) -> State:
    """Learn from ``state``, which may lie in the middle of an epoch, to the end of the last one or to step ``until``.

    The processes of ``group`` share each batch and go on from the first one's state.
    """
    state = state.agreed(group)
    settings = settings.resolve(state.parameters.validate().n_components)
    engine = engine_for(state.parameters, settings)
    n_steps = None if source.n_batches is None else source.n_batches * settings.n_epochs
    generator = torch.Generator()
    for epoch in range(state.epoch, settings.n_epochs):
        generator.set_state(state.random)
        for batch, last in _mark_last(source.epoch(generator, skip=state.place, group=group)):
            images = batch.to(state.parameters.device)  # a stream reads on the CPU
            state, codes = advance(state, images, settings, engine, n_steps=n_steps, end_of_epoch=last, group=group)
            engine = engine_for(state.parameters, settings, engine)
            if last:
                state = state._replace(random=generator.get_state()).agreed(group)
            if callback is not None:
                callback(Progress(state.step, n_steps, epoch + 1, last, state, codes))
            if state.step == until:
                return state
    return state


def engine_for(parameters: Parameters, settings: Settings, engine: PoseEngine | None = None) -> PoseEngine:
    """Return the engine with which a model learns: the one that there is, as long as the frequencies are the same."""
    same = engine is not None and engine.frequencies is parameters.frequencies  # or a device would be waited for
    if engine is not None and (same or engine.frequencies.equal(parameters.frequencies)):
        return engine
    return engine_of(parameters, settings.posterior, settings.n_grid)


@full_precision
def advance(
    state: State,
    batch: Float[Tensor, "batch pixel"],
    settings: Settings,
    engine: PoseEngine,
    *,
    n_steps: int | None = None,
    end_of_epoch: bool = False,
    group: Group = ALONE,
) -> tuple[State, Float[Tensor, "batch component"]]:
    """Learn from one batch [Chau20, Algorithm 1, lines 4-14]; without ``n_steps`` as in a run of usual length."""
    batch = aligned(batch)
    parameters, adam, averages = state.parameters, state.adam, state.averages
    step, length = state.step + 1, settings.length(parameters.n_components, n_steps)
    done, then = min(1.0, state.step / length), min(1.0, step / length)
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
    expectation = expect_pose(parameters, images, codes, engine)  # line 10
    if settings.method == "gradient":  # lines 11-14
        own: Gradients | em.Averages = parameter_gradients(parameters, codes, expectation, settings.gradient)
    else:
        each = parameters.n_components / math.sqrt(averages.n_codes())  # sums of shapes show each of them more often
        seen, first = step * settings.batch_size, each * settings.first_memory
        remembered = min(each * settings.memory(done), max(first, seen))  # no more than there was
        share = min(1.0, settings.batch_size / remembered) if state.step else 1.0
        own = em.average(averages, codes, expectation, share)
    *every, code_mean = group.mean([*own, codes.sum(dim=1).mean()], len(batch))
    if settings.method == "gradient":
        parameters, adam = update(parameters, adam, Gradients(*every), settings)
    else:
        averages = em.Averages(*every)
        every_so_many = max(settings.batches_per_update, math.floor(UPDATE_SHARE * remembered / settings.batch_size))
        due = step % every_so_many == 0 and seen >= first
        if due or step == n_steps:
            parameters = em.maximize(parameters, averages, learn_group=settings.learn_group)
    sums = parameters.group_basis.sum() + parameters.dictionary.sum(), code_mean
    checksum, batch_mean = read_numbers(torch.stack(sums))
    code_sum = state.code_sum + batch_mean
    _check_health(checksum + code_sum, code_sum, end_of_epoch, state)
    codes = codes[: len(batch)]
    if _reached(RESEEDS, done, then):
        parameters, averages = _start_anew(parameters, averages, batch, codes, engine, settings, group)
    fits = settings.lattice == "fitted" and settings.method == "em" and settings.learn_group
    if fits and _reached(LATTICE_FITS, done, then):
        parameters, averages = em.fit_lattice(parameters, averages)
    state = State(
        parameters, adam, averages, step, state.place + 1, state.epoch, state.random, code_sum, state.last_good
    )
    if end_of_epoch:
        state = state._replace(place=0, epoch=state.epoch + 1, code_sum=0.0, last_good=parameters)
    return state.map(aligned), codes


def _start_anew(
    parameters: Parameters,
    averages: em.Averages,
    batch: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    engine: PoseEngine,
    settings: Settings,
    group: Group,
) -> tuple[Parameters, em.Averages]:
    """Put images of the batch in the place of wasted shapes, of which the averages then know nothing."""
    if settings.reseed_overlap >= 1:
        return parameters, averages
    use = averages.gram.diagonal() if settings.method == "em" else None
    everyone = group.gather(batch), group.gather(codes)
    parameters, wasted = reseed(parameters, *everyone, engine, settings.reseed_overlap, use)
    return parameters, averages.without(wasted)


def _reached(times: tuple[float, ...], done: float, then: float) -> bool:
    """Tell whether one of some times lies between two shares of the training."""
    return any(done < time <= then for time in times)


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
) -> tuple[Parameters, stiefel.AdamState]:
    """Take one step in Φ and one in W [Chau20, Algorithm 1, lines 11-14], both with gradients at the old parameters."""
    dictionary = unit_columns(parameters.dictionary + settings.dictionary_rate * uphill.dictionary)
    if not settings.learn_group:
        return replace(parameters, dictionary=dictionary), adam
    group_basis, adam = stiefel.adam_step(
        parameters.group_basis,
        -uphill.group_basis,
        adam,
        rate=settings.group_rate,
        metric=settings.metric,
    )
    return replace(parameters, dictionary=dictionary, group_basis=group_basis), adam
