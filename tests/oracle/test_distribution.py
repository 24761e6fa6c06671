"""The posterior as an object, against brute force on a dense grid and against the von Mises distribution."""

import math

import pytest
import torch
from torch.testing import assert_close

from liesparse import torus
from liesparse.lattice import half_lattice
from liesparse.posterior import TorusPosterior

F64 = torch.float64
N_DENSE = {1: 4000, 2: 400, 3: 60}


def random_posterior(torus_dim, seed=0, sharpness=3.0, n_irreps=7, batch=3):
    rng = torch.Generator().manual_seed(seed)
    natural = sharpness * torch.randn(batch, n_irreps, 2, generator=rng, dtype=F64)
    return TorusPosterior(natural, half_lattice(torus_dim, n_irreps, include_zero=True))


def brute_force(posterior):
    """All grid points of a dense grid from -π and their probabilities."""
    axis = (
        torch.arange(N_DENSE[posterior.torus_dim], dtype=F64) * (2 * math.pi / N_DENSE[posterior.torus_dim]) - math.pi
    )
    points = torch.cartesian_prod(*[axis] * posterior.torus_dim).reshape(-1, posterior.torus_dim)
    angles = points @ posterior.frequencies.double().T
    cos, sin = angles.cos(), angles.sin()
    values = posterior.natural[..., 0] @ cos.T + posterior.natural[..., 1] @ sin.T
    return points, torch.softmax(values, dim=1), values


@pytest.mark.parametrize("torus_dim", [1, 2, 3])
def test_integrals_agree_with_brute_force(torus_dim):
    posterior = random_posterior(torus_dim, sharpness={1: 3.0, 2: 6.0, 3: 12.0}[torus_dim])
    points, weights, values = brute_force(posterior)
    cell = (2 * math.pi / N_DENSE[torus_dim]) ** torus_dim
    mean = torch.atan2(weights @ points.sin(), weights @ points.cos())
    length = ((weights @ points.sin()).square() + (weights @ points.cos()).square()).sqrt()
    apart = torus.wrap(points - mean[:, None])
    assert_close(posterior.log_partition, values.logsumexp(dim=1) + math.log(cell))
    assert_close(posterior.mean, mean)
    assert_close(posterior.width, (-2 * length.log()).sqrt())
    loose = {"rtol": 0.02, "atol": 2e-3}  # the seam opposite the mean is a jump for both grids
    assert_close(posterior.cov, torch.einsum("bp,bpi,bpj->bij", weights, apart, apart), **loose)
    assert_close(posterior.entropy, -(weights * (weights / cell).log()).sum(dim=1))
    away = torus.wrap(points - posterior.mode[:, None]).norm(dim=2)
    for radius in (0.3, 1.0):
        assert_close(posterior.credible_mass(radius), (weights * (away <= radius)).sum(dim=1), rtol=0.04, atol=4e-3)
    assert (values.amax(dim=1) <= posterior.log_prob(posterior.mode) + posterior.log_partition + 1e-9).all()


@pytest.mark.parametrize("sharpness", [1.0, 300.0])
def test_one_plane_is_the_von_mises_distribution(sharpness):
    concentration, centre = torch.tensor(sharpness, dtype=F64), 0.7
    natural = concentration * torch.tensor([[[math.cos(centre), math.sin(centre)]]], dtype=F64)
    posterior = TorusPosterior(natural, half_lattice(1, 1))
    ratio = torch.special.i1e(concentration) / torch.special.i0e(concentration)
    log_partition = math.log(2 * math.pi) + torch.special.i0e(concentration).log() + concentration
    assert_close(posterior.log_partition, log_partition[None])
    assert_close(posterior.mean, torch.full((1, 1), centre, dtype=F64))
    assert_close(posterior.width, (-2 * ratio.log()).sqrt().view(1, 1))
    assert_close(posterior.entropy, (log_partition - concentration * ratio)[None])
    assert_close(posterior.mode, torch.full((1, 1), centre, dtype=F64))
    assert_close(posterior.log_prob(torch.tensor([centre])), (concentration - log_partition)[None])


