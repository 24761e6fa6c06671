"""The integer frequencies ω of the torus representation [Chau20, sec. 3.1]."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse._checks import check_count

REACH = 3.0  # standard deviations of the energy over the frequencies that a lattice should hold
LEAST_VARIANCE = 0.25  # along any direction, so that no direction is left without frequencies
LEAST_CHANGE = 0.1  # share of the planes below which a lattice is left as it is


def half_lattice(
    torus_dim: int, n_irreps: int, *, multiplicity: int = 1, include_zero: bool = False
) -> Int[Tensor, "irrep torus"]:
    """Return the first ``n_irreps`` integer frequencies, one of each pair ±ω [Chau20, sec. 3.1].

    Of ω and -ω the one whose first non-zero entry is positive is kept. The list is sorted by
    ‖ω‖₂; frequencies of equal norm are ordered lexicographically, largest first.

    Parameters
    ----------
    torus_dim : int
        Dimension of the torus (paper: n).
    n_irreps : int
        How many frequencies to return, repetitions counted (paper: L).
    multiplicity : int, default=1
        How often each frequency is repeated (paper: m).
    include_zero : bool, default=False
        Whether ω = 0, the plane that never turns, comes first. The paper's rule is silent about
        it; without it, shapes cannot hide in a plane that does not move.
    """
    check_count("torus_dim", torus_dim)
    check_count("n_irreps", n_irreps)
    check_count("multiplicity", multiplicity)
    n_distinct = -(-n_irreps // multiplicity)
    radius = 1
    while len(ball := _half_ball(torus_dim, radius, include_zero)) < n_distinct:
        radius += 1
    ball.sort(key=lambda omega: (sum(entry * entry for entry in omega), tuple(-entry for entry in omega)))
    distinct = torch.tensor(ball[:n_distinct], dtype=torch.int64)
    return distinct.repeat_interleave(multiplicity, dim=0)[:n_irreps]


def _half_ball(torus_dim: int, radius: int, include_zero: bool) -> list[tuple[int, ...]]:
    """Every kept ω with ‖ω‖₂ <= radius; complete, so that sorting it gives a prefix of the lattice."""
    cube = itertools.product(range(-radius, radius + 1), repeat=torus_dim)
    return [
        omega
        for omega in cube
        if sum(entry * entry for entry in omega) <= radius * radius
        and next((entry > 0 for entry in omega if entry != 0), include_zero)
    ]


def fitted_lattice(
    frequencies: Int[Tensor, "irrep torus"], energies: Float[Tensor, " irrep"], *, most_copies: int
) -> Int[Tensor, "irrep torus"]:
    """Return for each plane its own frequency, or a new one where the data has more energy than at its own.

    The energies say how far the data reaches in each direction: C = the mean of ω ωᵀ, weighted by them. Wanted are
    the points of least ωᵀC⁻¹ω. Where fewer points than planes lie within the reach, each is repeated, up to
    ``most_copies`` times: as many copies as shapes hold all that one frequency can. The planes of most energy
    keep their frequency, if it is wanted; the others get what is missing.
    """
    n_irreps, torus_dim = frequencies.shape
    moving = (frequencies != 0).any(dim=1)
    omega, weight = frequencies[moving].double(), energies[moving].double()
    if not weight.sum() > 0:
        return frequencies
    variances, directions = torch.linalg.eigh((omega.T * weight) @ omega / weight.sum())
    deviations = variances.clamp(min=LEAST_VARIANCE).sqrt()

    def nearest(reach: float) -> list[tuple[int, ...]]:
        points = _half_ball(torus_dim, int(reach * float(deviations.amax())) + 1, not bool(moving.all()))
        distances = (torch.tensor(points).double() @ directions / deviations).norm(dim=1)  # squared: ωᵀC⁻¹ω
        return [points[i] for i in distances.argsort(stable=True).tolist() if distances[i] <= reach]

    copies = min(max(1, n_irreps // len(nearest(REACH))), most_copies)
    n_distinct, reach = -(-n_irreps // copies), REACH
    while len(wanted := nearest(reach)) < n_distinct:
        reach *= 1.25
    missing = [point for point in wanted[:n_distinct] for _ in range(copies)][:n_irreps]
    changed = []
    for plane in energies.argsort(descending=True, stable=True).tolist():
        own = tuple(frequencies[plane].tolist())
        if own in missing:
            missing.remove(own)
        else:
            changed.append(plane)
    if len(changed) < LEAST_CHANGE * n_irreps:
        return frequencies
    fitted = frequencies.clone()
    fitted[changed] = torch.tensor(missing)
    return fitted
