"""The integer frequencies ω of the torus representation [Chau20, sec. 3.1]."""

from __future__ import annotations

import itertools
import math
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from liesparse._checks import check_count

REACH = 3.0  # standard deviations of the energy over the frequencies that a lattice should hold
HELD, MARGIN = 0.99, 1.5  # and so many times as many frequencies as now hold this share of it
LEAST_VARIANCE = 0.25  # along any direction, so that no direction is left without frequencies
LEAST_CHANGE = 0.1  # share of the planes below which a lattice changes only where planes do not hold
IDLE = 0.1  # of the energy that would be theirs if all held the same
MOST_TURNS = 12  # a pose may turn so many times slower than it could; of more than two axes:
MOST_TURNS_OF_MANY = 4
STRAY_ENERGY = 0.4  # that may lie outside a coarser lattice, over what lies there if the energy is spread smoothly


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
    ordered = sorted(ball, key=lambda omega: (sum(entry * entry for entry in omega), tuple(-entry for entry in omega)))
    distinct = torch.tensor(ordered[:n_distinct], dtype=torch.int64)
    return distinct.repeat_interleave(multiplicity, dim=0)[:n_irreps]


@cache
def _half_ball(torus_dim: int, radius: int, include_zero: bool) -> tuple[tuple[int, ...], ...]:
    """Every kept ω with ‖ω‖₂ <= radius; complete, so that sorting it gives a prefix of the lattice."""
    cube = itertools.product(range(-radius, radius + 1), repeat=torus_dim)
    return tuple(
        omega
        for omega in cube
        if sum(entry * entry for entry in omega) <= radius * radius
        and next((entry > 0 for entry in omega if entry != 0), include_zero)
    )


def energy_basis(
    frequencies: Int[Tensor, "irrep torus"], energies: Float[Tensor, " irrep"]
) -> Int[Tensor, "torus torus"]:
    """Return as columns the shortest basis of the coarsest lattice that holds the energy.

    A pose may come out as a fraction of what it could be, s = angle / 3, in the planes 3, 6, 9, …; on several axes
    also as a slanted mixture. In the coordinates of this basis, ω = Bω', the pose is Bᵀs: it turns as fast as it can,
    and no plane changes what it does. Length is measured by the energy: ωᵀC⁻¹ω.
    """
    omega, weight = frequencies.double(), energies.double() * (frequencies != 0).any(dim=1)
    torus_dim = frequencies.shape[1]
    best = torch.eye(torus_dim, dtype=torch.float64)
    if not weight.sum() > 0:
        return best.long()
    covariance = (omega.T * weight) @ omega / weight.sum()
    metric = torch.linalg.inv(covariance + LEAST_VARIANCE * torch.eye(torus_dim, dtype=torch.float64))
    smooth = torch.exp(-0.5 * ((omega @ metric) * omega).sum(dim=1)) * (frequencies != 0).any(dim=1)
    for basis in _sublattices(torus_dim, MOST_TURNS if torus_dim <= 2 else MOST_TURNS_OF_MANY):
        coords = torch.linalg.solve(basis, omega.T)
        outside = ((coords - coords.round()).abs().amax(dim=0) > 1e-6).double()
        if weight @ outside / weight.sum() <= STRAY_ENERGY * (smooth @ outside / smooth.sum()):
            best = basis  # they come from fine to coarse
    return _reduce(best, metric).round().long()


def _sublattices(torus_dim: int, most: int) -> list[Float[Tensor, "torus torus"]]:
    """Return a basis of each sublattice of the integers up to an index, in Hermite normal form, by index."""
    found = []
    for diagonal in itertools.product(range(1, most + 1), repeat=torus_dim):
        if (index := math.prod(diagonal)) <= most:
            above = [range(diagonal[i]) for i in range(torus_dim) for _ in range(i + 1, torus_dim)]
            for entries in itertools.product(*above):
                basis = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
                rows, columns = torch.triu_indices(torus_dim, torus_dim, offset=1)
                basis[rows, columns] = torch.tensor(entries, dtype=torch.float64)
                found.append((index, basis))
    return [basis for _, basis in sorted(found, key=lambda pair: pair[0])]


