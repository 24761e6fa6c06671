"""Trigonometric polynomials with integer frequencies, evaluated one torus axis at a time.

ω is integer, so exp(iω·s) is a product over the axes: on an N × N grid, η·T(s) is two small matrix
products instead of one 2L × N² product, and the moments are their transposes. Written by hand
because this is where all of the time goes, and an FFT has no use for windows and odd sizes.
"""

import math

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.model import Numbers
from liesparse.posterior.interface import Natural

NEGLIGIBLE = -40.0  # exp(-40) adds nothing to a sum with a 1 in it; less, times a cosine near 0, is denormal and slow

Folded = Float[Tensor, "batch folded 2"]  # planes in the cells of a FrequencyBox
Points = Float[Tensor, "batch point"]
Axis = Float[Tensor, " point"]


class FrequencyBox:
    """Planes laid out in a box with one cell for each integer vector between the extreme ω.

    Repeated frequencies go to further layers of the box; cells without a frequency stay empty.
    """

    def __init__(self, frequencies: torus.Frequencies, device: torch.device) -> None:
        self.device = device  # of all tables; they are made beside the frequencies, in double precision
        lowest = frequencies.amin(dim=0)
        self.sizes = [int(size) for size in frequencies.amax(dim=0) - lowest + 1]
        self.ranges = [int(low) + torch.arange(size) for low, size in zip(lowest, self.sizes, strict=True)]
        self.n_cells = math.prod(self.sizes)
        cells = torch.zeros_like(frequencies[:, 0])
        for size, column in zip(self.sizes, (frequencies - lowest).unbind(1), strict=True):
            cells = cells * size + column  # the last axis running fastest
        layers = torch.tril(cells[:, None] == cells, diagonal=-1).sum(dim=1)  # equal ones standing before
        n_layers = int(layers.max()) + 1
        self.layered = n_layers > 1  # planes share cells
        # Where each cell finds its plane; an empty cell finds the zeros behind the last one.
        source = torch.full((n_layers * self.n_cells,), len(frequencies))
        source[layers * self.n_cells + cells] = torch.arange(len(frequencies))
        self._cells, self._source = cells.to(device), source.to(device)

    def fold(self, planes: Natural) -> Folded:
        """Put each plane into its cell; planes of equal frequency add up."""
        padded = torch.cat((planes, planes.new_zeros(len(planes), 1, 2)), dim=1)
        total, *others = padded.index_select(1, self._source).split(self.n_cells, dim=1)
        for layer in others:  # several times faster than a sum over a short axis
            total = total + layer
        return total

    def unfold(self, rotation: Folded) -> Natural:
        """Take each plane out of its cell."""
        return rotation.index_select(1, self._cells)

    def turns(self, angles: Axis, dtype: torch.dtype) -> list[Complex[Tensor, "point _"]]:
        """Return exp(iω_j·s) of each axis j at every angle s."""
        phases = [angles[:, None] * entries for entries in self.ranges]
        return [torch.polar(torch.ones_like(angle), angle).to(self.device, dtype.to_complex()) for angle in phases]


class SeparableSum:
    """η·T(s) on a product of equal axes, and the transposed sums over its points."""

    def __init__(self, box: FrequencyBox, axis: Axis, *, dtype: torch.dtype) -> None:
        self.n_axis = len(axis)
        self._sizes = box.sizes
        first, *others = (torus.features(axis[:, None] * entries) for entries in box.ranges)
        # From coefficients (a_p, b_p) to Σ_p a_p cos(ps) + b_p sin(ps).
        self._first = first.flatten(1).to(box.device, dtype)
        # From (a_q, b_q) to the two parts of Σ_q (a_q + i b_q) exp(-iqs), parts first.
        parts = ((part, part.flip(-1) * part.new_tensor((-1, 1))) for part in others)
        self._turns = [torch.cat(both).flatten(1).to(box.device, dtype) for both in parts]

    def evaluate(self, natural: Folded) -> Points:
        """Return η·T(s) at every point, the last axis running fastest [Chau20, app. B]."""
        batch = len(natural)
        if not self._turns:
            return natural.flatten(1) @ self._first.T
        values = natural.reshape(-1, 2 * self._sizes[-1]) @ self._turns[-1].T
        n_rest = self.n_axis
        for size, turn in zip(self._sizes[-2:0:-1], self._turns[-2::-1], strict=True):
            values = _left(turn, values.view(-1, 2 * size, n_rest))
            n_rest *= self.n_axis
        return _left(self._first, values.view(batch, 2 * self._sizes[0], n_rest)).view(batch, -1)

    def evaluate_columns(self, natural: Folded) -> Float[Tensor, "*axes batch"]:
        """Return η·T(s) with the batch running fastest: then maxima along an axis are ten times as fast."""
        batch = n_rest = len(natural)
        values = natural.flatten(1).T
        for size, turn in zip(self._sizes[:0:-1], self._turns[::-1], strict=True):
            values = _left(turn, values.reshape(-1, 2 * size, n_rest))
            n_rest *= self.n_axis
        values = self._first @ values.reshape(2 * self._sizes[0], n_rest)
        return values.view(*[self.n_axis] * len(self._sizes), batch)

    def expect(self, weights: Points) -> Folded:
        """Return Σ_s weight(s) (cos ω·s, sin ω·s): the transpose of :meth:`evaluate`."""
        batch = len(weights)
        if not self._turns:
            return (weights @ self._first).view(batch, -1, 2)
        n_rest = weights.shape[1] // self.n_axis
        values = _left(self._first.T, weights.view(batch, self.n_axis, n_rest))
        for turn in self._turns[:-1]:
            n_rest //= self.n_axis
            values = _left(turn.T, values.view(-1, 2 * self.n_axis, n_rest))
        return (values.view(-1, 2 * self.n_axis) @ self._turns[-1]).view(batch, -1, 2)


