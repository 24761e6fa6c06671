"""P(s|I,α), its partition function and its moments against brute force [Chau20, app. B]."""

import math

import pytest
import torch
from torch.testing import assert_close

from liesparse import torus
from liesparse.lattice import half_lattice
from liesparse.model import (
    draw_codes,
    generate,
    log_joint,
    log_likelihood_given_pose,
    log_prior_codes,
    log_prior_poses,
    reconstruct,
    uniform_prior,
)
from liesparse.posterior import GridEngine, ReferenceEngine, log_likelihood, pose_natural

F64 = torch.float64
ENGINES = [ReferenceEngine, GridEngine]


def lattices():
    yield "n1", half_lattice(1, 4), 17
    yield "n2", half_lattice(2, 9), 13
    yield "n2, three of each", half_lattice(2, 9, multiplicity=3), 12
    yield "n2 with zero", half_lattice(2, 5, include_zero=True), 9
    yield "n2, even and odd N", half_lattice(2, 6), 10
    yield "n3, two of each", half_lattice(3, 11, multiplicity=2), 7
    yield "n4", half_lattice(4, 6), 5
    yield "any integers", torch.tensor([[-3, 2], [0, -1], [5, 5], [5, 5]]), 11
    yield "only zero", torch.zeros(3, 2, dtype=torch.int64), 4


LATTICES = list(lattices())


def natural_of(frequencies, scale=1.5, batch=3, dtype=F64):
    rng = torch.Generator().manual_seed(len(frequencies))
    return (scale * torch.randn(batch, len(frequencies), 2, generator=rng, dtype=F64)).to(dtype)


@pytest.mark.parametrize(("frequencies", "n_grid"), [case[1:] for case in LATTICES], ids=[case[0] for case in LATTICES])
def test_grid_equals_reference(frequencies, n_grid):
    natural = natural_of(frequencies)
    reference = ReferenceEngine(frequencies, n_grid, dtype=F64)
    grid = GridEngine(frequencies, n_grid, dtype=F64)
    expected, found = reference.moments(natural), grid.moments(natural)
    assert_close(found.log_partition, expected.log_partition, atol=1e-10, rtol=0)
    assert_close(found.rotation, expected.rotation, atol=1e-10, rtol=0)
    assert_close(grid.values(natural), reference.values(natural), atol=1e-10, rtol=0)


def test_float32_grid_is_close_at_the_papers_shape():
    frequencies = half_lattice(2, 128)
    natural = natural_of(frequencies, scale=2.0)
    expected = ReferenceEngine(frequencies, 50, dtype=F64).moments(natural)
    found = GridEngine(frequencies, 50).moments(natural.float())
    error = (found.rotation - expected.rotation).norm() / expected.rotation.norm()
    assert float(error) < 1e-5
    assert_close(found.log_partition.double(), expected.log_partition, rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0, 3000.0])
def test_any_sharpness_is_finite(scale):
    frequencies = half_lattice(2, 20)
    for engine in (GridEngine(frequencies, 50), ReferenceEngine(frequencies, 50)):
        log_partition, rotation = engine.moments(natural_of(frequencies, scale, dtype=torch.float32))
        assert torch.isfinite(log_partition).all()
        assert torch.isfinite(rotation).all()
        assert (rotation.norm(dim=-1) <= 1 + 1e-5).all()  # |E[exp iω·s]| <= 1


@pytest.mark.parametrize("engine_class", ENGINES)
def test_one_frequency_is_the_von_mises_distribution(engine_class):  # Z = 2π I₀(κ), E[cos(s - μ)] = I₁/I₀
    kappa, mu = torch.tensor([3.0], dtype=F64), torch.tensor([0.8], dtype=F64)
    log_partition, rotation = engine_class(torch.tensor([[1]]), 60, dtype=F64).moments(
        (kappa[:, None] * torus.features(mu))[None]
    )
    assert_close(log_partition, torch.log(2 * math.pi * torch.special.i0(kappa)))
    resultant = torch.special.i1(kappa) / torch.special.i0(kappa)
    assert_close(rotation[0], resultant * torus.features(mu))


@pytest.mark.parametrize("engine_class", ENGINES)
def test_rotation_is_the_average_of_rotation_matrices(engine_class, make_model, draw, rotation_matrix):
    model = make_model(2)
    images, codes, _ = draw(model, batch=2)
    engine = engine_class(model.frequencies, 9, dtype=F64)
    natural = pose_natural(model, images, codes)
    rotation = engine.moments(natural).rotation
    points = torus.grid_points(9, 2)
    for row in range(2):
        log_joints = torch.stack([log_likelihood_given_pose(model, images, codes, p.expand(2, 2))[row] for p in points])
        weights = torch.softmax(log_joints, dim=0)
        mean = sum(w * rotation_matrix(model.frequencies, p) for w, p in zip(weights, points, strict=True))
        cos, sin = rotation[row].unbind(-1)
        blocks = [torch.stack((torch.stack((c, -s)), torch.stack((s, c)))) for c, s in zip(cos, sin, strict=True)]
        assert_close(torch.block_diag(*blocks), mean)


