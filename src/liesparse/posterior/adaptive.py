"""A fine grid of which only the part that matters is evaluated: accurate when sharp, cheap when broad.

The log density is a trigonometric polynomial, so a coarse grid near its Nyquist rate sees every
mode. Its height and its mean square frequency tell how fine a grid the posterior needs. Of that
grid, one window around the peak is evaluated if all of the mass lies inside; else the cells whose
coarse node comes near the peak; else, if the posterior is broad, all of it. All three give the
same trapezoidal sum, up to points of negligible mass.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.posterior.base import Engine, Moments
from liesparse.posterior.separable import (
    NEGLIGIBLE,
    FrequencyBox,
    SeparableSum,
    WindowSum,
    normalize_,
    ravel,
    unravel,
)

OVERSAMPLING = 1.5  # coarse points per axis over the 2·max|ω| + 1 that determine the polynomial
REFINEMENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 26, 34, 44, 58, 76, 100)  # fine points per coarse cell
POINTS_PER_WIDTH = 4.9  # fine points on 2π per 1/width of the peak: spacing 1.28 widths, error below 1e-4
TAIL = 9.0  # nats below the peak at which mass no longer matters
N_WINDOW = 24  # points per axis of a window
CELL_COST = 5.0  # a point of a single cell costs so many points of a full grid
CHUNK = 1 << 22  # points evaluated at a time


class _Need(NamedTuple):
    """What the coarse grid says of each posterior."""

    values: Float[Tensor, "batch point"]  # η·T(s) at the coarse nodes
    peak: Float[Tensor, " batch"]  # the largest of them
    node: Int[Tensor, " batch"]  # and where it is
    level: Int[Tensor, " batch"]  # which of REFINEMENTS resolves the posterior
    loss: Float[Tensor, " batch"]  # how far a mode may rise above its nearest node


class AdaptiveEngine(Engine):
    """Quadrature as fine as each posterior needs, where its mass is.

    ``n_grid`` is the number of coarse points per axis; by default it follows from the frequencies.
    """

    def __init__(
        self, frequencies: Int[Tensor, "irrep torus"], n_grid: int | None = None, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self._nyquist = 2 * int(frequencies.abs().max()) + 1
        super().__init__(frequencies, n_grid or max(4, 2 * math.ceil(OVERSAMPLING * self._nyquist / 2)), dtype=dtype)
        self._box = FrequencyBox(frequencies)
        self._spacing = 2 * math.pi / self.n_grid
        self._coarse = SeparableSum(self._box, torus.grid_axis(self.n_grid), dtype=dtype)
        steps = torch.arange(N_WINDOW, dtype=torch.float64) - (N_WINDOW - 1) / 2
        self._window = WindowSum(self._box, [steps * self._spacing / r for r in REFINEMENTS], dtype=dtype)
        self._turns = self._box.turns(self.points.double()).to(torch.complex64 if dtype == torch.float32 else torch.complex128)
        self._statistics = torch.cat((self._box.squares(), torch.ones(self._box.n_cells, 1)), dim=1).to(dtype)
        self._levels = torch.tensor(REFINEMENTS, dtype=dtype)
        self._log_cells = self.torus_dim * self._levels.log()
        self._fits = (self._levels >= N_WINDOW / (self.n_grid - 2)) & (self._levels <= N_WINDOW / 2)
        self._reach = (self._levels <= N_WINDOW / 4).long()  # windows reach two cells at least, or one
        self._near = torch.stack([self._nodes_near(1, 2), self._nodes_near(2, 2)])
        self._grid = cache(self._make_grid)
        self._cell = cache(self._make_cell)

    def arrange(self, planes: Float[Tensor, "*batch irrep 2"]) -> Float[Tensor, "*batch cell 2"]:
        """Put each plane into its cell of the box; cells without a frequency stay zero."""
        return self._box.arrange(planes)

    def restore(self, planes: Float[Tensor, "*batch cell 2"]) -> Float[Tensor, "*batch irrep 2"]:
        """Take each plane out of its cell."""
        return self._box.restore(planes)

    def log_density(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s) at every coarse grid point [Chau20, app. B]."""
        return self._coarse.evaluate(self._box.fold(self.arrange(natural)))

    def arranged_moments(self, natural: Float[Tensor, "batch cell 2"]) -> Moments:
        """Return ln Z(η) and R̄ [Chau20, app. B and C]."""
        folded = self._box.fold(natural)
        need = self._look(folded)
        log_partition, rotation, compact = self._sum_window(folded, need)
        if not bool(compact.all()):
            rest = (~compact).nonzero().flatten()
            log_partition, rotation = log_partition.clone(), rotation.clone()
            for level in need.level[rest].unique().tolist():
                rows = rest[need.level[rest] == level]
                log_partition[rows], rotation[rows] = self._sum_part_or_all(folded[rows], _take(need, rows), level)
        return Moments(log_partition, self._box.unfold(rotation))

    def _look(self, folded: Float[Tensor, "batch folded 2"]) -> _Need:
        """Evaluate the coarse grid and estimate the curvature at the peak: its height times the mean of ω²."""
        values = self._coarse.evaluate(folded)
        peak, node = values.max(dim=1)
        height = peak - values.mean(dim=1)  # the mean is the plane ω = 0, which has no curvature
        statistics = torus.as_complex(folded).abs() @ self._statistics
        curvature = height[:, None] * statistics[:, :-1] / (statistics[:, -1:] + torch.finfo(values.dtype).tiny)
        n_points = 0.75 * self._nyquist + POINTS_PER_WIDTH * curvature.amax(dim=1).sqrt()
        level = torch.searchsorted(self._levels, n_points / self.n_grid).clamp_(max=len(REFINEMENTS) - 1)
        loss = 0.1875 * self._spacing**2 * curvature.sum(dim=1)  # half a cell off on every axis, times 1.5
        return _Need(values, peak, node, level, loss)

    def _sum_window(
        self, folded: Float[Tensor, "batch folded 2"], need: _Need
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch folded 2"], Bool[Tensor, " batch"]]:
        """Sum over one window around the peak, and tell for which posteriors that is enough."""
        turns = self._turns[need.node]
        weights = self._window.evaluate(torch.view_as_real(torus.as_complex(folded) * turns.conj()), need.level)
        peak, total = normalize_(weights)
        centred = self._window.expect(weights, need.level).div_(total[:, :, None])
        rotation = torch.view_as_real(torus.as_complex(centred) * turns)
        peak = peak.squeeze(1)
        log_partition = peak + total.squeeze(1).log() + self.log_cell - self._log_cells[need.level]
        near = self._near[self._reach[need.level], need.node]
        outside = need.values.scatter(1, near, -torch.inf).amax(dim=1)
        compact = (outside < peak - need.loss - TAIL) & self._fits[need.level]
        return log_partition, rotation, compact

    def _sum_part_or_all(
        self, folded: Float[Tensor, "batch folded 2"], need: _Need, level: int
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch folded 2"]]:
        """Sum over the cells that matter, or over the whole fine grid where that is cheaper."""
        refinement = REFINEMENTS[level]
        active = need.values > (need.peak - need.loss - TAIL)[:, None]
        n_points = refinement**self.torus_dim * active.sum(dim=1)
        n_all = (refinement * self.n_grid) ** self.torus_dim
        whole = refinement == 1 or (self.torus_dim <= 2 and float(n_points.sum()) * CELL_COST > n_all * len(active))
        size = n_all if whole else int(n_points.max())
        parts = []
        for rows in torch.arange(len(folded)).split(max(1, CHUNK // size)):
            if whole:
                table = self._grid(refinement)
                weights = table.evaluate(folded[rows])
                peak, total = normalize_(weights)
                parts.append(((peak + total.log()).squeeze(1), table.expect(weights) / total[:, :, None]))
            else:
                parts.append(self._sum_cells(folded[rows], active[rows], refinement))
        log_totals, rotations = zip(*parts, strict=True)
        return torch.cat(log_totals) + self.log_cell - self._log_cells[level], torch.cat(rotations)

    def _sum_cells(
        self, folded: Float[Tensor, "batch folded 2"], active: Bool[Tensor, "batch point"], refinement: int
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch folded 2"]]:
        """Sum over the fine points of the active coarse cells, turned so that all cells share one table."""
        rows, nodes = active.nonzero(as_tuple=True)
        turns, table = self._turns[nodes], self._cell(refinement)
        weights = table.evaluate(torch.view_as_real(torus.as_complex(folded)[rows] * turns.conj()))
        peak = folded.new_full((len(folded),), -torch.inf).scatter_reduce(0, rows, weights.amax(dim=1), "amax")
        weights.sub_(peak[rows, None]).clamp_(min=NEGLIGIBLE).exp_()
        total = torch.zeros_like(peak).index_add_(0, rows, weights.sum(dim=1))
        turned = torch.view_as_real(torus.as_complex(table.expect(weights)) * turns)
        rotation = torch.zeros_like(folded).index_add_(0, rows, turned)
        return peak + total.log(), rotation / total[:, None, None]

    def _make_grid(self, refinement: int) -> SeparableSum:
        return SeparableSum(self._box, torus.grid_axis(refinement * self.n_grid), dtype=self.dtype)

    def _make_cell(self, refinement: int) -> SeparableSum:
        steps = (torch.arange(refinement, dtype=torch.float64) - (refinement - 1) / 2) / refinement
        return SeparableSum(self._box, steps * self._spacing, dtype=self.dtype)

    def _nodes_near(self, reach: int, at_most: int) -> Int[Tensor, "point near"]:
        """For every coarse node, those up to ``reach`` cells away, filled up to equal length with itself."""
        steps = unravel(torch.arange((2 * at_most + 1) ** self.torus_dim), 2 * at_most + 1, self.torus_dim) - at_most
        steps = steps * (steps.abs() <= reach).all(dim=1, keepdim=True)
        nodes = unravel(torch.arange(self.n_grid**self.torus_dim), self.n_grid, self.torus_dim)
        return ravel((nodes[:, None] + steps).remainder(self.n_grid), [self.n_grid] * self.torus_dim)


def _take(need: _Need, rows: Int[Tensor, " chosen"]) -> _Need:
    return _Need(*(part[rows] for part in need))
