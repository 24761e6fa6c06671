"""Importance sampling of the pose in any dimension by compiled code: sampling.c and modes.c."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse.posterior.ascent import Natural
from liesparse.posterior.kernels.library import Library, Scatter, check_planes
from liesparse.torus import Frequencies


class Proposal(NamedTuple):
    """How poses are drawn; sampling.py says the same in torch."""

    even: Float[Tensor, "point torus"]
    cloud: Float[Tensor, "point torus"]
    n_climbs: int
    spread: float
    ridge: float
    tail: float
    arrived: float
    low: float
    high: float


class SamplingKernel:
    """ln Z, R̄ and the effective sample size in float32 on the CPU.

    The even points are the same for all posteriors: their values and sums are products of torch's.
    """

    def __init__(self, library: Library, frequencies: Frequencies, proposal: Proposal) -> None:
        self.library = library
        waves, parents, turns, self._cells = _grow_tree(frequencies)
        self._n_cells, n_axes = waves.shape
        even, cloud, n_climbs, *numbers = proposal
        self._table = torus.features(torus.phases(waves, even)).flatten(1).float()
        self._table_transposed = self._table.T.contiguous()
        cloud = cloud[: (len(cloud) + 1) // 2]  # the mode and one end of each arm; the others mirror them
        share = (1 / torch.cosh(cloud / (2 * proposal.spread)) ** 2).prod(dim=1)
        count = torch.ones_like(share)
        count[0] = 0.5
        rows, columns = torch.tril_indices(n_axes, n_axes)
        pairs = waves[:, rows] * waves[:, columns]
        floats = [table.float().contiguous() for table in (waves, pairs, even.T, cloud.T, share, count)]
        self._kept = [parents.int(), turns.int(), *floats]  # the plan only points at them
        parent, turn, omega, products, *tables = (table.data_ptr() for table in self._kept)
        points = (len(even), len(cloud), *tables)
        self._plan = Scatter(n_axes, self._n_cells, parent, turn, omega, products, *points, n_climbs, *numbers)

    def moments(self, natural: Natural) -> tuple[Tensor, Tensor, Tensor]:
        """Return ln Z, R̄ and the effective sample size."""
        check_planes("natural", natural, len(self._cells))
        folded = natural.new_zeros(len(natural), self._n_cells, 2).index_add_(1, self._cells, natural)
        values = folded.flatten(1) @ self._table_transposed
        total, scale = torch.empty_like(folded), folded.new_empty(len(folded))
        squares, loud = torch.empty_like(scale), torch.empty(len(folded), dtype=torch.int32)
        self.library.run("sample_clouds", self._plan, folded, (values, total, scale, squares, loud))
        rows = loud.nonzero().flatten()
        if len(rows):
            total[rows] += (values[rows] @ self._table).view(len(rows), *folded.shape[1:])
        mass = total[:, 0, 0]  # that of ω = 0 is Σ w
        rotation = total.index_select(1, self._cells) / mass[:, None, None]
        return mass.log() + scale, rotation, mass.square() / squares


def _grow_tree(frequencies: Frequencies) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a tree of cells, each with one a step nearer to 0 from which its wave follows by one product.

    Equal frequencies share a cell, and steps between are added. Of every cell: ω, which is 0 for cell 0; its parent;
    its turn, 2j for exp(is_j) and 2j + 1 for exp(-is_j). Of every plane: its cell.
    """
    n = frequencies.shape[1]
    cells: dict[tuple[int, ...], int] = {(0,) * n: 0}
    parents, turns = [0], [0]

    def grow(omega: tuple[int, ...]) -> int:
        if omega not in cells:
            axis = max(j for j in range(n) if omega[j])
            sign = 1 if omega[axis] > 0 else -1
            parent = grow((*omega[:axis], omega[axis] - sign, *omega[axis + 1 :]))
            cells[omega] = len(cells)
            parents.append(parent)
            turns.append(2 * axis + (sign < 0))
        return cells[omega]

    places = torch.tensor([grow(tuple(omega)) for omega in frequencies.tolist()])
    return torch.tensor(list(cells)), torch.tensor(parents), torch.tensor(turns), places