@pytest.mark.parametrize("torus_dim", [1, 2])
def test_density_and_marginals_are_those_of_log_prob(torus_dim):
    posterior = random_posterior(torus_dim, sharpness=4.0)
    density, axis = posterior.density(64), posterior.axis(64)
    assert float(axis[0]) == -math.pi
    points = torch.cartesian_prod(*[axis] * torus_dim).reshape(-1, torus_dim)
    assert_close(density.flatten(1), posterior.log_prob(points.expand(len(posterior), -1, -1)).exp())
    for place in range(torus_dim):
        others = [other + 1 for other in range(torus_dim) if other != place]
        expected = posterior.density(256).sum(dim=others) * (2 * math.pi / 256) ** len(others) if others else density
        expected = expected[:, ::4] if others else expected
        assert_close(posterior.marginal(place, 64), expected)


def test_modes_are_distinct_maxima_in_falling_order():
    natural = torch.zeros(1, 4, 2, dtype=F64)
    natural[0, :, 0] = torch.tensor([0.5, 20.0, 0.0, 0.0])  # cos s + 40 cos 2s: a high mode at 0, a lower one at π
    posterior = TorusPosterior(natural, half_lattice(1, 4))
    poses, log_prob = posterior.modes(3)
    assert_close(poses[0, :2, 0].abs(), torch.tensor([0.0, math.pi], dtype=F64), rtol=0, atol=1e-6)
    assert_close(log_prob[0, 0] - log_prob[0, 1], torch.tensor(1.0, dtype=F64))
    assert poses[0, 2].isnan().all()
    assert log_prob[0, 2] == -math.inf


@pytest.mark.parametrize(("torus_dim", "sharpness"), [(1, 2.0), (2, 2.0), (2, 40.0)])
def test_samples_follow_the_density(torus_dim, sharpness):
    posterior = random_posterior(torus_dim, sharpness=sharpness)
    poses = posterior.sample(20_000, generator=torch.Generator().manual_seed(1))
    assert poses.abs().max() <= math.pi
    cos, sin = poses.cos().mean(dim=1), poses.sin().mean(dim=1)
    drawn_width = (-2 * (cos.square() + sin.square()).sqrt().log()).sqrt()
    assert_close(drawn_width, posterior.width, rtol=0.03, atol=0)
    assert_close(posterior.log_prob(poses).mean(dim=1), -posterior.entropy, rtol=0, atol=0.03)
    again = posterior.sample(20_000, generator=torch.Generator().manual_seed(1))
    assert again.equal(poses)


def test_a_part_of_the_batch_is_a_posterior_too():
    posterior = random_posterior(2)
    assert len(posterior[1]) == len(posterior[-1]) == 1
    assert len(posterior[:2]) == 2
    assert_close(posterior[1].mode, posterior.mode[1:2], rtol=0, atol=1e-6)
    assert_close(posterior[-1].entropy, posterior.entropy[-1:])
    assert "3 image(s)" in repr(posterior)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda posterior: posterior.modes(0), "k: expected a whole number >= 1"),
        (lambda posterior: posterior.credible_mass(0.0), "radius: expected a finite number > 0"),
        (lambda posterior: posterior.marginal(2), "axis: expected 0 <= axis < torus_dim = 2"),
        (lambda posterior: posterior.log_prob(torch.zeros(4, 2)), "poses: expected shape"),
        (lambda posterior: posterior.log_prob(torch.zeros(3)), "poses: expected shape"),
        (lambda posterior: TorusPosterior(posterior.natural / 0, posterior.frequencies), "natural: expected finite"),
        (lambda posterior: TorusPosterior(posterior.natural[:, :3], posterior.frequencies), "natural: expected shape"),
    ],
)
def test_wrong_use_gives_a_readable_error(call, message):
    with pytest.raises(ValueError, match=message):
        call(random_posterior(2))


def test_a_density_that_no_memory_holds_is_refused():
    posterior = random_posterior(4, batch=2)
    assert posterior.density(6).shape == (2, 6, 6, 6, 6)
    with pytest.raises(ValueError, match=r"at most 134,217,728 points, got 200,000,000 .* Use marginal, or a smaller"):
        posterior.density()
