"""Real processes, really killed: a resumed run ends in the same bits as one that was never touched."""

import random
import signal
import time

import pytest

from e2e import victim
from liesparse.checkpoint import list_checkpoints, load_checkpoint
from shell import Forked


def launch(folder, out, *extra):
    return Forked(victim.main, *map(str, (folder, out, *extra)))


def finish(process):
    done = process.complete()
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    process = launch(folder / "run", folder / "model.safetensors")
    assert finish(process) == (0, "")
    return (folder / "model.safetensors").read_bytes()


def wait_for(folder, step, process):
    """Wait until a checkpoint of at least that step is there."""
    while process.poll() is None:
        found = list_checkpoints(folder)
        if found and int(found[-1].stem.removeprefix("step-")) >= step:
            return
        time.sleep(0.002)


def test_kills_at_random_moments(untouched, tmp_path):
    folder, out = tmp_path / "run", tmp_path / "model.safetensors"
    dice = random.Random(1)
    for step in sorted(dice.sample(range(1, 500), 3)):
        process = launch(folder, out)
        wait_for(folder, step, process)
        time.sleep(0.03 * dice.random())
        process.send_signal(signal.SIGKILL)
        assert finish(process) == (-signal.SIGKILL, "")
    assert finish(launch(folder, out)) == (0, "")
    assert out.read_bytes() == untouched


def test_kills_during_a_write(untouched, tmp_path):
    folder, out = tmp_path / "run", tmp_path / "model.safetensors"
    deaths = [("fsync", 1), ("replace", 1), ("replace", 9), ("fsync", 7)]
    for deadly, count in deaths:
        assert finish(launch(folder, out, deadly, count)) == (-signal.SIGKILL, "")
        for path in list_checkpoints(folder):
            load_checkpoint(path)  # whatever has its final name is whole
    assert finish(launch(folder, out)) == (0, "")
    assert out.read_bytes() == untouched
    assert not list(folder.glob(".*"))  # what was begun is gone


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(untouched, tmp_path):
    folder, out = tmp_path / "run", tmp_path / "model.safetensors"
    process = launch(folder, out)
    wait_for(folder, 1, process)
    process.send_signal(signal.SIGINT)
    code, message = finish(process)
    assert code != 0
    assert "to go on from there" in message
    step = int(message.split("Stopped after step ")[1].split()[0])
    assert load_checkpoint(list_checkpoints(folder)[-1]).state.step == step
    assert finish(launch(folder, out)) == (0, "")
    assert out.read_bytes() == untouched
