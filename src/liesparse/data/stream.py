"""Batches from shards in a random order that is new in each epoch, through a buffer of bounded size.

The blocks of all files are put into a random order, and this sequence is cut into equally long lanes. Image p of an
epoch comes from lane p mod 64, and each lane is shuffled within windows: so the images of a batch come from all
over the data, and the order depends on the seed alone. A process reads the lanes that are its own; a worker reads a
window of every lane ahead. Where an image stands follows from its number, so a run can go on in the middle.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from liesparse._checks import check_count, reject
from liesparse.data.shards import Shards
from liesparse.parallel import ALONE, Group

LANES = 64  # as many processes at most
WINDOW = 128  # images of a lane that are shuffled with each other
ROUND = LANES * WINDOW  # images in the buffer of all processes together


class Rounds(Dataset[Tensor | str]):
    """The images of one epoch, a buffer at a time: those of some lanes, in their order."""

    def __init__(self, shards: Shards, seed: int, lanes: range, dtype: torch.dtype) -> None:
        self._shards, self._seed, self._lanes, self._dtype = shards, seed, lanes, dtype
        self._blocks = np.random.default_rng(seed).permutation(len(shards.counts))
        self._ends = np.cumsum(shards.counts[self._blocks])
        lengths = (len(shards) + LANES - 1 - np.arange(LANES)) // LANES
        self._starts = np.concatenate(([0], np.cumsum(lengths)))

    def __len__(self) -> int:
        return math.ceil(len(self._shards) / ROUND)

    def numbers(self, number: int) -> NDArray[np.int64]:
        """Return the places, in the sequence of blocks, of the images of a round."""
        places, ranks = [], []
        for lane in self._lanes:
            begin = self._starts[lane] + number * WINDOW
            n = max(0, min(WINDOW, int(self._starts[lane + 1] - begin)))
            places.append(begin + np.random.default_rng((self._seed, lane, number)).permutation(n))
            ranks.append(np.arange(n) * LANES + lane)
        return np.concatenate(places)[np.argsort(np.concatenate(ranks))].astype(np.int64)

    def __getitem__(self, number: int) -> Tensor | str:
        """Read a round; what goes wrong is returned as text, as a worker's traceback would hide it."""
        try:
            return self._shards.read(self._blocks, self._ends, self.numbers(number), self._dtype)
        except OSError as error:
            return f"{error.strerror or error}: {error.filename or self._shards.name}"
        except ValueError as error:
            return str(error)
        except RuntimeError as error:  # torch cannot hand the images over
            return f"No room for images on their way from the reader ({error}). Free memory, or enlarge /dev/shm."


class ShardBatches:
    """Batches from shards for :func:`liesparse.learning.resume`, read by worker processes (0: by this one)."""

    def __init__(
        self, shards: Shards, batch_size: int, *, dtype: torch.dtype = torch.float32, n_workers: int = 1
    ) -> None:
        self.shards, self.dtype = shards, dtype
        self.batch_size = check_count("batch_size", batch_size)
        self.n_workers = check_count("n_workers", n_workers, 0)
        self.n_batches: int | None = math.ceil(len(shards) / batch_size)

    def fingerprint(self) -> str:
        """Return what tells these images from others."""
        return self.shards.fingerprint()

    def epoch(
        self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE
    ) -> Iterator[Float[Tensor, "batch pixel"]]:
        """Yield this process's part of each batch but the first ``skip``, of which at most a buffer is read again."""
        if group.size > LANES:
            reject("processes", f"at most {LANES}", str(group.size), "Start fewer.")
        seed = int(torch.randint(2**62, (), generator=generator))
        lanes = range(group.rank, LANES, group.size)
        rounds = Rounds(self.shards, seed, lanes, self.dtype)
        first = skip * self.batch_size // ROUND

        def own(place: int) -> int:
            """Count this process's images among the first ``place`` of the epoch."""
            return place // LANES * len(lanes) + len(range(group.rank, place % LANES, group.size))

        coming = self._read_ahead(rounds, range(first, len(rounds)))
        held, place = next(coming), own(skip * self.batch_size) - own(first * ROUND)  # the next is held[place]
        for batch in range(skip, math.ceil(len(self.shards) / self.batch_size)):
            wanted = own(min((batch + 1) * self.batch_size, len(self.shards))) - own(batch * self.batch_size)
            parts = [held[place : place + wanted]]
            place += wanted
            while place > len(held):  # the rest is in the next round
                place, held = place - len(held), next(coming)
                parts.append(held[:place])
            yield parts[0] if len(parts) == 1 else torch.cat(parts)

    def _read_ahead(self, rounds: Rounds, numbers: range) -> Iterator[Tensor]:
        loader: DataLoader[Tensor | str] = DataLoader(
            rounds,
            batch_size=None,
            sampler=numbers,
            num_workers=self.n_workers,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # else it would draw from everybody's
        )
        for found in loader:
            if isinstance(found, str):
                raise ValueError(found)
            yield found


def _ignore_interrupts(_worker: int) -> None:
    """Leave Ctrl-C to the process that has this worker: it finishes its step first, and needs its images."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
