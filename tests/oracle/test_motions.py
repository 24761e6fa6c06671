"""Poses and motions of the estimator, on the known group of cyclic shifts, where every answer is known."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from liesparse import LieSparseCoder, SparseCoder, ToroidalSubgroup, narrow_prior, pairs
from liesparse.baselines import pair_model, pair_statistics
from liesparse.data import embedded_digits, translations
from liesparse.initialization import known_translation
from liesparse.lattice import half_lattice
from liesparse.model import PosePrior
from liesparse.posterior import AdaptiveEngine, TorusPosterior, log_likelihood
from liesparse.stiefel import random_point

F64 = torch.float64
PIXEL = 2 * math.pi / 28


@pytest.fixture(scope="module")
def coder():
    return LieSparseCoder.from_model(known_translation(embedded_digits()[:4]), (28, 28), random_state=0)


@pytest.fixture(scope="module")
def X(coder):
    """Digits 0 to 3 at rest, each with its own brightness."""
    shapes = coder.inverse_transform(np.eye(4, dtype=np.float32))
    return shapes * np.array([1.0, 2.0, 3.0, 0.5], dtype=np.float32)[:, None, None]


def shifted(images, down, right):
    return np.roll(images, (down, right), axis=(-2, -1))


def test_poses_are_shifts_and_codes_do_not_see_them(coder, X):
    moved = shifted(X, 3, -5)
    rest, there = coder.infer(X), coder.infer(moved)
    assert_allclose(rest.poses, 0, atol=1e-3)
    assert_allclose(there.poses, [[-5 * PIXEL, 3 * PIXEL]] * 4, atol=1e-3)
    assert_allclose(there.codes, rest.codes, atol=1e-3)
    assert_allclose(np.diag(rest.codes), 0.9, atol=0.02)  # 1 - λσ²
    assert_allclose(rest.codes - np.diag(np.diag(rest.codes)), 0, atol=0.02)


def test_no_result_depends_on_the_companions(coder, X):
    images = np.concatenate([shifted(X, down, right) for down in (0, 3, -2) for right in (1, -4)] * 5)
    codes, poses = coder.infer(images)
    for n in (1, 2, 7, 65):
        some = coder.infer(images[:n])
        assert (some.codes == codes[:n]).all()
        assert (some.poses == poses[:n]).all()


def test_all_findings_at_once_are_those_of_each_method(coder, X):
    images = torch.from_numpy(np.concatenate([shifted(X, 3, -5), 0 * X[:1], X + shifted(X, 2, 0)]))
    (codes, poses), posterior, scores, confidence = coder.describe(images)
    expected = coder.infer(images)
    assert codes.equal(expected.codes)
    assert poses.equal(expected.poses)
    assert posterior.natural.equal(coder.pose_posterior(images).natural)
    assert scores.equal(coder.score_samples(images))
    assert confidence.uncertain.tolist()[4]  # the blank one
    for found, wanted in zip(confidence, coder.confidence(images), strict=True):
        assert_allclose(found, wanted)


def test_canonicalize_brings_every_pose_to_rest(coder, X):
    moved = shifted(X, 3, -5)
    assert_allclose(coder.canonicalize(moved), X, atol=5e-3)
    noisy = moved + 0.02 * np.random.RandomState(0).standard_normal(moved.shape).astype(np.float32)
    rest = coder.canonicalize(noisy, keep_rest=True) - coder.canonicalize(noisy)
    basis = coder.group_basis_
    rows = noisy.reshape(4, -1)
    assert np.abs(rest).max() > 0.01  # the noise is partly outside the span of W
    assert_allclose(rest.reshape(4, -1), rows - rows @ basis @ basis.T, atol=1e-5)


def test_move_is_the_shift(coder, X):
    assert_allclose(coder.move(X, [2 * PIXEL, 0]), shifted(X, 0, 2), atol=1e-3)
    each = [[0, PIXEL], [PIXEL, 0], [0, 0], [-PIXEL, 0]]
    found = coder.move(X, each)
    for image, one, (right, down) in zip(found, X, each, strict=True):
        assert_allclose(image, shifted(one, round(down / PIXEL), round(right / PIXEL)), atol=1e-3)


def test_transfer_pose(coder, X):
    source = shifted(X[[1, 1, 1, 1]], 4, 4)
    assert_allclose(coder.transfer_pose(source, X), shifted(X, 4, 4), atol=5e-3)
    assert_allclose(coder.transfer_pose(source[:1], X), shifted(X, 4, 4), atol=5e-3)


def test_interpolate_goes_the_short_way_round(coder, X):
    a, b = shifted(X[:1], 0, 12), shifted(X[:1], 0, -12)  # 4 pixels apart across the seam, 24 the other way
    frames = coder.interpolate(a, b, steps=5)
    assert frames.shape == (1, 5, 28, 28)
    assert_allclose(frames[0, 0], coder.reconstruct(a)[0], atol=1e-3)
    assert_allclose(frames[0, -1], coder.reconstruct(b)[0], atol=1e-3)
    for step, frame in enumerate(frames[0]):
        assert_allclose(frame, shifted(coder.reconstruct(a)[0], 0, step), atol=5e-3)
    blend = coder.interpolate(X[:1], X[1:2], steps=3)[0, 1]
    codes = coder.transform(X[:2])
    assert_allclose(blend, 1.5 * coder.inverse_transform(codes.mean(axis=0, keepdims=True))[0], atol=5e-3)


def test_traverse_moves_along_one_axis(coder, X):
    frames = coder.traverse(X, axis=1, values=[0, PIXEL, -2 * PIXEL])
    assert frames.shape == (4, 3, 28, 28)
    still = coder.reconstruct(X)
    for frame, down in zip(frames.swapaxes(0, 1), (0, 1, -2), strict=True):
        assert_allclose(frame, shifted(still, down, 0), atol=1e-3)
    assert coder.traverse(X, axis=0).shape == (4, 9, 28, 28)


def test_pose_posterior(coder, X):
    posterior = coder.pose_posterior(shifted(X, 3, -5))
    assert isinstance(posterior, TorusPosterior)
    assert len(posterior) == 4
    assert_allclose(posterior.mode, [[-5 * PIXEL, 3 * PIXEL]] * 4, atol=1e-3)
    assert (posterior.width < 0.1).all()


def test_sample_follows_the_model(coder):
    images, (codes, poses) = coder.sample(500)
    assert images.shape == (500, 28, 28)
    assert_allclose(images, coder.inverse_transform(codes, poses), atol=1e-5)
    assert_allclose(codes.mean(), 0.1, rtol=0.1)  # 1 / λ
    assert abs(np.cos(poses).mean()) < 0.1
    again, _ = coder.sample(500)
    assert (again == images).all()
    noisy, _ = coder.sample(500, noise=True)
    assert_allclose((noisy - images).std(), 0.1, rtol=0.02)


def test_a_narrow_prior_is_narrow(coder):
    frequencies = coder.model_.frequencies
    prior = TorusPosterior(narrow_prior(0.3).natural(frequencies)[None], frequencies)
    assert_allclose(prior.width, 0.3, rtol=0.05)
    assert_allclose(prior.mode, 0, atol=1e-6)
    there = PosePrior(((-1, 0), (0, 1)), (4.0, 9.0), (-1.0, 0.5))  # cos(-s - (-1)) = cos(s - 1)
    moved = TorusPosterior(there.natural(frequencies)[None], frequencies)
    assert_allclose(moved.mode, [[1.0, 0.5]], atol=1e-5)
    with pytest.raises(ValueError, match=r"pose_prior: expected frequencies that the model has, got ω = \(99, 0\)"):
        PosePrior(((99, 0),), (1.0,), (0.0,)).natural(frequencies)
    with pytest.raises(ValueError, match="as many frequencies"):
        PosePrior(((1, 0),), (1.0, 2.0), (0.0,))
    with pytest.raises(ValueError, match="width: expected"):
        narrow_prior(0.0)


@pytest.mark.slow
def test_a_prior_keeps_learned_poses_near_its_mode(monkeypatch):
    monkeypatch.setattr(pairs, "NEAR_STEPS", 60)  # the motion need not be good
    monkeypatch.setattr(pairs, "FAR_STEPS", 20)
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None, :3], 4)[0]
    images = translations(250, max_shift=1.5, sources=shapes, generator=torch.Generator().manual_seed(0)).images
    spread = {}
    for name, prior, start in (("uniform", "uniform", "data"), ("narrow", narrow_prior(0.02), "pairs")):
        chosen = {"pose_prior": prior, "settings": {"start": start}}
        fitted = LieSparseCoder(3, n_irreps=20, n_epochs=2, **chosen, random_state=0).fit(images)
        spread[name] = float(fitted.infer(images).poses.abs().mean())
    assert spread["narrow"] < 0.03 < spread["uniform"]


def test_the_baseline_sees_shifts_where_the_model_does_not(X):
    baseline = SparseCoder(4, random_state=0).fit(
        np.concatenate([shifted(X, i, j) for i in (-2, 0, 2) for j in (-2, 2)])
    )
    assert np.abs(baseline.transform(shifted(X, 3, -5)) - baseline.transform(X)).max() > 0.1


# ---- pairs


def rotated_pairs(n_pairs, generator, side=11, most=1.0):
    """Smooth random patches on a disk, and the same turned by up to ``most`` radians."""
    patches = torch.randn(n_pairs, 1, side + 8, side + 8, generator=generator)
    bell = torch.exp(-torch.arange(-4, 5).square() / 8)
    patches = torch.nn.functional.conv2d(patches, (bell[:, None] * bell)[None, None])
    angles = most * (2 * torch.rand(n_pairs, generator=generator) - 1)
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack((torch.stack((cos, -sin, zero), 1), torch.stack((sin, cos, zero), 1)), 1)
    grid = torch.nn.functional.affine_grid(matrices, list(patches.shape), align_corners=False)
    turned = torch.nn.functional.grid_sample(patches, grid, align_corners=False)
    axis = torch.arange(side) - (side - 1) / 2
    disk = axis[:, None].square() + axis.square() <= (side / 2) ** 2
    return patches[:, 0] * disk, turned[:, 0] * disk, angles


@pytest.fixture(scope="module")
def subgroup():
    first, second, _ = rotated_pairs(8000, torch.Generator().manual_seed(0))
    return ToroidalSubgroup(random_state=0).fit(first, second)


@pytest.mark.slow
def test_rotation_is_found_in_pairs(subgroup):
    first, second, angles = rotated_pairs(500, torch.Generator().manual_seed(1))
    found = subgroup.infer_pose(first, second)
    correlation = torch.corrcoef(torch.stack((found, angles)))[0, 1]
    assert abs(correlation) > 0.98
    slope = float((found * angles).mean() / angles.square().mean())
    assert float((found / slope - angles).abs().median()) < 0.05  # radians
    still, before = (second - first).norm(), (second - subgroup.move(first, found)).norm()
    assert before < 0.5 * still
    assert subgroup.score(first, second) > subgroup.score(first, second.flip(0)) + 10
    assert_allclose(subgroup.pose_posterior(first[:5], second[:5]).mode[:, 0], found[:5], atol=1e-3)


@pytest.mark.slow
def test_pairs_save_load_and_bad_input(subgroup, tmp_path):
    first, second, _ = rotated_pairs(20, torch.Generator().manual_seed(1))
    subgroup.save(tmp_path / "pairs.safetensors")
    loaded = ToroidalSubgroup.load(tmp_path / "pairs.safetensors")
    assert loaded.infer_pose(first, second).equal(subgroup.infer_pose(first, second))
    with pytest.raises(ValueError, match="give pairs"):
        subgroup.infer_pose(first, second[:3])
    with pytest.raises(ValueError, match="blank"):
        subgroup.infer_pose(first, 0 * second)


def test_pair_statistics_are_the_gradient(rng):
    first, second = torch.nn.functional.normalize(torch.randn(2, 6, 10, generator=rng, dtype=F64), dim=2)
    frequencies = half_lattice(1, 3, include_zero=True)
    basis = random_point(10, 6, generator=rng, dtype=F64)
    engine = AdaptiveEngine(frequencies, dtype=F64)
    statistics = pair_statistics(pair_model(basis, frequencies, first, 0.5), second, engine)
    expected = (statistics - first.T @ (first @ basis) / len(first)) / 0.5**2
    direction, codes = torch.randn(10, 6, generator=rng, dtype=F64), torch.eye(6, dtype=F64)
    ahead, behind = (
        log_likelihood(pair_model(basis + step * direction, frequencies, first, 0.5), second, codes, engine).mean()
        for step in (1e-5, -1e-5)
    )
    assert_allclose((ahead - behind) / 2e-5, (expected * direction).sum(), rtol=1e-5)


def test_the_likelihood_of_pairs_is_the_integral(rng):
    first, second = torch.nn.functional.normalize(torch.randn(2, 4, 10, generator=rng, dtype=F64), dim=2)
    frequencies = half_lattice(1, 3, include_zero=True)
    basis = random_point(10, 6, generator=rng, dtype=F64)
    values = []
    for angle in np.arange(2000) * 2 * math.pi / 2000:
        turn = torch.tensor([angle], dtype=F64)
        planes = (first @ basis).unflatten(1, (-1, 2))
        phase = (frequencies.double() @ turn).expand(4, -1)
        rotated = torch.view_as_real(torch.view_as_complex(planes) * torch.polar(torch.ones_like(phase), phase))
        error = (second - rotated.flatten(1) @ basis.T).square().sum(dim=1)
        values.append(-error / (2 * 0.3**2) - 5 * math.log(2 * math.pi * 0.3**2))
    expected = torch.stack(values).logsumexp(dim=0) - math.log(2000)
    model, engine = pair_model(basis, frequencies, first, 0.3), AdaptiveEngine(frequencies, dtype=F64)
    assert_allclose(log_likelihood(model, second, torch.eye(4, dtype=F64), engine), expected, rtol=1e-6)
