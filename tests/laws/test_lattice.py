"""Laws of the half lattice [Chau20, sec. 3.1]."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liesparse.lattice import half_lattice

dims = st.integers(1, 4)
counts = st.integers(1, 60)


@given(torus_dim=dims, n_irreps=counts, multiplicity=st.integers(1, 3), include_zero=st.booleans())
def test_never_both_signs_and_sorted_by_norm(torus_dim, n_irreps, multiplicity, include_zero):
    omega = half_lattice(torus_dim, n_irreps, multiplicity=multiplicity, include_zero=include_zero)
    assert omega.shape == (n_irreps, torus_dim)
    assert omega.dtype == torch.int64
    rows = [tuple(row) for row in omega.tolist()]
    assert all(tuple(-x for x in row) not in rows for row in rows if any(row))
    assert ((0,) * torus_dim in rows) == include_zero
    norms = omega.square().sum(dim=1)
    assert (norms.diff() >= 0).all()


@given(torus_dim=st.integers(1, 3), n_irreps=st.integers(1, 40))
def test_nothing_shorter_is_left_out(torus_dim, n_irreps):
    omega = half_lattice(torus_dim, n_irreps)
    kept = {tuple(row) for row in omega.tolist()}
    kept |= {tuple(-x for x in row) for row in kept}
    longest = int(omega.square().sum(dim=1).max())
    reach = range(-int(longest**0.5) - 1, int(longest**0.5) + 2)
    for candidate in itertools.product(reach, repeat=torus_dim):
        if 0 < sum(x * x for x in candidate) < longest:
            assert candidate in kept


@given(torus_dim=dims, n_irreps=counts, extra=st.integers(0, 20))
def test_a_longer_lattice_starts_with_the_shorter_one(torus_dim, n_irreps, extra):
    assert half_lattice(torus_dim, n_irreps + extra)[:n_irreps].equal(half_lattice(torus_dim, n_irreps))


@pytest.mark.parametrize("multiplicity", [2, 3])
def test_each_frequency_is_repeated_and_cut_to_length(multiplicity):
    omega = half_lattice(2, 7, multiplicity=multiplicity)
    single = half_lattice(2, 7)
    assert omega.equal(single.repeat_interleave(multiplicity, dim=0)[:7])


def test_the_first_frequencies_are_fixed():
    expected = [[1, 0], [0, 1], [1, 1], [1, -1], [2, 0], [0, 2], [2, 1], [2, -1], [1, 2], [1, -2]]
    assert half_lattice(2, 10).tolist() == expected
    assert half_lattice(1, 3).tolist() == [[1], [2], [3]]
    assert half_lattice(1, 3, include_zero=True).tolist() == [[0], [1], [2]]
