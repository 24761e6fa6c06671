"""The command line as a person would use it."""

import json
import logging
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from liesparse import __version__
from liesparse.cli.common import ProgressBar, show_start
from liesparse.posterior.kernels import runnable
from liesparse.reproduce import bench, figures
from liesparse.run_directory import load_run
from shell import Forked, call_main, run

FEW = "190"  # images; so few that nobody looks for pairs, which takes long
N_TEST = 300  # held-out images, which take longer than the rest
ERRORS = ("adaptive_error", "grid50_error", "grid100_error")
SPEED = ("grid_speedup", "adaptive_time_ratio", "dense_ms", "grid_ms", "adaptive_ms")
LIMIT = ("limit_fraction", "limit_ms", "gflops", "ns_per_exponential")
COMPOSED = ("composition_ms", "composition_time_ratio")


def test_help_and_version_answer_without_torch():
    code = "import sys, liesparse.cli; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    assert run("--version").stdout.strip() == f"liesparse {__version__}"


def test_wrong_use_exits_with_two():
    assert run("demo", "--epochs", "0").returncode == 2
    assert run("unknown").returncode == 2


def test_public_names_all_load():
    code = (
        "import liesparse; [getattr(liesparse, name) for name in liesparse.__all__]; assert 'learn' in dir(liesparse)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    bad = subprocess.run([sys.executable, "-c", "import liesparse; liesparse.nothing"], capture_output=True, text=True)
    assert "AttributeError: No liesparse attribute nothing" in bad.stderr


@pytest.fixture(scope="module", autouse=True)
def few_test_images():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "N_TEST", N_TEST)
        yield


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "runs"
    return out, run("demo", "--out", str(out), "--epochs", "2", "--images", FEW, "--seed", "4")


def test_demo_writes_model_metrics_and_picture(small_demo):
    out, done = small_demo
    assert done.returncode == 0, done.stderr
    files = [
        "README.md",
        "baseline.safetensors",
        "demo.png",
        "history.json",
        "metrics.json",
        "model.safetensors",
        "run.json",
    ]
    assert sorted(os.listdir(out)) == files
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["lsc_snr"] > 1
    assert metrics["sparse_coding_snr"] > 1
    assert metrics["seed"] == 4
    assert f"{metrics['lsc_snr']:.2f}" in done.stdout
    assert "epoch 2/2: SNR" in done.stdout
    assert "plain sparse coding" in done.stdout
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    run_folder = load_run(out)
    assert run_folder.coder.components_.shape == (10, 784)
    assert run_folder.coder.image_shape_ == (28, 28)
    assert [entry["epoch"] for entry in run_folder.coder.history_] == [1, 2]
    assert run_folder.metrics == metrics


def test_what_comes_before_the_first_epoch_is_shown(capsys):
    logger = logging.getLogger("liesparse.start")
    before = logger.level
    with ProgressBar("learning") as bar, show_start(bar):
        logger.info("first the motion")
        logger.debug("step 20")  # for a terminal's bar
    assert bar.note == "step 20"
    assert "learning: first the motion" in capsys.readouterr().out
    assert (logger.handlers, logger.level) == ([], before)


