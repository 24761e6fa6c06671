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
from liesparse._checks import check_frequencies
from liesparse.posterior.base import Moments
from liesparse.posterior.grid import SeparableEngine
from liesparse.posterior.kernels import Refinement, make_grid_kernel
from liesparse.posterior.separable import (
    NEGLIGIBLE,
    SeparableSum,
    WindowTables,
    normalize_,
)

OVERSAMPLING = 1.55  # coarse points per axis over the 2·max|ω| + 1 that determine the polynomial
REFINEMENTS = (1, 1.2, 1.5, 1.8, 2.2, 2.6, 3.2, 3.8, 4.5, 5.4, 6.5, 8, 10, 12, 16, 20, 26, 34, 44, 58, 76, 100)
DENSITY_REFINEMENTS = {1: 4, 2: 4, 3: 2}  # points per coarse cell of the grid for densities and modes, by dimension
LEVELS_PER_GROUP = 2  # a posterior uses the finest of so many levels: 0, 1 to 2, 3 to 4, …
BROAD = 4  # up to this level no window is tried
LEAST_POINTS = 0.88  # fine points for a flat posterior, over the 2·max|ω| + 1 of its polynomial
POINTS_PER_WIDTH = 5.0  # fine points on 2π per 1/width of the peak: a spacing of 1.26 widths
TAIL = 10.5  # nats below the peak at which mass no longer matters
N_WINDOW = 28  # points per axis of a window
CELL_COST = 20.0  # a point of a single cell costs so many points of a full grid
CHUNK = 1 << 22  # points evaluated at a time


class _Need(NamedTuple):
    """What the coarse grid says of each posterior."""

    values: Float[Tensor, "batch point"]  # η·T(s) at the coarse nodes
    along: list[Float[Tensor, "batch node"]]  # for each axis, the largest value at each of its nodes
    peak: Float[Tensor, " batch"]  # the largest value
    place: list[Int[Tensor, " batch"]]  # and its node on each axis
    level: Int[Tensor, " batch"]  # which of REFINEMENTS resolves the posterior
    loss: Float[Tensor, " batch"]  # how far a mode may rise above its nearest node
    flank: Float[Tensor, " batch"]  # how much further a node may lie below mass at the near edge of its cell


