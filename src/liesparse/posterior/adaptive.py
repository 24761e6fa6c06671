"""A fine grid of which only the part that matters is evaluated: accurate when sharp, cheap when broad.

The log density is a trigonometric polynomial, so a coarse grid near its Nyquist rate sees every mode. Its height and
its mean square frequency tell how fine a grid the posterior needs, and the largest coarse values along each axis in
which box its mass lies. If a window of few points per axis covers the box, the sum goes over the window; else over
the cells whose coarse node comes near the peak; else, if the posterior is broad, over the whole fine grid. All three
give the same trapezoidal sum, up to points of negligible mass.
"""

import math
from functools import cache, partial, reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_frequencies
from liesparse.model import Numbers
from liesparse.posterior.base import Device, GridEngine, Moments
from liesparse.posterior.kernels import Library
from liesparse.posterior.kernels.sums import CIRCLE_LEVELS, LEVELS, GridKernel
from liesparse.posterior.separable import NEGLIGIBLE, Folded, SeparableSum, WindowSum, sum_points

OVERSAMPLING = 1.55  # coarse points per axis over the 2·max|ω| + 1 that determine the polynomial
DENSITY_REFINEMENTS = {1: 4, 2: 4, 3: 2}  # points per coarse cell of the grid for densities and modes, by dimension
LEVEL_STEP, FINEST = 1.1, 100  # points per axis of a level over the level before, and of the last over the coarse grid
LEVELS_PER_GROUP = 3  # without a window a posterior uses the finest of so many levels: 0, 1 to 3, 4 to 6, …
LEAST_POINTS = 1.1  # fine points for a flat posterior, over the 2·max|ω| + 1 of its polynomial
KERNEL_LEAST_POINTS = 0.95  # the same for the kernel, which does not save points where the planes agree
POINTS_PER_WIDTH = 5.0  # fine points on 2π per 1/width of the peak: a spacing of 1.26 widths
CIRCLE_DOUBT = 1.2  # of the kernel: times so many on one axis, where they cost little
DOUBT, TRUST = 1.05, 0.3  # times so many if the planes disagree, and so many less if all of them make the peak
TAIL = 10.5  # nats below the peak at which mass no longer matters
EDGE = 8.2  # the same for a region that is no larger than the peak
HIDDEN = 0.25  # how far a mode may rise above the nearest node, per axis and over the drop from a mode to one cell away
N_WINDOW = 34  # points per axis of a window
FINEST_WINDOW = 8  # points per axis of the last level with windows, over the coarse grid
BROAD = 4  # a grid with so many times the points per axis of the coarse one is summed as a whole
CELL_COST = 20.0  # a point of a single cell costs so many points of a whole grid
CHUNK = 1 << 22  # points evaluated at a time


class _Need(NamedTuple):
    """What the coarse grid says of each posterior."""

    values: Float[Tensor, "*axes all"]  # η·T(s) at the coarse nodes
    rows: Int[Tensor, " batch"] | None  # which of them are meant; None: all
    peak: Numbers  # the largest value
    curvature: Float[Tensor, "torus batch"]  # at the peak
    level: Int[Tensor, " batch"]  # how fine a grid resolves the posterior
    centre: Float[Tensor, "torus batch"]  # of the box with its mass, in quarters of a cell
    way: Int[Tensor, " batch"]  # 0 if a window covers the box, else one more than the group of the level


