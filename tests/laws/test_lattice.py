"""Laws of the half lattice [Chau20, sec. 3.1]."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liesparse.lattice import energy_basis, fitted_lattice, half_lattice

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


def energy_of(frequencies, spread):
    """Return a Gaussian energy with the given matrix of variances."""
    omega = frequencies.double()
    return torch.exp(-0.5 * ((omega @ torch.linalg.inv(spread)) * omega).sum(dim=1))


def test_a_lattice_is_fitted_to_the_ellipse_of_the_energy():
    disc = half_lattice(2, 128, include_zero=True)
    energy = energy_of(disc, torch.tensor([[40.0, 0.0], [0.0, 2.0]]).double())
    fitted = fitted_lattice(disc, energy, most_copies=10)
    moving = disc[1:].double()
    spread = (moving.T * energy[1:]) @ moving / energy[1:].sum()
    square = [(p, q) for p in range(40) for q in range(-40, 41) if p > 0 or q >= 0]
    distance = ((torch.tensor(square).double() @ torch.linalg.inv(spread)) * torch.tensor(square)).sum(dim=1)
    nearest = {square[i] for i in distance.argsort()[:128].tolist()}
    assert {tuple(omega) for omega in fitted.tolist()} == nearest
    stays = (fitted == disc).all(dim=1)
    assert all(tuple(omega) not in nearest for omega in disc[~stays].tolist())


def test_a_lattice_that_fits_stays_as_it_is():
    disc = half_lattice(2, 128, include_zero=True)
    round_energy = energy_of(disc, 9.0 * torch.eye(2).double())
    assert fitted_lattice(disc, round_energy, most_copies=10).equal(disc)
    assert fitted_lattice(disc, torch.zeros(128), most_copies=10).equal(disc)


def test_few_frequencies_with_energy_are_repeated_up_to_the_number_of_shapes():
    coarse = half_lattice(1, 128, multiplicity=21, include_zero=True)
    fitted = fitted_lattice(coarse, energy_of(coarse, torch.tensor([[6.0]]).double()), most_copies=5)
    _, counts = fitted.unique(dim=0, return_counts=True)
    assert counts.max() == 5
    assert fitted.max() == 25
    low = half_lattice(2, 128, include_zero=True)
    fitted = fitted_lattice(low, energy_of(low, torch.eye(2).double()), most_copies=10)
    assert fitted.unique(dim=0, return_counts=True)[1].max() > 1


def test_a_lattice_that_nearly_fits_is_changed_in_a_few_planes():
    disc = half_lattice(2, 128, include_zero=True)
    energy = energy_of(disc, torch.tensor([[10.0, 0.0], [0.0, 8.0]]).double())
    fitted = fitted_lattice(disc, energy, most_copies=10)
    assert 0 < int((fitted != disc).any(dim=1).sum()) < 12
    assert len(fitted.unique(dim=0)) == 128
    held = energy + 0.5 * energy.mean()  # as noise has it: what is given up holds nearly as much as other planes
    assert fitted_lattice(disc, held, most_copies=10).equal(disc)


def test_planes_of_most_energy_keep_their_frequency():
    coarse = half_lattice(1, 12, multiplicity=6)
    energy = torch.arange(12.0)
    fitted = fitted_lattice(coarse, energy, most_copies=2)
    assert fitted[[4, 5, 10, 11]].equal(coarse[[4, 5, 10, 11]])
    assert not (fitted[[0, 1, 2, 3]] == coarse[[0, 1, 2, 3]]).any()


@given(
    turns=st.integers(2, 5),
    slant=st.integers(0, 4),
    spread=st.floats(3.0, 8.0),
)
def test_a_pose_that_is_a_fraction_of_itself_turns_as_fast_as_it_can(turns, slant, spread):
    """Energy on a coarser lattice: its basis is found, up to the choice of one."""
    truth = torch.tensor([[turns, slant % turns], [0, 1]]).double()
    disc = half_lattice(2, 600, include_zero=True)
    coords = torch.linalg.solve(truth, disc.T.double()).T
    inside = (coords - coords.round()).abs().amax(dim=1) < 1e-6
    energy = torch.exp(-0.5 * coords.square().sum(dim=1) / spread) * (inside + 0.05)
    basis = energy_basis(disc, energy).double()
    assert abs(int(torch.linalg.det(basis).round())) == turns
    between = torch.linalg.solve(truth, basis)
    torch.testing.assert_close(between, between.round())


def test_smooth_energy_has_no_coarser_lattice():
    disc = half_lattice(2, 128, include_zero=True)
    for spread in ([[9.0, 0.0], [0.0, 9.0]], [[30.0, 0.0], [0.0, 0.3]], [[0.4, 0.0], [0.0, 0.4]]):
        energy = energy_of(disc, torch.tensor(spread).double())
        assert int(torch.linalg.det(energy_basis(disc, energy).double()).abs().round()) == 1
    assert energy_basis(disc, torch.zeros(128)).equal(torch.eye(2, dtype=torch.int64))


def test_a_slanted_basis_is_made_short():
    wide = half_lattice(2, 1000, include_zero=True)
    shear = torch.tensor([[1.0, 3.0], [0.0, 1.0]]).double()
    energy = energy_of(wide, shear @ (4.0 * torch.eye(2).double()) @ shear.T)
    coords = torch.linalg.solve(energy_basis(wide, energy).double(), wide.T.double()).T
    spread = (coords.T * energy) @ coords / energy.sum()
    assert abs(float(spread[0, 1])) < 0.51 * float(spread.diagonal().min())
