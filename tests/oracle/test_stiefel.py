"""Riemannian Adam against geoopt, step by step on the same gradients."""

import warnings

import pytest
import torch
from torch.testing import assert_close

from liesparse import stiefel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import geoopt

F64 = torch.float64


@pytest.mark.parametrize("metric", stiefel.METRICS)
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_steps_agree_with_geoopt(metric, rate):
    rng = torch.Generator().manual_seed(1)
    point = stiefel.random_point(20, 8, generator=rng, dtype=torch.float64)
    manifold = geoopt.Stiefel(canonical=metric == "canonical")
    parameter = geoopt.ManifoldParameter(point.clone(), manifold=manifold)
    optimizer = geoopt.optim.RiemannianAdam([parameter], lr=rate)
    state = stiefel.AdamState.zero(point)
    target = torch.randn(20, 8, generator=rng, dtype=torch.float64)
    for _ in range(40):
        gradient = point - target + 0.3 * torch.randn(20, 8, generator=rng, dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step()
        point, state = stiefel.adam_step(point, gradient, state, rate=rate, metric=metric)
        assert_close(point, parameter.detach().as_subclass(torch.Tensor), rtol=0, atol=1e-9)
    assert_close(state.momentum, optimizer.state[parameter]["exp_avg"].as_subclass(torch.Tensor), rtol=0, atol=1e-9)


def test_orthonormalize_is_qr_with_positive_diagonal():
    matrix = torch.randn(9, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    q = stiefel.orthonormalize(matrix)
    assert stiefel.orthonormality_error(q) < 1e-12
    r = q.T @ matrix
    assert_close(r, r.triu())
    assert (r.diagonal() > 0).all()


def test_polar_leaves_what_nothing_is_said_about():
    rng = torch.Generator().manual_seed(0)
    near = stiefel.polar(torch.randn(12, 5, generator=rng, dtype=F64))
    full = torch.randn(12, 5, generator=rng, dtype=F64)
    assert_close(stiefel.polar(full, near), stiefel.polar(full))
    silent = torch.nn.functional.normalize(torch.randn(5, generator=rng, dtype=F64), dim=0)
    deficient = full - torch.outer(full @ silent, silent)
    # A hundred times what rounding leaves in the silent direction, and still nothing: it must not decide.
    noise = [1e-13 * torch.randn(12, 5, generator=rng, dtype=F64) for _ in range(2)]
    first, second = (stiefel.polar(deficient + part, near) for part in noise)
    assert_close(first, second, atol=1e-5, rtol=0)
    assert stiefel.orthonormality_error(first) < 1e-12
    assert float((first * deficient).sum()) > float((stiefel.polar(deficient) * deficient).sum()) - 1e-5
    assert float(near @ silent @ (first @ silent)) > 0  # the silent direction goes where it was
    assert float((stiefel.polar(deficient + noise[0]) - stiefel.polar(deficient + noise[1])).abs().max()) > 0.1
