"""The integer frequencies ω of the torus representation [Chau20, sec. 3.1]."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Int
from torch import Tensor

from liesparse._checks import check_count


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
