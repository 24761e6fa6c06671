"""Riemannian Adam against geoopt, step by step on the same gradients."""

import math
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


def spread(rows, columns, condition, dtype, seed=0):
    """Return a matrix whose singular values fall from 1 to 1 / condition."""
    rng = torch.Generator().manual_seed(seed)
    left = stiefel.random_point(rows, columns, generator=rng, dtype=F64)
    right = stiefel.random_point(columns, columns, generator=rng, dtype=F64)
    return (left * torch.logspace(0, -math.log10(condition), columns, dtype=F64) @ right).to(dtype)


def polar_by_svd(matrix):
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def column_error(found, expected):
    return float((found - expected).norm(dim=0).max())


@pytest.mark.parametrize("shape", [(60, 24), (40, 40), (5, 1), (784, 256)])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e5, 1e6, 1e7])
def test_polar_in_float32_is_at_least_as_exact_as_an_svd(shape, condition):
    matrix = spread(*shape, condition, torch.float32)
    found, expected = stiefel.polar(matrix), polar_by_svd(matrix.double())
    assert found.dtype == torch.float32
    assert stiefel.orthonormality_error(found.double()) < 4e-6
    assert column_error(found, expected) < 4e-6 + min(1e-11 * condition, column_error(polar_by_svd(matrix), expected))


@pytest.mark.parametrize("condition", [1.0, 1e5, 1e10])
def test_polar_in_float64_is_as_exact_as_an_svd(condition):
    matrix = spread(60, 24, condition, F64)
    found = stiefel.polar(matrix)
    assert stiefel.orthonormality_error(found) < 1e-13
    symmetric = found.T @ matrix  # H of M = WH, which is symmetric and has no negative eigenvalue
    assert_close(symmetric, symmetric.T, atol=1e-13, rtol=0)
    assert float(torch.linalg.eigvalsh(symmetric)[0]) > -1e-13
    assert_close(found @ symmetric, matrix, atol=1e-13, rtol=0)


def test_polar_is_orthonormal_where_sizes_come_in_three_steps():
    """One large size, many of a thirty thousandth and many of a thirty millionth: rounding in the second kind shows."""
    rng = torch.Generator().manual_seed(0)
    left, right = (stiefel.random_point(rows, 128, generator=rng, dtype=F64) for rows in (300, 128))
    sizes = torch.cat((torch.ones(1), torch.full((50,), 3e-5), torch.full((77,), 3e-8))).double()
    sizes = sizes * (1 + 0.3 * torch.rand(128, generator=rng, dtype=F64))
    found = stiefel.polar(((left * sizes) @ right.T).float())
    assert stiefel.orthonormality_error(found) < 2e-6


@pytest.mark.parametrize("size", [2.0**-80, 1.0, 2.0**80])
def test_polar_has_no_scale(size):
    matrix = spread(60, 24, 1e4, torch.float32)
    assert_close(stiefel.polar(size * matrix), stiefel.polar(matrix), atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_polar_listens_to_columns_of_little_energy(dtype):
    """Columns that are orthogonal but of any size are the polar factor, scaled."""
    basis = stiefel.random_point(60, 24, generator=torch.Generator().manual_seed(3), dtype=dtype)
    sizes = torch.logspace(0, -11, 24, dtype=dtype)  # too far apart for a Gram matrix
    assert_close(stiefel.polar(basis * sizes, basis.flip(1)), basis, atol=3e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("little", [1e-3, 1e-5, 1e-7, 1e-9])
def test_polar_of_many_columns_of_little_energy(dtype, little):
    matrix = torch.randn(60, 24, generator=torch.Generator().manual_seed(6), dtype=dtype)
    matrix[:, ::2] *= little
    found = stiefel.polar(matrix)
    assert stiefel.orthonormality_error(found) < 4e-6
    assert column_error(found, polar_by_svd(matrix.double())) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("silent", [[0], [3, 7]])
def test_polar_keeps_columns_without_energy_where_they_were(dtype, silent):
    rng = torch.Generator().manual_seed(4)
    near = stiefel.random_point(60, 24, generator=rng, dtype=dtype)
    matrix = near + 0.05 * torch.randn(60, 24, generator=rng, dtype=dtype)
    matrix[:, silent] = 0
    found = stiefel.polar(matrix, near)
    assert stiefel.orthonormality_error(found) < 4e-6
    assert float((found * near).sum(dim=0)[silent].min()) > 0.8
    loud = [column for column in range(24) if column not in silent]
    assert_close(found[:, loud], stiefel.polar(matrix[:, loud]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_polar_of_nothing_is_what_is_near(dtype):
    near = stiefel.random_point(12, 5, generator=torch.Generator().manual_seed(5), dtype=dtype)
    assert_close(stiefel.polar(torch.zeros(12, 5, dtype=dtype), near), near)
    assert stiefel.orthonormality_error(stiefel.polar(torch.zeros(12, 5, dtype=dtype))) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_polar_refuses_what_is_not_finite(dtype, bad):
    matrix = spread(12, 5, 10.0, dtype)
    matrix[3, 2] = bad
    with pytest.raises(RuntimeError, match="svd"):
        stiefel.polar(matrix)


def test_polar_in_float32_needs_no_svd_for_what_training_meets(monkeypatch):
    def unwanted(*_):
        raise AssertionError("an SVD was taken, which is slow")

    monkeypatch.setattr(stiefel, "_polar_by_svd", unwanted)
    for condition in (1.0, 1e3, 1e5, 1e6):
        stiefel.polar(spread(60, 24, condition, torch.float32))
