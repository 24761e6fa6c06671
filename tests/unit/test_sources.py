"""Every source of images round-trips known ones."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from liesparse.data import (
    arrays,
    images,
    load_data,
    load_images,
    unit_norm,
)
from liesparse.verdict import warn_of_ground
from unit.writing import make_pixels, png, traced, write


def together(data):
    return torch.cat((data.train, data.test))


def assert_holds(data, pixels):
    """Check that train and test are the images, each once and normalized, both in the order of the source."""
    expected = unit_norm(torch.from_numpy(pixels.astype(np.float32)).flatten(1))
    close = (together(data) @ expected.T) > 1 - 1e-5
    assert close.sum(dim=1).eq(1).all()
    assert close.sum(dim=0).eq(1).all()
    order = close.float().argmax(dim=1)
    assert_close(together(data), expected[order])
    assert order[: len(data.train)].diff().gt(0).all()
    return order


@pytest.mark.parametrize("kind", ["npy", "npz", "idx", "gz", "folder", "zip", "parquet"])
def test_each_kind_of_file_round_trips(tmp_path, kind):
    pixels = make_pixels(32, 5, 7)
    data = load_data(str(write(tmp_path, kind, pixels)))
    assert (len(data.train), len(data.test)) == (29, 3)
    assert data.image_shape == (5, 7)
    assert data.train.dtype == torch.float32
    order = assert_holds(data, pixels)
    if kind == "parquet":
        assert torch.cat((data.labels, data.test_labels)).equal(order)
    else:
        assert data.labels is None


@pytest.mark.parametrize("kind", ["npy", "npz", "idx", "folder", "zip", "parquet"])
def test_blank_images_are_counted_and_skipped(tmp_path, kind):
    pixels = make_pixels()
    pixels[[2, 7, 8]] = 0
    data = load_data(str(write(tmp_path, kind, pixels)))
    assert data.n_blank == 3
    assert_holds(data, np.delete(pixels, [2, 7, 8], axis=0))
    assert "3 blank skipped" in data.summary()


def test_the_seed_draws_the_test_set(tmp_path):
    path = write(tmp_path, "npy", make_pixels(50))
    first, again, other = load_data(f"{path}"), load_data(f"{path}:seed=0"), load_data(f"{path}:seed=1")
    assert first.test.equal(again.test)
    assert not first.test.equal(other.test)
    some = load_data(str(path), n=7, n_test=4)
    assert (len(some.train), len(some.test)) == (7, 4)
    assert float((some.train @ some.test.T).max()) < 1 - 1e-5
    with pytest.raises(ValueError, match=r"n \+ n_test: expected at most 50 images"):
        load_data(str(path), n=47, n_test=4)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">i2", np.bool_, np.uint16])
def test_number_types_and_orders(tmp_path, dtype):
    pixels = np.asfortranarray((make_pixels() > 99).astype(dtype))
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "a.npz", pixels)
    np.savez_compressed(tmp_path / "b.npz", pixels)
    for name in ("a.npy", "a.npz", "b.npz"):
        data = load_data(str(tmp_path / name), n_test=1)
        expected = unit_norm(torch.from_numpy(pixels.astype(np.float32)).flatten(1))
        assert (data.train @ expected.T).amax(dim=1).gt(1 - 1e-5).all()
        assert len(data.train) + 1 == 12


def test_extreme_numbers_keep_unit_norm(tmp_path):
    pixels = make_pixels(4).astype(np.float64)
    pixels[0] *= 1e300
    pixels[1] *= 1e-300
    np.save(tmp_path / "a.npy", pixels)
    assert_holds(load_data(str(tmp_path / "a.npy")), pixels / pixels.max(axis=(1, 2), keepdims=True))


def test_rows_and_channels(tmp_path):
    pixels = make_pixels(10, 4, 4)
    np.save(tmp_path / "rows.npy", pixels.reshape(10, 16))
    np.save(tmp_path / "odd.npy", pixels.reshape(10, 16)[:, :15])
    np.save(tmp_path / "one.npy", pixels[..., None])
    np.save(tmp_path / "alpha.npy", np.stack([pixels, 255 - pixels], axis=-1))
    assert load_data(str(tmp_path / "rows.npy")).image_shape == (4, 4)
    assert load_data(str(tmp_path / "odd.npy")).image_shape == (1, 15)
    for name in ("rows", "one", "alpha"):
        assert_holds(load_data(str(tmp_path / f"{name}.npy")), pixels)
    colours = np.random.default_rng(1).integers(0, 256, (10, 4, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "colours.npy", colours)
    data = load_data(str(tmp_path / "colours.npy"))
    assert_holds(data, colours[..., :3] @ np.array([0.299, 0.587, 0.114]))
    assert "greyed" in data.summary()
    with pytest.raises(ValueError, match="size and crop: expected images with height and width"):
        load_data(f"{tmp_path / 'odd.npy'}:size=3")


def test_npz_keys_and_labels(tmp_path):
    pixels, labels = make_pixels(20), np.arange(20)
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    np.savez(tmp_path / "b.npz", left=pixels, right=pixels[::-1], kind=labels)
    data = load_data(str(tmp_path / "a.npz"))
    assert torch.cat((data.labels, data.test_labels)).equal(assert_holds(data, pixels))
    with pytest.raises(ValueError, match=r"one array of images, got left, right of the arrays .* key=NAME"):
        load_data(str(tmp_path / "b.npz"))
    with pytest.raises(ValueError, match="expected images in array middle, got left, right, kind of the arrays left"):
        load_data(f"{tmp_path / 'b.npz'}:key=middle")
    data = load_data(f"{tmp_path / 'b.npz'}:key=right,labels=kind")
    assert torch.cat((data.labels, data.test_labels)).equal(assert_holds(data, pixels[::-1]))
    with pytest.raises(ValueError, match="labels in array other"):
        load_data(f"{tmp_path / 'b.npz'}:key=right,labels=other")
    with pytest.raises(ValueError, match="labels: expected 20 whole numbers"):
        load_data(f"{tmp_path / 'b.npz'}:key=right,labels=left")


def test_parquet_columns(tmp_path):
    pixels = make_pixels(10, 4, 4)
    lists = pixels.reshape(10, 16).tolist()
    columns = {"bytes": [png(image) for image in pixels], "rows": lists, "images": pixels.tolist(), "half": None}
    columns["half"] = [[value / 2 for value in image] for image in lists]
    pq.write_table(pa.table({**columns, "name": ["x"] * 10}), tmp_path / "a.parquet", row_group_size=3)
    for key in columns:
        assert_holds(load_data(f"{tmp_path / 'a.parquet'}:key={key}"), pixels)
    with pytest.raises(ValueError, match=r"one column of images, got bytes, rows, images, half of the columns"):
        load_data(str(tmp_path / "a.parquet"))
    with pytest.raises(ValueError, match="expected images in column name"):
        load_data(f"{tmp_path / 'a.parquet'}:key=name")
    with pytest.raises(ValueError, match="expected labels in column other"):
        load_data(f"{tmp_path / 'a.parquet'}:key=rows,labels=other")
    for bad in ([[1, 2], [1, 2, 3]], [[1, 2], None], [[], []], [["a"], ["b"]], [[1.0, None], [1.0, 2.0]]):
        pq.write_table(pa.table({"rows": bad}), tmp_path / "bad.parquet")
        with pytest.raises(ValueError, match="data: expected"):
            load_data(str(tmp_path / "bad.parquet"))
    pq.write_table(pa.table({"image": [png(pixels[0]), None]}), tmp_path / "none.parquet")
    with pytest.raises(ValueError, match="row 1 of image"):
        load_data(str(tmp_path / "none.parquet"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = write(tmp_path, "parquet", make_pixels())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'liesparse\[parquet\]'"):
        load_data(str(path))


def test_pictures_of_any_mode_are_greyed(tmp_path):
    grey = make_pixels(1, 6, 6)[0]
    red = np.zeros((6, 6, 3), np.uint8)
    red[..., 0] = 200 * (grey > 99)
    clear = np.dstack([np.zeros((6, 6, 3), np.uint8), 255 * (grey > 99).astype(np.uint8)])
    Image.fromarray(grey).save(tmp_path / "a.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "b.png")
    Image.fromarray(grey / np.float32(255)).save(tmp_path / "c.tiff")
    Image.fromarray(red).save(tmp_path / "d.png")
    Image.fromarray(clear).save(tmp_path / "e.png")
    Image.fromarray(grey > 99).save(tmp_path / "f.png")
    Image.fromarray(red).quantize(2).save(tmp_path / "g.gif")
    Image.fromarray(grey).save(tmp_path / "h.JPG", quality=100)
    data = load_data(str(tmp_path), seed=1)
    expected = np.stack([grey, grey, grey, grey > 99, grey <= 99, grey > 99, grey > 99, grey])
    similar = together(data) @ unit_norm(torch.from_numpy(expected.astype(np.float32)).flatten(1)).T
    assert similar.amax(dim=1).gt(0.999).all()
    assert similar.shape == (8, 8)  # none is blank, so the clear one lies on white
    assert "3 greyed" in data.summary()


def test_size_crop_and_invert(tmp_path):
    wide = np.full((4, 8), 255, np.uint8)
    wide[1:3, 3:5] = 0
    pixels = np.stack([wide, np.roll(wide, 1, axis=0), np.roll(wide, -1, axis=0)])
    for kind in ("folder", "npy"):
        data = load_data(f"{write(tmp_path, kind, pixels)}:crop=yes,invert=yes")
        assert data.image_shape == (4, 4)
        assert_holds(data, 255 - pixels[:, :, 2:6])
        assert "cropped to the central square; inverted" in data.summary()
        data = load_data(str(tmp_path / ("images" if kind == "folder" else "images.npy")), size="2x4")
        assert data.image_shape == (2, 4)
        assert "resized from 4 × 8" in data.summary()
    blank = np.full((5, 3, 3), 7, np.uint8)
    blank[0, 1] = 5
    blank[1, 2] = 9
    np.save(tmp_path / "blank.npy", blank)
    assert load_data(f"{tmp_path / 'blank.npy'}:invert=yes").n_blank == 3


def test_an_even_ground_is_told_and_taken_away(tmp_path):
    pixels = np.full((6, 12, 12), 60, np.uint8)
    pixels[:, 4:8, 4:8] = 200
    for kind in ("folder", "npy"):
        path = write(tmp_path, kind, pixels)
        seen = load_data(str(path))
        assert "% of each picture is an even grey ground" in warn_of_ground(seen.train, seen.image_shape)
        bare = load_data(f"{path}:ground=subtract")
        assert "without their ground" in bare.summary()
        assert warn_of_ground(bare.train, bare.image_shape) == ""
        assert bare.train.reshape(-1, 12, 12)[:, 0].abs().max() == 0
        assert bare.train.reshape(-1, 12, 12)[:, 5, 5].min() > 0.2
    light = load_data(f"{path}:invert=yes,ground=subtract").train.reshape(-1, 12, 12)
    assert light[:, 5, 5].max() < 0  # darker than the ground
    photos = torch.rand(40, 144, generator=torch.Generator().manual_seed(0))
    assert warn_of_ground(torch.nn.functional.normalize(photos, dim=1), (12, 12)) == ""  # no even edge
    with pytest.raises(ValueError, match="ground: expected 'keep' or 'subtract'"):
        load_data(f"{path}:ground=white")


def test_a_size_keeps_the_aspect_unless_told_otherwise(tmp_path):
    tall = np.zeros((12, 6), np.uint8)
    tall[4:8, :3] = 200  # at the left edge
    pixels = np.stack([tall, tall + 1])
    for kind in ("folder", "npy"):
        path = write(tmp_path, kind, pixels)
        seen = {how: load_data(str(path), size=6, fit=how) for how in ("crop", "pad", "stretch")}
        widths, heights = {}, {}
        for how, data in seen.items():
            dark = data.train[0].reshape(6, 6) > 0.5 * data.train[0].max()
            widths[how], heights[how] = (int(dark.any(dim=axis).sum()) for axis in (0, 1))
        assert (widths["crop"], heights["crop"]) == (3, 4)
        assert (widths["stretch"], heights["stretch"]) == (3, 2)
        assert heights["pad"] == 2
        assert float(seen["pad"].train[0].reshape(6, 6)[:, 0].max()) < 0.05  # ground, not a smear
        assert seen["crop"].summary() == load_data(str(path), size=6).summary()
        assert "cropped to keep the aspect" in seen["crop"].summary()
        assert "padded" in seen["pad"].summary()
        assert "stretched" in seen["stretch"].summary()
    with pytest.raises(ValueError, match="fit: expected 'crop' or 'pad' or 'stretch'"):
        load_data(str(path), size=6, fit="squeeze")


def test_images_know_their_files_and_labels(tmp_path):
    pixels = make_pixels(6, 5, 5)
    for place, image in enumerate(pixels):
        folder = tmp_path / "faces" / ("ann" if place % 2 else "bob")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{place}.png")
    found = load_images(str(tmp_path / "faces"), (5, 5))
    assert found.names == ("ann/1.png", "ann/3.png", "ann/5.png", "bob/0.png", "bob/2.png", "bob/4.png")
    assert found.labels == ("ann",) * 3 + ("bob",) * 3
    loaded = load_data(str(tmp_path / "faces"), n_test=2)
    assert loaded.label_names == ("ann", "bob")
    for name, label in zip(loaded.test_names, loaded.test_labels.tolist(), strict=True):
        assert name.startswith(loaded.label_names[label])
    np.savez(tmp_path / "some.npz", images=pixels, labels=np.arange(6))
    numbered = load_images(str(tmp_path / "some.npz"), (5, 5))
    assert (numbered.names[2], numbered.labels[2]) == ("2", "2")


def test_resizing_is_that_of_pillow(tmp_path):
    pixels = make_pixels(3, 12, 12)
    data = load_data(str(write(tmp_path, "folder", pixels)), size=5)
    resized = [np.asarray(Image.fromarray(image).resize((5, 5), Image.Resampling.BILINEAR)) for image in pixels]
    expected = unit_norm(torch.from_numpy(np.stack(resized).astype(np.float32)).flatten(1))
    assert (together(data) @ expected.T).amax(dim=1).gt(0.9999).all()


def test_mixed_sizes_need_a_size(tmp_path):
    for i in range(4):
        Image.fromarray(make_pixels(1, 5 + i, 5 + i)[0]).save(tmp_path / f"{i}.png")
    with pytest.raises(ValueError, match=r"images of one size \(5 × 5\), got 6 × 6 in .*1.png. Pass size=N."):
        load_data(str(tmp_path))
    data = load_data(str(tmp_path), size=5)
    assert data.image_shape == (5, 5)
    assert "resized from 3 sizes" in data.summary()


def test_links_to_pictures_are_followed(tmp_path):
    folder = write(tmp_path, "folder", make_pixels(5))
    (tmp_path / "links").mkdir()
    for path in sorted(folder.rglob("0*.png")):
        (tmp_path / "links" / path.name).symlink_to(path)
    assert_holds(load_data(str(tmp_path / "links")), make_pixels(5))


def test_paths_with_colons_and_names_in_the_way(tmp_path, monkeypatch):
    pixels = make_pixels()
    monkeypatch.chdir(tmp_path)
    np.save("a:n=3.npy", pixels)
    assert len(load_data("a:n=3.npy").train) == 11
    assert len(load_data("a:n=3.npy:n=4").train) == 4
    np.save("C:b.npy", pixels)
    assert len(load_data("C:b.npy").train) == 11
    write(tmp_path, "folder", pixels).rename("digits")
    assert load_data("digits").image_shape == (8, 8)
    assert load_data("./digits").image_shape == (6, 6)


@pytest.mark.parametrize("kind", ["npy", "folder", "shards"])
def test_images_to_use_are_all_of_a_path(tmp_path, kind):
    path = write(tmp_path, "npy" if kind == "shards" else kind, make_pixels())
    path = tmp_path if kind == "shards" else path
    assert len(load_images(str(path), (6, 6)).images) == 12
    assert load_images(f"{path}:invert=yes", (6, 6)).preprocessing.invert  # so that others can turn them back
    with pytest.raises(ValueError, match=r"none that choose among its images, got n=5, seed=3\. Leave n, seed out\."):
        load_images(f"{path}:n=5,invert=yes,seed=3", (6, 6))
    with pytest.raises(ValueError, match="got n_test=5"):
        load_images(f"{path}:n_test=5", (6, 6))
    assert len(load_images("digits:n_test=7", (8, 8)).images) == 7


@pytest.mark.parametrize("kind", ["npy", "npz", "idx"])
def test_large_files_are_mapped_and_read_in_chunks(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(images, "_CHUNK_PIXELS", 2**16)
    path = write(tmp_path, kind, np.tile(make_pixels(200, 28, 28), (50, 1, 1)))  # 8 MB
    with traced() as peak:
        data = load_data(str(path))
        assert peak() < 3_000_000
    assert len(data.train) == 9000
    assert_close(data.train.norm(dim=1), torch.ones(9000))
    read = arrays.read_idx(path) if kind == "idx" else arrays.read_file(path, None, None, images.Preprocessing()).pixels
    assert isinstance(read, np.memmap)
    assert not read.flags.writeable


def test_heavy_packages_are_imported_only_when_needed():
    code = "import sys, liesparse.data; print({'pooch', 'pyarrow', 'PIL', 'sklearn', 'requests'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
