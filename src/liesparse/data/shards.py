"""Folders of .npy, .npz and .parquet files that together hold more images than fit into memory.

Every file is looked through once, a chunk at a time, for its shape, for blank images and for what is no number. From
then on images are read in small blocks, by plain reads at known offsets: nothing is mapped, so that memory stays
bounded and a file that got shorter is an error instead of a crash. What cannot be read at any place (compressed
arrays, parquet) is unpacked once, into the cache folder.

Batches come in a random order that is new in each epoch, through a buffer of bounded size. The blocks of all files are
put into a random order, and this sequence is cut into equally long lanes. Image p of an epoch comes from lane p mod 64,
and each lane is shuffled within windows: so the images of a batch come from all over the data, and the order depends
on the seed alone. A process reads the lanes that are its own; a worker reads a window of every lane ahead. Where an
image stands follows from its number, so a run can go on in the middle.
"""

from __future__ import annotations

import hashlib
import math
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from liesparse._checks import check_count, reject
from liesparse.data.arrays import SUFFIXES, read_file, read_npy
from liesparse.data.downloads import cache_folder
from liesparse.data.images import Numbers, Preprocessing, check_pixels, chunk_size, count_parts, find_seen, unit_rows
from liesparse.data.pictures import find_pictures
from liesparse.files import write_atomically
from liesparse.parallel import ALONE, Group
from liesparse.state import BatchSource

BLOCK = 32  # images that lie together and are read together
LANES = 64  # as many processes at most
WINDOW = 128  # images of a lane that are shuffled with each other
ROUND = LANES * WINDOW  # images in the buffer of all processes together
_SAMPLES, _SAMPLE_BYTES = 64, 2**16  # of a file, from which it is known again


