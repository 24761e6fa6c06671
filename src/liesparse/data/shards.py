"""Folders of .npy, .npz and .parquet files that together hold more images than fit into memory.

Every file is looked through once, a chunk at a time, for its shape, for blank images and for what is no number. From
then on images are read in small blocks, by plain reads at known offsets: nothing is mapped and nothing is kept. What
cannot be read at any place (compressed arrays, parquet) is unpacked once, into the cache folder.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from dataclasses import dataclass, replace
from functools import cached_property
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
from liesparse.data.parquet import read_parquet
from liesparse.data.pictures import find_pictures
from liesparse.data.rows import Fit, RawImages, check_shape_of, chunk_size, is_seen, unit_rows
from liesparse.parallel import Group, current

SUFFIXES = (".npy", ".npz", ".parquet")
BLOCK = 32  # images that lie together and are read together
_SAMPLES, _SAMPLE_BYTES = 64, 2**16  # of a file, from which it is known again
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


class Shard(NamedTuple):
    """One file: where its images lie, and which of them count."""

    path: Path  # as its owner knows it
    place: Path  # of the plain array: the same file, or what was unpacked from it
    offset: int  # bytes before the first image
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one image
    fit: Fit  # what is left to do with each
    digest: str
    n_images: int
    kept: NDArray[np.uint8]  # a bit for each image that counts, in whole blocks

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Read the images from one place up to another."""
        end = min(end, self.n_images)
        size = math.prod(self.shape)
        count, start = (end - begin) * size, self.offset + begin * size * self.dtype.itemsize
        found = np.fromfile(self.place, self.dtype, count, offset=start)
        if found.size != count:
            reject("data", f"{self.n_images:,} images, as when it was opened", f"fewer in {self.path}", "Restore it.")
        return found.reshape(-1, *self.shape)

    def bits(self, block: int) -> NDArray[np.int64]:
        """Return the places within a block of the images that count."""
        return np.flatnonzero(np.unpackbits(self.kept[block * BLOCK // 8 : (block + 1) * BLOCK // 8]))


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
        return np.concatenate([_ONES[file.kept].reshape(-1, BLOCK // 8).sum(axis=1) for file in self.files]).astype(
            np.int64
        )

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    @cached_property
    def _file_ends(self) -> NDArray[np.int64]:
        return np.cumsum([8 * len(file.kept) // BLOCK for file in self.files])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def fingerprint(self) -> str:
        """Return what tells these images from others: the files' contents, and which images of them count."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.path.name} {file.digest} {file.fit} {file.n_images} ".encode())
            digest.update(file.kept.tobytes())
        return digest.hexdigest()

    def block(self, number: int) -> tuple[Shard, NDArray[Any]]:
        """Read the images of one block that count, and tell of which file they are."""
        which = int(np.searchsorted(self._file_ends, number, side="right"))
        file = self.files[which]
        within = number - int(self._file_ends[which - 1] if which else 0)
        return file, file.read(within * BLOCK, (within + 1) * BLOCK)[file.bits(within)]

    def rows(self, numbers: NDArray[np.int64], dtype: torch.dtype = torch.float32) -> Float[Tensor, "image pixel"]:
        """Read some images, each block once."""
        return read_numbers(self, np.arange(len(self.counts)), self._ends, numbers, dtype)

    def places(self) -> NDArray[np.int64]:
        """Return the place of each image that counts among all images of the folder."""
        return np.flatnonzero(np.concatenate([np.unpackbits(file.kept)[: file.n_images] for file in self.files]))

    def sample(self, n: int, seed: int = 0) -> Float[Tensor, "image pixel"]:
        """Read up to ``n`` images drawn at random."""
        return self.rows(np.sort(_draw(len(self), min(n, len(self)), seed)))

    def split(self, n: int | None, n_test: int, seed: int) -> tuple[Shards, Float[Tensor, "test pixel"]]:
        """Return the images to learn from, and read those to test; which is which is drawn at random."""
        if n_test >= len(self) or (n or 1) + n_test > len(self):
            got = f"{n or 1:,} + {n_test:,}"
            reject("n + n_test", f"at most {len(self):,} images, one of them to learn from", got, "Ask less.")
        drawn = _draw(len(self), n_test + (n or 0), seed)
        test = np.sort(drawn[:n_test])
        return self._marked(test, False) if n is None else self._marked(np.sort(drawn[n_test:]), True), self.rows(test)

    def _marked(self, numbers: NDArray[np.int64], keep: bool) -> Shards:
        """Keep only these images, or all but these."""
        files = []
        before = 0
        for file in self.files:
            bits = np.unpackbits(file.kept)
            places = np.flatnonzero(bits)
            own = numbers[slice(*np.searchsorted(numbers, (before, before + len(places))))] - before
            if keep:
                bits[:] = 0
            bits[places[own]] = keep
            files.append(file._replace(kept=np.packbits(bits)))
            before += len(places)
        return replace(self, files=tuple(files))


def read_numbers(
    shards: Shards,
    blocks: NDArray[np.int64],
    ends: NDArray[np.int64],
    numbers: NDArray[np.int64],
    dtype: torch.dtype,
) -> Float[Tensor, "image pixel"]:
    """Read the images at some places of a sequence of blocks, each block once; ``ends`` counts up to each."""
    found = torch.empty(len(numbers), math.prod(shards.image_shape), dtype=dtype)
    if torch.utils.data.get_worker_info() is not None:
        found.share_memory_()  # where it has to go: a copy for each round would leave the heap in pieces
    homes = np.searchsorted(ends, numbers, side="right")
    order = np.argsort(homes, kind="stable")
    alike: dict[tuple[Any, ...], list[tuple[NDArray[np.int64], NDArray[Any]]]] = {}  # to be scaled together
    for rows in np.split(order, np.flatnonzero(np.diff(homes[order])) + 1) if len(order) else ():
        home = homes[rows[0]]
        file, pixels = shards.block(int(blocks[home]))
        own = pixels[numbers[rows] - (ends[home - 1] if home else 0)]
        alike.setdefault((file.dtype, file.shape, file.fit), []).append((rows, own))
    for (_, _, fit), parts in alike.items():
        places, images = np.concatenate([rows for rows, _ in parts]), np.concatenate([own for _, own in parts])
        for chunk in torch.arange(len(images)).split(chunk_size(images)):
            found[places[chunk]] = unit_rows(images, chunk, fit).to(dtype)
    return found


def list_shards(folder: Path) -> list[Path]:
    """Return the files of a folder of shards in the order of their names; a folder with pictures is none."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))
    found = [folder / name for name in names if Path(name).suffix.lower() in SUFFIXES]
    return found if found and next(find_pictures(folder), None) is None else []


def open_shards(folder: str | Path, key: str | None = None, fit: Fit | None = None) -> Shards:
    """Look through every file of a folder, a chunk at a time; ``key`` names the array or column of the images."""
    folder, fit = Path(folder), fit or Fit()
    files = []
    shape: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    for path in list_shards(folder):
        pixels, left = _open(path, key, fit)
        own, notes = check_shape_of(pixels, left, str(path))
        shape = shape or own
        if own != shape:
            told, wanted = (" × ".join(map(str, size)) for size in (own, shape))
            reject("data", f"images of one size ({wanted})", f"{told} in {path}", "Pass size=N.")
        place, offset = Path(str(pixels.filename)), pixels.offset
        kept = np.zeros(-(-len(pixels) // BLOCK) * BLOCK // 8, dtype=np.uint8)
        file = Shard(path, place, offset, pixels.dtype, pixels.shape[1:], left, _digest(path), len(pixels), kept)
        files.append(file)
    found = Shards(str(folder), _look_through_all(files, current()), shape or (1, 1), notes)
    if not files or len(found) < 2:
        n = len(found) if files else 0
        reject("data", "at least 2 images that are not blank", f"{n} in {folder}", "Pass more images.")
    return found


def _look_through_all(files: list[Shard], group: Group) -> tuple[Shard, ...]:
    """Look through all files; several processes share them, and tell each other what they saw."""
    own = [_look_through(file) for file in files[group.rank :: group.size]]
    seen = torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.uint8), *own]))
    # The others may take longer than a message may, and on other machines there may be other files.
    if not group.all_equal(" ".join(f"{file.path.name} {file.digest} {file.n_images}" for file in files)):
        fix = "Give every machine the same files."
        reject("data", "the same files in every process", "others in some of them", fix)
    parts = iter(np.split(group.gather(seen).numpy(), np.cumsum([len(file.kept) for file in _dealt(files, group)])))
    masks = {file.path: next(parts) for file in _dealt(files, group)}
    return tuple(file._replace(kept=masks[file.path]) for file in files)


def _dealt(files: list[Shard], group: Group) -> list[Shard]:
    """Return the files of the first process, then those of the second, and so on."""
    return [file for rank in range(group.size) for file in files[rank :: group.size]]


def _look_through(file: Shard) -> NDArray[np.uint8]:
    """Return the bits of the images that are not blank."""
    seen = np.zeros(8 * len(file.kept), dtype=bool)
    step = max(BLOCK, chunk_size(file.read(0, 1)))
    for begin in range(0, file.n_images, step):
        pixels = file.read(begin, begin + step)
        found = is_seen(pixels, torch.arange(len(pixels)), file.fit, str(file.path), begin)
        seen[begin : begin + len(pixels)] = found.numpy()
    return np.packbits(seen)


def _open(path: Path, key: str | None, fit: Fit) -> tuple[np.memmap[Any, Any], Fit]:
    """Return an array that lies plainly in some file, not yet read, and what is left to do with its images."""
    suffix = path.suffix.lower()
    changed = path.stat().st_mtime_ns  # the digest reads samples alone
    name = hashlib.sha256(f"{_digest(path)} {changed} {key} {fit}".encode()).hexdigest()[:32]
    unpacked, fitted = (cache_folder() / "unpacked" / f"{name}{end}.npy" for end in ("", "-fitted"))
    for place, left in ((unpacked, fit), (fitted, Fit())):
        if place.exists():
            return _as_plain(read_npy(place)), left
    left = fit
    if suffix == ".npy":
        raw = read_npy(path)
    elif suffix == ".npz":
        raw = read_npz(path, key, None)
    else:
        raw, left = read_parquet(path, key, None, fit)
    if isinstance(raw.pixels, np.memmap) and raw.pixels.flags.c_contiguous:
        return raw.pixels, left
    place = unpacked if left == fit else fitted
    _unpack(raw, place)
    return _as_plain(read_npy(place)), left


def _as_plain(raw: RawImages) -> np.memmap[Any, Any]:
    assert isinstance(raw.pixels, np.memmap)
    return raw.pixels


def _unpack(raw: RawImages, place: Path) -> None:
    pixels = np.stack(raw.pixels) if isinstance(raw.pixels, list) else np.ascontiguousarray(raw.pixels)
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}.npy")
    try:
        np.save(temporary, pixels, allow_pickle=False)
        os.replace(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)


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
