"""Plain sparse coding against scikit-learn, and as the limit of the full model [Chau20, app. E]."""

import math

import pytest
import torch
from sklearn.linear_model import Lasso
from torch.testing import assert_close

from liesparse import baselines, stiefel
from liesparse.baselines import SparseCodingSettings, dictionary_step, infer_sparse_codes, learn_sparse_coding
from liesparse.model import Parameters, log_prior_codes, uniform_prior
from liesparse.posterior import GridEngine, log_likelihood

F64 = torch.float64


def log_posterior(dictionary, images, codes, *, noise_std, sparsity):
    """Return ln P(I|α) + ln P(α): LSC's objective when T(s) is the identity [Chau20, app. E]."""
    log_prior = codes.shape[1] * math.log(sparsity) - sparsity * codes.sum(dim=1)
    return baselines.log_likelihood(dictionary, images, codes, noise_std=noise_std) + log_prior


def problem(seed=0, n_pixels=16, n_components=5, batch=6):
    rng = torch.Generator().manual_seed(seed)
    dictionary = torch.nn.functional.normalize(torch.randn(n_pixels, n_components, generator=rng, dtype=F64), dim=0)
    images = torch.rand(batch, n_components, generator=rng, dtype=F64) @ dictionary.T
    images += 0.1 * torch.randn(batch, n_pixels, generator=rng, dtype=F64)
    return dictionary, torch.nn.functional.normalize(images, dim=1), rng


def test_codes_are_the_positive_lasso():
    dictionary, images, _ = problem()
    codes = infer_sparse_codes(dictionary, images, noise_std=0.1, sparsity=10.0, n_code_steps=2000)
    lasso = Lasso(alpha=10.0 * 0.1**2 / 16, positive=True, fit_intercept=False, tol=1e-12, max_iter=100_000)
    expected = torch.tensor(lasso.fit(dictionary.numpy(), images.T.numpy()).coef_)
    assert_close(codes, expected, atol=1e-6, rtol=0)
    assert (codes == 0).any()


def test_objective_is_the_full_models_when_nothing_turns():
    """All ω = 0 and W square: T(s) is the identity and both objectives agree."""
    dictionary, images, rng = problem()
    model = Parameters(
        group_basis=stiefel.random_point(16, 16, generator=rng, dtype=F64),
        dictionary=dictionary,
        frequencies=torch.zeros(8, 2, dtype=torch.int64),
        noise_std=0.3,
        sparsity=4.0,
        pose_prior=uniform_prior(8, dtype=F64),
    )
    codes = torch.rand(6, 5, generator=rng, dtype=F64)
    engine = GridEngine(model.frequencies, 5, dtype=F64)
    full = log_likelihood(model, images, codes, engine) + log_prior_codes(model, codes)
    assert_close(full, log_posterior(dictionary, images, codes, noise_std=0.3, sparsity=4.0))


def test_codes_climb_to_the_maximum_of_the_objective():
    dictionary, images, rng = problem()
    kwargs = {"noise_std": 0.1, "sparsity": 10.0}
    codes = infer_sparse_codes(dictionary, images, n_code_steps=2000, **kwargs)
    best = log_posterior(dictionary, images, codes, **kwargs)
    for _ in range(50):
        other = (codes + 0.01 * torch.randn(codes.shape, generator=rng, dtype=F64)).clamp(min=0)
        assert (log_posterior(dictionary, images, other, **kwargs) <= best + 1e-9).all()


def test_dictionary_step_divides_by_the_mean_square_of_each_code():
    dictionary, images, rng = problem()
    codes = torch.rand(6, 5, generator=rng, dtype=F64)
    mean_square = torch.tensor([0.5, 0.1, 1.0, 0.0, 2.0], dtype=F64)
    found = dictionary_step(dictionary, images, codes, mean_square, SparseCodingSettings(noise_std=0.2), 0.03)
    leaf = dictionary.clone().requires_grad_()
    log_posterior(leaf, images, codes, noise_std=0.2, sparsity=1.0).mean().backward()
    for k in range(5):
        column = dictionary[:, k] + 0.03 * leaf.grad[:, k] / (mean_square[k] + 0.001)
        assert_close(found[:, k], column / column.norm())


@pytest.mark.slow
def test_learning_finds_the_parts_and_repeats():
    """Images of one or two disjoint bars: every bar ends as a column of the dictionary."""
    rng = torch.Generator().manual_seed(3)
    bars = torch.eye(4).repeat_interleave(4, dim=1) / 2
    codes = (torch.rand(400, 4, generator=rng) < 0.35) * torch.rand(400, 4, generator=rng)
    images = torch.nn.functional.normalize((codes @ bars)[codes.sum(dim=1) > 0.05], dim=1)
    settings = SparseCodingSettings(sparsity=2.0, n_epochs=30, batch_size=20)
    runs = [learn_sparse_coding(images, 8, settings, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    assert runs[0].equal(runs[1])
    likeness = (bars @ runs[0]).abs()
    assert likeness.amax(dim=1).min() > 0.97
    with pytest.raises(ValueError, match="norms off by"):
        learn_sparse_coding(3 * images, 4, settings, generator=rng)
