"""Bad files are refused in one line, before memory is taken."""

import contextlib
import gzip
import io
import os
import tracemalloc
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from liesparse.data import (
    arrays,
    load_data,
    pictures,
)
from unit.writing import idx, make_pixels, png, traced, write


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
        n_places = 8 if kind == "parquet" else 25  # a process reads each parquet file
        for place in rng.integers(0, len(whole), n_places):
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
    with pytest.raises(ValueError, match=r"pictures of at most 899 pixels, got more in .*000.png, .*001.png"):
        load_data(str(folder))  # all of them at once
    monkeypatch.undo()
    for limit in (400, 700):  # twice the limit is Pillow's error, once its warning
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ValueError, match="pictures of at most 50,000,000 pixels"):
            load_data(str(folder))
    monkeypatch.undo()
    monkeypatch.setattr(pictures, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match=r"a larger .*000.png"):
        load_data(str(folder))


def test_compressed_arrays_have_a_limit(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", make_pixels())
    monkeypatch.setattr(arrays, "_MAX_BYTES", 100)
    with pytest.raises(ValueError, match="a compressed array of at most"):
        load_data(str(tmp_path / "a.npz"))


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
