"""Models on disk: exact, atomic, and never anything but data."""

import json
import os
import struct

import pytest
import safetensors.torch
import torch

from liesparse.checkpoint import FORMAT, load_model, save_model, write_atomically, write_json


@pytest.fixture
def saved(make_model, tmp_path):
    model = make_model(1, prior=True)
    path = tmp_path / "run" / "model.safetensors"
    save_model(path, model, {"seed": 3})
    return model, path


def test_round_trip_is_exact(saved):
    model, path = saved
    loaded, settings = load_model(path)
    assert settings == {"seed": 3}
    for name, value in vars(model).items():
        found = getattr(loaded, name)
        assert found.equal(value) if isinstance(value, torch.Tensor) else found == value
    assert os.listdir(path.parent) == [path.name]


def rewrite_header(path, **changes):
    header = {"format": FORMAT, "version": 1, "noise_std": 0.4, "sparsity": 0.7, "settings": {}} | changes
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, metadata={FORMAT: json.dumps(header)})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "expected an existing model file"),
        (lambda path: path.write_bytes(b""), "readable safetensors file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "readable safetensors file"),
        (lambda path: path.write_bytes(struct.pack("<Q", 2**60) + b"{}"), "readable safetensors file"),
        (lambda path: path.write_bytes(b"\x80\x04N." * 20), "readable safetensors file"),
        (lambda path: safetensors.torch.save_file({"x": torch.ones(2)}, path), "which is something else"),
        (lambda path: rewrite_header(path, version=99), "got version 99. Update liesparse"),
        (lambda path: rewrite_header(path, noise_std=-1), "noise_std: expected"),
        (
            lambda path: safetensors.torch.save_file(
                {"dictionary": torch.ones(2, 2)},
                path,
                metadata={FORMAT: json.dumps({"format": FORMAT, "version": 1, "noise_std": 1, "sparsity": 1})},
            ),
            "without group_basis, frequencies, pose_prior",
        ),
    ],
)
def test_a_spoiled_file_gives_one_clear_error(saved, spoil, message):
    _, path = saved
    spoil(path)
    with pytest.raises(ValueError, match=message):
        load_model(path)


def test_a_bad_model_is_not_written(saved):
    model, path = saved
    before = path.read_bytes()
    broken = type(model)(**{**vars(model), "group_basis": 2 * model.group_basis})
    with pytest.raises(ValueError, match="group_basis: expected orthonormal columns"):
        save_model(path, broken)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    write_json(path, {"snr": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert json.loads(path.read_text()) == {"snr": 1}
    assert os.listdir(tmp_path) == ["metrics.json"]
