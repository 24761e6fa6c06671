"""Folders of .npy, .npz and .parquet files that together hold more images than fit into memory.

Every file is looked through once, a chunk at a time, for its shape, for blank images and for what is no number. From
then on images are read in small blocks, by plain reads at known offsets: nothing is mapped, so that memory stays
bounded and a file that got shorter is an error instead of a crash. What cannot be read at any place (compressed
arrays, parquet) is unpacked once, into the cache folder.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
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

from liesparse._checks import reject
from liesparse.data.arrays import read_npy, read_npz
from liesparse.data.downloads import cache_folder
from liesparse.data.images import (
    ImageArray,
    Preprocessing,
    check_pixels,
    chunk_size,
    count_parts,
    find_seen,
    unit_rows,
)
from liesparse.data.parquet import read_parquet
from liesparse.data.pictures import find_pictures
from liesparse.parallel import ALONE, Group

SUFFIXES = (".npy", ".npz", ".parquet")
BLOCK = 32  # images that lie together and are read together
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

    def read_block(self, block: int) -> NDArray[Any]:
        """Read the images of one block that count."""
        begin, end = block * BLOCK, (block + 1) * BLOCK
        return self.read(begin, end)[np.flatnonzero(self.kept[begin:end])]

    def layout(self) -> tuple[np.dtype[Any], tuple[int, ...], Preprocessing]:
        """Return what images must have in common to be scaled together."""
        return self.dtype, self.shape, self.preprocessing

    def identity(self) -> str:
        """Return what tells this file from others; checkpoints hold it, so it keeps the form of the first version."""
        fit = ", ".join(f"{name}={value!r}" for name, value in self.preprocessing._asdict().items())
        return f"{self.path.name} {self.digest} Fit({fit}) {self.n_images} "


@dataclass(frozen=True)
class Shards:
    """The images of a folder, numbered through all of its files; those that do not count have no number."""

    name: str
    files: tuple[Shard, ...]
    image_shape: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Images that count in each block of each file."""
        return np.concatenate([file.kept.reshape(-1, BLOCK).sum(axis=1) for file in self.files])

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def n_blank(self) -> int:
        """Return how many images of the files do not count: the blank ones, unless the folder was split."""
        return sum(file.n_images for file in self.files) - len(self)

    def fingerprint(self) -> str:
        """Return what tells these images from others: the files' contents, and which images of them count."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(file.identity().encode())
            digest.update(np.packbits(file.kept).tobytes())
        return digest.hexdigest()

    def rows(self, numbers: NDArray[np.int64], dtype: torch.dtype = torch.float32) -> Float[Tensor, "image pixel"]:
        """Read some images, each block once."""
        return self.read(np.arange(len(self.counts)), self._ends, numbers, dtype)

    def read(
        self, blocks: NDArray[np.int64], ends: NDArray[np.int64], numbers: NDArray[np.int64], dtype: torch.dtype
    ) -> Float[Tensor, "image pixel"]:
        """Read the images with some numbers in a sequence of blocks, each block once.

        ``ends`` counts the images up to the end of each block.
        """
        found = torch.empty(len(numbers), math.prod(self.image_shape), dtype=dtype)
        if torch.utils.data.get_worker_info() is not None:
            found.share_memory_()  # where it has to go: no copy
        parts = groupby(self._read_blocks(blocks, ends, numbers), key=lambda part: part[0].layout())
        for (_, shape, preprocessing), alike in parts:
            # A few blocks are scaled together: one at a time is slow, larger arrays would leave holes in the heap.
            step = max(1, chunk_size(shape) // 8)
            while bundle := list(islice(alike, max(1, step // BLOCK))):
                rows, images = (np.concatenate(arrays) for arrays in tuple(zip(*bundle, strict=True))[1:])
                for begin in range(0, len(rows), step):
                    chunk = slice(begin, begin + step)
                    found[rows[chunk]] = unit_rows(images[chunk], preprocessing).to(dtype)
        return found

    def _read_blocks(
        self, blocks: NDArray[np.int64], ends: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> Iterator[tuple[Shard, NDArray[np.int64], NDArray[Any]]]:
        """Yield images file by file: of which they are, at which places of ``numbers`` they stand, and their pixels."""
        homes = np.searchsorted(ends, numbers, side="right")  # the block of each image, by its place in the sequence
        order = np.argsort(blocks[homes], kind="stable")
        file_ends = np.cumsum([len(file.kept) // BLOCK for file in self.files])
        for rows in np.split(order, np.flatnonzero(np.diff(homes[order])) + 1) if len(order) else ():
            home = homes[rows[0]]
            which = int(np.searchsorted(file_ends, blocks[home], side="right"))
            file, before = self.files[which], int(file_ends[which - 1]) if which else 0
            within = numbers[rows] - (ends[home - 1] if home else 0)
            yield file, rows, file.read_block(int(blocks[home]) - before)[within]

    def places(self) -> NDArray[np.int64]:
        """Return the place of each image that counts among all images of the folder."""
        return np.flatnonzero(np.concatenate([file.kept[: file.n_images] for file in self.files]))

    def sample(self, n: int, seed: int = 0) -> Float[Tensor, "image pixel"]:
        """Read up to ``n`` images drawn at random."""
        return self.rows(np.sort(_draw(len(self), min(n, len(self)), seed)))

    def split(self, n: int | None, n_test: int | None, seed: int) -> tuple[Shards, Float[Tensor, "test pixel"]]:
        """Return the images to learn from, and read those to test; which is which is drawn at random."""
        _, n_test = count_parts(len(self), n, n_test)
        drawn = _draw(len(self), n_test + (n or 0), seed)
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
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))
    found = [folder / name for name in names if Path(name).suffix.lower() in SUFFIXES]
    return found if found and next(find_pictures(folder), None) is None else []


def open_shards(
    folder: str | Path, key: str | None = None, preprocessing: Preprocessing | None = None, *, group: Group = ALONE
) -> Shards:
    """Look through every file of a folder, a chunk at a time; ``key`` names the array or column of the images."""
    folder = Path(folder)
    files: list[Shard] = []
    shapes: list[tuple[int, ...]] = []
    notes: tuple[str, ...] = ()
    for path in list_shards(folder):
        digest = _digest(path)
        pixels, left = _open(path, key, preprocessing or Preprocessing(), digest)
        shape, notes = check_pixels(pixels, left, str(path))
        shapes.append(shape)
        if shape != shapes[0]:
            told, wanted = (" × ".join(map(str, size)) for size in (shape, shapes[0]))
            reject("data", f"images of one size ({wanted})", f"{told} in {path}", "Pass size=N.")
        kept = np.zeros(-(-len(pixels) // BLOCK) * BLOCK, dtype=bool)
        plain = Path(str(pixels.filename))
        files.append(Shard(path, plain, pixels.offset, pixels.dtype, pixels.shape[1:], left, digest, len(pixels), kept))
    found = Shards(str(folder), _look_through(files, group), shapes[0] if shapes else (1, 1), notes)
    n = len(found) if files else 0
    if n < 2:
        reject("data", "at least 2 images that are not blank", f"{n} in {folder}", "Pass more images.")
    return found


def _look_through(files: list[Shard], group: Group) -> tuple[Shard, ...]:
    """Find the images that are not blank; several processes share the files, and tell each other what they saw."""
    own = [_find_kept(file) for file in files[group.rank :: group.size]]
    # The others may take longer than a message may, and on other machines there may be other files.
    if not group.all_equal(" ".join(f"{file.path.name} {file.digest} {file.n_images}" for file in files)):
        fix = "Give every machine the same files."
        reject("data", "the same files in every process", "others in some of them", fix)
    seen = torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.uint8), *own]))
    # The files of the first process come first, then those of the second, and so on.
    dealt = [number for rank in range(group.size) for number in range(rank, len(files), group.size)]
    parts = np.split(group.gather(seen).numpy() > 0, np.cumsum([len(files[number].kept) for number in dealt]))
    kept = dict(zip(dealt, parts, strict=False))  # the last part is empty
    return tuple(file._replace(kept=kept[number]) for number, file in enumerate(files))


def _find_kept(file: Shard) -> NDArray[np.uint8]:
    seen = np.zeros(len(file.kept), dtype=np.uint8)
    step = max(BLOCK, chunk_size(file.shape))
    for begin in range(0, file.n_images, step):
        pixels = file.read(begin, begin + step)
        seen[begin : begin + len(pixels)] = find_seen(pixels, file.preprocessing, str(file.path), begin)
    return seen


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
    plain.parent.mkdir(parents=True, exist_ok=True)
    temporary = plain.with_name(f".{plain.name}.{secrets.token_hex(4)}.npy")
    try:
        np.save(temporary, np.ascontiguousarray(array.pixels), allow_pickle=False)
        os.replace(temporary, plain)
    finally:
        temporary.unlink(missing_ok=True)
    return read_npy(plain), array.preprocessing


def read_file(path: Path, key: str | None, label_key: str | None, preprocessing: Preprocessing) -> ImageArray:
    """Read a .npy, .npz or .parquet file of images; ``key`` and ``label_key`` name its arrays or columns."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return read_parquet(path, key, label_key, preprocessing)
    pixels, labels = (read_npy(path), None) if suffix == ".npy" else read_npz(path, key, label_key)
    return ImageArray(pixels, labels, preprocessing)


def _digest(path: Path) -> str:
    """Return a hash of a file's size and of parts spread over all of it: large files are not read whole for this."""
    n_bytes = path.stat().st_size
    digest = hashlib.sha256(str(n_bytes).encode())
    with path.open("rb") as file:
        for start in np.linspace(0, max(n_bytes - _SAMPLE_BYTES, 0), _SAMPLES).astype(int).tolist():
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _draw(n_images: int, n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).choice(n_images, n, replace=False).astype(np.int64)
