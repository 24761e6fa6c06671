"""What the commands say of bad data, wrong use and a full disk: one line, and no half file."""

import json
import os
import re
import zipfile
from functools import partial

import numpy as np
import pytest
from PIL import Image

from shell import Forked, call_main, run

SMALL = ["--components", "4", "--irreps", "10", "--set", "start=data", "--epochs", "2", "--seed", "3"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["translation:n=100000000000"], "expected a whole number <= 1,000,000,000"),
        (["digits", "--multiplicity", "5000"], "multiplicity: expected less than n_irreps"),
        (["digits", "--multiplicity", "1000000000"], "multiplicity: expected a whole number <= 10,000"),
        (["digits", "--noise-std", "1e300"], "noise_std: expected a finite number"),
    ],
)
def test_huge_numbers_are_refused_in_one_line(tmp_path, arguments, said):
    done = run("train", *arguments, "--out", tmp_path / "run")
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


def make_bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.png", b"\0" * 300_000_000)


BAD = {
    "a missing file": (lambda _: None, "nothing.npy", "does not exist"),
    "a folder without images": (lambda path: path.mkdir(), "empty", "expected"),
    "a corrupt idx": (lambda path: path.write_bytes(b"\0\0\x08\x03\0\0\0\x09"), "images-idx3-ubyte", "expected"),
    "a corrupt npz": (lambda path: path.write_bytes(b"PK\x03\x04broken"), "broken.npz", "expected"),
    "a corrupt npy": (lambda path: path.write_bytes(b"\x93NUMPYbroken"), "broken.npy", "expected"),
    "a corrupt zip": (lambda path: path.write_bytes(b"PK\x03\x04broken"), "broken.zip", "expected"),
    "a zip bomb": (make_bomb, "bomb.zip", "expected"),
    "pickled objects": (
        lambda path: np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True),
        "objects.npy",
        "expected",
    ),
    "one image": (lambda path: np.save(path, np.ones((1, 8, 8))), "one.npy", "at least 2 images"),
    "all blank": (lambda path: np.save(path, np.zeros((9, 8, 8))), "blank.npy", "not blank"),
    "NaN": (lambda path: np.save(path, np.full((9, 8, 8), np.nan)), "nan.npy", "finite numbers"),
    "fewer images than shapes": (
        lambda path: np.save(path, np.eye(5 * 64)[:5].reshape(5, 8, 40)),
        "few.npy",
        "n_components=10",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_data_ends_in_one_line(what, tmp_path):
    make, name, message = BAD[what]
    make(tmp_path / name)
    out = tmp_path / "run"
    done = run("train", tmp_path / name, "--out", out, "--epochs", "1")
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    assert message in done.stdout
    assert (
        len(done.stdout.strip().splitlines()) <= 4
    )  # the summary, the trials and the head of the table may come first
    assert not out.exists() or not any(path.is_file() for path in out.rglob("*"))


def test_mixed_sizes_and_a_corrupt_picture(tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for place, side in enumerate((8, 8, 9)):
        Image.fromarray(np.full((side, side), 100, dtype=np.uint8)).save(folder / f"{place}.png")
    done = run("train", folder, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "size=" in done.stdout
    (folder / "2.png").write_bytes(b"\x89PNG broken")
    done = run("train", folder, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "2.png" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits", "--out", "X", "--set", "learning.speed=9"], "setting: expected one of"),
        (["train", "digits", "--out", "X", "--set", "learning.first_memory"], "expected key=value"),
        (["train", "digits", "--out", "X", "--recipe", "worst"], "recipe: expected 'best', 'paper'"),
        (["train", "digits", "--out", "X", "--epochs", "0"], "Invalid value"),
        (["infer", "X", "digits", "--out", "found.txt"], "must end in .npz, .csv, .parquet"),
        (["traverse", "X", "digits", "--out", "walk.jpg"], "must end in .gif, .png, .mp4"),
    ],
)
def test_wrong_use_exits_with_two(arguments, message, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in re.sub(r"[│\s]+", " ", done.stdout + done.stderr)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_half_file(tmp_path):
    """A limit on file size stands in for a full disk."""
    limited = partial(call_main, most_bytes=8192)
    done = Forked(limited, "train", "digits", "--out", tmp_path / "run", *SMALL, apart=True).complete()
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stdout
    assert "Traceback" not in done.stderr
    left = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["run.json"]  # how it was to be made, written as it began
    assert json.loads(left[0].read_text())["data"] == "digits"


def test_debug_shows_the_traceback(tmp_path):
    done = run("--debug", "train", tmp_path / "nothing.npy", "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
