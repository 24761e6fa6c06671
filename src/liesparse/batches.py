"""Where the batches of an epoch come from: images in memory, a DataLoader, or an iterator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import check_count, check_images, check_unit_norm, reject
from liesparse.files import hash_tensor
from liesparse.parallel import ALONE, Group

Batches = Iterator[Float[Tensor, "batch pixel"]]


@runtime_checkable
class BatchSource(Protocol):
    """Where the batches of an epoch come from."""

    n_batches: int | None  # in an epoch, where that is known

    def epoch(self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE) -> Batches:
        """Yield this process's part of each unit-norm batch but the first ``skip``.

        An equal generator gives equal batches, however many processes share them; a part may be empty.
        """

    def fingerprint(self) -> str | None:
        """Return what tells these images from others, or None where nobody can know."""


class ShuffledArrays:
    """All images in memory, in a new random order in each epoch."""

    def __init__(self, images: Float[Tensor, "image pixel"], batch_size: int) -> None:
        self.images = check_unit_norm(check_images(images))
        self.batch_size = check_count("batch_size", batch_size)
        self.n_batches: int | None = -(-len(images) // batch_size)

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


class LoaderBatches:
    """Batches from a DataLoader (in every epoch again) or from an iterator (once)."""

    def __init__(self, batches: Iterable[Any], prepare: Callable[[Any], Tensor]) -> None:
        self._batches, self._prepare = batches, prepare
        self._held: list[Tensor] = []  # read ahead from an iterator
        self.once = isinstance(batches, Iterator)
        try:
            self.n_batches: int | None = len(batches)  # type: ignore[arg-type]
        except TypeError:  # an iterator, or a loader of an iterable data set
            self.n_batches = None

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

    def fingerprint(self) -> None:
        """Return nothing: what will come is not known."""

    def _ready(self, batch: Any) -> Tensor:
        return self._prepare(batch[0] if isinstance(batch, list | tuple) else batch)
