"""Importance sampling of the pose in any dimension by compiled code: sampling.c and modes.c."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import reject
from liesparse.devices import is_cpu
from liesparse.posterior.kernels.library import Library, Scatter, choose, pointer


class Tree(NamedTuple):
    """Every ω with one that is a step nearer to 0, from which its wave follows by one product."""

    omega: Int[Tensor, "cell torus"]  # cell 0 is ω = 0
    parent: Int[Tensor, " cell"]
    turn: Int[Tensor, " cell"]  # 2j for exp(is_j), 2j + 1 for exp(-is_j)
    cells: Int[Tensor, " irrep"]  # where each plane is


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

    def __init__(self, library: Library, frequencies: Int[Tensor, "irrep torus"], proposal: Proposal) -> None:
        self.library = library
        tree = _grow_tree(frequencies)
        self._cells, self._n_cells = tree.cells, len(tree.omega)
        even, cloud, n_climbs, *numbers = proposal
        self._table = torus.features(torus.phases(tree.omega, even)).flatten(1).float()
        self._table_transposed = self._table.T.contiguous()
        cloud = cloud[: (len(cloud) + 1) // 2]  # the mode and one end of each arm; the others mirror them
        share = (1 / torch.cosh(cloud / (2 * proposal.spread)) ** 2).prod(dim=1)
        count = torch.ones_like(share)
        count[0] = 0.5
        rows, columns = torch.tril_indices(*[tree.omega.shape[1]] * 2)
        pairs = tree.omega[:, rows] * tree.omega[:, columns]
        floats = [table.float().contiguous() for table in (tree.omega, pairs, even.T, cloud.T, share, count)]
        self._kept = [tree.parent.int(), tree.turn.int(), *floats]  # the plan only points at them
        parent, turn, omega, products, *tables = map(pointer, self._kept)
        sizes = (tree.omega.shape[1], self._n_cells)
        points = (len(even), len(cloud), *tables)
        self._plan = Scatter(*sizes, parent, turn, omega, products, *points, n_climbs, *numbers)

    def moments(self, natural: Float[Tensor, "batch irrep 2"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ln Z, R̄ and the effective sample size."""
        if natural.shape[1:] != (len(self._cells), 2) or natural.dtype != torch.float32:
            found = f"shape {tuple(natural.shape)}, {natural.dtype}"
            reject("natural", f"float32 of shape (batch, {len(self._cells)}, 2)", found, "Make an engine for them.")
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


def make_sampling_kernel(
    name: str | None,
    frequencies: Int[Tensor, "irrep torus"],
    dtype: torch.dtype,
    device: torch.device,
    proposal: Proposal,
) -> SamplingKernel | None:
    """Return the compiled code, or None where torch must do it."""
    library = choose(name).library
    if library is None or dtype != torch.float32 or not is_cpu(device):
        return None
    return SamplingKernel(library, frequencies, proposal)


def _grow_tree(frequencies: Int[Tensor, "irrep torus"]) -> Tree:
    """Return the tree: equal frequencies share a cell, and steps between are added."""
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
    return Tree(torch.tensor(list(cells)), torch.tensor(parents), torch.tensor(turns), places)
