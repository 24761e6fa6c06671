"""Real processes on this machine that learn as one: the same model, whoever dies, and one voice."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from e2e import ranks
from e2e.ranks import METHODS, images, make_start
from liesparse.checkpoint import list_checkpoints, load_checkpoint, load_model
from liesparse.learning import learn
from shell import Forked, call_main, run


def launch(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # Whoever runs the suite in the background lets it ignore Ctrl-C, and its children with it.
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    return subprocess.Popen(
        [*command, "-m", "liesparse", "train", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=heed,
    )


def side_by_side(n_processes, function, *arguments):
    """Call a function in several processes as torchrun would; return whether all ended well, and what they printed."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": n_processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "OMP_NUM_THREADS": 1}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": True}
    started = []
    for rank in range(n_processes):
        own = {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
        started.append(Forked(function, *map(str, arguments), env={**os.environ, **own}))
    done = [process.complete() for process in started]
    return not any(one.returncode for one in done), "".join(one.stdout for one in done)


def finish(process):
    words, errors = process.communicate(timeout=300)
    return process.returncode, words, errors


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for number, part in enumerate(images().split([100, 13, 100])):
        np.save(folder / f"{number}.npy", part.numpy())
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory, shards):
    out = tmp_path_factory.mktemp("alone")
    well, words = side_by_side(1, ranks.main, out, shards, 0, *METHODS)
    assert well, words
    return out


def assert_same(found, expected):
    (found, told), (expected, wanted) = load_model(found), load_model(expected)
    assert told["steps"] == wanted["steps"] == 60
    for name in ("group_basis", "dictionary"):
        assert float((getattr(found, name) - getattr(expected, name)).abs().max()) < 1e-5


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_processes_learn_what_one_learns(alone, shards, tmp_path):
    n_processes = 3  # batches do not divide evenly
    well, words = side_by_side(n_processes, ranks.main, tmp_path, shards, 0, *METHODS)
    assert well, words
    for method in METHODS:
        assert_same(tmp_path / f"{method}.safetensors", alone / f"{method}.safetensors")
        model = load_model(tmp_path / f"{method}.safetensors")[0]
        for rank in range(1, n_processes):  # every process has the same bits, and only the first the history
            other, told = load_model(tmp_path / f"{method}-{rank}.safetensors")
            assert other.group_basis.equal(model.group_basis)
            assert other.dictionary.equal(model.dictionary)
            assert told["history"] == 0
    others = {f"{method}-{rank}.safetensors" for method in METHODS for rank in range(1, n_processes)}
    assert sorted(set(files(tmp_path)) - others) == files(alone)


def test_a_dead_process_ends_the_job_and_another_number_goes_on(alone, shards, tmp_path):
    well, errors = side_by_side(2, ranks.main, tmp_path, shards, 52, "stream")
    assert not well
    assert errors.count("so it stopped. If a checkpoint was saved, the same command with --resume") == 1, errors
    saved = [load_checkpoint(path).state.step for path in list_checkpoints(tmp_path / "stream")]
    assert saved == [40, 45]  # three epochs of 15 steps
    well, errors = side_by_side(3, ranks.main, tmp_path, shards, 0, "stream")
    assert well, errors
    assert_same(tmp_path / "stream.safetensors", alone / "stream.safetensors")


def test_the_command_line_in_two_processes(shards, tmp_path):
    out = tmp_path / "run"
    options = (f"{shards}:stream=yes", "--out", out, "--components", 3, "--irreps", 3, "--torus-dim", 1)
    options = (*options, "--epochs", 12, "--set", "learning.batch_size=20", "--set", "learning.n_code_steps=5")
    process = launch(*options)
    while process.poll() is None and not list_checkpoints(out / "checkpoints"):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    code, words, errors = finish(process)
    assert code != 0
    assert words.count("192 images to learn from and 21 to test") == 1, words + errors
    assert words.count("3 shards, streamed (0 MiB); 2 processes") == 1
    assert words.count("Stopped after step ") == 1
    step = int(words.split("Stopped after step ")[1].split()[0])
    assert load_checkpoint(list_checkpoints(out / "checkpoints")[-1]).state.step == step < 120
    assert files(out) == [*(f"checkpoints/{path.name}" for path in list_checkpoints(out / "checkpoints")), "run.json"]

    done = run("train", *options, "--resume")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The run is in ") == 1
    assert "Plain sparse coding with 192 of the images" in done.stdout
    assert "metrics.json" in files(out)


def test_an_error_is_told_once(tmp_path):
    well, words = side_by_side(2, call_main, "train", tmp_path / "nothing", "--out", tmp_path / "run")
    assert not well
    assert words.count("which does not exist") == 1, words
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stream", ["yes", "no"])
def test_processes_with_other_files_are_refused(shards, tmp_path, stream):
    other = tmp_path / "other"
    other.mkdir()
    for path in shards.iterdir():
        np.save(other / path.name, np.load(path)[::-1].copy())
    well, words = side_by_side(2, ranks.train_on_own, shards, other, stream, tmp_path / "run")
    assert not well
    assert words.count("data: expected the same files in every process") == 1, words


def test_shapes_are_reseeded_in_these_runs():
    data, settings = images(), replace(METHODS["gradient"], n_epochs=2)
    without = replace(settings, reseed_overlap=1.0)
    found, other = (learn(make_start(data), data, s, generator=torch.Generator()) for s in (settings, without))
    assert float((found.dictionary - other.dictionary).abs().max()) > 0.1
