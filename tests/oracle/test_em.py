"""The closed M-step against brute force: it maximizes what it says, and never lowers the likelihood."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse import em, stiefel
from liesparse.inference import expect_pose
from liesparse.lattice import energy_basis, half_lattice
from liesparse.learning import learn
from liesparse.model import compose, log_likelihood_given_pose, reconstruct
from liesparse.posterior import ReferenceEngine, log_likelihood, pose_natural
from liesparse.settings import Settings

F64 = torch.float64


@pytest.fixture
def scene(make_model, draw):
    """A model with Φ inside the span of W, as the M-step leaves it, with images, codes and an engine."""
    model = make_model(3, n_pixels=12, n_irreps=4, n_components=3)
    W = model.group_basis
    model = replace(model, dictionary=torch.nn.functional.normalize(W @ W.T @ model.dictionary, dim=0))
    images, codes, _ = draw(model, batch=25)
    return model, images, codes, ReferenceEngine(model.frequencies, 16, dtype=F64)


def full_average(model, images, codes, engine):
    return em.average(em.Averages.zero(model), codes, expect_pose(model, images, codes, engine), 1.0)


def test_codes_are_counted_by_their_weights(scene):
    model, images, _, engine = scene
    assert em.Averages.zero(model).n_codes() == 1
    for codes, count in ((torch.eye(3, dtype=F64)[torch.arange(25) % 3], 1), (torch.ones(25, 3, dtype=F64), 3)):
        assert full_average(model, images, codes, engine).n_codes() == pytest.approx(count)


def expected_log_likelihood(candidate, model, images, codes, engine):
    """E_s[ln P(I|s,α)] of a candidate under the posterior of the present model, by dense quadrature."""
    probabilities = torch.softmax(engine.values(pose_natural(model, images, codes)), dim=1)
    n_points, n_images = len(engine.points), len(images)
    every = (rows.repeat_interleave(n_points, dim=0) for rows in (images, codes))
    values = log_likelihood_given_pose(candidate, *every, engine.points.repeat(n_images, 1)).view(n_images, n_points)
    return float((probabilities * values).sum(dim=1).mean())


def with_basis(model, W):
    """Let Φ follow W, so that A = WᵀΦ stays."""
    return replace(model, group_basis=W, dictionary=W @ model.group_basis.T @ model.dictionary)


def test_the_averages_are_their_sums_over_poses(scene, rotation_matrix):
    model, images, codes, engine = scene
    probabilities = torch.softmax(engine.values(pose_natural(model, images, codes)), dim=1)
    moved = torch.zeros_like(model.group_basis)
    returned = torch.zeros(8, 3, dtype=F64)
    for image, code, row, weights in zip(images, codes, compose(model, codes), probabilities, strict=True):
        R = sum(p * rotation_matrix(model.frequencies, s) for p, s in zip(weights, engine.points, strict=True))
        moved += torch.outer(image, R @ model.group_basis.T @ row)
        returned += torch.outer(R.T @ model.group_basis.T @ image, code)
    found = full_average(model, images, codes, engine)
    assert_close(found.moved, moved / len(images))
    assert_close(found.returned, returned / len(images))
    assert_close(found.gram, codes.T @ codes / len(images))


def test_a_running_average_forgets_at_its_rate(scene):
    model, images, codes, engine = scene
    first = full_average(model, images, codes, engine)
    second = em.average(first, codes[:5], expect_pose(model, images[:5], codes[:5], engine), 0.25)
    alone = full_average(model, images[:5], codes[:5], engine)
    for before, fresh, found in zip(first, alone, second, strict=True):
        assert_close(found, 0.75 * before + 0.25 * fresh)


def test_no_other_basis_has_a_larger_expected_likelihood(scene):
    model, images, codes, engine = scene
    W = em.maximize(model, full_average(model, images, codes, engine)).group_basis
    assert stiefel.orthonormality_error(W) < 1e-12
    best = expected_log_likelihood(with_basis(model, W), model, images, codes, engine)
    assert best > expected_log_likelihood(model, model, images, codes, engine) + 0.01
    rng = torch.Generator().manual_seed(1)
    for size in (1e-3, 0.1, 3.0):
        for _ in range(5):
            other = stiefel.polar(W + size * torch.randn(W.shape, generator=rng, dtype=F64))
            assert expected_log_likelihood(with_basis(model, other), model, images, codes, engine) < best


def test_no_other_unit_column_has_a_larger_expected_likelihood(scene):
    """Each column in turn, given those before it as they are now and those behind it as they were."""
    model, images, codes, engine = scene
    W = model.group_basis
    found = em.maximize(model, full_average(model, images, codes, engine))
    old, new = W.T @ model.dictionary, found.group_basis.T @ found.dictionary
    assert_close(new.norm(dim=0), torch.ones(3, dtype=F64))

    def value(planes):
        return expected_log_likelihood(replace(model, dictionary=W @ planes), model, images, codes, engine)

    rng = torch.Generator().manual_seed(2)
    for k in range(3):
        planes = torch.cat((new[:, : k + 1], old[:, k + 1 :]), dim=1)
        best = value(planes)
        assert best > value(torch.cat((new[:, :k], old[:, k:]), dim=1))
        for size in (1e-3, 0.1, 3.0):
            other = planes.clone()
            other[:, k] += size * torch.randn(8, generator=rng, dtype=F64)
            other[:, k] /= other[:, k].norm()
            assert value(other) < best


def test_em_never_lowers_the_likelihood(scene):
    """The law of EM, for W at fixed codes; the poses are integrated out anew each time."""
    model, images, codes, engine = scene
    values = [float(log_likelihood(model, images, codes, engine).mean())]
    for _ in range(20):
        model = with_basis(model, em.maximize(model, full_average(model, images, codes, engine)).group_basis)
        values.append(float(log_likelihood(model, images, codes, engine).mean()))
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 0.1


def test_a_shape_that_nobody_uses_stays_as_it_is(scene):
    model, images, codes, engine = scene
    codes = codes * torch.tensor([1.0, 0.0, 1.0], dtype=F64)
    found = em.maximize(model, full_average(model, images, codes, engine))
    old, new = model.group_basis.T @ model.dictionary, found.group_basis.T @ found.dictionary
    assert_close(new[:, 1], old[:, 1])
    assert not torch.allclose(new[:, 0], old[:, 0])
    assert_close(found.dictionary.norm(dim=0), torch.ones(3, dtype=F64))


def test_learning_by_em_is_repeatable(make_model, draw):
    model = make_model(8)
    images, _, _ = draw(model, batch=60)
    settings = Settings(
        n_epochs=2, batch_size=10, n_grid=12, method="em", first_memory=11.0, last_memory=11.0, batches_per_update=2
    )
    runs = [learn(model, images, settings, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert runs[0].group_basis.equal(runs[1].group_basis)
    assert not runs[0].group_basis.equal(model.group_basis)
    assert stiefel.orthonormality_error(runs[0].group_basis) < 1e-10


def test_a_run_too_short_for_its_memory_still_learns(make_model, draw):
    model = make_model(8)
    images, _, _ = draw(model, batch=30)
    settings = Settings(
        n_epochs=1, batch_size=10, n_grid=12, method="em", first_memory=33.0, last_memory=33.0, batches_per_update=2
    )
    learned = learn(model, images, settings, generator=torch.Generator().manual_seed(5))
    assert not learned.group_basis.equal(model.group_basis)


def test_a_short_run_learns_to_its_end(make_model, draw, monkeypatch):
    """The memory that grows never asks for more images than were seen: every second batch has its M-step."""
    model = make_model(8)
    images, _, _ = draw(model, batch=100)
    steps, shares, maximize, average = [], [], em.maximize, em.average
    monkeypatch.setattr(em, "maximize", lambda *given, **how: steps.append(len(shares)) or maximize(*given, **how))
    monkeypatch.setattr(em, "average", lambda *given: shares.append(given[3]) or average(*given))
    settings = Settings(n_epochs=2, batch_size=10, n_grid=12, method="em", first_memory=4.0)
    learn(model, images, settings, generator=torch.Generator().manual_seed(5))
    assert steps == list(range(2, 21, 2))
    assert shares[1] > 0.5  # of not much more than twelve images
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 10 / 200  # all that was seen, though the memory would be 3 × 1000


@pytest.mark.parametrize("turns", [[[3, 1], [0, 1]], [[1, 0], [2, -1]], [[2, 0], [0, 2]]])
def test_a_fitted_lattice_moves_the_shapes_as_before(turns, make_model):
    """Shapes in a coarser or slanted lattice: the same images at other poses, planes mirrored where they must be."""
    basis = torch.tensor(turns)
    model = make_model(7, n_pixels=80, n_irreps=40, n_components=3)
    coords = half_lattice(2, 20)
    wanted = coords @ basis.T
    mirrored = (wanted[:, 0] < 0) | ((wanted[:, 0] == 0) & (wanted[:, 1] < 0))
    wanted = torch.where(mirrored[:, None], -wanted, wanted)
    others = [w for w in half_lattice(2, 200).tolist() if w not in wanted.tolist()][:20]
    planes = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    planes = planes * torch.cat((torch.exp(-0.2 * coords.square().sum(dim=1)), 1e-9 * torch.ones(20)))[:, None, None]
    model = replace(
        model,
        frequencies=torch.cat((wanted, torch.tensor(others))),
        dictionary=torch.nn.functional.normalize(model.group_basis @ planes.flatten(0, 1), dim=0),
        pose_prior=torch.zeros_like(model.pose_prior),
    )
    averages = em.Averages(model.group_basis, model.group_basis.T @ model.dictionary, torch.eye(3, dtype=F64))
    fitted, moved = em.fit_lattice(model, averages)
    energies = (model.group_basis.T @ model.dictionary).unflatten(0, (-1, 2)).square().sum(dim=(1, 2))
    found = energy_basis(model.frequencies, energies).to(F64)
    poses = 6 * torch.rand(3, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    before, after = (
        reconstruct(one, torch.eye(3, dtype=F64), s) for one, s in ((model, poses), (fitted, poses @ found))
    )
    assert_close(after, before, atol=1e-6, rtol=0)
    kept = moved.moved.abs().sum(dim=0) > 0
    assert_close(moved.moved[:, kept], fitted.group_basis[:, kept])
    assert_close(moved.returned, fitted.group_basis.T @ fitted.dictionary, atol=1e-6, rtol=0)
    assert fitted.frequencies.square().sum() < model.frequencies.square().sum()


def test_the_frequencies_of_one_axis_stay(make_model):
    """Noise in the highest planes would ask for more frequencies at each fit, and each would have fewer copies."""
    model = make_model(7, n_pixels=80, n_irreps=40, n_components=3, torus_dim=1, multiplicity=4)
    averages = em.Averages(model.group_basis, model.group_basis.T @ model.dictionary, torch.eye(3, dtype=F64))
    fitted, moved = em.fit_lattice(model, averages)
    assert fitted.frequencies.equal(model.frequencies)
    assert moved is averages
