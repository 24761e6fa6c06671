"""Several processes that learn as one: all that they say to each other.

Each takes its part of every batch, the sums are added once for each step, and every process makes the same update.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from liesparse._checks import refusing
from liesparse.devices import message_backends, to_cpu

READER_DIED = "DataLoader worker"  # begins what torch says, from wherever it is heard
TIMEOUT = timedelta(minutes=30)  # without an answer the others count as gone; some read their data for long
T = TypeVar("T")


class LostError(RuntimeError):
    """Another process of the group is gone, and the others cannot go on without it."""

    def __init__(self, what: str = "Another process of this training is gone") -> None:
        super().__init__(
            f"{what}, so it stopped. If a checkpoint was saved, the same command with --resume goes on from it, "
            "with any number of processes."
        )


class Group:
    """One process, alone or of several, whose words go through torch.distributed; alone it has nothing to say."""

    rank = 0
    size = 1

    def __init__(self, store: Any = None) -> None:
        self.stopping = False  # whether to stop after this step: the same in every process
        self._asked = self._lost = False
        self._store = store
        if store is not None:
            self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def begin(self) -> None:
        """Forget an earlier wish to stop."""
        self.stopping = self._asked = False

    def all_equal(self, value: Any) -> bool:
        """Tell whether all processes have an equal value."""
        first, *others = self.gather_objects(value)
        return all(other == first for other in others)

    def ask_to_stop(self) -> None:
        """Let every process stop after its next step."""
        self._asked = True  # goes along with the next mean, so that all stop after the same step
        self.stopping = self.stopping or self.size == 1

    def part(self, rows: Tensor) -> Tensor:
        """Return this process's part of what all have; it may be empty."""
        return rows if self.size == 1 else rows.tensor_split(self.size)[self.rank]

    def mean(self, tensors: Sequence[Tensor], n: int) -> list[Tensor]:
        """Return means over the images of all processes, given those over the ``n`` images of each.

        It takes one sum over all processes; a part without images is 0.
        """
        if self.size == 1:
            return list(tensors)
        flat = torch.cat([tensor.flatten() for tensor in tensors]) * n
        message = torch.cat((flat, flat.new_tensor([n, self._asked])))
        with self._listening():
            dist.all_reduce(message)
        n_images, asked = message[-2:].tolist()
        self.stopping = asked > 0
        parts = (message[:-2] / n_images).split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def gather_objects(self, value: T) -> list[T]:
        """Return the values of all processes, in their order."""
        found: list[Any] = [value] * self.size
        if self.size > 1:
            with self._listening():
                dist.all_gather_object(found, value)
        return found

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, in their order."""
        return rows if self.size == 1 else torch.cat(self.gather_objects(to_cpu(rows))).to(rows.device)

    def broadcast(self, value: T) -> T:
        """Return what the first process has; its tensors should be on the CPU."""
        box = [value]
        if self.size > 1:
            with self._listening():
                dist.broadcast_object_list(box, src=0)
        return box[0]

    def speaks_first(self) -> bool:
        """Tell whether no other process has spoken: of an error that many meet one tells. Torchrun counts."""
        try:
            return self._store is None or bool(self._store.add("liesparse/spoken", 1) == 1)
        except RuntimeError:  # torchrun outlives us all, but now it is gone as well
            return True

    @contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed has no other for a peer that hung up or fell silent
            if isinstance(error, LostError) or READER_DIED in str(error):
                raise
            self._lost = True
            raise LostError from error

    def end(self, _number: int, _frame: FrameType | None) -> None:
        """Say why on SIGTERM, which alone would end a process without a word; once is enough."""
        if not self._lost:
            self._lost = True
            raise LostError("torchrun ended this process, because another is gone or because it was told to")


ALONE = Group()


@contextmanager
def join() -> Iterator[Group]:
    """Join the processes that torchrun started; without torchrun, be alone.

    Given to ``fit``, the group learns as one; all processes must call it with the same images and settings.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Group()
        return
    from torch.distributed.rendezvous import rendezvous  # not in every build of torch

    fix = "Start it with torchrun, or without WORLD_SIZE set."
    with refusing("a group that torchrun made", "none", fix, (RuntimeError, ValueError), "processes"):
        store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
        dist.init_process_group(message_backends(), store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    group = Group(store)
    with ExitStack() as leaving:
        leaving.callback(dist.destroy_process_group)
        if threading.current_thread() is threading.main_thread():  # elsewhere Python does not allow handlers
            leaving.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, group.end))
        yield group
