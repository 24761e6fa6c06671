"""Laws of the Stiefel manifold and of the steps on it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from liesparse import stiefel

seeds = st.integers(0, 10_000)
metrics = st.sampled_from(stiefel.METRICS)


def point_and_gradient(seed, rows=12, columns=6):
    rng = torch.Generator().manual_seed(seed)
    point = stiefel.random_point(rows, columns, generator=rng, dtype=torch.float64)
    return point, torch.randn(rows, columns, generator=rng, dtype=torch.float64)


@given(seed=seeds, metric=metrics)
def test_tangent_is_tangent(seed, metric):  # WᵀU + UᵀW = 0
    point, gradient = point_and_gradient(seed)
    inner = point.T @ stiefel.tangent(point, gradient, metric)
    assert_close(inner, -inner.T)


@given(seed=seeds, metric=metrics)
def test_symmetric_normal_part_vanishes(seed, metric):  # the term W·E[RuuᵀRᵀ] of the W gradient
    point, gradient = point_and_gradient(seed)
    symmetric = gradient.T @ gradient
    with_normal = stiefel.tangent(point, gradient + point @ symmetric, metric)
    assert_close(with_normal, stiefel.tangent(point, gradient, metric))


@given(seed=seeds, metric=metrics, rate=st.floats(0, 3))
def test_step_stays_on_the_manifold_and_momentum_stays_tangent(seed, metric, rate):
    point, gradient = point_and_gradient(seed)
    state = stiefel.AdamState.zero(point)
    for _ in range(3):
        point, state = stiefel.adam_step(point, gradient, state, rate=rate, metric=metric)
    assert stiefel.orthonormality_error(point) < 1e-10
    inner = point.T @ state.momentum
    assert_close(inner, -inner.T, atol=1e-8, rtol=0)


@given(seed=seeds, metric=metrics)
def test_step_goes_downhill(seed, metric):
    point, gradient = point_and_gradient(seed)
    moved, _ = stiefel.adam_step(point, gradient, stiefel.AdamState.zero(point), rate=1e-3, metric=metric)
    assert float((gradient * (moved - point)).sum()) < 0


@pytest.mark.slow
@pytest.mark.parametrize("metric", stiefel.METRICS)
def test_ten_thousand_float32_steps_do_not_drift(metric):
    rng = torch.Generator().manual_seed(0)
    point = stiefel.random_point(64, 24, generator=rng)
    state = stiefel.AdamState.zero(point)
    target = torch.randn(64, 24, generator=rng)
    for _ in range(10_000):
        gradient = target + torch.randn(64, 24, generator=rng)
        point, state = stiefel.adam_step(point, gradient, state, rate=0.3, metric=metric)
    assert point.dtype == torch.float32
    assert stiefel.orthonormality_error(point) < 1e-5


def test_arguments_are_left_alone():
    point, gradient = point_and_gradient(3)
    kept = point.clone(), gradient.clone()
    stiefel.adam_step(point, gradient, stiefel.AdamState.zero(point), rate=0.5)
    assert point.equal(kept[0])
    assert gradient.equal(kept[1])
