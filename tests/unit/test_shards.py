"""Folders of shards: every image once, in an order that only the seed decides, and a start in the middle."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from liesparse.data import ShardBatches, Shards, load_data, load_images, open_shards
from liesparse.data.loading import STREAM_FROM
from liesparse.data.shards import LANES, ROUND, Rounds
from liesparse.estimators import LieSparseCoder
from liesparse.parallel import Group

SIZES = (700, 40, 1, 1300)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "liesparse" / "unpacked"


def draw_images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, (n, 3, 4), dtype=np.uint8)


def write(folder: Path, images: np.ndarray, sizes=SIZES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.split(images, np.cumsum(sizes)[:-1])):
        np.save(folder / f"{number}.npy", part)
    return folder


def unit(images: np.ndarray) -> torch.Tensor:
    rows = torch.from_numpy(images.reshape(len(images), -1).astype(np.float64))
    return torch.nn.functional.normalize(rows, dim=1)


class Part(Group):
    """One of several processes that need not speak."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size


def read(shards: Shards, batch_size=100, seed=0, **options) -> list[torch.Tensor]:
    source = ShardBatches(shards, batch_size, dtype=torch.float64, n_workers=options.pop("n_workers", 0))
    return list(source.epoch(torch.Generator().manual_seed(seed), **options))


def in_order(rows: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.unique(rows.numpy().round(12), axis=0))


@pytest.fixture
def folder(tmp_path):
    images = draw_images(sum(SIZES))
    images[[3, 699, 700, 2000]] = 0
    return write(tmp_path / "shards", images), images


def test_every_image_once_and_the_blank_ones_never(folder):
    path, images = folder
    shards = open_shards(path)
    batches = read(shards)
    assert [len(batch) for batch in batches] == [100] * 20 + [37]
    assert len(shards) == sum(SIZES) - 4 == 2037
    assert ShardBatches(shards, 100).n_batches == 21
    expected = unit(images[images.any(axis=(1, 2))])
    torch.testing.assert_close(in_order(torch.cat(batches)), in_order(expected))
    assert shards.image_shape == (3, 4)
    torch.testing.assert_close(shards.rows(np.arange(2037), torch.float64), expected)
    assert shards.places.tolist() == np.flatnonzero(images.any(axis=(1, 2))).tolist()


def test_the_seed_and_the_epoch_decide_the_order_and_the_workers_do_not(tmp_path):
    shards = open_shards(write(tmp_path / "shards", draw_images(3 * ROUND), (ROUND, 2 * ROUND)))
    first = torch.cat(read(shards))
    assert torch.cat(read(shards, n_workers=1)).equal(first)
    assert torch.cat(read(shards, n_workers=2)).equal(first)
    assert not torch.cat(read(shards, seed=1)).equal(first)
    generator, source = torch.Generator().manual_seed(0), ShardBatches(shards, 100, dtype=torch.float64, n_workers=0)
    epochs = [torch.cat(list(source.epoch(generator))) for _ in range(2)]
    assert epochs[0].equal(first)
    assert not epochs[1].equal(first)


