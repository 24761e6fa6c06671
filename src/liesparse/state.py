"""What the next update needs: where its batch comes from, and the state of a run, of which a callback sees a part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from liesparse import em, stiefel
from liesparse._checks import check_count, check_images, check_unit_norm, reject
from liesparse.devices import aligned, to_cpu
from liesparse.files import hash_tensor
from liesparse.model import Parameters
from liesparse.parallel import ALONE, Group

Batches = Iterator[Float[Tensor, "batch pixel"]]


class BatchSource:
    """Where the batches of an epoch come from."""

    n_batches: int | None = None  # in an epoch, where that is known

    def epoch(self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE) -> Batches:
        """Yield this process's part of each unit-norm batch but the first ``skip``.

        An equal generator gives equal batches, however many processes share them; a part may be empty.
        """
        raise NotImplementedError

    def fingerprint(self) -> str | None:
        """Return what tells these images from others, or None where nobody can know."""
        return None


class ShuffledArrays(BatchSource):
    """All images in memory, in a new random order in each epoch."""

    def __init__(self, images: Float[Tensor, "image pixel"], batch_size: int) -> None:
        self.images = check_unit_norm(check_images(images))
        self.batch_size = check_count("batch_size", batch_size)
        self.n_batches = -(-len(images) // batch_size)

    def epoch(self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE) -> Batches:
        """Yield the batches of one epoch; every process has all images, and knows the order of all."""
        order = torch.randperm(len(self.images), generator=generator)
        for chosen in order.split(self.batch_size)[skip:]:
            yield self.images[group.part(chosen).to(self.images.device)]

    def fingerprint(self) -> str:
        """Return the hash of the images."""
        return hash_tensor(self.images)


def is_stream(batches: Any) -> bool:
    """Tell a DataLoader or an iterator of batches from an array."""
    return isinstance(batches, Iterator | torch.utils.data.DataLoader)


class LoaderBatches(BatchSource):
    """Batches from a DataLoader (in every epoch again) or from an iterator (once)."""

    def __init__(self, batches: Iterable[Any], prepare: Callable[[Any], Tensor]) -> None:
        self._batches, self._prepare = batches, prepare
        self._held: list[Tensor] = []  # read ahead from an iterator
        self.once = isinstance(batches, Iterator)
        with suppress(TypeError):  # an iterator, or a loader of an iterable data set
            self.n_batches = len(batches)  # type: ignore[arg-type]

    def look_ahead(self, n_images: int) -> Tensor:
        """Return the first images, without taking them from the stream."""
        seen: list[Tensor] = []
        for batch in self._batches:
            seen.append(self._ready(batch))
            if sum(map(len, seen)) >= n_images:
                break
        if not seen:
            raise ValueError("The stream of batches is empty: n_samples=0.")
        if self.once:
            self._held = seen
        return torch.cat(seen)

    def epoch(self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE) -> Batches:  # noqa: ARG002
        """Yield the batches, unit norm; a loader has its own generator."""
        if group.size > 1:
            reject("X", "an array or a folder of shards, for several processes", "a stream", "Save it as .npy files.")
        held, self._held = self._held, []
        batches = itertools.chain(held, map(self._ready, self._batches))
        yield from itertools.islice(batches, skip, None)

    def _ready(self, batch: Any) -> Tensor:
        return self._prepare(batch[0] if isinstance(batch, list | tuple) else batch)


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
        state = group.broadcast(self._replace(last_good=self.parameters).map(to_cpu))
        return state.to(self.parameters.device).map(aligned)


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
