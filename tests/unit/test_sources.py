"""Every source of images round-trips known ones, and every bad one is refused in one line."""

import contextlib
import gzip
import io
import math
import os
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from liesparse.data import (
    arrays,
    datasets,
    images,
    list_datasets,
    load_data,
    load_images,
    pictures,
    shears_stretches,
    unit_norm,
)


def make_pixels(n=12, height=6, width=6, seed=0):
    return np.random.default_rng(seed).integers(1, 256, (n, height, width), dtype=np.uint8)


def png(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def idx(pixels, code=8):
    header = bytes([0, 0, code, pixels.ndim]) + b"".join(n.to_bytes(4, "big") for n in pixels.shape)
    return header + pixels.tobytes()


def write(path, kind, pixels):
    """Write images in one of the kinds of files, and return the path."""
    path = path / f"images{'' if kind in ('folder', 'idx') else '.' + kind}"
    pictures = {f"{i:03}.png": png(image) for i, image in enumerate(pixels)} if kind in ("folder", "zip") else {}
    if kind == "npy":
        np.save(path, pixels)
    elif kind == "npz":
        np.savez(path, images=pixels)
    elif kind in ("idx", "gz"):
        path.write_bytes(idx(pixels) if kind == "idx" else gzip.compress(idx(pixels)))
    elif kind == "folder":
        (path / "sub").mkdir(parents=True)
        for name, content in pictures.items():
            (path / "sub" / name).write_bytes(content)
        (path / "notes.txt").write_text("no picture")
        (path / ".hidden.png").write_bytes(b"no picture")
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.mkdir("sub")
            archive.writestr("__MACOSX/000.png", b"no picture")
            for name, content in pictures.items():
                archive.writestr(f"sub/{name}", content)
    elif kind == "parquet":
        column = [{"bytes": png(image), "path": None} for image in pixels]
        pq.write_table(pa.table({"image": column, "label": list(range(len(pixels)))}), path)
    return path


@contextlib.contextmanager
def traced():
    """Measure the largest memory that Python and NumPy held; torch's own, such as the result, is not counted."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


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
        assert (widths["pad"], heights["pad"]) == (3, 2)  # the edge goes on
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


def test_n_of_a_named_set_is_how_many_are_looked_at():
    found = load_images("digits:n=30", (8, 8))
    assert len(found.images) == len(found.names) == 30
    every = load_images("digits:n_test=1700", (8, 8))
    at = list(every.places).index(found.places[3]) if found.places[3] in every.places else None
    assert at is None or every.images[at].equal(found.images[3])  # the number is that in the whole set
    assert max(found.places) > 30
    with pytest.raises(ValueError, match="has one size only"):
        load_images("mnist-mini", (8, 8))


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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("translatoin", "Did you mean translation?"),
        ("MNIST", "Did you mean mnist?"),
        ("", "a path or one of translation, rotation-scaling"),
        ("zzzzzz", "Pass one of these, or a path."),
        ("translation:size=3", "one of n, n_test, seed, max_shift, wrap, got 'size'"),
        ("translation:n", "parameters of translation: expected key=value pairs, such as n=1000,seed=3, got 'n'"),
        ("translation:n=0", "n: expected a whole number >= 1, got int 0"),
        ("translation:n=many", "n: expected a whole number >= 1, got 'many'"),
        ("translation:n=5,n=6", "n: expected each parameter once"),
        ("translation:wrap=perhaps", "wrap: expected yes or no"),
        ("translation:max_shift=nan", "max_shift: expected a finite number"),
        ("rotation-scaling:min_scale=2", "scales: expected (lowest, highest)"),
        ("digits:n=5000", "n + n_test: expected at most 1,797 images"),
    ],
)
def test_names_and_parameters_are_checked(spec, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011, the text is checked below
        load_data(spec)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["npy", "folder", "shards"])
def test_images_to_use_are_all_of_a_path(tmp_path, kind):
    path = write(tmp_path, "npy" if kind == "shards" else kind, make_pixels())
    path = tmp_path if kind == "shards" else path
    assert len(load_images(str(path), (6, 6)).images) == 12
    with pytest.raises(ValueError, match=r"none that choose among its images, got n=5, seed=3\. Leave n, seed out\."):
        load_images(f"{path}:n=5,invert=yes,seed=3", (6, 6))
    with pytest.raises(ValueError, match="got n_test=5"):
        load_images(f"{path}:n_test=5", (6, 6))
    assert len(load_images("digits:n_test=7", (8, 8)).images) == 7


def make_bad_files(folder):
    """Yield a name and the expected message, and write the file."""
    pixels, whole = make_pixels(), png(make_pixels(1, 40, 40)[0])
    nan, huge = pixels.astype(np.float32), pixels.astype(np.float32)
    nan[3, 0, 0], huge[5] = np.nan, np.inf
    saved = {
        "nan.npy": (nan, "NaN or infinite values in .*, first in image 3"),
        "inf.npy": (huge, "NaN or infinite values in .*, first in image 5"),
        "one.npy": (pixels[:1], r"at least 2 images that are not blank, .* got 1 in .* \(0 blank\)"),
        "none.npy": (pixels[:0], r"at least 2 images that are not blank, .* got 0 in .* \(0 blank\)"),
        "blank.npy": (pixels * 0, r"at least 2 images that are not blank, .* got 0 in .* \(12 blank\)"),
        "objects.npy": (np.array([{}, 1], dtype=object), r"expected a .npy file, got .* \(.*Python objects"),
        "text.npy": (np.array(["a", "b"]), "expected an array of numbers, got <U1"),
        "complex.npy": (pixels + 1j, "expected an array of numbers, got complex128"),
        "flat.npy": (np.arange(9), r"expected shape \(n, height, width\)"),
        "first.npy": (np.ones((9, 3, 8, 8)), r"1 to 4 channels on the last axis, .* np.moveaxis"),
        "large.npy": (np.ones((2, 1100, 1000), np.bool_), "at most 1,048,576 pixels, got 1100 × 1000"),
    }
    for name, (array, message) in saved.items():
        np.save(folder / name, array, allow_pickle=True)
        yield name, message
    np.savez(folder / "objects.npz", np.array([{}, 1], dtype=object))
    np.savez_compressed(folder / "cut.npz", pixels)
    (folder / "cut2.npz").write_bytes((folder / "cut.npz").read_bytes()[:-30])
    content = bytearray((folder / "cut.npz").read_bytes())
    content[200:300] = bytes(100)
    written = {
        "missing/file.npy": (None, "does not exist"),
        "objects.npz": (None, "Python objects"),
        "cut2.npz": (None, "expected a .npz file"),
        "changed.npz": (bytes(content), "expected a .npz file"),
        "cut.npy": ((folder / "nan.npy").read_bytes()[:300], "expected a .npy file"),
        "header.npy": ((folder / "nan.npy").read_bytes().replace(b"}", b"("), "expected a .npy file"),
        "noise.npy": (b"no array at all", "expected a .npy file"),
        "empty.npy": (b"", "expected a .npy file"),
        "cut-idx": (idx(pixels)[:-1], "expected an idx file of images"),
        "cut-idx.gz": (gzip.compress(idx(pixels))[:-9], "expected an idx file of images"),
        "lies-idx.gz": (gzip.compress(b"\0\0\x08\x03" + b"\x7f" * 12), "promises more than the file can hold"),
        "header-idx": (b"\0\0\x08\x03\0\0", "cut short in its header"),
        "other-idx": (b"\0\0\x07\x03" + bytes(12), "no idx header"),
        "noise.gz": (b"\x1f\x8b and noise", "expected an idx file of images"),
        "noise.zip": (b"PK and noise", "expected a zip archive"),
        "noise.parquet": (b"PAR1 and noise", "expected a parquet file"),
        "noise.bin": (b"noise", "expected a .npy, .npz, .parquet or idx file"),
        "one.png": (whole, "Put it into a folder with others"),
        "empty": ({}, "at least 2 pictures, got none in .* for the idx files of MNIST pass mnist"),
        "text": ({"a.txt": b"no picture"}, "at least 2 pictures, got none"),
        "single": ({"a.png": whole}, "at least 2 images that are not blank"),
        "torn": ({"a.png": whole, "b.png": whole[: len(whole) // 2]}, r"expected a readable picture, got .*b.png \("),
        "noise": ({"a.png": whole, "b.png": b"noise"}, r"b.png \(no picture of a known format\)"),
        "script": ({"a.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"}, "no picture of a known format"),
    }
    for name, (content, message) in written.items():
        if isinstance(content, dict):
            (folder / name).mkdir()
            for member, data in content.items():
                (folder / name / member).write_bytes(data)
        elif content is not None:
            (folder / name).write_bytes(content)
        yield name, message


def test_bad_files_are_refused_in_one_line(tmp_path):
    for name, message in make_bad_files(tmp_path):
        kind = FileNotFoundError if "missing" in name else ValueError
        with pytest.raises(kind, match=message) as refused:
            load_data(str(tmp_path / name))
        assert type(refused.value) is kind, name
        assert "\n" not in str(refused.value), name
        assert str(refused.value).startswith("data: expected "), name


def test_a_damaged_byte_anywhere_gives_our_error_or_none(tmp_path):
    pixels, rng = make_pixels(3), np.random.default_rng(0)
    for kind in ("npy", "npz", "idx", "gz", "zip", "parquet"):
        path = write(tmp_path, kind, pixels)
        whole = path.read_bytes()
        for place in rng.integers(0, len(whole), 25):
            torn = bytearray(whole)
            torn[place] ^= 0xFF
            for content in (bytes(torn), whole[:place]):
                path.write_bytes(content)
                with contextlib.suppress(ValueError):  # a changed pixel is fine, any other error is not
                    load_data(str(path))


def test_zip_bombs_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(4):
            archive.writestr(f"{i}.png", bytes(2_000_000))
    with pytest.raises(ValueError, match="shrank at most 200-fold"):
        load_data(str(path))
    monkeypatch.setattr(pictures, "MAX_RATIO", 2000)
    with pytest.raises(ValueError, match="no picture of a known format"):
        load_data(str(path))
    monkeypatch.setattr(pictures, "MAX_TOTAL_BYTES", 7_000_000)
    with pytest.raises(ValueError, match="GiB unpacked"):
        load_data(str(path))
    monkeypatch.setattr(pictures, "MAX_FILE_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="MiB unpacked"):
        load_data(str(path))
    monkeypatch.setattr(pictures, "MAX_MEMBERS", 3)
    with pytest.raises(ValueError, match="at most 3 files, got 4"):
        load_data(str(path))


def test_a_member_that_lies_about_its_size_is_not_unpacked_further(tmp_path):
    path = tmp_path / "lies.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(50_000_000))
    true, false = (50_000_000).to_bytes(4, "little"), (1000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(true, false))
    with traced() as peak:
        with pytest.raises(ValueError, match="expected a readable"):
            load_data(str(path))
        assert peak() < 10_000_000


def test_encrypted_members_are_refused(tmp_path):
    path = write(tmp_path, "zip", make_pixels(2))
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(signature, at + 4)
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="without a password"):
        load_data(str(path))


def test_decompression_bombs_are_refused(tmp_path, monkeypatch):
    folder = write(tmp_path, "folder", make_pixels(2, 30, 30))
    monkeypatch.setattr(pictures, "MAX_SOURCE_PIXELS", 899)
    with pytest.raises(ValueError, match="pictures of at most 899 pixels"):
        load_data(str(folder))
    monkeypatch.undo()
    for limit in (400, 700):  # twice the limit is Pillow's error, once its warning
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ValueError, match="pictures of at most 50,000,000 pixels"):
            load_data(str(folder))
    monkeypatch.undo()
    monkeypatch.setattr(pictures, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match=r"a larger .*000.png"):
        load_data(str(folder))


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


def test_compressed_arrays_have_a_limit(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", make_pixels())
    monkeypatch.setattr(arrays, "_MAX_BYTES", 100)
    with pytest.raises(ValueError, match="a compressed array of at most"):
        load_data(str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    ("name", "n_factors"),
    [("translation", 2), ("rotation-scaling", 2), ("shear-stretch", 2), ("translation-rotation", 3)],
)
def test_synthetic_sets_know_their_truth(name, n_factors):
    data = load_data(f"{name}:n=40,n_test=20,seed=3")
    again, other = load_data(name, n=40, n_test=20, seed=3), load_data(name, n=40, n_test=20, seed=4)
    assert data.train.equal(again.train)
    assert not data.train.equal(other.train)
    assert not data.train[:20].equal(data.test)
    assert data.factors.shape == (40, n_factors)
    assert data.test_factors.shape == (20, n_factors)
    assert len(data.factor_names) == n_factors
    assert data.labels[:12].tolist() == [*range(10), 0, 1]
    assert data.summary() == f"{name}: 40 images to learn from and 20 to test, 28 × 28 pixels; 0 blank skipped"


def test_parameters_reach_the_synthetic_sets():
    assert float(load_data("translation:n=200,n_test=1,max_shift=2").factors.abs().max()) <= 2
    log_scales = load_data("rotation-scaling:n=200,n_test=1,min_scale=0.9,max_degrees=5").factors[:, 1]
    assert float(log_scales.exp().min()) >= 0.9 - 1e-6
    shears, log_stretches = load_data("shear-stretch:n=200,n_test=1,max_shear=0.1,max_stretch=0.7").factors.unbind(1)
    assert float(shears.abs().max()) <= 0.1
    assert float(log_stretches.exp().max()) <= 0.7 + 1e-6
    three = load_data("translation-rotation:n=200,n_test=1,max_shift=1,max_degrees=10").factors
    assert (three.abs().amax(dim=0) <= torch.tensor([1.0, 1.0, math.radians(10)])).all()
    assert (three.abs().amax(dim=0) > torch.tensor([0.9, 0.9, math.radians(9)])).all()


def test_shear_leans_to_the_right_and_stretch_widens():
    source = torch.zeros(1, 41, 41)
    source[0, 9:12, 25:28] = 1  # six pixels right of the centre (20, 20), and ten above
    found = shears_stretches(200, sources=source, generator=torch.Generator().manual_seed(0))
    down, right = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    for image, (shear, log_stretch) in zip(found.images, found.factors, strict=True):
        weights = image / image.sum()
        expected = float(log_stretch.exp() * (6 + 10 * shear))
        assert float((weights * right.flatten()).sum()) == pytest.approx(expected, abs=0.2)
        assert float((weights * down.flatten()).sum()) == pytest.approx(-10, abs=0.2)
    with pytest.raises(ValueError, match="stretches: expected"):
        shears_stretches(5, stretches=(1.0, 0.5), generator=torch.Generator())


def test_embedded_and_bundled_sets():
    with np.load(datasets.MINI) as packed:
        images, labels = unit_norm(torch.from_numpy(packed["images"]).flatten(1).float()), packed["labels"]
    labels = torch.from_numpy(labels).long()
    assert images.shape == (2000, 784)
    assert labels.bincount().gt(100).all()
    mini = load_data("mnist-mini")
    assert (len(mini.train), len(mini.test)) == (1800, 200)
    nearest = (mini.test @ images.T).argmax(dim=1)
    assert_close(mini.test, images[nearest])
    assert mini.test_labels.equal(labels[nearest])
    digits = load_data("digits:n=100,n_test=10")
    assert digits.train.shape == (100, 64)
    assert digits.image_shape == (8, 8)
    assert len(digits.test_labels) == 10


def test_sources_are_listed(tmp_path):
    listed = {info.name: info for info in list_datasets(tmp_path)}
    made = ["translation", "rotation-scaling", "shear-stretch", "translation-rotation"]
    assert list(listed) == [*made, "mnist", "mnist-mini", "fashion-mnist", "digits"]
    assert "liesparse data fetch mnist" in listed["mnist"].where
    assert listed["translation"].parameters["max_shift"] == 7
    for split in ("train", "t10k"):
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(make_pixels()))
    assert {info.name: info.where for info in list_datasets(tmp_path)}["mnist"] == str(tmp_path)


def test_heavy_packages_are_imported_only_when_needed():
    code = "import sys, liesparse.data; print({'pooch', 'pyarrow', 'PIL', 'sklearn', 'requests'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_arrays_and_tables_that_would_unpack_to_far_more_are_refused(tmp_path):
    """A kilobyte that asks for gigabytes: refused before memory is taken."""
    bomb = tmp_path / "bomb.npz"
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (1024, 256, 256)})
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_BZIP2) as archive, archive.open("images.npy", "w") as member:
        member.write(head.getvalue())
        for _ in range(64):
            member.write(bytes(2**20))
    long_header = tmp_path / "header.npz"
    with zipfile.ZipFile(long_header, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x02\x00" + (2**24).to_bytes(4, "little") + b" " * 2**20)
    rows, lists = tmp_path / "rows.parquet", tmp_path / "lists.parquet"
    same = pa.array(np.zeros(2_000_000, dtype=np.int8))
    pictures = pa.array([b"1"]).take(pa.array(np.zeros(2_000_000, dtype=np.int32)))
    pq.write_table(pa.table({"image": pictures, "label": same}), rows)
    one = pa.ListArray.from_arrays(pa.array([0, 2**25], pa.int32()), pa.array(np.zeros(2**25, dtype=np.int8)))
    pq.write_table(pa.table({"image": one}), lists)
    for path in (bomb, long_header, rows, lists):
        assert path.stat().st_size < 30_000
        tracemalloc.start()
        with pytest.raises(ValueError, match="data: expected"):
            load_data(str(path))
        assert tracemalloc.get_traced_memory()[1] < 2**24
        tracemalloc.stop()


def test_a_folder_holds_plain_files_only(tmp_path):
    """A device has no end, and a pipe waits for ever."""
    for name, make in (
        ("device", lambda path: path.symlink_to("/dev/zero")),
        ("pipe", os.mkfifo),
    ):
        folder = write(tmp_path / name, "folder", make_pixels())
        make(folder / "a.png")
        with pytest.raises(ValueError, match=r"a folder of plain files, got .*a\.png"):
            load_data(str(folder))
