"""One layout of all tensors between steps, so that a run gives the same bytes whether or not it was interrupted."""

import os
from dataclasses import replace

import pytest
import torch

from liesparse import learning
from liesparse.checkpoint import Checkpoint, load_checkpoint, load_model, save_checkpoint, save_model
from liesparse.devices import aligned
from liesparse.inference import infer_codes
from liesparse.learning import advance
from liesparse.parallel import Group
from liesparse.posterior import GridEngine
from liesparse.settings import Settings
from liesparse.state import State

METHODS = {
    "em": {"method": "em", "first_memory": 1.0, "batches_per_update": 1},
    "canonical": {"method": "gradient", "metric": "canonical"},
    "euclidean": {"method": "gradient", "metric": "euclidean"},
}


def misaligned(tensor):
    """Return a copy that begins one number behind a multiple of 64 bytes."""
    copy = tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape)
    return copy.copy_(tensor)


def tensors_of(state):
    models = [value for model in (state.parameters, state.last_good) for value in vars(model).values()]
    every = [*models, *state.adam, *state.averages, state.random]
    return [value for value in every if isinstance(value, torch.Tensor)]


def assert_aligned(state):
    tensors = tensors_of(state)
    assert len(tensors) == 14
    for tensor in tensors:
        assert tensor.data_ptr() % 64 == 0
        assert tensor.stride() == torch.empty(tensor.shape).stride()


def begin(model):
    """Return a first state from a model that is laid out in none of the ways it should be."""
    spoiled = replace(model, pose_prior=misaligned(model.pose_prior), frequencies=misaligned(model.frequencies))
    return State.begin(spoiled, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.arange(12.0).view(3, 4)[:, :2],
        misaligned(torch.arange(12.0).view(3, 4)),
        torch.arange(4.0).view(1, 4).T,  # one column: torch calls it contiguous, BLAS is told another stride
        torch.arange(3),
        torch.tensor(2.0),
        torch.empty(0, 5),
    ],
)
def test_aligned_keeps_the_values_and_nothing_else(tensor):
    found = aligned(tensor)
    assert found.equal(tensor)
    assert found.stride() == torch.empty(tensor.shape).stride()
    assert found.data_ptr() % 64 == 0
    assert aligned(found) is found


def test_a_first_state_is_aligned(make_model):
    model = make_model()
    assert not model.group_basis.is_contiguous()  # as QR leaves it
    assert_aligned(begin(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_every_step_leaves_an_aligned_state(make_model, draw, method, n_components, dtype):
    model = make_model(n_components=n_components, n_pixels=15)
    images = draw(model, batch=10)[0].to(dtype)
    model = model.map(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    engine, state = GridEngine(model.frequencies, 8, dtype=dtype), begin(model)
    for _ in range(3):
        state, _ = advance(state, images, Settings(**METHODS[method]), engine)
        assert_aligned(state)


@pytest.mark.parametrize("method", METHODS)
def test_reseeding_leaves_an_aligned_state(make_model, draw, method):
    model = make_model(sparsity=0.1)
    copies = replace(model, dictionary=model.dictionary[:, [0, 0, 2]])
    engine = GridEngine(model.frequencies, 12, dtype=model.dtype)
    settings = Settings(**METHODS[method], reseed_overlap=0.9, code_start=0.1)
    state, _ = advance(begin(copies), draw(model, batch=12)[0], settings, engine, n_steps=20)
    assert not state.parameters.dictionary[:, 1].equal(state.parameters.dictionary[:, 0])
    assert_aligned(state)


def test_a_batch_is_aligned_before_it_is_used(make_model, draw, monkeypatch):
    model, seen = make_model(), []
    batch, engine = draw(model, batch=9)[0], GridEngine(model.frequencies, 8, dtype=model.dtype)

    def spy(parameters, images, *rest, **named):
        seen.append(images)
        return infer_codes(parameters, images, *rest, **named)

    monkeypatch.setattr(learning, "infer_codes", spy)
    for other in (misaligned(batch), batch.T.contiguous().T):
        advance(begin(model), other, Settings(), engine)
        assert seen[-1].equal(batch)
        assert aligned(seen[-1]) is seen[-1]


class Twins(Group):
    """Two processes, of which the other has the same state, wherever its tensors lie in memory."""

    size = 2

    def broadcast(self, state):
        return state.map(misaligned)


def test_a_state_from_another_process_is_aligned(make_model):
    assert_aligned(begin(make_model()).agreed(Twins()))


def test_a_loaded_state_is_aligned(make_model, draw, tmp_path):
    model = make_model()
    engine = GridEngine(model.frequencies, 8, dtype=model.dtype)
    state, _ = advance(begin(model), draw(model, batch=10)[0], Settings(), engine)
    for history in range(8):  # headers of other lengths put the tensors elsewhere in the file
        path = save_checkpoint(tmp_path, Checkpoint(state, [{"epoch": "x" * history}], {}))
        assert_aligned(load_checkpoint(path).state)


@pytest.mark.parametrize("spoil", ["truncate", "overwrite"])
def test_what_happens_to_a_file_after_loading_changes_nothing(make_model, tmp_path, spoil):
    model, path = make_model(n_pixels=300, n_irreps=100), tmp_path / "model.safetensors"
    save_model(path, model)
    loaded, _ = load_model(path)
    size = path.stat().st_size
    with path.open("r+b") as file:  # the same file on the disk, not a new one in its place
        if spoil == "truncate":
            file.truncate(0)
        else:
            file.write(os.urandom(size))
    for name in ("group_basis", "dictionary", "frequencies", "pose_prior"):
        assert getattr(loaded, name).equal(getattr(model, name))
