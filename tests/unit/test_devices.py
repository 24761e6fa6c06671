"""Devices by name, and that no other file names one."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import liesparse
import shell
from liesparse import LieSparseCoder
from liesparse.devices import choose_device

HOME = Path(liesparse.__file__).parent
NAMES = re.compile(r"""["'](cpu|cuda|mps|meta)\b|\.(cpu|cuda)\(|set_default_device|autocast\(["']|torch\.device\(""")
READS = re.compile(r"\b(?:float|int|bool)\(|\.item\(\)|\.tolist\(\)|\.nonzero\(|\.unique\(|read_numbers\(")
# What is done in every step of learning, and how often it looks at a value there; learning.py also once in an epoch.
STEP = {"em.py": 3, "inference.py": 2, "stiefel.py": 2, "torus.py": 0, "learning.py": 1}
# em.py looks at how many codes an image has, which the step before has waited for, and twice where it fits the
# lattice; inference.py looks at codes to start from, on the CPU alone.
STEP["posterior/base.py"] = 2  # whether the kernel left rows to torch, and it runs on the CPU alone


def code_of(path: Path) -> str:
    """Return a file without its docstrings and comments."""
    return re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("path", sorted(HOME.rglob("*.py")), ids=lambda path: str(path.relative_to(HOME)))
def test_only_one_file_names_a_device(path):
    found = [match.group() for match in NAMES.finditer(code_of(path))]
    if path.relative_to(HOME) == Path("devices.py"):
        assert found
    else:
        assert not found, "Make tensors where the inputs are, and leave by liesparse.devices.to_cpu."


@pytest.mark.parametrize(("name", "n_reads"), STEP.items())
def test_a_training_step_looks_at_few_values(name, n_reads):
    assert len(READS.findall(code_of(HOME / name))) == n_reads


def test_auto_is_the_cpu_where_there_is_no_gpu():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device("auto").type == expected
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "meta", "CPU", None, 0])
def test_other_names_are_refused(name):
    with pytest.raises((ValueError, TypeError), match="device" if isinstance(name, str) else None):
        choose_device(name)


def test_what_is_not_here_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device: expected a device of this machine, got 'cuda:1', but torch sees no"):
        choose_device("cuda:1")
    with pytest.raises(ValueError, match=r"'mps', which has no double precision. Pass 'cpu'."):
        choose_device("mps")


def test_each_process_of_torchrun_gets_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 3)
    assert choose_device("cuda:2") == torch.device("cuda", 2)
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(ValueError, match=r"expected one of 4 GPU\(s\), got cuda:4"):
        choose_device("auto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_train_says_at_once_that_there_is_no_gpu(tmp_path):
    done = shell.run("train", "digits", "--out", tmp_path / "run", "--device", "cuda")
    assert done.returncode == 2
    assert done.stdout == (
        "device: expected a device of this machine, got 'cuda', but torch sees no GPU. Pass 'auto' or 'cpu'.\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_model_from_another_machine_computes_here(tmp_path, monkeypatch):
    images = np.random.RandomState(0).rand(30, 16)
    coder = LieSparseCoder(2, n_irreps=4, n_epochs=1, device="cpu", random_state=0).fit(images)
    coder.device = "cuda:7"
    coder.save(tmp_path / "model.safetensors")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loaded = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert loaded.device == "auto"
    coder.device = "cpu"
    assert np.array_equal(loaded.transform(images), coder.transform(images))
    with pytest.raises(ValueError, match="torch sees no GPU"):
        LieSparseCoder(2, device="cuda").fit(images)
