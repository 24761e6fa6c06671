"""``liesparse reproduce figures`` as a person would use it, on a tiny scale."""

import signal
from functools import partial

import pytest

from liesparse.reproduce import table1
from shell import Forked, call_main, run

N_TEST = 300  # held-out images; to measure the usual 10,000 takes longer than all the rest
TINY = ["--images", "190", "--epochs", "2"]  # so few that nobody looks for pairs


@pytest.fixture(scope="module", autouse=True)
def few_test_images():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table1, "N_TEST", N_TEST)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def stopped(out):
    """What a run says that is interrupted after its first epoch."""
    command = partial(call_main, n_test=N_TEST)
    with Forked(command, "reproduce", "figures", "--rows", "translation", "--out", out, *TINY) as process:
        for line in process.stdout:
            if "epoch 1/2" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 130
    assert not list(out.glob("figure*"))
    return rest


@pytest.fixture(scope="module")
def drawn(out, stopped):  # noqa: ARG001, it goes on from there
    return run("reproduce", "figures", "--rows", "translation", "--out", str(out), *TINY)


def test_an_interrupted_run_says_how_to_go_on(stopped):
    assert "The same command goes on from there." in stopped
    assert "Traceback" not in stopped


def test_it_goes_on_and_writes_the_figures(out, drawn):
    assert drawn.returncode == 0, drawn.stderr
    assert "translation: epoch 1/2" not in drawn.stdout
    assert "translation: epoch 2/2, SNR" in drawn.stdout
    names = {f"figure{number}.{kind}" for number in (1, 2, 3) for kind in ("pdf", "png")}
    assert {path.name for path in out.iterdir()} == names | {"models"}
    for name in names:
        assert (out / name).read_bytes().startswith(b"%PDF" if name.endswith("pdf") else b"\x89PNG")
    assert [path.name for path in (out / "models").iterdir()] == ["translation.0"]


@pytest.mark.usefixtures("drawn")
def test_models_are_used_again_and_missing_data_is_left_out(out, tmp_path):
    picture = (out / "figure2.pdf").read_bytes()
    model = out / "models" / "translation.0" / "model.safetensors"
    before = model.stat().st_mtime_ns
    done = run("reproduce", "figures", "--out", str(out), "--data-dir", str(tmp_path), *TINY)
    assert done.returncode == 0, done.stderr
    assert "Without mnist-10. MNIST: no train-images-idx3-ubyte.gz in" in done.stdout
    assert "translation: found, not learned again" in done.stdout
    assert "rotation-scaling: epoch 2/2, SNR" in done.stdout
    assert model.stat().st_mtime_ns == before
    assert (out / "figure2.pdf").read_bytes() != picture  # now of two data sets


def test_missing_data_that_was_asked_for_is_an_error(tmp_path):
    rows = ("--rows", "translation,mnist-10")
    done = run("reproduce", "figures", *rows, "--out", tmp_path / "out", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert "--data-dir" in done.stdout
    assert "epoch" not in done.stdout  # said before anything is learned


def test_a_row_that_is_none(tmp_path):
    done = run("reproduce", "figures", "--rows", "mnist-100", "--out", tmp_path)
    assert done.returncode == 2
    message = "No row 'mnist-100'. The rows are translation, rotation-scaling, mnist-10."
    assert message in " ".join(done.stdout.split())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = run("reproduce", "figures", "--rows", "translation", "--out", tmp_path / "file")
    assert done.returncode == 1
    assert "Cannot write to" in done.stdout
