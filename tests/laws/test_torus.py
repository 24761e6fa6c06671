"""R(s) and T(s) are a group action of the torus [Chau20, eq. 1 and app. A]."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from liesparse import torus
from liesparse.lattice import half_lattice
from liesparse.model import apply_transform

seeds = st.integers(0, 10_000)
sizes = st.integers(1, 6)


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(batch=sizes, n_irreps=sizes, seed=seeds)
def test_rotation_is_a_group_action(batch, n_irreps, seed):  # R(s) R(t) = R(s + t), R(0) = 1
    planes, (s, t) = random(seed, batch, n_irreps, 2), random(seed + 1, 2, batch, n_irreps)
    assert_close(torus.rotate(torus.rotate(planes, t), s), torus.rotate(planes, s + t))
    assert_close(torus.rotate(planes, torch.zeros_like(s)), planes)


@given(n_irreps=sizes, torus_dim=st.integers(1, 3), seed=seeds)
def test_rotate_is_the_matrix_of_the_paper(rotation_matrix, n_irreps, torus_dim, seed):
    omega, pose = half_lattice(torus_dim, n_irreps), random(seed, torus_dim)
    matrix = rotation_matrix(omega, pose)
    planes = random(seed + 1, n_irreps, 2)
    assert_close(torus.rotate(planes, torus.phases(omega, pose)).flatten(), matrix @ planes.flatten())
    assert_close(matrix.T @ matrix, torch.eye(2 * n_irreps, dtype=torch.float64))
    assert_close(torch.linalg.det(matrix), torch.tensor(1.0, dtype=torch.float64))


@given(n_irreps=sizes, torus_dim=st.integers(1, 3), seed=seeds, axis=st.integers(0, 2), turns=st.integers(-3, 3))
def test_rotation_has_period_two_pi_on_every_axis(n_irreps, torus_dim, seed, axis, turns):
    omega, pose = half_lattice(torus_dim, n_irreps), random(seed, 1, torus_dim)
    shifted = pose.clone()
    shifted[0, axis % torus_dim] += 2 * math.pi * turns
    planes = random(seed + 1, 1, n_irreps, 2)
    expected = torus.rotate(planes, torus.phases(omega, pose))
    assert_close(torus.rotate(planes, torus.phases(omega, shifted)), expected, atol=1e-11, rtol=0)


@given(seed=seeds)
def test_transform_is_a_group_action_on_images(make_model, draw, seed):  # T(s) T(t) = T(s + t)
    model = make_model(seed)
    images, _, s = draw(model, seed=seed)
    t = random(seed, *s.shape)
    assert_close(apply_transform(model, apply_transform(model, images, t), s), apply_transform(model, images, s + t))


@given(seed=seeds)
def test_transform_at_zero_projects_on_the_span_of_w(make_model, draw, seed):
    model = make_model(seed)
    images, _, s = draw(model, seed=seed)
    projection = model.group_basis @ model.group_basis.T
    assert_close(apply_transform(model, images, torch.zeros_like(s)), images @ projection)


@given(seed=seeds)
def test_transform_keeps_lengths_inside_the_span(make_model, draw, seed):
    model = make_model(seed)
    images, _, s = draw(model, seed=seed)
    inside = apply_transform(model, images, torch.zeros_like(s))
    assert_close(apply_transform(model, images, s).norm(dim=1), inside.norm(dim=1))


@given(seed=seeds)
def test_complex_basis_diagonalizes_the_transform(make_model, draw, seed):  # eq. 2: T(s) = V exp(Σ(s)) Vᴴ
    model = make_model(seed)
    images, _, poses = draw(model, seed=seed)
    V = torus.complex_basis(model.group_basis)
    assert_close(V.mH @ V, torch.eye(2 * model.n_irreps, dtype=V.dtype))
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    weights = (torus.phases(model.frequencies, poses)[..., None] * signs).flatten(1)
    eigenvalues = torch.polar(torch.ones_like(weights), weights)
    moved = (images.to(V.dtype) @ V.conj() * eigenvalues) @ V.T
    assert_close(moved.imag, torch.zeros_like(moved.imag), atol=1e-12, rtol=0)
    assert_close(moved.real, apply_transform(model, images, poses))


@given(seed=seeds)
def test_mean_rotation_and_its_transpose_are_adjoint(seed):
    a, b, rotation = random(seed, 3, 4, 5, 2)
    left = (torus.apply_mean_rotation(a, rotation) * b).sum()
    right = (a * torus.apply_mean_rotation_transposed(b, rotation)).sum()
    assert_close(left, right)


@given(seed=seeds)
def test_wrap_changes_nothing_but_full_turns(seed):
    angles = 20 * random(seed, 50)
    wrapped = torus.wrap(angles)
    assert (wrapped >= -math.pi).all()
    assert (wrapped <= math.pi).all()  # π itself only by rounding
    assert_close(torus.features(wrapped), torus.features(angles), atol=1e-12, rtol=0)