class WindowSum:
    """The sums of :class:`SeparableSum` where each row has its own points.

    ``tables`` are :meth:`FrequencyBox.turns` at many points, conjugate but for the first axis; row b takes on axis j
    the ``side`` points from ``first[j, b]`` on. Large tables are never conjugated here: that would copy them.
    """

    def __init__(self, tables: list[Complex[Tensor, "point _"]], first: Int[Tensor, "torus batch"], side: int) -> None:
        chosen = []
        for table, start in zip(tables, first, strict=True):
            n_points, size = table.shape
            windows = table.as_strided((n_points - side + 1, side * size), (size, 1))  # they overlap
            chosen.append(windows.index_select(0, start).view(-1, side, size))
        self._first, self._turns = torch.view_as_real(chosen[0]).flatten(2), chosen[1:]

    def evaluate(self, natural: Folded) -> Points:
        """Return η·T(s) at the points of each row, the first axis running fastest."""
        batch = len(natural)
        values = torch.view_as_complex(natural)
        for turn in reversed(self._turns):
            values = torch.bmm(turn, values.view(batch, -1, turn.shape[2]).mT)
        values = torch.view_as_real(values).view(batch, -1, self._first.shape[2])
        return torch.bmm(values, self._first.mT).flatten(1)

    def expect(self, weights: Points) -> Folded:
        """Return Σ_s weight(s) (cos ω·s, sin ω·s) over the points of each row."""
        batch, n_first, _ = self._first.shape
        sums = torch.bmm(weights.view(batch, -1, n_first), self._first)
        values = torch.view_as_complex(sums.view(batch, -1, sums.shape[2] // 2, 2)).conj_physical_()
        for turn in self._turns:
            values = torch.bmm(values.view(batch, turn.shape[1], -1).mT, turn)
        return torch.view_as_real(values.conj_physical_()).view(batch, -1, 2)


def normalize_(values: Points) -> tuple[Float[Tensor, "batch 1"], Float[Tensor, "batch 1"]]:
    """Turn log weights into weights with a largest one of 1, in place; return that peak and their sum."""
    peak = values.detach().amax(dim=1, keepdim=True)  # it cancels, also in a gradient
    return peak, values.sub_(peak).clamp_(min=NEGLIGIBLE).exp_().sum(dim=1, keepdim=True)


def sum_points(natural: Folded, table: SeparableSum | WindowSum, log_cell: float | Numbers) -> tuple[Numbers, Folded]:
    """Return ln Z and R̄ by the sum over all points of a table, each with the weight exp(log_cell)."""
    weights = table.evaluate(natural)
    peak, total = normalize_(weights)
    return (peak + total.log()).squeeze(1) + log_cell, table.expect(weights).div_(total[:, :, None])


def _left(matrix: Float[Tensor, "row inner"], stack: Float[Tensor, "batch inner rest"]) -> Float[Tensor, "batch _ _"]:
    """Multiply every matrix of a stack from the left; unlike ``@`` the result is always contiguous."""
    return torch.bmm(matrix.expand(len(stack), -1, -1), stack)
