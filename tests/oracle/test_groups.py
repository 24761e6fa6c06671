"""Known groups: shifts against ``roll``, rotations against pictures that are drawn turned, and learning with them."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from liesparse import LieSparseCoder, groups, torus
from liesparse._checks import orthonormality_error
from liesparse.data import embedded_digits, translations
from liesparse.learning import learn
from liesparse.metrics import torus_match
from liesparse.settings import Settings

F64 = torch.float64


def move(basis, images, poses):
    planes = torus.rotate(torus.to_planes(basis.group_basis, images), torus.phases(basis.frequencies, poses))
    return planes.flatten(1) @ basis.group_basis.T


def assert_orthonormal(basis):
    gram = basis.group_basis.T @ basis.group_basis
    assert_close(gram, torch.eye(len(gram), dtype=gram.dtype), atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(7, 9), (8, 6), (9, 9)])
def test_translations_shift_all_that_their_waves_hold(rng, shape):
    images = torch.randn(20, math.prod(shape), generator=rng, dtype=F64)
    basis = groups.Translations(*shape).make_basis(images, 1000)
    assert_orthonormal(basis)
    moving = basis.frequencies.any(dim=1)
    assert int((~moving).sum()) == 1  # the constant, with whatever has no place to go
    waves = torch.randn(3, int(moving.sum()), 2, generator=rng, dtype=F64).flatten(1)
    waves = waves @ basis.group_basis[:, moving.repeat_interleave(2)].T
    down, across = shape
    poses = torch.tensor([[2 * math.pi * 2 / across, -2 * math.pi * 1 / down]], dtype=F64)
    expected = waves.unflatten(1, shape).roll((-1, 2), dims=(1, 2)).flatten(1)
    assert_close(move(basis, waves, poses.expand(3, 2)), expected, atol=1e-9, rtol=0)
    flat = torch.ones(1, math.prod(shape), dtype=F64)
    assert_close(move(basis, flat, poses), flat, atol=1e-9, rtol=0)


def test_few_planes_are_those_of_most_energy(rng):
    rows, columns = torch.meshgrid(torch.arange(10), torch.arange(10), indexing="ij")
    shifts = 10 * torch.rand(30, 1, 1, generator=rng)
    images = torch.cos(2 * math.pi * (3 * (columns - shifts) - 2 * rows) / 10).flatten(1).double()
    basis = groups.Translations(10, 10).make_basis(images, 1)
    assert basis.frequencies.tolist() == [[3, -2]]
    assert_close(move(basis, images, torch.zeros(30, 2, dtype=F64)), images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [2, 15, 16, 50])
def test_shifts_by_whole_samples_are_exact_for_all_signals(rng, length):
    signals = torch.randn(5, length, generator=rng, dtype=F64)
    basis = groups.Shifts(length).make_basis(signals, length // 2)
    assert sorted(basis.frequencies.flatten().tolist()) == list(range(length // 2 + 1))
    assert orthonormality_error(basis.group_basis) < 1e-9
    for shift in (0, 1, 4, -3, length // 2):
        poses = torch.full((5, 1), 2 * math.pi * shift / length, dtype=F64)
        assert_close(move(basis, signals, poses), signals.roll(shift, dims=1), atol=1e-9, rtol=0)


def test_a_model_of_shifts_holds_signals_of_even_length(rng, tmp_path):
    """Constant and alternating parts included: learned, saved and loaded, a noiseless signal comes back whole."""
    shapes = torch.randn(2, 16, generator=rng) + 0.5
    signals = torch.stack([shapes[i % 2].roll(i % 16) for i in range(64)])
    coder = LieSparseCoder(2, group="shift", n_epochs=3, random_state=0).fit(signals)
    coder.save(tmp_path / "model.safetensors")
    loaded = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert loaded.group_basis_.shape == (16, 18)
    assert_close(np.linalg.norm(loaded.components_, axis=1), np.ones(2, dtype=np.float32), atol=1e-5, rtol=0)
    left = (loaded.reconstruct(signals) - signals).norm(dim=1) / signals.norm(dim=1)
    assert float(left.median()) < 0.15  # what the prior takes off the codes is 0.1


def blobs(angle, size=24):
    """Two smooth spots, drawn in a picture that is turned by an angle from x towards y."""
    places = torch.arange(size).double() - (size - 1) / 2
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    x = columns * math.cos(angle) + rows * math.sin(angle)
    y = rows * math.cos(angle) - columns * math.sin(angle)
    return torch.exp(-((x - 4) ** 2 + y**2) / 8) + 0.7 * torch.exp(-((x + 1) ** 2 + (y + 5) ** 2) / 12)


def test_rotations_turn_a_picture_by_the_angle(rng):
    angles = 2 * math.pi * torch.rand(60, generator=rng, dtype=F64)
    images = torch.stack([blobs(float(angle)).flatten() for angle in angles])
    basis = groups.Rotations(24, 24).make_basis(images, 100)
    assert_orthonormal(basis)
    start = blobs(0.0).flatten()[None]
    for angle in (0.3, 1.0, 2.5, -1.2):
        turned = move(basis, start, torch.tensor([[angle]], dtype=F64))
        assert float((turned - blobs(angle).flatten()).norm() / start.norm()) < 0.01


def test_a_group_of_ones_own_and_what_it_rejects(rng):
    basis = groups.Shifts(9).make_basis(torch.randn(5, 9, generator=rng), 4)
    own = groups.Fixed(basis.group_basis, basis.frequencies)
    assert own.make_basis(torch.randn(5, 9, generator=rng), 100).frequencies is basis.frequencies
    assert own.coordinates == (("pose_1", "radians", 2 * math.pi),)
    with pytest.raises(ValueError, match="two columns for each frequency"):
        groups.Fixed(basis.group_basis, basis.frequencies[:2])
    with pytest.raises(ValueError, match="9 = 9 pixels"):
        own.make_basis(torch.randn(5, 10, generator=rng), 100)
    with pytest.raises(ValueError, match="'learned' or 'translation' or"):
        groups.find_group("turning", (8, 8))
    with pytest.raises(ValueError, match="pictures of one channel"):
        groups.find_group("rotation", (8, 8, 3))


@pytest.fixture(scope="module")
def shifted():
    sources = torch.nn.functional.avg_pool2d(embedded_digits()[None, :3], 2)[0]
    return translations(400, max_shift=3, sources=sources, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def known(shifted):
    return LieSparseCoder(3, group="translation", n_epochs=6, random_state=0).fit(shifted.images.reshape(-1, 14, 14))


def test_with_a_known_group_a_few_hundred_images_are_enough(known, shifted):
    pictures = shifted.images.reshape(-1, 14, 14)
    codes, poses = known.infer(pictures)
    columns = known.poses_in_units(poses)
    assert list(columns) == ["shift_x (pixels)", "shift_y (pixels)"]
    found, winners = torch.stack(list(columns.values()), dim=1), codes.argmax(dim=1)
    for shape in range(3):  # pixels are pixels: what is left is one shift for each template
        mine = winners == shape
        assert len(shifted.labels[mine].unique()) == 1
        offset = torch.remainder(found[mine] - shifted.factors[mine], 14)
        offset = torch.remainder(offset - offset[0] + 7, 14) - 7
        assert float((offset - offset.median(dim=0).values).abs().median()) < 0.1
        assert min(torus_match(shifted.factors[mine], poses[mine], None)) > 0.99


def test_the_known_basis_is_not_learned(known, shifted):
    basis = groups.Translations(14, 14).make_basis(shifted.images, 98)  # all that there are, if in another order
    waves, found = ({tuple(row) for row in each.tolist()} for each in (basis.frequencies, known.model_.frequencies))
    assert waves == found
    assert_close(known.model_.group_basis @ known.model_.group_basis.T, basis.group_basis @ basis.group_basis.T)
    by_gradient = Settings(n_epochs=1, learn_group=False)
    learned = learn(known.model_, shifted.images[:100], by_gradient, generator=torch.Generator().manual_seed(0))
    assert learned.group_basis.equal(known.model_.group_basis)
    assert not learned.dictionary.equal(known.model_.dictionary)


def test_rotation_has_one_axis(shifted):
    coder = LieSparseCoder(3, group="rotation", n_epochs=1, random_state=0)
    coder.fit(shifted.images[:100].reshape(-1, 14, 14))
    assert coder.model_.torus_dim == 1
    assert_close(coder.poses_in_units(np.array([[math.pi / 2]]))["angle (degrees)"], np.float32([90.0]))


def test_a_known_group_is_saved_by_its_name(known, shifted, tmp_path):
    known.save(tmp_path / "model.safetensors")
    loaded = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert loaded.group == "translation"
    poses = np.array([[math.pi / 2, -math.pi / 7]])
    assert_close(loaded.poses_in_units(poses)["shift_x (pixels)"], np.array([3.5], dtype=np.float32))
    own = groups.Fixed(known.model_.group_basis, known.model_.frequencies)
    coder = LieSparseCoder(3, group=own, n_epochs=1, random_state=0).fit(shifted.images.reshape(-1, 14, 14))
    coder.save(tmp_path / "own.safetensors")
    again = LieSparseCoder.load(tmp_path / "own.safetensors")
    assert again.group == "fixed"
    assert_close(again.poses_in_units(poses)["pose_2 (radians)"], np.float32(poses[:, 1]))
    again.partial_fit(shifted.images[:50].reshape(-1, 14, 14))
    assert_close(again.model_.group_basis, known.model_.group_basis, atol=0, rtol=0)


@pytest.mark.parametrize("group", [3, "fixed", "turning"])
def test_what_is_no_group_is_refused(group, shifted):
    with pytest.raises(ValueError, match="group: expected 'learned' or 'translation'"):
        LieSparseCoder(3, group=group).fit(shifted.images[:50].reshape(-1, 14, 14))


def test_a_learned_group_has_no_units(shifted):
    coder = LieSparseCoder(3, n_epochs=1, recipe="paper", random_state=0).fit(shifted.images[:100].reshape(-1, 14, 14))
    with pytest.raises(ValueError, match="a known group"):
        coder.poses_in_units(np.zeros((1, 2)))