@pytest.mark.parametrize("prior", [False, True])
def test_natural_parameters_are_the_log_joint_up_to_a_constant(make_model, draw, prior):
    model = make_model(3, prior=prior)
    images, codes, _ = draw(model)
    natural = pose_natural(model, images, codes)
    constants = []
    for seed in range(5):
        poses = draw(model, seed=seed)[2]
        features = torus.features(torus.phases(model.frequencies, poses))
        direct = log_likelihood_given_pose(model, images, codes, poses) + log_prior_poses(model, poses, 0.0)
        constants.append(direct - (natural * features).sum(dim=(1, 2)))
    for constant in constants[1:]:
        assert_close(constant, constants[0])


@pytest.mark.parametrize("engine_class", ENGINES)
@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("torus_dim", [1, 2])
def test_log_likelihood_is_the_integral_over_poses(make_model, draw, engine_class, prior, torus_dim):
    model = make_model(4, torus_dim=torus_dim, prior=prior)
    images, codes, _ = draw(model)
    n_grid = 80 if torus_dim == 1 else 40
    engine = engine_class(model.frequencies, n_grid, dtype=F64)
    prior_partition = float(engine.log_partition(model.pose_prior[None]))
    points = torus.grid_points(2 * n_grid, torus_dim)  # finer than the engine's own grid
    n_points, n_images = len(points), len(images)
    every = (images.repeat(n_points, 1), codes.repeat(n_points, 1), points.repeat_interleave(n_images, dim=0))
    log_joints = log_likelihood_given_pose(model, *every) + log_prior_poses(model, every[2], prior_partition)
    log_joints = log_joints.view(n_points, n_images)
    expected = torch.logsumexp(log_joints, dim=0) + torus_dim * math.log(math.pi / n_grid)
    assert_close(log_likelihood(model, images, codes, engine), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("engine_class", ENGINES)
def test_values_on_the_grid_and_mode_agree(make_model, draw, engine_class):
    model = make_model(5)
    images, codes, _ = draw(model)
    natural = pose_natural(model, images, codes)
    engine = engine_class(model.frequencies, 12, dtype=F64)
    values = engine.values(natural).unflatten(1, (12, 12))
    cell = 2 * math.pi / 12
    density = (values - engine.log_partition(natural)[:, None, None]).exp()
    assert_close(density.sum(dim=(1, 2)) * cell**2, torch.ones(len(images), dtype=F64))
    for row, pose in enumerate(engine.coarse_modes(natural, 1)[:, 0]):
        first, second = (pose / cell).round().long().tolist()
        assert values[row, first, second] == values[row].max()


def test_uniform_prior_has_the_volume_of_the_torus_as_partition():
    for torus_dim in (1, 2, 3):
        engine = GridEngine(half_lattice(torus_dim, 4), 6, dtype=F64)
        volume = torus_dim * math.log(2 * math.pi)
        assert float(engine.log_partition(uniform_prior(4, dtype=F64)[None])) == pytest.approx(volume)


def test_prior_density_is_the_sum_of_cosines(make_model, draw):
    kappa, mu = torch.rand(2, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    model = make_model(6)
    model = type(model)(**{**vars(model), "pose_prior": kappa[:, None] * torus.features(mu)})
    poses = draw(model)[2]
    expected = (kappa * torch.cos(poses @ model.frequencies.double().T - mu)).sum(dim=1)
    assert_close(log_prior_poses(model, poses, 0.0), expected)


def test_log_joint_is_the_sum_of_its_parts(make_model, draw):
    model = make_model(7)
    images, codes, poses = draw(model)
    residual = images - reconstruct(model, codes, poses)
    gaussian = torch.distributions.Normal(0.0, model.noise_std).log_prob(residual).sum(dim=1)
    exponential = torch.distributions.Exponential(model.sparsity).log_prob(codes).sum(dim=1)
    expected = gaussian + exponential - 2 * math.log(2 * math.pi)
    assert_close(log_joint(model, images, codes, poses), expected)
    assert log_prior_codes(model, -codes).eq(-torch.inf).all()


def test_generated_images_scatter_around_the_reconstruction(make_model, rng):
    model = make_model(8)
    codes = draw_codes(model, 4000, generator=rng)
    assert float(codes.mean()) == pytest.approx(1 / model.sparsity, rel=0.05)
    poses = torch.zeros(4000, 2, dtype=F64)
    noise = generate(model, codes, poses, generator=rng) - reconstruct(model, codes, poses)
    assert float(noise.std()) == pytest.approx(model.noise_std, rel=0.02)
    assert abs(float(noise.mean())) < 0.01
