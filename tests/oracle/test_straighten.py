"""New axes for the pose: a slanted model of known translation becomes straight, and nothing else changes it."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse import torus
from liesparse.data import embedded_digits, translations
from liesparse.inference import infer_codes, map_poses
from liesparse.posterior import AdaptiveEngine
from liesparse.starts import known_translation
from liesparse.straighten import centred, extents, square, straighten

SHEAR = torch.tensor([[1.0, 1.0], [0.0, 1.0]])


@pytest.mark.parametrize("torus_dim", [1, 2, 3])
def test_a_slanted_cube_becomes_straight(torus_dim):
    rng = torch.Generator().manual_seed(0)
    cube = 2 * torch.rand(4000, torus_dim, generator=rng) - 1
    slant = torch.randn(torus_dim, torus_dim, generator=rng) + 2 * torch.eye(torus_dim)
    found = square(0.2 * cube @ slant)
    assert_close(extents(found), torch.ones(torus_dim), atol=1e-4, rtol=0)
    match = torch.linalg.lstsq(cube, found).solution.abs()  # a signed permutation, up to the quantile
    assert_close(match.sort(dim=0).values[-1], torch.ones(torus_dim), atol=0.1, rtol=0)
    assert float(match.sort(dim=0).values[:-1].sum()) < 0.25 * torus_dim


def test_poses_are_measured_from_the_middle_of_their_shape():
    shapes = torch.tensor([0, 0, 0, 1, 1, 1])
    poses = torch.tensor([[3.0], [math.pi], [-3.0], [0.5], [1.0], [1.5]])  # the first shape's poses cross ±π
    offsets, counts = centred(poses, shapes, 3)
    step = math.pi - 3
    assert_close(offsets.flatten(), torch.tensor([-step, 0.0, step, -0.5, 0.0, 0.5]), atol=1e-5, rtol=0)
    assert counts.tolist() == [3, 3, 0]


def linear_map(model, data):
    """Fit the poses of one digit by its shifts, and return the matrix in units of one pixel's turn."""
    engine = AdaptiveEngine(model.frequencies)
    poses = map_poses(model, data.images, infer_codes(model, data.images, engine), engine)
    shifts = data.factors - data.factors.mean(dim=0)
    offsets, _ = centred(poses, torch.zeros(len(poses), dtype=torch.long), 1)
    return torch.linalg.lstsq(shifts, offsets - offsets.mean(dim=0)).solution * 28 / (2 * math.pi)


def test_a_sheared_group_is_straightened(rng):
    """s → Ms with integer M maps the torus onto itself, so the same group can be written in slanted axes."""
    digit = embedded_digits()[3:4]
    model = known_translation(digit, n_irreps=60)
    sheared = replace(model, frequencies=(model.frequencies.float() @ SHEAR).long())
    data = translations(600, max_shift=5, sources=digit, generator=rng)
    before = linear_map(sheared, data)
    assert float(before[0, 1].abs() + before[1, 0].abs()) > 0.8  # slanted
    straight = straighten(sheared, data.images, AdaptiveEngine(sheared.frequencies))
    after = linear_map(straight, data)
    small, large = after.abs().flatten().sort().values.split(2)
    assert float(small.max()) < 0.1 * float(large.min())  # each axis is one direction of the shift
    assert_close(large, torch.full((2,), 1.4), atol=0.2, rtol=0)  # ±5 pixels fill half of the torus: a turn is 20
    engine = AdaptiveEngine(straight.frequencies)
    natural = map_poses(straight, data.images, infer_codes(straight, data.images, engine), engine)
    assert float(torus.wrap(natural).abs().median()) < math.pi / 2  # the shape lies in the middle of its poses


def test_images_that_mix_shapes_leave_the_model_alone(make_model, draw):
    model = make_model(1, n_pixels=30, n_components=3)
    images, _, _ = draw(model, batch=40)
    single = replace(
        model, **{name: getattr(model, name).float() for name in ("group_basis", "dictionary", "pose_prior")}
    )
    assert straighten(single, images.float(), AdaptiveEngine(single.frequencies)) is single


def test_poses_that_go_around_leave_the_model_alone(rng):
    digit = embedded_digits()[3:4]
    model = known_translation(digit, n_irreps=60)
    data = translations(300, max_shift=14, wrap=True, sources=digit, generator=rng)
    assert straighten(model, data.images, AdaptiveEngine(model.frequencies)) is model