class AdaptiveEngine(SeparableEngine):
    """Quadrature as fine as each posterior needs, where its mass is.

    ``n_grid`` concerns only the methods that return values on a grid, such as ``density``.
    """

    def __init__(
        self,
        frequencies: Int[Tensor, "irrep torus"],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        kernel: str | None = None,
    ) -> None:
        self._nyquist = 2 * int(check_frequencies(frequencies).abs().max()) + 1
        self._n_coarse = max(6, 2 * math.ceil(OVERSAMPLING * self._nyquist / 2))
        n_grid = self._n_coarse * DENSITY_REFINEMENTS.get(frequencies.shape[1], 1)
        super().__init__(frequencies, n_grid, dtype=dtype, device=device)
        self._spacing = 2 * math.pi / self._n_coarse
        self._log_coarse_cell = self.torus_dim * math.log(self._spacing)
        self._coarse = SeparableSum(self._box, torus.grid_axis(self._n_coarse), dtype=dtype)
        steps = torch.arange(N_WINDOW, dtype=torch.float64) - (N_WINDOW - 1) / 2
        self._windows = WindowTables(self._box, [steps * self._spacing / r for r in REFINEMENTS], dtype=dtype)
        nodes = torus.grid_points(self._n_coarse, self.torus_dim)
        complex_type = torch.complex64 if dtype == torch.float32 else torch.complex128
        self._turns = self._box.turns(nodes).to(self.device, complex_type)
        squares = self._box.squares()
        squares = torch.cat((squares, squares.any(dim=1, keepdim=True)), dim=1)  # ω = 0 has no curvature
        self._squares = squares.repeat_interleave(2, dim=0).to(
            self.device, dtype
        )  # (ω₁², …, ω_n², 1) of both coordinates
        self._still = bool((frequencies == 0).all(dim=1).any())
        self._levels = torch.tensor(REFINEMENTS, dtype=dtype, device=self.device)
        self._log_cells = self.torus_dim * self._levels.log()
        self._fits = (self._levels >= N_WINDOW / (self._n_coarse - 2)) & (self._levels <= N_WINDOW / 2)
        nodes = torch.arange(self._n_coarse, device=self.device)
        apart = (nodes[:, None] - nodes).abs()
        apart = torch.minimum(apart, self._n_coarse - apart)
        reach = (N_WINDOW / 2 / self._levels).floor()[
            :, None, None
        ]  # whole cells up to the edge; the last must be empty
        empty = torch.zeros_like(reach).masked_fill(apart < reach, -torch.inf)
        self._inside = empty.flatten(0, 1)  # (level · node, node)
        refinement = Refinement(LEAST_POINTS * self._nyquist, POINTS_PER_WIDTH, TAIL)
        self._kernel = make_grid_kernel(kernel, frequencies, self._n_coarse, dtype, self.device, refinement)
        self._grid = cache(self._make_grid)
        self._cell = cache(self._make_cell)

    def values(self, natural: Float[Tensor, "batch irrep 2"]) -> Float[Tensor, "batch point"]:
        """Return η·T(s) at every grid point [Chau20, app. B]."""
        return self._grid(self.n_grid).evaluate(self._box.fold(natural))

    def _sum(self, natural: Float[Tensor, "batch irrep 2"]) -> Moments:
        folded = self._box.fold(natural)
        need = self._look(folded)
        log_partition, rotation = torch.empty_like(need.peak), torch.empty_like(folded)
        left = need.level <= BROAD  # each posterior by itself: nothing may depend on its companions in the batch
        sharp = (~left).nonzero().flatten()
        if len(sharp):
            log_partition[sharp], rotation[sharp], compact = self._sum_window(folded[sharp], _take(need, sharp))
            left[sharp[~compact]] = True
        rest = left.nonzero().flatten()
        groups = (need.level[rest] + LEVELS_PER_GROUP - 1) // LEVELS_PER_GROUP
        for group in groups.unique().tolist():
            rows = rest[groups == group]
            level = min(group * LEVELS_PER_GROUP, len(REFINEMENTS) - 1)
            log_partition[rows], rotation[rows] = self._sum_part_or_all(
                folded[rows], _take(need, rows), REFINEMENTS[level]
            )
        return Moments(log_partition, self._box.unfold(rotation))

    def _look(self, folded: Float[Tensor, "batch folded 2"]) -> _Need:
        """Evaluate the coarse grid and estimate the curvature at the peak: its height times the mean of ω²."""
        values = self._coarse.evaluate(folded)
        cube = values.view(-1, *[self._n_coarse] * self.torus_dim)
        axes = range(1, self.torus_dim + 1)
        along = (
            [cube.amax(dim=[other for other in axes if other != axis]) for axis in axes] if len(axes) > 1 else [cube]
        )
        peaks, place = zip(*(line.max(dim=1) for line in along), strict=True)
        peak = peaks[0]
        height = peak - values.mean(dim=1) if self._still else peak  # the mean is the plane ω = 0: no curvature
        height = height.clamp(min=0)  # where rounding makes it negative, no cell would be near the peak
        sums = folded.flatten(1).abs() @ self._squares
        curvature = (height / (sums[:, -1] + torch.finfo(values.dtype).tiny))[:, None] * sums[:, :-1]
        n_points = LEAST_POINTS * self._nyquist + POINTS_PER_WIDTH * curvature.amax(dim=1).sqrt()
        level = torch.searchsorted(self._levels, n_points / self._n_coarse).clamp_(max=len(REFINEMENTS) - 1)
        drop = 0.5 * self._spacing**2 * curvature  # from the peak to one cell away
        loss = 0.5 * drop.sum(dim=1)  # half a cell off on every axis, times 2
        flank = (TAIL * drop.amax(dim=1)).sqrt()
        return _Need(values, along, peak, list(place), level, loss, flank)

    def _sum_window(
        self, folded: Float[Tensor, "batch folded 2"], need: _Need
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch folded 2"], Bool[Tensor, " batch"]]:
        """Sum over one window around the peak, and tell for which posteriors that is enough."""
        turns = self._turns.index_select(0, self._flat(need.place))
        window = self._windows.select(need.level)
        weights = window.evaluate(torch.view_as_real(torus.as_complex(folded) * turns.conj()))
        peak, total = normalize_(weights)
        centred = window.expect(weights).div_(total[:, :, None])
        rotation = torch.view_as_real(torus.as_complex(centred) * turns)
        peak = peak.squeeze(1)
        log_partition = (
            peak + total.squeeze(1).log() + self._log_coarse_cell - self._log_cells.index_select(0, need.level)
        )
        floor, compact = peak - need.loss - TAIL, self._fits.index_select(0, need.level)
        for line, node in zip(need.along, need.place, strict=True):
            inside = self._inside.index_select(0, need.level * self._n_coarse + node)
            compact = compact & ((line + inside).amax(dim=1) < floor)
        return log_partition, rotation, compact

    def _sum_part_or_all(
        self, folded: Float[Tensor, "batch folded 2"], need: _Need, refinement: float
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch folded 2"]]:
        """Sum over the cells that matter, or over the whole fine grid where that is cheaper."""
        active = need.values >= (need.peak - need.loss - need.flank - TAIL)[:, None]
        n_cell, n_axis = math.ceil(refinement), math.ceil(refinement * self._n_coarse)
        n_part, n_all = active.sum(dim=1) * n_cell**self.torus_dim, n_axis**self.torus_dim
        cheaper = (n_part > n_all / CELL_COST) if self.torus_dim <= 2 else torch.zeros_like(n_part, dtype=torch.bool)
        whole = torch.ones_like(cheaper) if refinement == 1 else cheaper
        log_partition, rotation = torch.empty_like(need.peak), torch.empty_like(folded)
        for rows in _chunks(whole, n_all):
            table = self._grid(n_axis)
            weights = table.evaluate(folded[rows])
            peak, total = normalize_(weights)
            log_partition[rows] = (peak + total.log()).squeeze(1) + self.torus_dim * math.log(2 * math.pi / n_axis)
            rotation[rows] = table.expect(weights) / total[:, :, None]
        for rows in _chunks(~whole, int(n_part.max())):
            log_totals, rotation[rows] = self._sum_cells(folded[rows], active[rows], self._cell(n_cell))
            log_partition[rows] = log_totals + self.torus_dim * math.log(self._spacing / n_cell)
        return log_partition, rotation

    def _sum_cells(
        self, folded: Float[Tensor, "batch folded 2"], active: Bool[Tensor, "batch point"], table: SeparableSum
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch folded 2"]]:
        """Sum over the fine points of the active coarse cells, turned so that all cells share one table."""
        rows, nodes = active.nonzero(as_tuple=True)
        turns = self._turns[nodes]
        weights = table.evaluate(torch.view_as_real(torus.as_complex(folded)[rows] * turns.conj()))
        peak = folded.new_full((len(folded),), -torch.inf).scatter_reduce(0, rows, weights.amax(dim=1), "amax")
        weights.sub_(peak[rows, None]).clamp_(min=NEGLIGIBLE).exp_()
        total = torch.zeros_like(peak).index_add_(0, rows, weights.sum(dim=1))
        turned = torch.view_as_real(torus.as_complex(table.expect(weights)) * turns)
        rotation = torch.zeros_like(folded).index_add_(0, rows, turned)
        return peak + total.log(), rotation / total[:, None, None]

    def _make_grid(self, n_axis: int) -> SeparableSum:
        return SeparableSum(self._box, torus.grid_axis(n_axis), dtype=self.dtype)

    def _make_cell(self, n_cell: int) -> SeparableSum:
        steps = (torch.arange(n_cell, dtype=torch.float64) - (n_cell - 1) / 2) / n_cell
        return SeparableSum(self._box, steps * self._spacing, dtype=self.dtype)

    def _flat(self, place: list[Int[Tensor, " batch"]]) -> Int[Tensor, " batch"]:
        flat = place[0]
        for node in place[1:]:
            flat = flat * self._n_coarse + node
        return flat


def _chunks(chosen: Bool[Tensor, " batch"], n_points: int) -> tuple[Int[Tensor, " _"], ...]:
    """Return the chosen rows, so many at a time that their points fit."""
    rows = chosen.nonzero().flatten()
    return rows.split(max(1, CHUNK // max(1, n_points))) if len(rows) else ()


def _take(need: _Need, rows: Int[Tensor, " chosen"]) -> _Need:
    """Keep some rows."""
    lines, places = [line[rows] for line in need.along], [place[rows] for place in need.place]
    return _Need(need.values[rows], lines, need.peak[rows], places, need.level[rows], need.loss[rows], need.flank[rows])