class AdaptiveEngine(GridEngine):
    """Quadrature as fine as each posterior needs, where its mass is.

    ``n_grid`` concerns only the methods that return values on a grid, such as ``nodes``.
    """

    def __init__(
        self,
        frequencies: torus.Frequencies,
        *,
        dtype: torch.dtype = torch.float32,
        device: Device = None,
        kernel: str | None = None,
    ) -> None:
        self._nyquist = 2 * int(check_frequencies(frequencies).abs().max()) + 1
        self._n_coarse = max(6, 2 * math.ceil(OVERSAMPLING * self._nyquist / 2))
        n_grid = self._n_coarse * DENSITY_REFINEMENTS.get(frequencies.shape[1], 1)
        self._spacing = 2 * math.pi / self._n_coarse
        super().__init__(frequencies, n_grid, dtype=dtype, device=device, kernel=kernel)
        table = partial(SeparableSum, self._box, dtype=dtype)
        self._coarse = table(torus.grid_axis(self._n_coarse))
        self._grid = cache(lambda n: table(torus.grid_axis(n)))
        # The points of a coarse cell, around its node.
        self._cell = cache(lambda n: table((torch.arange(n).double() - (n - 1) / 2) / n * self._spacing))
        self._turns = self._box.turns(torus.grid_axis(self._n_coarse), dtype)
        squares = torch.cartesian_prod(*self._box.ranges).reshape(self._box.n_cells, -1).double().square()
        squares = torch.cat((squares, squares.any(dim=1, keepdim=True)), dim=1)  # ω = 0 has no curvature
        self._squares = self._to(squares.repeat_interleave(2, dim=0).T.contiguous())  # ω₁², …, ω_n², 1 of both numbers
        self._still = next(iter((squares[:, -1] == 0).nonzero().flatten().tolist()), None)
        node = torch.eye(self._n_coarse, dtype=torch.float64)
        between = (9 * (node + node.roll(1, 1)) - node.roll(-1, 1) - node.roll(2, 1)) / 16  # a cubic through four
        self._halves = self._to(torch.stack((node, between), dim=1).flatten(0, 1))
        halves = torch.arange(2 * self._n_coarse, dtype=torch.float64)
        steps = (halves[:, None] - halves[::2] + self._n_coarse) % len(halves) - self._n_coarse
        self._steps = self._to(steps + 0.5 * steps.sign())  # from each node to just behind each half node
        numbers = torch.tensor((DOUBT * POINTS_PER_WIDTH, torch.finfo(self.dtype).tiny), dtype=torch.float64)
        self._doubt, self._tiny = self._to(numbers)
        self._make_levels()

    def _make_kernel(self, library: Library) -> GridKernel | None:
        one = self.torus_dim == 1
        finer = [n for n in (*LEVELS, *(CIRCLE_LEVELS if one else ())) if n > self._n_coarse]
        least = (LEAST_POINTS if one else KERNEL_LEAST_POINTS) * self._nyquist
        per_width = (CIRCLE_DOUBT if one else 1.0) * POINTS_PER_WIDTH
        refinement = {"least_points": least, "points_per_width": per_width, "tail": TAIL}
        return GridKernel(library, self.frequencies, [self._n_coarse, *finer], **refinement) if finer else None

    def _make_levels(self) -> None:
        """Tabulate what depends on the level, and the axes of all levels with windows, one behind the other."""
        n_groups = math.ceil(math.log(FINEST, LEVEL_STEP) / LEVELS_PER_GROUP)
        levels = torch.arange(n_groups * LEVELS_PER_GROUP + 1)
        sizes = (self._n_coarse * LEVEL_STEP ** levels.double()).ceil()
        least = LEAST_POINTS * self._nyquist
        self._limits = self._to(sizes[:-1] - least)
        per_radian = ((sizes - least) / (0.9 * POINTS_PER_WIDTH)).clamp(min=1)  # 1/width of a peak
        hidden = 0.5 * (self._spacing * per_radian) ** 2 * HIDDEN * (max(1, self.torus_dim - 1) + 0.3)
        self._depths = self._to(EDGE + torch.maximum(hidden, self.torus_dim * per_radian.log()))
        self._scales = self._to(sizes / (2 * self._n_coarse))  # points per half cell
        windowed = sizes[sizes <= FINEST_WINDOW * self._n_coarse].long()
        axes = [torch.arange(n + N_WINDOW).double() * (2 * math.pi / n) for n in windowed.tolist()]
        if self.torus_dim > 1:  # one axis needs no windows
            first, *others = self._box.turns(torch.cat(axes), self.dtype)
            self._windows = [first, *(turn.conj().resolve_conj() for turn in others)]  # as WindowSum wants them
        starts = (windowed + N_WINDOW).cumsum(0) - windowed - N_WINDOW
        self._periods, self._starts = windowed.to(self.device), starts.to(self.device)
        tried = (sizes >= N_WINDOW) & (sizes <= windowed[-1])
        self._tried = self._scales.masked_fill(~tried.to(self.device), torch.inf)
        self._log_cells = self._to(self.torus_dim * (2 * math.pi / sizes).log())
        self._ways = ((levels + LEVELS_PER_GROUP - 1) // LEVELS_PER_GROUP + 1).to(self.device)
        self._sizes = sizes.long().tolist()

    def _sum_folded(self, folded: Folded) -> Moments:
        if self.torus_dim == 1:
            return self._sum_circle(folded)
        need = self._look(folded.detach())
        ways = set(need.way.tolist())
        if len(ways) == 1:
            log_partition, rotation = self._sum_way(folded, need, ways.pop())
        else:
            log_partition, rotation = torch.empty_like(need.peak), torch.empty_like(folded)
        for way in ways:
            rows = (need.way == way).nonzero().flatten()
            # The values stay together until they are needed.
            theirs = _Need(need.values, rows, *(number.index_select(-1, rows) for number in need[2:]))
            part = self._sum_way(folded.index_select(0, rows), theirs, way)
            log_partition.index_copy_(0, rows, part.log_partition)
            rotation.index_copy_(0, rows, part.rotation)
        return Moments(log_partition, rotation)

    def _sum_circle(self, folded: Folded) -> Moments:
        """Sum over all of one axis, as finely as the sharpest posterior of the batch may need: cheaper than a look."""
        curvature = torch.mv(folded.detach().flatten(1).abs(), self._squares[0]).amax()
        needed = LEAST_POINTS * self._nyquist + DOUBT * POINTS_PER_WIDTH * math.sqrt(
            max(0.0, curvature.nan_to_num().item())
        )
        n_axis = self._n_coarse * min(math.ceil(needed / self._n_coarse), FINEST)
        parts = [
            sum_points(rows, self._grid(n_axis), math.log(2 * math.pi / n_axis))
            for rows in folded.split(max(1, CHUNK // n_axis))
        ]
        return Moments(*(torch.cat(both) for both in zip(*parts, strict=True)))

    def _look(self, folded: Folded) -> _Need:
        """Evaluate the coarse grid and find the box; the curvature at the peak is its height times the mean of ω²."""
        values = self._coarse.evaluate_columns(folded)
        axes = range(self.torus_dim)
        others = [[other for other in axes if other != axis] for axis in axes]
        profile = torch.cat([values.amax(dim=dims) if dims else values for dims in others], dim=1)
        tops, place = profile.max(dim=0)  # of the largest values at the nodes of each axis
        peak = tops[: len(folded)]
        height = peak if self._still is None else peak - folded[:, self._still, 0]
        sums = torch.addmm(self._tiny, self._squares, folded.flatten(1).abs().T)  # this way round four times as fast
        agreement = height / sums[-1]
        curvature = sums[:-1] * agreement
        per_width = torch.add(self._doubt, agreement, alpha=-TRUST * POINTS_PER_WIDTH)
        sharpest = torch.fmax(curvature.amax(dim=0), self._tiny).sqrt_()  # also with NaN
        level = torch.bucketize(sharpest.mul_(per_width), self._limits)
        floor = (tops.view(len(axes), -1) - self._depths.index_select(0, level)).flatten()
        near = torch.mm(self._halves, profile).sub_(floor).sign_().relu_()  # 1 or 0
        reach = near.mul_(self._steps.index_select(1, place))
        first, last = reach.amin(dim=0), reach.amax(dim=0)
        centre = (first + last).add_(place, alpha=4).view(len(axes), len(folded))
        length = (last - first).view_as(centre).amax(dim=0)
        covered = length.mul_(self._tried.index_select(0, level)) <= N_WINDOW
        way = self._ways.index_select(0, level).masked_fill_(covered, 0)
        return _Need(values, None, peak, curvature, level, centre, way)

    def _sum_way(self, folded: Folded, need: _Need, way: int) -> Moments:
        """Sum over a window around the box (way 0), over the cells that matter, or over all where that is cheaper."""
        if way == 0:
            tables = (self._scales, self._periods, self._starts, self._log_cells)
            scale, period, start, log_cells = (table.index_select(0, need.level) for table in tables)
            first = (need.centre * scale).add_(1 - N_WINDOW).mul_(0.5).round_().long().remainder_(period)
            return Moments(*sum_points(folded, WindowSum(self._windows, first.add_(start), N_WINDOW), log_cells))
        n_axis = self._sizes[::LEVELS_PER_GROUP][way - 1]
        n_cell, log_cell = math.ceil(n_axis / self._n_coarse), self.torus_dim * math.log(2 * math.pi / n_axis)
        if n_cell == 1 or (n_axis <= BROAD * self._n_coarse and self.torus_dim <= 2):
            return Moments(*sum_points(folded, self._grid(n_axis), log_cell))
        drop = 0.5 * self._spacing**2 * need.curvature  # from the peak to one cell away
        depth = TAIL + 0.5 * drop.sum(dim=0) + (TAIL * drop.amax(dim=0)).sqrt()  # hidden mode; near edge of the cell
        values = need.values if need.rows is None else need.values.index_select(-1, need.rows)
        active = ~(values < need.peak - depth).flatten(0, -2).T
        n_part, n_all = active.sum(dim=1) * n_cell**self.torus_dim, n_axis**self.torus_dim
        whole = (n_part > n_all / CELL_COST) if self.torus_dim <= 2 else torch.zeros_like(n_part, dtype=torch.bool)
        log_partition, rotation = torch.empty_like(need.peak), torch.empty_like(folded)
        for rows in _chunks(whole, n_all):
            log_partition[rows], rotation[rows] = sum_points(folded[rows], self._grid(n_axis), log_cell)
        for rows in _chunks(~whole, int(n_part.max())):
            log_partition[rows], rotation[rows] = self._sum_cells(folded[rows], active[rows], n_cell)
        return Moments(log_partition, rotation)

    def _sum_cells(self, folded: Folded, active: Bool[Tensor, "batch point"], n_cell: int) -> Moments:
        """Sum over the fine points of the active coarse cells, turned so that all cells share one table."""
        table = self._cell(n_cell)
        rows, *nodes = active.unflatten(1, [self._n_coarse] * self.torus_dim).nonzero(as_tuple=True)
        by_axis = (turn[node] for turn, node in zip(self._turns, nodes, strict=True))
        turns = reduce(lambda left, right: (left[:, :, None] * right[:, None]).flatten(1), by_axis)
        weights = table.evaluate(torch.view_as_real(torch.view_as_complex(folded)[rows] * turns.conj()))
        peaks = weights.detach().amax(dim=1)
        peak = folded.new_full((len(folded),), -torch.inf).scatter_reduce(0, rows, peaks, "amax")
        weights.sub_(peak[rows, None]).clamp_(min=NEGLIGIBLE).exp_()
        total = torch.zeros_like(peak).index_add_(0, rows, weights.sum(dim=1))
        turned = torch.view_as_real(torch.view_as_complex(table.expect(weights)) * turns)
        rotation = torch.zeros_like(folded).index_add_(0, rows, turned) / total[:, None, None]
        return Moments(peak + total.log() + self.torus_dim * math.log(self._spacing / n_cell), rotation)

    def _to(self, table: Tensor) -> Tensor:
        return table.to(self.device, self.dtype)


def _chunks(chosen: Bool[Tensor, " batch"], n_points: int) -> tuple[Int[Tensor, " _"], ...]:
    """Return the chosen rows, so many at a time that their points fit."""
    rows = chosen.nonzero().flatten()
    return rows.split(max(1, CHUNK // max(1, n_points))) if len(rows) else ()