@pytest.mark.parametrize("size", [2, 3, LANES])
def test_processes_share_each_batch_without_overlap(folder, size):
    shards = open_shards(folder[0])
    whole = read(shards, 150)
    parts = [read(shards, 150, group=Part(rank, size)) for rank in range(size)]
    for batch, *own in zip(whole, *parts, strict=True):
        assert sum(map(len, own)) == len(batch)
        torch.testing.assert_close(in_order(torch.cat(own)), in_order(batch))
        assert max(map(len, own)) - min(map(len, own)) <= 3 * -(-LANES // size)
    with pytest.raises(ValueError, match="processes: expected at most 64, got 65"):
        read(shards, group=Part(0, 65))


def test_a_shuffle_mixes_over_all_of_the_data_within_the_buffer(tmp_path):
    places = np.arange(4 * ROUND, dtype=np.float32)
    # The angle of an image of two pixels tells its place.
    angles = (places + 0.5) / len(places) * (np.pi / 2)
    np.save(tmp_path / "all.npy", np.stack((np.cos(angles), np.sin(angles)), axis=1))
    found = [torch.atan2(batch[:, 1], batch[:, 0]) / (np.pi / 2) for batch in read(open_shards(tmp_path), 256)]
    means, spreads = torch.stack([batch.mean() for batch in found]), torch.stack([batch.std() for batch in found])
    assert float((means - 0.5).abs().max()) < 0.1  # 0.018 is a standard deviation
    assert float(spreads.min()) > 0.25  # 0.289 of a uniform draw
    order = torch.cat(found)
    assert abs(float(torch.corrcoef(torch.stack((order[1:], order[:-1])))[0, 1])) < 0.1


def test_a_start_in_the_middle_reads_only_what_is_left(tmp_path, monkeypatch):
    shards = open_shards(write(tmp_path / "shards", draw_images(2 * ROUND + 500), (ROUND, ROUND + 500)))
    whole = read(shards, 96)
    read_rounds = []
    original = Rounds.__getitem__
    monkeypatch.setattr(Rounds, "__getitem__", lambda self, k: read_rounds.append(k) or original(self, k))
    for skip in (0, 1, 85, 86, 120, len(whole) - 1):
        for group in (Group(), Part(1, 3)):
            read_rounds.clear()
            expected = whole[skip:] if group.size == 1 else read(shards, 96, group=group)[skip:]
            read_rounds.clear()
            found = read(shards, 96, skip=skip, group=group)
            assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
            assert read_rounds == list(range(skip * 96 // ROUND, 3))


def write_kind(folder: Path, images: np.ndarray, kind: str) -> None:
    folder.mkdir(exist_ok=True)
    if kind == "npz":
        np.savez(folder / "a.npz", images=images, labels=np.arange(len(images)))
    elif kind == "compressed":
        np.savez_compressed(folder / "a.npz", images=images)
    elif kind == "fortran":
        np.save(folder / "a.npy", np.asfortranarray(images))
    elif kind == "colour":
        np.save(folder / "a.npy", np.repeat(images[..., None], 3, axis=3))
    else:
        lists = pyarrow.array(images.tolist())
        table = pyarrow.table({"pixels": lists})
        pyarrow.parquet.write_table(table, folder / "a.parquet")


@pytest.mark.parametrize("kind", ["npz", "compressed", "fortran", "colour", "parquet"])
def test_every_format_gives_the_same_images(tmp_path, kind, cache):
    images = draw_images(150)
    write_kind(tmp_path / "shards", images, kind)
    np.save(tmp_path / "shards" / "b.npy", images[:50])
    shards = open_shards(tmp_path / "shards")
    rows = shards.rows(np.arange(len(shards)), torch.float64)
    torch.testing.assert_close(rows, unit(np.concatenate((images, images[:50]))))
    unpacked = list(cache.iterdir()) if cache.exists() else []
    assert len(unpacked) == (kind in ("compressed", "fortran", "parquet"))
    assert shards.notes == ("greyed",) * (kind == "colour")  # also where the last file has no colours
    again = open_shards(tmp_path / "shards")  # now from what was unpacked
    assert again.fingerprint() == shards.fingerprint()


def test_in_memory_and_streamed_data_are_the_same_images(folder):
    path, images = folder
    memory, disk = (load_data(str(path), n_test=30, seed=3, stream=stream) for stream in ("no", "yes"))
    assert memory.test.equal(disk.test)
    assert disk.stream is not None
    assert memory.stream is None
    assert len(disk.stream) == len(memory.train) == 2007
    torch.testing.assert_close(in_order(torch.cat(read(disk.stream))).float(), in_order(memory.train.double()).float())
    everything = torch.cat((memory.train, memory.test)).double()
    torch.testing.assert_close(in_order(everything).float(), in_order(unit(images[images.any(axis=(1, 2))])).float())
    assert "4 blank skipped; 4 shards, in memory (0 MiB)" in memory.summary()
    assert "2,007 images to learn from and 30 to test" in disk.summary()
    assert "4 shards, streamed" in disk.summary()
    few = load_data(f"{path}:n=100,n_test=10,stream=yes")
    assert (len(few.stream), len(few.test)) == (100, 10)
    assert STREAM_FROM < 200_000 * 784 * 4 < 1_000_000 * 784 * 4
    with pytest.raises(ValueError, match="expected at most 2,037 images"):
        load_data(f"{path}:n=2030,n_test=10")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: np.save(folder / "4.npy", np.full((5, 3, 4), np.nan)), "NaN or infinite values in .*4.npy, fi"),
        (
            lambda folder: np.save(folder / "4.npy", np.ones((5, 4, 4))),
            r"images of one size \(3 × 4\), got 4 × 4 in .*4",
        ),
        (lambda folder: (folder / "4.npy").write_bytes(b"nothing"), "a .npy file, got .*4.npy"),
        (
            lambda folder: [np.save(path, np.zeros((9, 3, 4))) for path in folder.iterdir()],
            "at least 2 images that are",
        ),
    ],
)
def test_a_spoiled_shard_is_named_before_learning(folder, spoil, message):
    spoil(folder[0])
    with pytest.raises(ValueError, match=message):
        load_data(str(folder[0]))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_shard_that_is_lost_on_the_way_is_named(folder, n_workers):
    shards = open_shards(folder[0])
    os.truncate(folder[0] / "3.npy", 5000)
    with pytest.raises(ValueError, match=r"1,300 images, as when it was opened, got fewer in .*3.npy"):
        read(shards, n_workers=n_workers)
    (folder[0] / "3.npy").unlink()
    with pytest.raises(ValueError, match=r"No such file or directory: .*3.npy"):
        read(shards, n_workers=n_workers)