def test_demo_repeats_with_the_same_seed(small_demo, tmp_path):
    out, _ = small_demo
    again = tmp_path / "again"
    run("demo", "--out", str(again), "--epochs", "2", "--images", FEW, "--seed", "4")
    assert (out / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


def test_demo_says_when_it_cannot_write(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    done = run("demo", "--out", str(blocked), "--epochs", "1", "--images", FEW)
    assert done.returncode == 1
    assert "Cannot write to" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_demo_tells_its_result_when_the_disk_is_full(tmp_path):
    """A limit on file size stands in for a full disk: the first large write fails."""
    limited = partial(call_main, most_bytes=65536, n_test=N_TEST)
    arguments = ("demo", "--out", tmp_path / "runs", "--epochs", "1", "--images", FEW)
    done = Forked(limited, *arguments, apart=True).complete()
    assert done.returncode == 1, done.stderr
    assert "Lie Group Sparse Coding" in done.stdout
    assert "File too large" in done.stdout
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path / "runs") == []


def test_interrupted_demo_keeps_the_model_so_far(tmp_path):
    out = tmp_path / "runs"
    with Forked(call_main, "demo", "--out", out, "--epochs", "1000", "--images", FEW) as process:
        for line in process.stdout:
            if "epoch 5/" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 130
    assert "the model so far is in" in rest
    assert load_run(out).settings["interrupted_at_step"] >= 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "translations"], "No row 'translations'. The rows are translation, rotation-scaling"),
        (["--set", "start=somewhere"], "start: expected 'random' or 'data' or 'pairs', got 'somewhere'"),
        (["--set", "include_zero=1"], "include_zero: expected true or false"),
        (["--set", "evaluation.refine=yes"], "refine: expected true or false"),
        (["--set", "learning.epochs=1"], "got 'learning.epochs'"),
        (["--recipe", "other"], "'other' is not one of"),
    ],
)
def test_table1_explains_wrong_use(tmp_path, arguments, message):
    done = run("reproduce", "table1", "--out", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert message in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_table1_says_where_it_looked_for_mnist(tmp_path):
    done = run("reproduce", "table1", "--rows", "mnist-10", "--out", str(tmp_path / "out"), "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "no train-images-idx3-ubyte.gz in" in done.stdout
    assert "Traceback" not in done.stderr


def test_interrupted_table1_keeps_its_cells(tmp_path):
    command = partial(call_main, n_test=N_TEST)
    with Forked(command, "reproduce", "table1", "--rows", "translation", "--out", tmp_path) as process:
        for line in process.stdout:
            if "known-group" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 130
    assert "the same command goes on from there" in rest
    assert "Traceback" not in rest
    assert [path.name for path in tmp_path.iterdir()] == ["translation.known-group.0.json"]


def test_debug_shows_the_traceback_of_every_command(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for command in (["demo"], ["reproduce", "figures"]):
        done = run("--debug", *command, "--out", tmp_path / "file")
        assert done.returncode == 1
        assert "Traceback" in done.stderr
    assert "Traceback" not in run("demo", "--out", tmp_path / "file").stderr  # the next call is without it


def test_bench_prints_and_writes_every_figure(tmp_path, monkeypatch):
    row = dict.fromkeys((*SPEED, *LIMIT, "grid_over_best", "adaptive_over_best"), 3.25)
    step = dict.fromkeys(("batch_ms", "inference_share", "gradients_share", "stiefel_share"), 0.5)
    measured = {
        "measure_memory": 31.0,
        "measure_errors": dict.fromkeys(ERRORS, dict.fromkeys(bench.SHARPNESS, 1.5e-6)),
        "measure_speed": [dict.fromkeys(SPEED, 8.5)],
        "measure_step": step,
        "measure_composition": dict.fromkeys(COMPOSED, 12.5),
        "measure_kernels": {"other": "not measured"} | dict.fromkeys((*runnable(), "torch"), row),
        "measure_growth": [{"size": "batch", "value": n, "grid_ms": n / 8} for n in (2, 4)],
    }
    for name, value in measured.items():
        monkeypatch.setattr(bench, name, lambda *_, value=value, **__: value)
    done = run("bench", "--json", tmp_path / "bench.json", "--plot", tmp_path / "bench.png")
    assert done.returncode == 0, done.stderr
    for text in ("8.5×", "1.5e-06", "3.25", "not measured", "2: 0.2   4: 0.5", "31 MB", "inference 50%"):
        assert text in done.stdout
    found = json.loads((tmp_path / "bench.json").read_text())
    keys = {
        "grid_speedup",
        "adaptive_time_ratio",
        "threads",
        *bench.SHAPES,
        *ERRORS,
        *step,
        "best_step",
        *LIMIT,
        *COMPOSED,
    }
    assert set(found) == keys | {"kernels", "peak_memory_mb", "growth"}
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").write_text("in the way")
    failed = run("bench", "--json", tmp_path / "file" / "bench.json")
    assert (failed.returncode, "Traceback" in failed.stderr) == (1, False)


def test_commands_import_no_more_than_they_need():
    """Loading pandas and SciPy's statistics for scikit-learn would take a second; both still work if somebody asks."""
    lines = [
        "import sys",
        "from liesparse.cli.common import import_quickly",
        "assert 'torch' not in sys.modules",
        "import_quickly()",
        "import liesparse.run_directory",
        "assert not {'pandas', 'scipy.stats._stats_py'} & set(sys.modules)",
        "import scipy.stats",
        "assert scipy.stats.norm.cdf(0) == 0.5",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
