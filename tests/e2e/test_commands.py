"""The commands around a run, as a person would use them: the whole job, and what they say when they can't."""

import csv
import json
import os
import re
import signal

import numpy as np
import pytest
from PIL import Image

from liesparse import figures
from liesparse.data import load_data
from liesparse.run_directory import load_run
from shell import Forked, call_main, run

SMALL = ["--components", "4", "--irreps", "10", "--set", "start=data", "--epochs", "2", "--seed", "3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    return folder, run("train", "digits", "--out", folder, *SMALL)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Seven 8 × 8 pictures, one of them blank."""
    folder = tmp_path_factory.mktemp("pictures")
    pixels = np.random.RandomState(0).randint(0, 255, (7, 8, 8), dtype=np.uint8)
    pixels[2] = 0
    for place, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{place}.png")
    return folder


def test_train_writes_a_whole_run(trained):
    folder, done = trained
    assert done.returncode == 0, done.stderr
    files = {"README.md", "baseline.safetensors", "baseline_large.safetensors", "checkpoints", "history.json"}
    assert set(os.listdir(folder)) == files | {"metrics.json", "model.safetensors", "run.json"}
    assert "8 × 8 pixels" in done.stdout
    assert re.search(r"^ +2/2 +\d", done.stdout, flags=re.MULTILINE)  # the table of health
    opened = load_run(folder)
    assert opened.coder.components_.shape == (4, 64)
    assert opened.settings["data"] == "digits"
    assert opened.settings["settings"] == {
        "n_components": 4,
        "n_irreps": 10,
        "group": "learned",
        "torus_dim": 2,
        "multiplicity": "auto",
        "sparsity": 10.0,
        "noise_std": "auto",
        "start": "data",
    }
    assert opened.coder.pose_ranges_.shape == (4, 2, 3)
    assert "images/s" in done.stdout
    assert len(json.loads((folder / "history.json").read_text())["epochs"]) == 2
    assert f"{opened.metrics['lsc_snr']:.2f}" in done.stdout
    assert f"{opened.metrics['sparse_coding_snr']:.2f}" in done.stdout


def test_a_known_group_gives_poses_in_degrees(pictures, tmp_path):
    done = run("train", "digits", "--out", tmp_path / "run", *SMALL, "--group", "rotation")
    assert done.returncode == 0, done.stderr
    assert load_run(tmp_path / "run").coder.model_.torus_dim == 1
    found = tmp_path / "found.csv"
    assert run("infer", tmp_path / "run", pictures, "--out", found).returncode == 0
    rows = list(csv.DictReader(found.read_text().splitlines()))
    for row in rows:
        assert float(row["angle (degrees)"]) == pytest.approx(np.degrees(float(row["pose1"])), abs=0.01)
    wrong = run("train", "digits", "--out", tmp_path / "other", "--group", "turning")
    assert wrong.returncode == 2
    assert "'rotation'" in wrong.stdout + wrong.stderr


def test_a_run_is_not_overwritten_and_a_finished_one_does_not_train_again(trained):
    folder, _ = trained
    before = (folder / "model.safetensors").read_bytes()
    again = run("train", "digits", "--out", folder, *SMALL)
    assert again.returncode == 1
    assert "already holds a run. Add --resume" in again.stdout
    resumed = run("train", "digits", "--out", folder, *SMALL, "--resume")
    assert resumed.returncode == 0
    assert (folder / "model.safetensors").read_bytes() == before
    other = run("train", "digits", "--out", folder, *SMALL[:-1], "4", "--resume")
    assert other.returncode == 1
    said = " ".join(other.stdout.split())
    assert "was started with --seed 3; now it is --seed 4. Give the same options to continue it" in said


def test_ctrl_c_and_resume_give_the_same_model(trained, tmp_path):
    folder, _ = trained
    out = tmp_path / "run"
    with Forked(call_main, "train", "digits", "--out", out, *SMALL) as process:
        for line in process.stdout:
            if line.lstrip().startswith("1/2"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 130, rest
    assert "The same command with --resume goes on from there." in rest
    unfinished = run("evaluate", out)
    assert unfinished.returncode == 1
    assert "unfinished" in unfinished.stdout
    others = (*SMALL[2:], "--components", "5", "--set", "learning.batch_size=40")
    other = run("train", "synthetic", "--out", out, *others, "--resume")  # before its images are loaded
    said = " ".join(other.stdout.split())
    began, now = "--components 4, --set learning.batch_size left away", "--components 5, --set learning.batch_size 40"
    assert f"was started with DATA digits, {began}; now it is DATA synthetic, {now}." in said
    assert other.returncode == 1
    assert run("train", "digits", "--out", out, *SMALL, "--resume").returncode == 0
    assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_ctrl_c_before_the_first_step_says_that_nothing_is_lost(tmp_path):
    with Forked(call_main, "train", "translation:n=2000,n_test=10", "--out", tmp_path / "run") as process:
        for line in process.stdout:
            if "first the motion" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 130, rest
    assert "Nothing was learned yet: start again." in rest
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_evaluate_on_images_of_another_size_gives_advice_that_works(trained):
    done = run("evaluate", trained[0], "--data", "mnist-mini")
    assert done.returncode == 1
    assert "mnist-mini has one size only" in done.stdout


def test_numbers_that_cannot_be_written_are_noticed_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for target in (tmp_path / "file" / "numbers.json", tmp_path):
        done = run("train", "digits", "--out", tmp_path / "run", *SMALL, "--json", target)
        assert done.returncode == 1
        assert "with --json" in done.stdout
        assert not (tmp_path / "run").exists()


def test_evaluate_prints_the_same_numbers(trained):
    folder, _ = trained
    done = run("evaluate", folder, "--json", "-")
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert numbers == {key: value for key, value in metrics.items() if key != "training_seconds"}


def test_infer_writes_the_same_numbers_in_every_format(trained, pictures, tmp_path):
    folder, _ = trained
    paths = [tmp_path / f"found.{suffix}" for suffix in ("npz", "csv", "parquet")]
    for path in paths:
        done = run("infer", folder, pictures, "--out", path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 blank skipped" in done.stdout
    arrays = np.load(paths[0])
    assert arrays["codes"].shape == (6, 4)
    assert arrays["poses"].shape == arrays["widths"].shape == (6, 2)
    assert arrays["image"].tolist() == [0, 1, 3, 4, 5, 6]
    rows = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert [float(row["pose2"]) for row in rows] == pytest.approx(arrays["poses"][:, 1].tolist(), rel=1e-5)
    pyarrow = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.read_table(paths[2]).to_pydict()
    assert table["code3"] == pytest.approx(arrays["codes"][:, 3].tolist())
    assert table["log_likelihood"] == pytest.approx(arrays["log_likelihood"].tolist())


def test_canonicalize_writes_images(trained, pictures, tmp_path):
    folder, _ = trained
    out = tmp_path / "canonical"
    done = run("canonicalize", folder, pictures, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    index = ["canonical.csv", "canonical.npy", "sheet.png"]
    assert sorted(os.listdir(out)) == [*(f"{place}.png" for place in (0, 1, 3, 4, 5, 6)), *index]
    assert np.load(out / "canonical.npy").shape == (6, 8, 8)
    with Image.open(out / "3.png") as image:
        assert image.size == (8, 8)
    again = run("canonicalize", folder, pictures, "--out", out)  # perhaps the results of another run
    assert again.returncode == 1
    assert "expected a new or an empty folder" in again.stdout + again.stderr


@pytest.mark.parametrize("suffix", ["gif", "png", "mp4"])
def test_traverse_draws_walks(trained, pictures, tmp_path, suffix):
    folder, _ = trained
    out = tmp_path / f"walk.{suffix}"
    done = run("traverse", folder, pictures, "--out", out, "--steps", "5")
    if suffix == "mp4" and done.returncode:
        assert "Install ffmpeg" in done.stdout
        return
    assert done.returncode == 0, done.stdout + done.stderr
    start = {"gif": b"GIF89a", "png": b"\x89PNG", "mp4": b"\x00\x00\x00"}[suffix]
    assert out.read_bytes().startswith(start)
    if suffix == "gif":
        with Image.open(out) as movie:
            assert movie.n_frames > 2


def test_report_is_one_file(trained):
    folder, _ = trained
    done = run("report", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (folder / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_data_list_and_preview(tmp_path, pictures):
    shown = run("data", "list")
    assert shown.returncode == 0
    for name in (
        "translation",
        "rotation-scaling",
        "shear-stretch",
        "translation-rotation",
        "mnist",
        "mnist-mini",
        "fashion-mnist",
        "digits",
    ):
        assert name in shown.stdout
    out = tmp_path / "preview.png"
    done = run("data", "preview", pictures, "--out", out)
    assert done.returncode == 0, done.stdout
    assert out.read_bytes().startswith(b"\x89PNG")


def test_preview_draws_at_random_and_says_how_it_shows_values(tmp_path, monkeypatch):
    pixels = np.random.RandomState(0).randn(400, 6, 6)
    np.save(tmp_path / "signed.npy", pixels)
    drawn = []
    sheet = figures.sheet_figure
    monkeypatch.setattr(figures, "sheet_figure", lambda *given: drawn.append(given) or sheet(*given))
    for seed in ("0", "0", "1"):
        arguments = [tmp_path / "signed.npy", "--out", tmp_path / "preview.png", "--seed", seed]
        assert run("data", "preview", *arguments).returncode == 0
    (first, _, title), (again, *_), (other, *_) = drawn
    assert len(first) == 100
    late = load_data(str(tmp_path / "signed.npy")).train[200:].numpy()
    assert (first.reshape(100, 1, 36) == late).all(axis=2).any(axis=1).sum() > 20  # not only the first ones
    assert (first == again).all()
    assert not (first == other).all()
    assert "red is above 0, blue below" in title


def test_doctor_says_what_is_here():
    done = run("doctor", "--no-test", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["torch"].startswith("2.")
    assert found["threads"] >= 1
    assert "data: mnist-mini" in found


def test_a_folder_that_is_no_run(tmp_path, trained):
    for command in (["evaluate"], ["report"]):
        done = run(*command, tmp_path)
        assert done.returncode == 1
        assert "something else" in done.stdout
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    (spoiled / "model.safetensors").write_bytes((trained[0] / "baseline.safetensors").read_bytes())
    assert "a liesparse SparseCoder" in run("evaluate", spoiled).stdout


def test_a_place_that_cannot_be_written(tmp_path, trained, pictures):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    for done in (
        run("train", "digits", "--out", blocked / "run", *SMALL),
        run("infer", trained[0], pictures, "--out", blocked / "found.npz"),
        run("canonicalize", trained[0], pictures, "--out", blocked / "canonical"),
    ):
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "Not a directory" in done.stdout or "File exists" in done.stdout
