"""Models on disk: exact, atomic, and never anything but data."""

import json
import os
import struct

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liesparse.checkpoint import differences, list_checkpoints, load_checkpoint, load_model, save_model
from liesparse.files import read_sealed, write_atomically, write_json, write_sealed
from liesparse.settings import Settings
from liesparse.training import CheckpointPolicy, train


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


def reseal(path, drop=(), **changes):
    """Write the file again, with a right digest, but other contents."""
    header, tensors = read_sealed(path, "model")
    for name in drop:
        tensors.pop(name, None)
        header.pop(name, None)
    kind = header.pop("kind")
    write_sealed(path, kind, header | changes, tensors)


def edit(path, old, new):
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "expected an existing model file"),
        (lambda path: path.write_bytes(b""), "readable safetensors file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "readable safetensors file"),
        (lambda path: path.write_bytes(struct.pack("<Q", 2**60) + b"{}"), "readable safetensors file"),
        (lambda path: path.write_bytes(b"\x80\x04N." * 20), "readable safetensors file"),
        (lambda path: safetensors.torch.save_file({"x": torch.ones(2)}, path), "which is something else"),
        (lambda path: reseal(path, version=99), "got version 99. Update liesparse"),
        (lambda path: reseal(path, noise_std=-1.0), "noise_std: expected"),
        (lambda path: reseal(path, noise_std="much"), "without noise_std"),
        (lambda path: reseal(path, drop=("group_basis", "frequencies")), "without group_basis, frequencies"),
        (lambda path: reseal(path, kind="checkpoint"), "a liesparse checkpoint"),
        (lambda path: edit(path, b'\\"seed\\": 3', b'\\"seed\\": 4'), "changed or damaged since"),
        (flip_last_byte, "changed or damaged since"),
    ],
)
def test_a_spoiled_file_gives_one_clear_error(saved, spoil, message):
    _, path = saved
    spoil(path)
    with pytest.raises(ValueError, match=message):
        load_model(path)


def test_deep_json_is_refused(tmp_path):
    path = tmp_path / "deep.safetensors"
    deep = "[" * 100_000 + "]" * 100_000
    safetensors.torch.save_file({"x": torch.ones(2)}, path, metadata={"liesparse": f"0 {deep}"})
    with pytest.raises(ValueError, match="readable safetensors file"):
        load_model(path)


@pytest.mark.slow
@settings(max_examples=300)
@given(data=st.data())
def test_the_loader_survives_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "model.safetensors"
    write_sealed(path, "model", {"noise_std": 0.1, "sparsity": 1.0}, {"dictionary": torch.ones(4, 2)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        how = data.draw(st.sampled_from(("flip", "cut", "insert", "repeat")))
        if how == "flip":
            content[place] ^= data.draw(st.integers(1, 255))
        elif how == "cut":
            del content[place : place + data.draw(st.integers(1, 50))]
        elif how == "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            content += content[place : place + 40]
        if not content:
            break
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="path: expected"):
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


@pytest.fixture
def run(make_model, draw, tmp_path):
    """A short run with checkpoints, as a function of what is different."""
    model = make_model(1)
    images = draw(model, batch=40)[0]

    def go(folder="run", images=images, seed=5, callback=None, model=model, **changes):
        settings = Settings(**({"n_epochs": 3, "batch_size": 10, "n_grid": 8} | changes))
        return train(
            model,
            images,
            settings,
            generator=torch.Generator().manual_seed(seed),
            monitor_images=images[:5],
            checkpoints=CheckpointPolicy(tmp_path / folder, every=3),
            callback=callback,
        )

    return go


def test_the_last_checkpoints_are_kept_and_say_what_happened(run, tmp_path):
    trained = run()
    paths = list_checkpoints(tmp_path / "run")
    assert [path.name for path in paths] == ["step-000000009.safetensors", "step-000000012.safetensors"]
    last = load_checkpoint(paths[-1])
    assert last.history == trained.history
    assert [entry["epoch"] for entry in trained.history] == [1, 2, 3]
    assert last.state.parameters.group_basis.equal(trained.parameters.group_basis)
    assert last.identity["batch_size"] == 10


def test_other_hashes_are_told_in_words():
    assert differences({"start": "a" * 64}, {"start": "b" * 64}) == ["another start"]


METHODS = {
    "em": {"method": "em", "reseed_overlap": 0.6},
    "canonical": {"method": "gradient"},
    "euclidean": {"method": "gradient", "metric": "euclidean"},
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_byte_identical(run, make_model, draw, method, dtype):
    for seed, n_components, n_pixels in ((0, 1, 16), (1, 3, 14), (2, 4, 30)):
        model = make_model(seed, n_components=n_components, n_pixels=n_pixels)
        changes = METHODS[method] | {"images": draw(model, batch=40)[0].to(dtype), "seed": seed}
        model = model.map(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
        stop_and_resume(run, str(seed), model=model, **changes)


def stop_and_resume(run, name, **changes):
    whole = run(f"whole-{name}", **changes)

    class StopError(Exception):
        pass

    def stop_at(step):
        def callback(progress, _history):
            if progress.step == step:
                raise StopError

        return callback

    for step in (1, 4, 7):
        with pytest.raises(StopError):
            run(f"halting-{name}", callback=stop_at(step), **changes)
    again = run(f"halting-{name}", **changes)
    assert again.history == whole.history
    for name in ("group_basis", "dictionary"):
        assert getattr(again.parameters, name).equal(getattr(whole.parameters, name))


def test_a_finished_run_is_not_done_again(run):
    whole = run()
    steps = []
    again = run(callback=lambda progress, _: steps.append(progress.step))
    assert steps == []
    assert again.history == whole.history
    assert again.parameters.dictionary.equal(whole.parameters.dictionary)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 20}, "batch_size = 10, not 20"),
        ({"seed": 6}, r"run with another seed\. Use"),
        ({"images": torch.nn.functional.normalize(torch.ones(40, 14, dtype=torch.float64))}, "with other images. Use"),
    ],
)
def test_checkpoints_of_another_run_are_refused_and_left_alone(run, tmp_path, change, message):
    run()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match=message):
        run(**change)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_damaged_checkpoint_is_refused_and_left_alone(run, tmp_path):
    run()
    path = list_checkpoints(tmp_path / "run")[-1]
    path.write_bytes(path.read_bytes()[:-5])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="readable safetensors file"):
        run()
    assert path.read_bytes() == before
