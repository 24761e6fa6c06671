"""The pose integrated out by compiled code: GridKernel calls fista.c and what it uses, SamplingKernel sampling.c.

In torch the loop over the codes spends most of its time between small operations, and cannot use the symmetries of
sine and cosine; one compiled pass for each image is several times faster.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.model import Codes, Numbers
from liesparse.posterior.interface import Ascent, Natural
from liesparse.posterior.kernels import Level, Library, Plan, Scatter, Task, check_planes
from liesparse.torus import Frequencies

Points = Float[Tensor, "_ torus"]

# Points per axis, a half of them and one more just filling whole vectors.
CIRCLE_LEVELS = (1278, 1534, 2046, 2558, 3070, 4094, 6142, 8190)  # further ones, on one axis
LEVELS = (30, 38, 46, 54, 62, 70, 78, 94, 110, 126, 142, 158, 190, 222, 254, 318, 382, 446, 510, 638, 766, 1022)


class GridKernel:
    """ln Z and R̄ on a circle or the 2-torus in float32 on the CPU, the ascent on the codes, and the tables for them.

    ``sizes`` are the points per axis: of one plain grid, or of a coarse grid and its refinements. Then ``refinement``
    has the last fields of Plan: when a posterior needs how fine a grid; adaptive.py says the same in torch.
    """

    def __init__(self, library: Library, frequencies: Frequencies, sizes: list[int], **refinement: float) -> None:
        self.library = library
        lane = library.lane
        n_axes = frequencies.shape[1]
        first, last = torch.nn.functional.pad(frequencies, (2 - n_axes, 0)).unbind(1)  # of a circle p is 0
        lowest, n_last = int(first.min()), int(last.abs().max()) + 1
        n_first = int(first.max()) - lowest + 1
        half = _pad(n_first * n_last + lane, lane)  # a vector written for the last p may reach behind it
        cells = (last < 0) * half + (first - lowest) * n_last + last.abs()
        layers = torch.tril(cells[:, None] == cells, diagonal=-1).sum(dim=1)  # equal ones standing before
        place = (layers * 4 * half + cells).int()
        zero = cells[(frequencies == 0).all(dim=1)]
        squares = torch.zeros(2, 2 * half)
        squares[:, cells] = torch.stack((first, last)).float().square()
        p, q = lowest + torch.arange(n_first), torch.arange(n_last)
        tables = [_tables(n, p, q, lane) if n_axes == 2 else _circle_tables(n, q, lane) for n in sizes]
        self._kept = [place, squares, *(table for level in tables for table in level)]  # the plan only points at them
        levels = (Level(n, *(table.data_ptr() for table in level)) for n, level in zip(sizes, tables, strict=True))
        self._plan = Plan(
            *(n_axes, len(frequencies), int(layers.max()) + 1, n_first, lowest, n_last, half),
            int(zero[0]) if len(zero) else -1,
            *(place.data_ptr(), squares.data_ptr(), len(sizes)),
            (Level * len(sizes))(*levels),
            **refinement,
        )

    def moments(self, natural: Natural) -> tuple[Numbers, Natural, Bool[Tensor, " batch"]]:
        """Return ln Z, R̄, and which rows torch must do again: too sharp for the finest level, or not finite."""
        check_planes("planes", natural, self._plan.n_irreps)
        natural = natural.contiguous()
        rotation, log_partition = torch.empty_like(natural), natural.new_empty(len(natural))
        failed = torch.zeros(len(natural), dtype=torch.bool)
        self.library.run("moments", self._plan, natural, (rotation, log_partition, failed))
        return log_partition, rotation, failed

    def ascend(self, codes: Codes, ascent: Ascent) -> tuple[Codes, Bool[Tensor, " batch"]]:
        """Return the codes after all steps of FISTA, and which rows torch must do again."""
        for planes in (ascent.image_planes, ascent.dictionary_planes, ascent.pose_prior[None]):
            check_planes("planes", planes, self._plan.n_irreps)
        codes = codes.detach().clone(memory_format=torch.contiguous_format)
        images, dictionary, prior = (tensor.detach().contiguous() for tensor in ascent[:3])
        failed = torch.zeros(len(codes), dtype=torch.bool)
        numbers = (float(ascent.step), ascent.sparsity, ascent.variance)
        flags = (int(ascent.exact), int(ascent.subgradient))
        task = Task(len(dictionary), ascent.n_steps, *flags, *numbers, dictionary.data_ptr(), prior.data_ptr())
        self.library.run("ascend", self._plan, images, (codes, failed), task)
        return codes, failed


class SamplingKernel:
    """ln Z, R̄ and the effective sample size in float32 on the CPU.

    The even points are the same for all posteriors: their values and sums are products of torch's. ``numbers`` are the
    last fields of Scatter: how poses are drawn; sampling.py says the same in torch.
    """

    def __init__(
        self, library: Library, frequencies: Frequencies, even: Points, cloud: Points, numbers: dict[str, float]
    ) -> None:
        self.library = library
        waves, parents, turns, self._cells = _grow_tree(frequencies)
        self._n_cells, n_axes = waves.shape
        self._table = torus.features(torus.phases(waves, even)).flatten(1).float()
        self._table_transposed = self._table.T.contiguous()
        cloud = cloud[: (len(cloud) + 1) // 2]  # the mode and one end of each arm; the others mirror them
        share = (1 / torch.cosh(cloud / (2 * numbers["spread"])) ** 2).prod(dim=1)
        count = torch.ones_like(share)
        count[0] = 0.5
        rows, columns = torch.tril_indices(n_axes, n_axes)
        pairs = waves[:, rows] * waves[:, columns]
        floats = [table.float().contiguous() for table in (waves, pairs, even.T, cloud.T, share, count)]
        self._kept = [parents.int(), turns.int(), *floats]  # the plan only points at them
        parent, turn, omega, products, *tables = (table.data_ptr() for table in self._kept)
        points = (len(even), len(cloud), *tables)
        self._plan = Scatter(n_axes, self._n_cells, parent, turn, omega, products, *points, **numbers)

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


def _pad(count: int, lane: int) -> int:
    return -(-count // lane) * lane


def _tables(n: int, first: Int[Tensor, " p"], last: Int[Tensor, " q"], lane: int) -> tuple[Tensor, ...]:
    """Return the tables of one level, in the order of the struct Level in grid.c."""
    spacing = 2 * math.pi / n
    stretch = spacing * torch.arange(2 * _pad(n, lane) + lane, dtype=torch.float64)
    by_point = torus.features(stretch[:n, None] * first)
    by_column = torus.features(stretch[:, None] * last).permute(2, 1, 0)
    by_row = torch.nn.functional.pad(by_column.permute(2, 0, 1), (0, -len(last) % lane))
    middle, width = n // 2, _pad(2 * (n // 2) + 2, lane)
    mirror = _pad(middle + 1, lane)  # as mirror_of() in grid.c
    mirror = mirror if 2 * mirror == width else middle + 1
    lower = torch.full((width,), -172.0)  # 2 * NOTHING
    for side in (0, mirror):  # s, then -s
        lower[side : side + middle + 1] = 0
        lower[[side, side + middle]] = -1  # 0 and π, there twice: half the weight each
    return tuple(table.float().contiguous() for table in (by_point, by_column, by_row, lower))


def _circle_tables(n: int, last: Int[Tensor, " q"], lane: int) -> tuple[Tensor, ...]:
    """Return the tables of one level of a circle, of which one half will do."""
    points = 2 * math.pi / n * torch.arange(_pad(n // 2 + 1, lane), dtype=torch.float64)
    none = torch.empty(0)
    return none, torus.features(last[:, None] * points).movedim(2, 0).float().contiguous(), none, none


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