def _reduce(basis: Float[Tensor, "torus torus"], metric: Float[Tensor, "torus torus"]) -> Float[Tensor, "torus torus"]:
    """Return the basis with each column made shorter by multiples of the others, as long as that helps."""
    basis, shorter = basis.clone(), True
    while shorter:
        shorter = False
        for i, j in itertools.permutations(range(len(basis)), 2):
            gram = basis.T @ metric @ basis
            times = torch.round(gram[i, j] / gram[j, j])
            if times != 0 and 2 * times.abs() * gram[i, j].abs() - times**2 * gram[j, j] > 1e-9 * gram[i, i]:
                basis[:, i] -= times * basis[:, j]
                shorter = True
    return basis


def useful_frequencies(
    omega: Float[Tensor, "irrep torus"],
    energies: Float[Tensor, " irrep"],
    *,
    most_copies: int,
    stretch: float = 1.0,
) -> Int[Tensor, "irrep torus"]:
    """Return as many integer frequencies as there are, those that hold most energy if it is spread as at ``omega``.

    The energies say how far the data reaches in each direction: C = the mean of ω ωᵀ, weighted by them. Wanted are
    the points of least ωᵀC⁻¹ω. Where fewer points than planes are of use, each is repeated, up to
    ``most_copies`` times: as many copies as shapes hold all that one frequency can. Where the pose was stretched,
    ``omega`` need not be integers, and ``stretch`` times fewer frequencies hold the same energy.
    """
    n_irreps, torus_dim = omega.shape
    moving = (omega != 0).any(dim=1)
    around, weight = omega[moving].double(), energies[moving].double()
    variances, directions = torch.linalg.eigh((around.T * weight) @ around / weight.sum())
    deviations = variances.clamp(min=LEAST_VARIANCE).sqrt()

    def nearest(reach: float) -> list[tuple[int, ...]]:
        points = _half_ball(torus_dim, int(reach * float(deviations.amax())) + 1, not bool(moving.all()))
        distances = (torch.tensor(points).double() @ directions / deviations).norm(dim=1)  # squared: ωᵀC⁻¹ω
        return [points[i] for i in distances.argsort(stable=True).tolist() if distances[i] <= reach]

    order = (around @ directions / deviations).norm(dim=1).argsort(stable=True)
    n_planes = int((weight[order].cumsum(0) < HELD * weight.sum()).sum()) + 1
    n_held = len({tuple(point) for point in around[order[:n_planes]].tolist()}) / stretch
    n_useful = max(len(nearest(REACH)), int(MARGIN * n_held))
    copies = min(max(1, n_irreps // n_useful), most_copies)
    n_distinct, reach = -(-n_irreps // copies), REACH
    while len(wanted := nearest(reach)) < n_distinct:
        reach *= 1.25
    return torch.tensor(wanted[:n_distinct]).repeat_interleave(copies, dim=0)[:n_irreps]


def fitted_lattice(
    frequencies: Int[Tensor, "irrep torus"],
    energies: Float[Tensor, " irrep"],
    *,
    most_copies: int,
    free: Bool[Tensor, " irrep"] | None = None,
) -> Int[Tensor, "irrep torus"]:
    """Return for each plane its own frequency, or a new one where the data has more energy than at its own.

    The planes of most energy keep their frequency, if it is one of :func:`useful_frequencies`; the others, and those
    that are ``free``, get what is missing.
    """
    if not (energies * (frequencies != 0).any(dim=1)).sum() > 0:
        return frequencies
    useful = useful_frequencies(frequencies.double(), energies, most_copies=most_copies)
    missing = [tuple(point) for point in useful.tolist()]
    changed = []
    for plane in energies.argsort(descending=True, stable=True).tolist():
        own = tuple(frequencies[plane].tolist())
        if own in missing and not (free is not None and free[plane]):
            missing.remove(own)
        else:
            changed.append(plane)
    idle = float(energies[changed].sum()) < IDLE * float(energies.mean()) * len(changed)
    if len(changed) < LEAST_CHANGE * len(frequencies) and not idle and (free is None or not free.any()):
        return frequencies
    fitted = frequencies.long().clone()
    fitted[changed] = torch.tensor(missing)
    return fitted
