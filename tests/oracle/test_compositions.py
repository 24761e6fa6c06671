"""Two groups one after the other: sums over both tori against brute force in float64, and learning with them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from liesparse import LieSparseCoder, em, groups, symmetry, torus
from liesparse.checkpoint import list_checkpoints
from liesparse.data import embedded_digits, translations_rotations
from liesparse.inference import code_gradient, expect_pose, infer_codes, map_poses, parameter_gradients
from liesparse.lattice import half_lattice
from liesparse.learning import learn
from liesparse.metrics import examine
from liesparse.model import (
    Outer,
    Parameters,
    apply_transform,
    compose,
    log_likelihood_given_pose,
    log_prior_poses,
    reconstruct,
    undo_transform,
    uniform_prior,
)
from liesparse.nn import TorusAction
from liesparse.posterior import (
    CompositeEngine,
    CompositePosterior,
    ReferenceEngine,
    engine_of,
    log_likelihood,
    make_engine,
)
from liesparse.report import write_report
from liesparse.reseed import pose_overlaps
from liesparse.settings import Settings
from liesparse.training import CheckpointPolicy, train

F64 = torch.float64
N_OUTER = 24


def make_composition(rng, *, inner_dim=1, outer_dim=1, n_pixels=20, noise_std=0.4, inside=False):
    """Draw two random torus actions; with ``inside`` the inner one lies in the span of the outer one."""
    outer_frequencies, frequencies = half_lattice(outer_dim, 6), half_lattice(inner_dim, 4)
    outer_basis = torch.linalg.qr(torch.randn(n_pixels, 12, generator=rng, dtype=F64)).Q
    drawn = torch.randn(12 if inside else n_pixels, 8, generator=rng, dtype=F64)
    basis = torch.linalg.qr(outer_basis @ drawn if inside else drawn).Q
    dictionary = torch.nn.functional.normalize(basis @ torch.randn(8, 3, generator=rng, dtype=F64), dim=0)
    prior = uniform_prior(4, dtype=F64)
    return Parameters(basis, dictionary, frequencies, noise_std, 0.5, prior, Outer(outer_basis, outer_frequencies))


def draw(model, rng, n_images=4):
    codes = torch.rand(n_images, model.n_components, generator=rng, dtype=F64)
    poses = 2 * math.pi * torch.rand(n_images, model.torus_dim, generator=rng, dtype=F64)
    noise = model.noise_std * torch.randn(n_images, model.n_pixels, generator=rng, dtype=F64)
    return reconstruct(model, codes, poses) + noise, codes, poses


def whole_engine(model):
    outer = ReferenceEngine(model.outer.frequencies, N_OUTER, dtype=F64)
    return CompositeEngine(outer, model.frequencies, whole=True)


def brute_force(model, images, codes, engine):
    """Return all poses of both grids and ln P(I, s | α) there."""
    inner = torus.grid_points(engine.n_coarse * engine.n_fine, engine.inner_dim)
    outer = torus.grid_points(N_OUTER, engine.outer.torus_dim)
    poses = torch.cat((outer.repeat(len(inner), 1), inner.repeat_interleave(len(outer), dim=0)), dim=1)
    cell = (2 * math.pi) ** model.torus_dim / len(poses)
    values = []
    for image, code in zip(images, codes, strict=True):
        rows, alphas = image.expand(len(poses), -1), code.expand(len(poses), -1)
        joint = log_likelihood_given_pose(model, rows, alphas, poses) + log_prior_poses(model, poses)
        values.append(joint + math.log(cell))
    return poses, torch.stack(values)


SMALL = {"COARSE": {1: 16, 2: 6}, "FINE": {1: 4, 2: 3}}  # random actions of low frequency need no more


@pytest.fixture
def few_points(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(f"liesparse.posterior.composition.{name}", value)


def test_the_inner_group_acts_first_and_undoing_brings_back(rng):
    model = make_composition(rng, inside=True)
    images = torch.randn(3, 20, generator=rng, dtype=F64) @ model.group_basis @ model.group_basis.T
    poses = torch.rand(3, 2, generator=rng, dtype=F64)
    inner = replace(model, outer=None)
    basis, frequencies = model.outer
    outer = replace(inner, group_basis=basis, frequencies=frequencies, pose_prior=uniform_prior(6, dtype=F64))
    expected = apply_transform(outer, apply_transform(inner, images, poses[:, 1:]), poses[:, :1])
    assert_close(apply_transform(model, images, poses), expected)
    assert_close(undo_transform(model, expected, poses), images)
    other_order = apply_transform(inner, apply_transform(outer, images, poses[:, :1]), poses[:, 1:])
    assert float((other_order - expected).norm()) > 0.1  # they do not commute


@pytest.mark.usefixtures("few_points")
@pytest.mark.parametrize(("outer_dim", "inner_dim"), [(1, 1), (2, 1), (1, 2)])
def test_log_likelihood_is_the_integral_over_both_poses(rng, outer_dim, inner_dim):
    model = make_composition(rng, outer_dim=outer_dim, inner_dim=inner_dim)
    images, codes, _ = draw(model, rng)
    engine = whole_engine(model)
    _, values = brute_force(model, images, codes, engine)
    assert_close(log_likelihood(model, images, codes, engine), torch.logsumexp(values, dim=1), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("few_points")
def test_moments_are_those_of_brute_force(rng):
    model = make_composition(rng)
    images, codes, _ = draw(model, rng)
    engine = whole_engine(model)
    found = expect_pose(model, images, codes, engine)
    poses, values = brute_force(model, images, codes, engine)
    weights = torch.softmax(values, dim=1)
    shapes = compose(model, codes)
    cross = 0
    for row, weight in enumerate(weights):
        back = undo_transform(model, images[[row]].expand(len(poses), -1), poses)
        assert_close(found.returned[row], model.to_planes(weight[None] @ back)[0])
        there = apply_transform(model, shapes[[row]].expand(len(poses), -1), poses)
        assert_close(found.moved[row], torus.to_planes(model.outer.group_basis, weight[None] @ there)[0])
        let_through = undo_transform(model, there, poses)
        assert_close(found.explained[row], model.to_planes(weight[None] @ let_through)[0])
        turned = torus.rotate(
            model.to_planes(shapes[[row]]).expand(len(poses), -1, -1), torus.phases(model.frequencies, poses[:, 1:])
        ).flatten(1)
        outer_back = torus.rotate(
            torus.to_planes(model.outer.group_basis, images[[row]]).expand(len(poses), -1, -1),
            -torus.phases(model.outer.frequencies, poses[:, :1]),
        ).flatten(1)
        cross = cross + outer_back.T @ (weight[:, None] * turned)
    assert_close(found.cross, cross)


@pytest.mark.usefixtures("few_points")
def test_gradients_are_autograd(rng):
    model = make_composition(rng, inside=True)
    images, codes, _ = draw(model, rng)
    engine = whole_engine(model)
    expectation = expect_pose(model, images, codes, engine)
    leaf = codes.clone().requires_grad_()
    (log_likelihood(model, images, leaf, engine) - model.sparsity * leaf.sum(dim=1)).sum().backward()
    assert_close(code_gradient(model, codes, expectation, "exact"), leaf.grad, rtol=1e-8, atol=1e-9)
    found = parameter_gradients(model, images, codes, expectation, "exact")
    for name in ("dictionary", "group_basis"):
        leaf = getattr(model, name).clone().requires_grad_()
        log_likelihood(replace(model, **{name: leaf}), images, codes, engine).mean().backward()
        ours, expected = getattr(found, name), leaf.grad
        if name == "group_basis":  # along the manifold: what is normal to it was left out
            ours, expected = (each - model.group_basis @ _symmetric(model, each) for each in (ours, expected))
        assert_close(ours, expected, rtol=1e-8, atol=1e-9)


def _symmetric(model, gradient):
    product = model.group_basis.T @ gradient
    return (product + product.T) / 2


@pytest.mark.usefixtures("few_points")
def test_an_m_step_never_lowers_the_expected_likelihood(rng):
    model = make_composition(rng, inside=True)
    images, codes, _ = draw(model, rng, 30)
    engine = whole_engine(model)
    before = float(log_likelihood(model, images, codes, engine).mean())
    for _ in range(5):
        found = expect_pose(model, images, codes, engine)
        averages = em.average(em.Averages.zero(model), images, codes, found, 1.0, model.outer)
        model = em.maximize(model, averages)
        after = float(log_likelihood(model, images, codes, engine).mean())
        assert after > before - 1e-9
        before = after


@pytest.mark.usefixtures("few_points")
def test_shapes_of_which_the_outer_group_shows_a_part_settle_where_the_gradient_vanishes(rng):
    model = make_composition(rng)  # the inner planes lie partly outside the outer ones
    images, codes, _ = draw(model, rng, 30)
    engine = whole_engine(model)

    def uphill():
        found = parameter_gradients(model, images, codes, expect_pose(model, images, codes, engine), "exact").dictionary
        shapes = model.dictionary
        return float((found - shapes * (found * shapes).sum(dim=0)).norm())  # along the sphere

    before = uphill()
    for _ in range(300):
        found = expect_pose(model, images, codes, engine)
        averages = em.average(em.Averages.zero(model), images, codes, found, 1.0, model.outer)
        model = em.maximize(model, averages, learn_group=False)
    assert uphill() < 0.01 * before


def test_few_points_give_what_all_points_give(rng):
    """At the size of pictures: what is left out carries no mass, and FISTA finds the same codes."""
    images = translations_rotations(30, max_shift=3, max_degrees=180, generator=rng).images
    parts = groups.Translations(28, 28), groups.Rotations(28, 28)
    bases = [part.make_basis(images, 60) for part in parts]
    digits = torch.nn.functional.normalize(embedded_digits().flatten(1), dim=1)
    model = Parameters(bases[1].group_basis, digits.T, bases[1].frequencies, 0.1, 10.0, uniform_prior(60))
    model = replace(model, outer=Outer(*bases[0]))
    quick = engine_of(model)
    slow = CompositeEngine(quick.outer, model.frequencies, whole=True)
    codes = infer_codes(model, images, quick)
    likelihoods = [log_likelihood(model, images, codes, engine) for engine in (quick, slow)]
    assert_close(*likelihoods, atol=0.1, rtol=0)
    objectives = [log_likelihood(model, images, each, slow) for each in (codes, infer_codes(model, images, slow))]
    assert float((objectives[1] - objectives[0]).median()) < 0.1
    assert float((codes.argmax(dim=1) == infer_codes(model, images, slow).argmax(dim=1)).float().mean()) >= 0.9


@pytest.mark.usefixtures("few_points")
def test_modes_are_the_highest_places(rng):
    model = make_composition(rng, outer_dim=2, noise_std=0.2)
    images, codes, _ = draw(model, rng, 6)
    engine = CompositeEngine(make_engine("adaptive", model.outer.frequencies, dtype=F64), model.frequencies)
    poses = map_poses(model, images, codes, engine)
    assert bool((poses.abs() <= math.pi).all())
    found = log_likelihood_given_pose(model, images, codes, poses)
    points, values = brute_force(model, images, codes, whole_engine(model))
    on_grid = log_likelihood_given_pose(model, images, codes, points[values.argmax(dim=1)])
    assert float((found >= on_grid - 1e-9).double().mean()) > 0.8  # or a hill of nearly that height
    assert bool((found >= on_grid - 0.2).all())
    posterior = CompositePosterior(model, images, codes)
    near = poses[:, None] + 0.02 * torch.randn(6, 20, 3, generator=rng, dtype=F64)
    assert bool((posterior.log_prob(poses)[:, None] >= posterior.log_prob(near)).all())


@pytest.mark.usefixtures("few_points")
def test_the_posterior_is_that_of_brute_force(rng):
    model = make_composition(rng, noise_std=0.7)
    images, codes, _ = draw(model, rng)
    posterior = CompositePosterior(model, images, codes)
    poses, values = brute_force(model, images, codes, whole_engine(model))
    weights = torch.softmax(values, dim=1)
    means = torch.einsum("bp,pi->bi", weights + 0j, torch.exp(1j * poses))
    keep = means.abs() > 0.3  # elsewhere the mean says little
    assert_close(
        torch.polar(torch.ones_like(posterior.mean), posterior.mean)[keep],
        (means / means.abs())[keep],
        atol=0.05,
        rtol=0,
    )
    assert_close(posterior.width[keep], (-2 * means.abs().log()).sqrt()[keep], atol=0.05, rtol=0)
    cell = math.log((2 * math.pi) ** 2 / len(poses))
    log_density = values - values.logsumexp(dim=1, keepdim=True) - cell
    assert_close(posterior.log_prob(poses[None].expand(4, -1, -1)), log_density, atol=0.05, rtol=0)
    assert_close(posterior.entropy, -(weights * log_density).sum(dim=1), atol=0.1, rtol=0)
    draws = posterior.sample(400, generator=rng)
    assert draws.shape == (4, 400, 2)
    drawn = torch.exp(1j * draws).mean(dim=1)
    assert_close(drawn, means, atol=0.15, rtol=0)
    for axis in range(2):
        density = posterior.marginal(axis, 60)
        assert_close(density.sum(dim=1) * 2 * math.pi / 60, torch.ones(4, dtype=F64), atol=1e-3, rtol=0)
        first = (density * torch.exp(1j * posterior.axis(60))).sum(dim=1) * 2 * math.pi / 60
        assert_close(first, means[:, axis], atol=0.05, rtol=0)
    assert len(posterior[1]) == 1
    modes = posterior.modes(3)
    assert modes.poses.shape == (4, 3, 2)
    assert bool((modes.log_prob[:, 0] >= modes.log_prob[:, 1]).all())


def test_one_shape_in_two_poses_overlaps_with_itself(rng):
    images = translations_rotations(200, max_shift=3, max_degrees=60, generator=rng).images
    bases = [part(28, 28).make_basis(images, 100) for part in (groups.Translations, groups.Rotations)]
    shapes = translations_rotations(
        2, max_shift=3, max_degrees=60, sources=embedded_digits()[2:3], generator=rng
    ).images
    other = torch.nn.functional.normalize(embedded_digits()[7].flatten()[None], dim=1)
    dictionary = torch.cat((shapes, other)).T.contiguous()
    model = Parameters(bases[1].group_basis, dictionary, bases[1].frequencies, 0.1, 10.0, uniform_prior(100))
    model = replace(model, outer=Outer(*bases[0]))
    overlaps = pose_overlaps(model, engine_of(model))
    assert float(overlaps[0, 1]) > 0.9
    assert float(overlaps[0, 2]) < 0.85


def test_each_axis_has_its_own_generator(rng):
    model = make_composition(rng, outer_dim=2, inside=True)
    images = torch.randn(3, 20, generator=rng, dtype=F64) @ model.group_basis @ model.group_basis.T
    for axis in range(3):
        step = torch.zeros(3, 3, dtype=F64)
        step[:, axis] = 1e-6
        slope = (apply_transform(model, images, step) - apply_transform(model, images, -step)) / 2e-6
        assert_close(symmetry.apply_generator(model, images, axis), slope, atol=1e-7, rtol=0)


def test_two_layers_one_after_the_other_move_as_both_groups_do(rng):
    model = make_composition(rng, outer_dim=2)
    images, _, poses = draw(model, rng)
    inner, outer = TorusAction.from_parameters(model), TorusAction.from_parameters(model, outer=True)
    assert_close(outer(inner(images, poses[:, 2:]), poses[:, :2]), apply_transform(model, images, poses))
    with pytest.raises(ValueError, match="a model of two groups"):
        TorusAction.from_parameters(replace(model, outer=None), outer=True)


def test_the_report_has_a_section_for_each_coordinate(rng, tmp_path):
    model = make_composition(rng, outer_dim=2, inside=True)
    images, _, _ = draw(model, rng, 5)
    coder = LieSparseCoder.from_model(model, (4, 5))
    page = write_report(tmp_path, coder, test=images, image_shape=(4, 5)).read_text()
    assert "pose_3, s₃" in page
    assert (tmp_path / "report" / "axis-3.gif").exists()
    coder.save(tmp_path / "model.safetensors")
    again = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert list(again.poses_in_units(np.zeros((2, 3)))) == [f"pose_{axis} (radians)" for axis in (1, 2, 3)]


def test_parts_are_written_as_a_product():
    shifts, turns = groups.Translations(8, 8), groups.Rotations(8, 8)
    both = shifts @ turns
    assert both.name == "translation@rotation"
    assert [c.name for c in both.coordinates] == ["shift_x", "shift_y", "angle"]
    assert groups.find_group("translation@rotation", (8, 8)) == both
    assert groups.find_group("translation@learned", (8, 8), 1) == shifts @ groups.LearnedTorus(1)
    assert groups.find_group("learned@learned", (8, 8)) == groups.LearnedTorus(2) @ groups.LearnedTorus(1)
    with pytest.raises(ValueError, match="two groups"):
        shifts @ both


def test_learning_with_two_known_groups_and_its_file(rng, tmp_path):
    """Two small shapes, shifted and turned by any angle: sorted, brought to one pose, saved and loaded."""
    sources = torch.nn.functional.avg_pool2d(embedded_digits()[None, [2, 7]], 2)[0]
    data = translations_rotations(240, max_shift=2, max_degrees=180, sources=sources, generator=rng)
    images = data.images.unflatten(1, (14, 14)).numpy()
    coder = LieSparseCoder(2, group="translation@rotation", n_epochs=3, random_state=0).fit(images)
    codes, poses = coder.infer(images)
    sorted_well = (codes.argmax(axis=1) == data.labels.numpy()).mean()
    assert max(sorted_well, 1 - sorted_well) > 0.98
    units = coder.poses_in_units(poses)
    assert list(units) == ["shift_x (pixels)", "shift_y (pixels)", "angle (degrees)"]
    for label in range(2):
        mine = (data.labels == label).numpy()
        away = np.deg2rad(units["angle (degrees)"][mine]) + data.factors[:, 2].numpy()[mine]  # theirs is y towards x
        offset = np.angle(np.exp(1j * away).mean())
        assert np.median(np.abs(np.angle(np.exp(1j * (away - offset))))) < np.deg2rad(4)
    canonical = coder.canonicalize(images)
    winners = codes.argmax(axis=1)
    for k in range(2):
        mean = canonical[winners == k].mean(axis=0)
        apart = ((canonical[winners == k] - mean) ** 2).sum() / (canonical[winners == k] ** 2).sum()
        assert apart < 0.15
    assert str(coder.verdict_).startswith("The pictures move as was given")
    coder.save(tmp_path / "model.safetensors")
    again = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert again.group == "translation@rotation"
    np.testing.assert_array_equal(again.infer(images[:5]).poses, coder.infer(images[:5]).poses)
    moved = again.traverse(images[:2], axis=2, values=[0.0, 0.5])
    assert moved.shape == (2, 2, 14, 14)
    np.testing.assert_allclose(moved[:, 0], again.reconstruct(images[:2]), atol=1e-5)
    np.testing.assert_allclose(
        again.transfer_pose(images[:1], images[:1]),
        again.move(again.canonicalize(images[:1]), again.infer(images[:1]).poses),
        atol=1e-4,
    )
    drawn, found = again.sample(3)
    assert drawn.shape == (3, 14, 14)
    assert found.poses.shape == (3, 3)


def test_a_stopped_run_goes_on_to_the_same_bits(rng, tmp_path):
    model = make_composition(rng, inside=True)
    images = torch.nn.functional.normalize(torch.randn(40, 20, generator=rng, dtype=F64), dim=1)
    settings = Settings(method="em", n_epochs=3, batch_size=10, lattice="paper")
    policy = CheckpointPolicy(tmp_path, every=3, keep=9)
    how = {"monitor_images": images[:5], "checkpoints": policy}
    whole = train(model, images, settings, generator=torch.Generator().manual_seed(3), **how)
    for path in list_checkpoints(tmp_path)[2:]:  # as if it had been stopped there
        path.unlink()
    again = train(model, images, settings, generator=torch.Generator().manual_seed(3), **how)
    for name in ("group_basis", "dictionary"):
        assert getattr(again.parameters, name).equal(getattr(whole.parameters, name))
    assert again.parameters.outer.group_basis.equal(model.outer.group_basis)
    assert again.history == whole.history


def test_the_outer_group_stays_as_it_is_and_the_inner_one_is_learned(rng):
    model = make_composition(rng, n_pixels=20, inside=True).map(
        lambda tensor: tensor.float() if tensor.is_floating_point() else tensor
    )
    images = torch.nn.functional.normalize(torch.randn(40, 20, generator=rng), dim=1)
    settings = Settings(method="em", n_epochs=2, batch_size=10, lattice="paper")
    learned = learn(model, images, settings, generator=rng)
    assert_close(learned.outer.group_basis, model.outer.group_basis, atol=0, rtol=0)
    assert not learned.group_basis.equal(model.group_basis)
    health = examine(learned, images, engine_of(learned))
    assert math.isfinite(health.objective)
    assert math.isfinite(health.posterior_width)