def test_images_are_known_again_by_their_contents(folder, tmp_path):
    path, images = folder
    before = open_shards(path).fingerprint()
    assert open_shards(write(tmp_path / "copy", images)).fingerprint() == before
    images[1234, 0, 0] ^= 1
    assert open_shards(write(tmp_path / "other", images)).fingerprint() != before
    assert open_shards(path).split(None, 5, 0)[0].fingerprint() != before


@pytest.mark.slow
def test_learning_from_shards_goes_on_where_it_stopped(tmp_path):
    path = write(tmp_path / "shards", draw_images(600), (350, 250))
    options = {
        "n_irreps": 4,
        "n_epochs": 3,
        "settings": {"learning.batch_size": 50, "start": "data"},
        "random_state": 0,
    }
    whole = LieSparseCoder(3, **options).fit(open_shards(path))
    assert whole.image_shape_ == (3, 4)
    assert whole.n_iter_ == 36

    def stop(progress):
        if progress.step == 17:
            raise InterruptedError

    kept = {**options, "checkpoint_dir": tmp_path / "kept"}
    with pytest.raises(InterruptedError):
        LieSparseCoder(3, callbacks=[stop], **kept).fit(open_shards(path))
    resumed = LieSparseCoder(3, **kept).fit(open_shards(path))
    assert (resumed.components_ == whole.components_).all()
    assert (resumed.group_basis_ == whole.group_basis_).all()
    np.save(path / "1.npy", draw_images(250, seed=9))
    with pytest.raises(ValueError, match="folder: expected checkpoints of the same run"):
        LieSparseCoder(3, **kept).fit(open_shards(path))


def test_colours_are_kept_also_in_what_was_unpacked(tmp_path, cache):
    images = np.random.default_rng(0).integers(1, 256, (9, 4, 6, 3), dtype=np.uint8)
    encoded = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        encoded.append(file.getvalue())
    folder = tmp_path / "shards"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"image": encoded}), folder / "a.parquet")
    first, again = (load_data(f"{folder}:colour=yes,crop=yes") for _ in range(2))
    assert [path.name[-11:] for path in cache.iterdir()] == ["-fitted.npy"]
    assert first.image_shape == again.image_shape == (4, 4, 3)
    assert first.train.equal(again.train)
    rows = load_images(str(folder), (4, 6, 3)).images  # a model with colours wants them
    torch.testing.assert_close(rows, unit(images).float())
