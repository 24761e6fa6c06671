"""Two groups one after the other: sums over both tori against brute force in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse import em, symmetry, torus
from liesparse.inference import code_gradient, expect_pose, map_poses, parameter_gradients
from liesparse.model import (
    apply_transform,
    compose,
    log_likelihood_given_pose,
    undo_transform,
    uniform_prior,
)
from liesparse.posterior import (
    CompositeEngine,
    CompositePosterior,
    Evidence,
    engine_of,
    log_likelihood,
    make_engine,
)
from oracle.composing import F64, brute_force, draw, make_composition, whole_engine

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
    found = parameter_gradients(model, codes, expectation, "exact")
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
        averages = em.average(em.Averages.zero(model), codes, found, 1.0)
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
        found = parameter_gradients(model, codes, expect_pose(model, images, codes, engine), "exact").dictionary
        shapes = model.dictionary
        return float((found - shapes * (found * shapes).sum(dim=0)).norm())  # along the sphere

    before = uphill()
    for _ in range(300):
        found = expect_pose(model, images, codes, engine)
        averages = em.average(em.Averages.zero(model), codes, found, 1.0)
        model = em.maximize(model, averages, learn_group=False)
    assert uphill() < 0.01 * before


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
def test_modes_are_found_some_images_at_a_time(rng):
    """Of vague images more points of the inner torus matter than of sharp ones, and each part has its own number."""
    model = make_composition(rng, noise_std=0.02)
    images, codes, _ = draw(model, rng, 8)
    codes[:4] /= 1000
    engine, evidence = engine_of(model), Evidence.of(model, images, codes)
    together = engine.find_modes(evidence, 5)
    engine.at_once = 4
    in_parts = engine.find_modes(evidence, 5)
    assert together.poses.shape == in_parts.poses.shape == (8, 5, 2)
    assert_close(in_parts.log_density[:, 0], together.log_density[:, 0])
    assert engine.find_modes(evidence, 40).poses.shape == (8, 40, 2)


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


def test_each_axis_has_its_own_generator(rng):
    model = make_composition(rng, outer_dim=2, inside=True)
    images = torch.randn(3, 20, generator=rng, dtype=F64) @ model.group_basis @ model.group_basis.T
    for axis in range(3):
        step = torch.zeros(3, 3, dtype=F64)
        step[:, axis] = 1e-6
        slope = (apply_transform(model, images, step) - apply_transform(model, images, -step)) / 2e-6
        assert_close(symmetry.apply_generator(model, images, axis), slope, atol=1e-7, rtol=0)