class Shard(NamedTuple):
    """One file: where its images lie, and which of them count."""

    path: Path  # as its owner knows it
    plain: Path  # the file with the plain array: the same, or what was unpacked from it
    offset: int  # bytes before the first image
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one image
    preprocessing: Preprocessing  # what is left to do with each
    digest: str
    n_images: int
    kept: NDArray[np.bool_]  # whether each image counts, filled up to whole blocks

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Read the images from one place up to another."""
        size = math.prod(self.shape)
        count, start = (min(end, self.n_images) - begin) * size, self.offset + begin * size * self.dtype.itemsize
        found = np.fromfile(self.plain, self.dtype, count, offset=start)
        if found.size != count:
            reject("data", f"{self.n_images:,} images, as when it was opened", f"fewer in {self.path}", "Restore it.")
        return found.reshape(-1, *self.shape)


@dataclass(frozen=True)
class Shards:
    """The images of a folder, numbered through all of its files; those that do not count have no number."""

    name: str
    files: tuple[Shard, ...]
    image_shape: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def counts(self) -> Numbers:
        """Images that count in each block of each file."""
        return np.concatenate([file.kept.reshape(-1, BLOCK).sum(axis=1) for file in self.files])

    @cached_property
    def ends(self) -> Numbers:
        """Images up to the end of each block."""
        return np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def n_blank(self) -> int:
        """Return how many images of the files do not count: the blank ones, unless the folder was split."""
        return sum(file.n_images for file in self.files) - len(self)

    def fingerprint(self) -> str:
        """Return what tells these images from others: the files' contents, and which images of them count."""
        digest = hashlib.sha256()
        for file in self.files:
            # Checkpoints hold the sum, so this keeps the form of the first version.
            values = file.preprocessing._asdict().items()
            fit = ", ".join(f"{name}={value!r}" for name, value in values if (name, value) != ("ground", "keep"))
            digest.update(f"{file.path.name} {file.digest} Fit({fit}) {file.n_images} ".encode())
            digest.update(np.packbits(file.kept).tobytes())
        return digest.hexdigest()

    def rows(self, numbers: Numbers | None = None, dtype: torch.dtype = torch.float32) -> Float[Tensor, "image pixel"]:
        """Read some images, or all of them, each block once."""
        numbers = np.arange(len(self)) if numbers is None else numbers
        found = torch.empty(len(numbers), math.prod(self.image_shape), dtype=dtype)
        if torch.utils.data.get_worker_info() is not None:
            found.share_memory_()  # where it has to go: no copy
        for (_, shape, preprocessing), alike in groupby(self._read_blocks(numbers), key=lambda part: part[0]):
            # A few blocks are scaled together: one at a time is slow, larger arrays would leave holes in the heap.
            step = max(1, chunk_size(shape) // 8)
            while bundle := list(islice(alike, max(1, step // BLOCK))):
                rows, images = (np.concatenate(arrays) for arrays in tuple(zip(*bundle, strict=True))[1:])
                for begin in range(0, len(rows), step):
                    chunk = slice(begin, begin + step)
                    found[rows[chunk]] = unit_rows(images[chunk], preprocessing).to(dtype)
        return found

    def _read_blocks(self, numbers: Numbers) -> Iterator[tuple[tuple[Any, ...], NDArray[Any], NDArray[Any]]]:
        """Yield images file by file: what they share to be scaled together, their places in ``numbers``, and pixels."""
        homes = np.searchsorted(self.ends, numbers, side="right")  # the block of each image
        order = np.argsort(homes, kind="stable")
        file_ends = np.cumsum([len(file.kept) // BLOCK for file in self.files])
        for rows in np.split(order, np.flatnonzero(np.diff(homes[order])) + 1) if len(order) else ():
            home = homes[rows[0]]
            which = np.searchsorted(file_ends, home, side="right")
            file, begin = self.files[which], BLOCK * int(home - (file_ends[which - 1] if which else 0))
            counting = np.flatnonzero(file.kept[begin : begin + BLOCK])
            chosen = counting[numbers[rows] - self.ends[home] + self.counts[home]]
            yield (file.dtype, file.shape, file.preprocessing), rows, file.read(begin, begin + BLOCK)[chosen]

    @property
    def places(self) -> Numbers:
        """Return the place of each image that counts among all images of the folder."""
        return np.flatnonzero(np.concatenate([file.kept[: file.n_images] for file in self.files]))

    def sample(self, n: int, seed: int = 0) -> Float[Tensor, "image pixel"]:
        """Read up to ``n`` images drawn at random."""
        return self.rows(np.sort(np.random.default_rng(seed).choice(len(self), min(n, len(self)), replace=False)))

    def split(self, n: int | None, n_test: int | None, seed: int) -> tuple[Shards, Float[Tensor, "test pixel"]]:
        """Return the images to learn from, and read those to test; which is which is drawn at random."""
        _, n_test = count_parts(len(self), n, n_test)
        drawn = np.random.default_rng(seed).choice(len(self), n_test + (n or 0), replace=False)
        chosen = np.full(len(self), n is None)
        chosen[drawn[n_test:]] = True
        chosen[drawn[:n_test]] = False
        files = []
        for file in self.files:
            kept = file.kept.copy()
            kept[kept], chosen = np.split(chosen, [int(kept.sum())])
            files.append(file._replace(kept=kept))
        return replace(self, files=tuple(files)), self.rows(np.sort(drawn[:n_test]))


def list_shards(folder: Path) -> list[Path]:
    """Return the files of a folder of shards in the order of their names; a folder with pictures is none."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    found = [path for path in found if not path.name.startswith(".")]
    return found if found and next(find_pictures(folder), None) is None else []


def open_shards(
    folder: str | Path, key: str | None = None, preprocessing: Preprocessing | None = None, *, group: Group = ALONE
) -> Shards:
    """Look through every file of a folder, a chunk at a time; ``key`` names the array or column of the images."""
    folder, files = Path(folder), []
    image_shape: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    for path in list_shards(folder):
        digest = _digest(path)
        pixels, left = _open(path, key, preprocessing or Preprocessing(), digest)
        shape, told = check_pixels(pixels, left, str(path))
        notes = tuple(dict.fromkeys(notes + told))
        image_shape = image_shape or shape
        if shape != image_shape:
            other, wanted = (" × ".join(map(str, size)) for size in (shape, image_shape))
            reject("data", f"images of one size ({wanted})", f"{other} in {path}", "Pass size=N.")
        kept = np.zeros(-(-len(pixels) // BLOCK) * BLOCK, dtype=bool)
        plain = Path(str(pixels.filename))
        files.append(Shard(path, plain, pixels.offset, pixels.dtype, pixels.shape[1:], left, digest, len(pixels), kept))
    found = _look_through(files, group)
    n = sum(int(file.kept.sum()) for file in found)
    if n < 2:
        reject("data", "at least 2 images that are not blank", f"{n} in {folder}", "Pass more images.")
    return Shards(str(folder), found, image_shape, notes)


def _look_through(files: list[Shard], group: Group) -> tuple[Shard, ...]:
    """Find the images that are not blank; several processes share the files, and tell each other what they saw."""
    own = files[group.rank :: group.size]
    for file in own:
        file.kept[: file.n_images] = find_seen(file.read, file.n_images, file.shape, file.preprocessing, str(file.path))
    # The others may take longer than a message may, and on other machines there may be other files.
    if not group.all_equal(" ".join(f"{file.path.name} {file.digest} {file.n_images}" for file in files)):
        fix = "Give every machine the same files."
        reject("data", "the same files in every process", "others in some of them", fix)
    kept = group.gather_objects([file.kept for file in own])
    return tuple(file._replace(kept=kept[n % group.size][n // group.size]) for n, file in enumerate(files))


def _open(
    path: Path, key: str | None, preprocessing: Preprocessing, digest: str
) -> tuple[np.memmap[Any, Any], Preprocessing]:
    """Return an array that lies plainly in some file, not yet read, and what is left to do with its images."""
    changed = path.stat().st_mtime_ns  # the digest reads samples alone
    name = hashlib.sha256(f"{digest} {changed} {key} {preprocessing}".encode()).hexdigest()[:32]
    unpacked, done = (cache_folder() / "unpacked" / f"{name}{end}.npy" for end in ("", "-fitted"))
    for plain, left in ((unpacked, preprocessing), (done, preprocessing.done())):
        if plain.exists():
            return read_npy(plain), left
    array = read_file(path, key, None, preprocessing)
    if isinstance(array.pixels, np.memmap) and array.pixels.flags.c_contiguous:
        return array.pixels, array.preprocessing
    plain = unpacked if array.preprocessing == preprocessing else done
    write_atomically(plain, lambda file: np.save(file, np.ascontiguousarray(array.pixels), allow_pickle=False))
    return read_npy(plain), array.preprocessing


def _digest(path: Path) -> str:
    """Return a hash of a file's size and of parts spread over all of it: large files are not read whole for this."""
    n_bytes = path.stat().st_size
    digest = hashlib.sha256(str(n_bytes).encode())
    with path.open("rb") as file:
        for start in np.linspace(0, max(n_bytes - _SAMPLE_BYTES, 0), _SAMPLES).astype(int).tolist():
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


class Rounds(Dataset[Tensor | str]):
    """The images of one epoch, a buffer at a time: those of some lanes, in their order."""

    def __init__(self, shards: Shards, seed: int, lanes: range, dtype: torch.dtype) -> None:
        self._shards, self._seed, self._lanes, self._dtype = shards, seed, lanes, dtype
        self._blocks = np.random.default_rng(seed).permutation(len(shards.counts))
        self._ends = np.cumsum(shards.counts[self._blocks])
        lengths = (len(shards) + LANES - 1 - np.arange(LANES)) // LANES
        self._starts = np.concatenate(([0], np.cumsum(lengths)))

    def numbers(self, number: int) -> Numbers:
        """Return the numbers of the images of a round."""
        places, ranks = [], []
        for lane in self._lanes:
            begin = self._starts[lane] + number * WINDOW
            n = max(0, min(WINDOW, int(self._starts[lane + 1] - begin)))
            places.append(begin + np.random.default_rng((self._seed, lane, number)).permutation(n))
            ranks.append(np.arange(n) * LANES + lane)
        sequence = np.concatenate(places)[np.argsort(np.concatenate(ranks))].astype(np.int64)
        homes = np.searchsorted(self._ends, sequence, side="right")
        return self._shards.ends[self._blocks[homes]] - (self._ends[homes] - sequence)

    def __getitem__(self, number: int) -> Tensor | str:
        """Read a round; what goes wrong is returned as text, as a worker's traceback would hide it."""
        try:
            return self._shards.rows(self.numbers(number), self._dtype)
        except OSError as error:
            return f"{error.strerror or error}: {error.filename or self._shards.name}"
        except ValueError as error:
            return str(error)
        except RuntimeError as error:  # torch cannot hand the images over
            return f"No room for images on their way from the reader ({error}). Free memory, or enlarge /dev/shm."


class ShardBatches(BatchSource):
    """Batches from shards for :func:`liesparse.learning.resume`, read by worker processes (0: by this one)."""

    def __init__(
        self, shards: Shards, batch_size: int, *, dtype: torch.dtype = torch.float32, n_workers: int = 1
    ) -> None:
        self.shards, self.dtype = shards, dtype
        self.batch_size = check_count("batch_size", batch_size)
        self.n_workers = check_count("n_workers", n_workers, 0)
        self.n_batches = math.ceil(len(shards) / batch_size)

    def fingerprint(self) -> str:
        """Return what tells these images from others."""
        return self.shards.fingerprint()

    def epoch(self, generator: torch.Generator, *, skip: int = 0, group: Group = ALONE) -> Iterator[Tensor]:
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

        coming = self._read_ahead(rounds, range(first, math.ceil(len(self.shards) / ROUND)))
        held = next(coming)[own(skip * self.batch_size) - own(first * ROUND) :]
        for batch in range(skip, math.ceil(len(self.shards) / self.batch_size)):
            wanted = own(min((batch + 1) * self.batch_size, len(self.shards))) - own(batch * self.batch_size)
            part, held = held[:wanted], held[wanted:]
            while len(part) < wanted:  # the rest is in the next round
                held, missing = next(coming), wanted - len(part)
                part, held = torch.cat((part, held[:missing])), held[missing:]
            yield part

    def _read_ahead(self, rounds: Rounds, numbers: range) -> Iterator[Tensor]:
        random = torch.Generator()  # else the loader would draw from everybody's
        options: dict[str, Any] = {"num_workers": self.n_workers, "worker_init_fn": _ignore_interrupts}
        loader: DataLoader[Tensor | str] = DataLoader(rounds, None, sampler=numbers, generator=random, **options)
        for found in loader:
            if isinstance(found, str):
                raise ValueError(found)
            yield found


def _ignore_interrupts(_worker: int) -> None:
    """Leave Ctrl-C to the process that has this worker: it finishes its step first, and needs its images."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
