"""The paper's quadrature, one axis at a time.

ω is integer, so exp(iω·s) is a product over the axes: on an N × N grid, η·T(s) is two small
matrix products instead of one 2L × N² product, and the moments are their transposes. Written by
hand because an FFT of the padded box needs complex temporaries of the whole grid.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.posterior.base import Engine, Moments

_NEGLIGIBLE = -60.0  # exp(-60) adds nothing to a sum with a 1 in it; denormal floats below it are slow


class GridEngine(Engine):
    """Separable quadrature on N points per axis; same numbers as the dense one.

    The planes are laid out in a box with one cell for each integer vector between the smallest
    and the largest ω; repeated frequencies go to further layers of the box and are summed first.
    """

    def __init__(
        self, frequencies: Int[Tensor, "irrep torus"], n_grid: int, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(frequencies, n_grid, dtype=dtype)
        lowest = frequencies.amin(dim=0)
        self._box = [int(size) for size in frequencies.amax(dim=0) - lowest + 1]
        cells = _flat_index(frequencies - lowest, self._box)
        layers = _occurrence(cells)
        self._n_cells = int(torch.tensor(self._box).prod())
        self._n_layers = int(layers.max()) + 1
        self._position = layers * self._n_cells + cells
        axis = torus.grid_axis(n_grid)
        ranges = [int(low) + torch.arange(size) for low, size in zip(lowest, self._box, strict=True)]
        self._first = _real_table(ranges[0], axis).to(dtype)
        self._turns = [_complex_table(entries, axis).to(dtype) for entries in ranges[1:]]

    def arrange(self, planes: Float[Tensor, "*batch irrep 2"]) -> Float[Tensor, "*batch cell 2"]:
        """Put each plane into its cell of the box; cells without a frequency stay zero."""
        box = planes.new_zeros((*planes.shape[:-2], self._n_layers * self._n_cells, 2))
        box[..., self._position, :] = planes
        return box

    def restore(self, planes: Float[Tensor, "*batch cell 2"]) -> Float[Tensor, "*batch irrep 2"]:
        """Take each plane out of its cell."""
        return planes[..., self._position, :]

    def log_density(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s) at every grid point [Chau20, app. B]."""
        return self._evaluate(self.arrange(natural))

    def arranged_moments(self, natural: Float[Tensor, "batch cell 2"]) -> Moments:
        """Return ln Z(η) and R̄ by summing over the grid [Chau20, app. B and C]."""
        weights = self._evaluate(natural)
        peak = weights.amax(dim=1, keepdim=True)
        total = weights.sub_(peak).clamp_(min=_NEGLIGIBLE).exp_().sum(dim=1, keepdim=True)
        rotation = self._expect(weights).view(len(natural), 1, self._n_cells, 2) / total[:, :, None, None]
        layered = rotation.expand(-1, self._n_layers, -1, -1).flatten(1, 2)
        return Moments((peak + total.log()).squeeze(1) + self.log_cell, layered)

    def _evaluate(self, natural: Float[Tensor, "batch cell 2"]) -> Float[Tensor, "batch point"]:
        """Sum the trigonometric polynomial axis by axis, the last axis first."""
        batch = len(natural)
        values = natural if self._n_layers == 1 else natural.unflatten(1, (self._n_layers, -1)).sum(dim=1)
        if not self._turns:
            return values.flatten(1) @ self._first.T
        values = values.reshape(-1, 2 * self._box[-1]) @ self._turns[-1].T
        n_rest = self.n_grid
        for size, turn in zip(self._box[-2:0:-1], self._turns[-2::-1], strict=True):
            values = _left(turn, values.view(-1, 2 * size, n_rest))
            n_rest *= self.n_grid
        return _left(self._first, values.view(batch, 2 * self._box[0], n_rest)).view(batch, -1)

    def _expect(self, weights: Float[Tensor, "batch point"]) -> Float[Tensor, "..."]:
        """Sum weights times (cos ω·s, sin ω·s): the transpose of :meth:`_evaluate`, axis by axis."""
        batch = len(weights)
        if not self._turns:
            return weights @ self._first
        n_rest = weights.shape[1] // self.n_grid
        values = _left(self._first.T, weights.view(batch, self.n_grid, n_rest))
        for turn in self._turns[:-1]:
            n_rest //= self.n_grid
            values = _left(turn.T, values.view(-1, 2 * self.n_grid, n_rest))
        return values.view(-1, 2 * self.n_grid) @ self._turns[-1]


def _left(
    matrix: Float[Tensor, "row column"], stack: Float[Tensor, "batch column rest"]
) -> Float[Tensor, "batch row rest"]:
    """Multiply every matrix of a stack from the left; unlike ``@`` the result is always contiguous."""
    return torch.bmm(matrix.expand(len(stack), -1, -1), stack)


def _real_table(entries: Int[Tensor, " size"], axis: Float[Tensor, " point"]) -> Float[Tensor, "point column"]:
    """Map coefficients (a_p, b_p) to Σ_p a_p cos(ps) + b_p sin(ps)."""
    return torus.features(axis[:, None] * entries).flatten(1)


def _complex_table(entries: Int[Tensor, " size"], axis: Float[Tensor, " point"]) -> Float[Tensor, "row column"]:
    """Map coefficients (a_q, b_q) to the two parts of Σ_q (a_q + i b_q) exp(-iqs), parts first."""
    cos, sin = torus.features(axis[:, None] * entries).unbind(-1)
    real_part = torch.stack((cos, sin), dim=-1).flatten(1)
    imaginary_part = torch.stack((-sin, cos), dim=-1).flatten(1)
    return torch.cat((real_part, imaginary_part))


def _flat_index(entries: Int[Tensor, "irrep torus"], box: list[int]) -> Int[Tensor, " irrep"]:
    index = torch.zeros_like(entries[:, 0])
    for size, column in zip(box, entries.unbind(1), strict=True):
        index = index * size + column
    return index


def _occurrence(cells: Int[Tensor, " irrep"]) -> Int[Tensor, " irrep"]:
    """Count, for each entry, how many equal ones stand before it."""
    return torch.tril(cells[:, None] == cells, diagonal=-1).sum(dim=1)
