"""Coordinates of the pose: the fit to known poses against its definition, and models whose pose is poorly scaled."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse import pose_coordinates as coordinates
from liesparse import start, torus
from liesparse.data import embedded_digits, translations
from liesparse.initialization import leading_subspace
from liesparse.lattice import half_lattice
from liesparse.metrics import infer, snr
from liesparse.model import Parameters, reconstruct, uniform_prior
from liesparse.pose_coordinates import Seen, faster_poses, fit_poses, improve_coordinates
from liesparse.posterior import make_engine
from liesparse.settings import load_recipe

F64 = torch.float64


def model_of(fit, subspace, frequencies=None, n_components=3):
    """A model in some subspace with the W and the shapes of a fit, or with none yet."""
    columns = subspace.shape[1]
    frequencies = half_lattice(2, columns // 2, include_zero=True) if frequencies is None else frequencies
    turn = torch.eye(columns, dtype=subspace.dtype) if fit is None else fit.turn
    planes = torch.ones(n_components, columns // 2, 2, dtype=subspace.dtype) if fit is None else fit.planes
    basis = subspace @ turn
    shapes = torch.nn.functional.normalize(basis @ planes.flatten(1).T, dim=0)
    frequencies = frequencies if fit is None else fit.frequencies
    return Parameters(basis, shapes, frequencies, 0.1, 10.0, uniform_prior(len(frequencies), dtype=subspace.dtype))


def quality(model, images):
    found = infer(model, images, make_engine("auto", model.frequencies))
    return float(snr(images, reconstruct(model, found.codes, found.poses)).mean())


@pytest.fixture(scope="module")
def shifted():
    """Three digits of 14 × 14, shifted by up to a quarter of their size: half of the torus."""
    sources = torch.nn.functional.avg_pool2d(embedded_digits()[None, 2:5], 2)[0]
    made = translations(1500, max_shift=3.5, sources=sources, generator=torch.Generator().manual_seed(0))
    subspace = leading_subspace(made.images, 98)
    return made, subspace


def seen_at(made, subspace, fill):
    """The images with their true poses, which fill a part of each axis."""
    return Seen(made.images @ subspace, made.labels, made.factors * (2 * math.pi * fill / 7), 0.0)


def test_the_fit_finds_the_model_that_made_the_images():
    rng = torch.Generator().manual_seed(1)
    frequencies = half_lattice(1, 6)
    planes = torch.nn.functional.normalize(torch.randn(3, 12, generator=rng, dtype=F64), dim=1).unflatten(1, (-1, 2))
    basis = torch.linalg.qr(torch.randn(12, 12, generator=rng, dtype=F64)).Q
    template, poses = torch.arange(900) % 3, 2 * math.pi * torch.rand(900, 1, generator=rng, dtype=F64)
    images = torus.rotate(planes[template], torus.phases(frequencies, poses)).flatten(1) @ basis.T
    model = model_of(None, torch.eye(12, dtype=F64), frequencies)
    seen, identity = Seen(images, template, poses, 0.0), torch.eye(1, dtype=F64)
    fits = [fit_poses(model, seen, identity, n_steps) for n_steps in (1, 5, 40, 400)]
    assert fits[0].frequencies.equal(frequencies)
    for earlier, later in itertools.pairwise(fits):
        assert later.score >= earlier.score - 1e-9  # no M-step lowers what is explained
    assert fits[-1].score > 10  # nothing is left


def test_the_score_is_the_energy_that_is_left(shifted):
    made, subspace = shifted
    seen = seen_at(made, subspace, 0.5)
    fit = fit_poses(model_of(None, subspace), seen, torch.eye(2, dtype=F64), 3)
    left = 0.0
    for coords, template, pose in zip(*seen[:3], strict=True):
        phases = torus.phases(fit.frequencies, pose[None])
        moved = fit.turn @ torus.rotate(fit.planes[template][None], phases).flatten()
        left += float((coords - (coords @ moved) * moved).square().sum())  # with the best amplitude
    assert_close(fit.score, -math.log(left / len(seen.coords)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fill", [0.2, 0.75])
def test_a_pose_that_fills_too_little_or_too_much_of_the_torus_is_stretched(shifted, fill):
    made, subspace = shifted
    fit = fit_poses(model_of(None, subspace), seen_at(made, subspace, fill), torch.eye(2, dtype=F64), 40)
    poor = model_of(fit, subspace)
    better = improve_coordinates(
        poor, made.images, make_engine("auto", poor.frequencies), generator=torch.Generator().manual_seed(0)
    )
    images = made.images[:400]
    assert quality(better, images) > 1.5 * quality(poor, images)
    gram = better.group_basis.T @ better.group_basis
    assert_close(gram, torch.eye(len(gram)), atol=1e-4, rtol=0)


def circle_of_signals(slower, n_poses):
    """Three signals shifted round a circle by any amount, and a model whose pose turns some times slower."""
    rng = torch.Generator().manual_seed(2)
    spectrum = torch.fft.rfft(torch.randn(3, 40, generator=rng)) * torch.exp(-torch.arange(21) / 6)
    angles, template = 2 * math.pi * torch.rand(1500, generator=rng), torch.arange(1500) % 3
    images = torch.fft.irfft(spectrum[template] * torch.exp(-1j * angles[:, None] * torch.arange(21)), n=40)
    images = torch.nn.functional.normalize(images, dim=1)
    subspace = torch.eye(40)
    turns = torch.randint(n_poses, (1500,), generator=rng)  # each of as many poses moves a picture alike
    seen = Seen(images, template, (angles + 2 * math.pi * turns)[:, None] / slower, 0.0)
    frequencies = half_lattice(1, 20, include_zero=True)
    return images, model_of(
        fit_poses(model_of(None, subspace, frequencies), seen, torch.eye(1, dtype=F64), 60), subspace
    )


def test_a_pose_that_turns_too_slowly_turns_as_fast_as_it_can():
    images, slow = circle_of_signals(3, n_poses=3)
    engine = make_engine("auto", slow.frequencies)
    rivals = faster_poses(slow, images, engine, generator=torch.Generator().manual_seed(0))
    assert max(quality(fast, images[:300]) for fast in rivals) > quality(slow, images[:300]) + 5


def test_of_models_that_turn_faster_the_one_that_learns_best_goes_on():
    images, slow = circle_of_signals(3, n_poses=3)
    recipe, rng = load_recipe("best"), torch.Generator().manual_seed(0)
    fast = start._turn_faster(slow, images, recipe, rng)
    assert quality(fast, images[:300]) > quality(slow, images[:300]) + 5
    assert start._turn_faster(fast, images, recipe, rng) is fast


def test_a_template_without_images_keeps_its_shape(shifted, monkeypatch):
    made, subspace = shifted
    rows = made.labels < 2
    some = made._replace(images=made.images[rows], labels=made.labels[rows], factors=made.factors[rows])
    fit = fit_poses(model_of(None, subspace), seen_at(some, subspace, 0.2), torch.eye(2, dtype=F64), 40)
    poor = model_of(fit, subspace)
    odd = torch.nn.functional.normalize(torch.randn(196, generator=torch.Generator().manual_seed(3)), dim=0)
    poor = replace(poor, dictionary=torch.cat((poor.dictionary[:, :2], odd[:, None]), dim=1))
    monkeypatch.setattr(coordinates, "STEPS", ((0.3,), ()))  # a short search
    better = improve_coordinates(
        poor, some.images, make_engine("auto", poor.frequencies), generator=torch.Generator().manual_seed(0)
    )
    assert better is not poor
    assert_close(better.dictionary[:, 2], odd)


def test_pictures_that_come_round_too_early_go_all_the_way_round(rng):
    """They come round after 0.28 of the axis, which no integer mends, nor a number near one."""
    images, slow = circle_of_signals(1 / 0.28, n_poses=1)
    engine = make_engine("auto", slow.frequencies)
    rivals = faster_poses(slow, images, engine, generator=rng)
    assert max(quality(fast, images[:300]) for fast in rivals) > quality(slow, images[:300]) + 5
