"""Importance sampling against brute force, from flat to sharp, one mode to many, and against independent draws."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from liesparse import torus
from liesparse.data import translations_rotations
from liesparse.estimators import LieSparseCoder
from liesparse.inference import infer_codes, map_poses
from liesparse.initialization import random_start
from liesparse.lattice import half_lattice
from liesparse.learning import learn
from liesparse.model import reconstruct
from liesparse.posterior import (
    AdaptiveEngine,
    GridEngine,
    SamplingEngine,
    TorusPosterior,
    make_engine,
    pose_log_density,
)
from liesparse.posterior.kernels import runnable
from liesparse.posterior.sampling import cloud_points, even_points
from liesparse.reproduce.bench import relative_error
from liesparse.settings import Settings
from scale import own_images, own_naturals

F64 = torch.float64
SCALES = [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0]  # 1 is the paper's σ


def brute_force(natural, frequencies, n_grid):
    """Sum over a dense grid, written as the definition reads."""
    points = torch.cartesian_prod(*[torch.arange(n_grid, dtype=F64) * (2 * math.pi / n_grid)] * frequencies.shape[1])
    angles = points.reshape(-1, frequencies.shape[1]) @ frequencies.double().T
    features = torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1)
    values = natural.double().flatten(1) @ features.T
    log_partition = values.logsumexp(dim=1) + frequencies.shape[1] * math.log(2 * math.pi / n_grid)
    return log_partition, (values.softmax(dim=1) @ features).view_as(natural)


def long_estimate(natural, engine, *, n_modes=4, n_draws=1 << 14):
    """Return R̄ of one sharp posterior from many independent random draws around its modes.

    Nothing but the modes is shared with the engine: Gaussian proposals, half as wide again as the posterior there, as
    many draws from each. They are not wrapped around the torus, so this is for posteriors much narrower than it.
    """
    modes = engine.modes(natural[None].double(), n_modes)
    real = modes.log_density[0].isfinite()
    proposals = MultivariateNormal(modes.poses[0, real], precision_matrix=modes.curvature[0, real] / 1.5**2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = proposals.sample((n_draws,)).flatten(0, 1)
    nearest = proposals.loc + torus.wrap(draws[:, None] - proposals.loc)
    features = torus.features(torus.phases(engine.frequencies, draws)).flatten(1)
    weights = (features @ natural.double().flatten() - proposals.log_prob(nearest).logsumexp(dim=1)).softmax(dim=0)
    return (weights @ features).view_as(natural)


def test_the_long_estimate_is_right():
    frequencies, natural = own_naturals(2, 30, 3)
    engine = SamplingEngine(frequencies)
    truth = GridEngine(frequencies, 300, dtype=F64).moments(natural.double()).rotation
    found = torch.stack([long_estimate(row, engine, n_draws=1 << 15) for row in natural])
    assert relative_error(found, truth) < 2e-3
    assert relative_error(0.9 * truth, truth) > 0.09


def two_hills(natural, frequencies):
    """Keep the planes for which s and s + (π, …, π) are equally probable."""
    return natural * (frequencies.sum(dim=1) % 2 == 0)[None, :, None]


LATTICES = [(1, 6, 1500), (2, 24, 250), (3, 10, 64)]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("torus_dim", "n_irreps", "n_grid"), LATTICES)
def test_moments_are_right_to_a_hundredth(torus_dim, n_irreps, n_grid, scale):
    frequencies, known = own_naturals(torus_dim, n_irreps, 4)
    rough = 4 * torch.randn(4, n_irreps, 2, generator=torch.Generator().manual_seed(3))
    for natural in (known, two_hills(known, frequencies), rough):
        natural = scale * natural.double()
        log_partition, rotation = brute_force(natural, frequencies, n_grid)
        for dtype in (F64, torch.float32):
            found = SamplingEngine(frequencies, dtype=dtype).moments(natural.to(dtype))
            error = (found.rotation.double() - rotation).flatten(1).norm(dim=1) / rotation.flatten(1).norm(dim=1)
            assert float(error.mean()) < 0.01
            assert float(error.max()) < 0.025
            assert_close(found.log_partition.double(), log_partition, atol=2e-2, rtol=1e-4)


def test_the_lattice_of_the_paper_on_the_3_torus():
    frequencies, natural = own_naturals(3, 128, 2)
    truth = GridEngine(frequencies, 110, dtype=F64).moments(natural.double())
    found = SamplingEngine(frequencies).moments(natural)
    assert relative_error(found.rotation, truth.rotation) < 0.003
    assert_close(found.log_partition.double(), truth.log_partition, atol=0.02, rtol=0)


@pytest.mark.parametrize(("scale", "n_grid"), [(0.01, 30), (0.1, 36), (1.0, 64)])
def test_four_transformations_agree_with_brute_force(scale, n_grid):
    frequencies, natural = own_naturals(4, 128, 1)
    truth = GridEngine(frequencies, n_grid).moments(scale * natural).rotation
    found = SamplingEngine(frequencies).moments(scale * natural).rotation
    assert relative_error(found, truth.double()) < 0.01


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("torus_dim", [4, 6])
def test_many_transformations_agree_with_independent_draws(torus_dim, scale):
    frequencies, natural = own_naturals(torus_dim, 128, 3)
    engine, natural = SamplingEngine(frequencies), scale * natural
    truth = torch.stack([long_estimate(row, engine) for row in natural])
    assert relative_error(engine.moments(natural).rotation, truth) < 0.01
    assert float(engine.effective_sample_size(natural).min()) > 100


@pytest.mark.parametrize("kernel", [*runnable(), "torch"])
@pytest.mark.parametrize("scale", [0.02, 0.05, 0.1, 1.0])
@pytest.mark.parametrize(("torus_dim", "n_irreps"), [(2, 25), (3, 60), (5, 60)])
def test_every_kernel_agrees_with_double_precision(kernel, scale, torus_dim, n_irreps):
    frequencies, natural = own_naturals(torus_dim, n_irreps, 5)
    single, double = SamplingEngine(frequencies, kernel=kernel), SamplingEngine(frequencies, dtype=F64)
    assert single.kernel == kernel
    natural = torch.cat((scale * natural, two_hills(scale * natural, frequencies)))
    found, truth = single.moments(natural), double.moments(natural.double())
    # Where they climb to a mode a little differently, the draws differ: both are right to a thousandth or two.
    assert_close(found.rotation.double(), truth.rotation, atol=5e-3, rtol=0)
    assert_close(found.log_partition.double(), truth.log_partition, atol=2e-2, rtol=0)
    sizes = single.effective_sample_size(natural).double(), double.effective_sample_size(natural.double())
    assert_close(*sizes, rtol=0.2, atol=0)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_shifting_the_pose_turns_the_moments(dtype):
    """P(s - t) has the moments R(t)R̄, whatever the points."""
    frequencies, natural = own_naturals(4, 50, 4)
    engine = SamplingEngine(frequencies, dtype=dtype)
    shift = torus.phases(frequencies, torch.tensor([0.3, -2.0, 1.1, 3.0], dtype=dtype)).expand(4, -1)
    plain, shifted = engine.moments(natural.to(dtype)), engine.moments(torus.rotate(natural.to(dtype), shift))
    assert_close(shifted.rotation, torus.rotate(plain.rotation, shift), atol=5e-3, rtol=0)
    assert_close(shifted.log_partition, plain.log_partition, atol=2e-2, rtol=0)


@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0])
def test_the_slope_of_the_log_partition_is_the_mean_rotation(scale):
    """∂ ln Z / ∂η = E[T(s)], and the fixed points make ln Z smooth enough for differences."""
    frequencies, natural = own_naturals(3, 12, 2)
    natural, engine, step = scale * natural.double(), SamplingEngine(frequencies, dtype=F64), 1e-4
    rotation = engine.moments(natural).rotation
    for plane, part in ((1, 0), (4, 1), (11, 0)):
        nudge = torch.zeros_like(natural)
        nudge[:, plane, part] = step
        difference = engine.log_partition(natural + nudge) - engine.log_partition(natural - nudge)
        assert_close(difference / (2 * step), rotation[:, plane, part], atol=0.02, rtol=0)


def test_it_repeats_exactly_and_rows_do_not_influence_each_other():
    frequencies, natural = own_naturals(4, 128, 6)
    first, second = SamplingEngine(frequencies), SamplingEngine(frequencies)
    assert first.moments(natural).rotation.equal(second.moments(natural).rotation)
    alone = torch.cat([first.moments(row[None]).rotation for row in natural])
    assert_close(first.moments(natural).rotation, alone, atol=1e-5, rtol=0)


def test_repeated_and_missing_frequencies_count():
    """Planes that share ω add up; ω without a neighbour nearer to 0 gets its wave through steps between."""
    frequencies = torch.tensor([[0, 0, 0], [1, -1, 0], [1, -1, 0], [0, 3, 1], [-1, 0, 2], [0, 1, 0], [0, 0, 1]])
    natural = 3 * torch.randn(4, 7, 2, generator=torch.Generator().manual_seed(0))
    log_partition, rotation = brute_force(natural.double(), frequencies, 60)
    found = SamplingEngine(frequencies).moments(natural)
    assert_close(found.rotation.double(), rotation, atol=0.02, rtol=0)
    assert_close(found.log_partition.double(), log_partition, atol=0.02, rtol=0)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_ridge_all_around_the_torus_is_not_counted_twice(dtype):
    """A von Mises density along one axis, flat along the others: the cloud reaches around the torus and beyond."""
    frequencies, concentration = half_lattice(3, 10), torch.tensor(20.0, dtype=F64)
    centres = torch.linspace(0, 6, 20, dtype=F64)
    natural = torch.zeros(20, 10, 2, dtype=F64)
    natural[:, 0] = concentration * torus.features(centres)  # ω = (1, 0, 0)
    found = SamplingEngine(frequencies, dtype=dtype).moments(natural.to(dtype))
    log_bessel = concentration + torch.special.i0e(concentration).log()
    error = (found.log_partition.double() - log_bessel - 3 * math.log(2 * math.pi)).abs()
    assert float(error.mean()) < 0.03
    assert float(error.max()) < 0.06
    ratio = torch.special.i1e(concentration) / torch.special.i0e(concentration)
    assert_close(found.rotation[:, 0].double(), ratio * torus.features(centres), atol=0.01, rtol=0)
    around = found.rotation[:, frequencies[:, 1:].any(dim=1)]
    assert float(around.abs().max()) < 0.06


def test_modes_are_found_without_a_grid():
    frequencies, natural = own_naturals(4, 128, 20)
    rng = torch.Generator().manual_seed(0)
    peaks, values, _ = SamplingEngine(frequencies, dtype=F64).modes(natural.double(), 4)
    scattered = 2 * math.pi * torch.rand(20_000, 4, generator=rng, dtype=F64)
    features = torus.features(torus.phases(frequencies, scattered)).flatten(1)
    assert (values.amax(dim=1) >= (natural.double().flatten(1) @ features.T).amax(dim=1)).all()
    assert_close(values[:, 0], pose_log_density(natural.double(), frequencies, peaks[:, 0]))


def test_the_effective_sample_size_tells_flat_from_sharp():
    frequencies, natural = own_naturals(3, 40, 4)
    engine = SamplingEngine(frequencies)
    flat = engine.effective_sample_size(0 * natural)
    assert_close(flat, torch.full((4,), float(engine.n_even)), rtol=1e-5, atol=0)  # a sum of 2,048 floats
    sharp = engine.effective_sample_size(10 * natural)
    assert ((sharp > 0.6 * engine.n_cloud) & (sharp < engine.n_cloud)).all()


@pytest.mark.parametrize("torus_dim", [1, 2, 3, 5])
def test_points_are_spread_evenly(torus_dim):
    even, cloud = even_points(256, torus_dim), cloud_points(256, torus_dim)
    for axis in range(torus_dim):
        assert_close(even[:, axis].sort().values, torch.arange(256, dtype=F64) / 256)
    assert len(cloud) == 255
    assert cloud.isfinite().all()
    mirrored = torch.cdist(cloud, -cloud).amin(dim=1)
    assert float(mirrored.max()) < 1e-6


def test_inference_finds_shapes_and_poses_in_four_dimensions():
    model, images = own_images(4, n_irreps=60)
    engine = make_engine("auto", model.frequencies)
    codes = infer_codes(model, images, engine)
    poses = map_poses(model, images, codes, engine)
    assert (codes.argmax(dim=1) == torch.arange(100) % 10).all()
    error = (images - reconstruct(model, codes, poses)).square().sum(dim=1)
    assert float(error.mean()) < 0.2  # the noise alone is 0.08, at a wrong pose it is about 1


def test_a_model_of_three_transformations_draws_images():
    model, _ = own_images(3, n_irreps=30)
    drawn, inference = LieSparseCoder.from_model(model, (28, 28), random_state=0).sample(200)
    assert drawn.shape == (200, 28, 28)
    assert abs(inference.poses.mean(axis=0)).max() < 0.5  # uniform over [-π, π]
    assert_close(torch.tensor(inference.poses.std(axis=0)), torch.full((3,), math.pi / math.sqrt(3)), rtol=0.1, atol=0)


def test_auto_is_what_it_was_up_to_two_transformations():
    for torus_dim, kind in ((1, AdaptiveEngine), (2, AdaptiveEngine), (3, SamplingEngine), (6, SamplingEngine)):
        assert type(make_engine("auto", half_lattice(torus_dim, 20))) is kind
    frequencies, natural = own_naturals(2, 40, 3)
    chosen, adaptive = make_engine("auto", frequencies), make_engine("adaptive", frequencies)
    assert chosen.moments(natural).rotation.equal(adaptive.moments(natural).rotation)


def test_learning_with_three_transformations_gets_better():
    shapes = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(2))
    rng = torch.Generator().manual_seed(0)
    images = translations_rotations(300, max_shift=0.8, max_degrees=20, sources=shapes, generator=rng).images
    start = random_start(64, n_components=3, n_irreps=20, torus_dim=3, include_zero=True, generator=rng)
    settings = Settings(n_epochs=4, batch_size=30, posterior="auto", method="em", first_memory=33.0, last_memory=33.0)
    learned = learn(start, images, settings, generator=rng)
    engine = make_engine("auto", start.frequencies)

    def snr(model):
        codes = infer_codes(model, images, engine)
        return float(
            1 / (images - reconstruct(model, codes, map_poses(model, images, codes, engine))).square().sum(1).mean()
        )

    assert snr(learned) > 3 * snr(start)


def test_the_posterior_as_an_object_uses_draws_where_a_cube_would_be_too_fine():
    frequencies, natural = own_naturals(3, 40, 2)
    posterior = TorusPosterior(natural, frequencies)
    assert isinstance(posterior._engine, SamplingEngine)
    grid = GridEngine(frequencies, 110, dtype=F64)
    points, weights = grid.points, torch.softmax(grid.values(natural.double()), dim=1)
    mean = torch.atan2(weights @ points.sin(), weights @ points.cos())
    apart = torus.wrap(points - mean[:, None])
    covariance = torch.einsum("bp,bpi,bpj->bij", weights, apart, apart)
    assert_close(torus.wrap(posterior.mean - mean), torch.zeros_like(mean), atol=1e-3, rtol=0)
    assert_close(posterior.cov, covariance, rtol=0.05, atol=1e-4)
    assert_close(posterior.log_partition, grid.log_partition(natural.double()), atol=1e-2, rtol=0)
    drawn = posterior.sample(2000, generator=torch.Generator().manual_seed(0))
    apart = torus.wrap(drawn - mean[:, None])
    assert_close(torch.einsum("bki,bkj->bij", apart, apart) / 2000, covariance, rtol=0.2, atol=3e-4)
    assert len(drawn[0].unique(dim=0)) > 1500  # not the draws themselves
    away = torus.wrap(points - posterior.mode[:, None]).norm(dim=2)
    inside = (weights * (away <= 0.15)).sum(dim=1)
    assert_close(posterior.credible_mass(0.15), inside, rtol=0.1, atol=0.02)
    marginal, axis = posterior.marginal(1, 60), posterior.axis(60)
    assert_close(marginal.sum(dim=1) * (2 * math.pi / 60), torch.ones(2, dtype=F64), atol=1e-3, rtol=0)
    assert_close(torch.atan2(marginal @ axis.sin(), marginal @ axis.cos()), mean[:, 1], atol=5e-3, rtol=0)


def test_wrong_counts_and_too_many_axes_are_refused():
    with pytest.raises(ValueError, match="n_even: expected a power of 2, got 1000"):
        SamplingEngine(half_lattice(3, 10), n_even=1000)
    with pytest.raises(ValueError, match="n_cloud: expected a whole number >= 32"):
        SamplingEngine(half_lattice(3, 10), n_cloud=8)
    with pytest.raises(ValueError, match="at most 6 torus axes, got 7"):
        SamplingEngine(half_lattice(7, 7))
