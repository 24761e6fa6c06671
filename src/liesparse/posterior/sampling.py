"""Importance sampling: the pose integrated out in any dimension, without a grid.

Half of the proposal is even points that cover the torus; the other half is clouds around the highest modes, as wide
as the posterior is there. Both are lattices, always the same ones: the result is a smooth function of η and needs few
points. A flat posterior needs no cloud, and its lattice sum is all but exact; from there to a sharp one the clouds
come in gradually. Every point counts by the density of the whole mixture (the balance heuristic of Veach and Guibas).
"""

import math
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, reject
from liesparse.model import Numbers
from liesparse.posterior.base import Device, Engine, Moments, Nodes
from liesparse.posterior.interface import ARRIVED, RIDGE, Natural, PosesOfModes, find_modes
from liesparse.posterior.kernels import library_for
from liesparse.posterior.kernels.sums import SamplingKernel

N_STARTS = 16  # places to climb from: the best of every 16th even point
N_MODES = 4  # of which so many get a cloud
N_CLIMBS = 4  # Newton steps; a mode that is not quite reached is a proposal all the same
TAIL = 7.0  # nats below the highest mode from which another one is left to the even points
LOW, HIGH = 3.0, 8.0  # nats of the highest mode above the mean at which clouds begin, and have their full share
MOST_AXES = 6
MOST_AXES_BY_GRID = 2  # from three axes on this is the engine of choice; docs/engines.md has the figures
ENTRIES_AT_ONCE = 1 << 23
SPREAD = 0.75  # scale of the logistic proposal around a mode, in widths of the Gaussian there
NARROW = 0.9  # width of the Gaussian for which the cloud is made
FALL = 9.0  # nats by which waves fall up to the first that M even points can confuse, about M^(1/n) long
N_FINE = 4096  # points from which the waves of the cloud's integrand are read
NUMBERS = {"n_climbs": N_CLIMBS, "spread": SPREAD, "ridge": RIDGE, "tail": TAIL}  # for the kernel
NUMBERS |= {"arrived": ARRIVED, "low": LOW, "high": HIGH}


class SamplingEngine(Engine):
    """Self-normalised importance sampling from the refined modes, for three and more transformations at once.

    ``n_even`` points cover the torus, ``n_cloud`` surround each of up to four modes. Nothing is random. ``kernel``
    names a compiled kernel, or torch; without it the best is taken that this processor can run.
    """

    _kernel: SamplingKernel | None = None

    def __init__(
        self,
        frequencies: torus.Frequencies,
        *,
        n_even: int = 2048,
        n_cloud: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: Device = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__(frequencies, dtype=dtype, device=device)
        n = self.torus_dim
        if n > MOST_AXES:
            reject("frequencies", f"at most {MOST_AXES} torus axes", str(n), "Use fewer transformations.")
        self.n_even, self.n_cloud = n_even, (256 if n <= 4 else 512) if n_cloud is None else n_cloud
        for name, count in (("n_even", self.n_even), ("n_cloud", self.n_cloud)):
            if check_count(name, count, 2 * N_STARTS) & (count - 1):
                reject(name, "a power of 2", str(count), f"Pass {1 << count.bit_length()}.")
        # In a mixed order: along the lattice, equal modes of a symmetric posterior would compete for the same starts.
        mixed = torch.randperm(self.n_even, generator=torch.Generator().manual_seed(0))
        self._even = (2 * math.pi * even_points(self.n_even, n)[mixed]).to(self.device)
        self._cloud = cloud_points(self.n_cloud, n).to(self.device)
        library = library_for(kernel, dtype, self.device)
        if library is not None:
            self._kernel = SamplingKernel(library, frequencies, self._even, self._cloud, NUMBERS)

    def moments(self, natural: Natural) -> Moments:
        """Return ln Z(η) and R̄ [Chau20, app. B and C]."""
        return Moments(*self._sample(natural)[:2])

    def effective_sample_size(self, natural: Natural) -> Numbers:
        """Return (Σw)² / Σw², how many equally weighted draws would tell as much: below about 50 beware."""
        return self._sample(natural)[2]

    def _sample(self, natural: Natural) -> tuple[Tensor, Tensor, Tensor]:
        """Return ln Z(η), R̄ and the effective sample size."""
        if self._kernel is not None and not natural.requires_grad:
            return self._kernel.moments(natural)
        step = max(1, ENTRIES_AT_ONCE // ((self.n_even + N_MODES * self.n_cloud) * 2 * len(self.frequencies)))
        parts = []
        for part in natural.split(step):
            poses, log_weights = self.nodes(part)
            log_partition = log_weights.logsumexp(dim=1)
            weights = (log_weights - log_partition[:, None]).exp()
            features = torus.features(torus.phases(self.frequencies, poses))
            rotation = torch.einsum("bp,bplk->blk", weights, features)
            parts.append((log_partition, rotation, 1 / weights.square().sum(dim=1)))
        log_partition, rotation, size = (torch.cat(part) for part in zip(*parts, strict=True))
        return log_partition, rotation, size

    def nodes(self, natural: Natural) -> Nodes:
        """Return the even points and the clouds with their importance weights."""
        even, cloud = self._even.to(natural), self._cloud.to(natural)
        modes = find_modes(natural, self.frequencies, self.coarse_modes(natural, N_STARTS), N_MODES, n_steps=N_CLIMBS)
        mean = natural[..., 0] @ (self.frequencies == 0).all(dim=1).to(natural)  # over the torus: only ω = 0 has one
        share = ((modes.log_density[:, 0] - mean - LOW) / (HIGH - LOW)).clamp(0, 1)
        share = share * share * (3 - 2 * share)  # of the points that clouds have, smooth at both ends
        use = modes.log_density > modes.log_density[:, :1] - TAIL
        most = max(1, int((use & (share > 0)[:, None]).any(dim=0).sum()))
        use, centres = use[:, :most], modes.poses[:, :most]
        ridge = RIDGE * torch.eye(self.torus_dim, dtype=natural.dtype, device=natural.device)
        roots = torch.linalg.cholesky(modes.curvature + ridge)[:, :most]
        offsets = torch.linalg.solve_triangular(roots.mT[:, :, None], cloud[:, :, None], upper=True)[..., 0]
        around = centres[:, :, None] + offsets
        inside = (offsets.abs() <= math.pi).all(dim=-1) & use[..., None]
        poses = torch.cat((even.expand(len(natural), -1, -1), around.flatten(1, 2)), dim=1)
        # Points per volume of each cloud: a logistic density along each axis of its root.
        apart = torus.wrap(poses[:, :, None] - centres[:, None])
        along = torch.einsum("bmij,bpmi->bpmj", roots, apart).abs() / SPREAD
        log_density = -along - 2 * torch.nn.functional.softplus(-along) - math.log(SPREAD)
        volume = roots.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1) + math.log(self.n_cloud)
        log_cloud = (log_density.sum(dim=-1) + volume[:, None]).masked_fill(~use[:, None], -torch.inf)
        log_cloud = log_cloud + share.log()[:, None, None]
        log_even = math.log(self.n_even) - self.torus_dim * math.log(2 * math.pi)
        log_mixture = torch.logaddexp(log_cloud.logsumexp(dim=2), log_cloud.new_tensor(log_even))
        log_counted = (inside.to(natural) * share[:, None, None]).log().flatten(1)
        log_counted = torch.cat((log_counted.new_zeros(len(natural), len(even)), log_counted), dim=1)
        features = torus.features(torus.phases(self.frequencies, poses))
        return Nodes(poses, torch.einsum("blk,bplk->bp", natural, features) - log_mixture + log_counted)

    def coarse_modes(self, natural: Natural, n_modes: int) -> PosesOfModes:
        """Return the best of every 16th even point, best first: never fewer than 16, as no point is close to a mode."""
        n_starts = min(max(N_STARTS, 1 << (n_modes - 1).bit_length()), self.n_even)
        features = torus.features(torus.phases(self.frequencies, self._even)).flatten(1).to(natural)
        best, place = (natural.flatten(1) @ features.T).unflatten(1, (-1, n_starts)).max(dim=1)
        place = place * n_starts + torch.arange(n_starts, device=natural.device)
        return self._even.to(natural)[place.take_along_dim(best.argsort(dim=1, descending=True), dim=1)]


@cache
def even_points(n_points: int, torus_dim: int) -> Float[Tensor, "point torus"]:
    """Return points in [0, 1)ⁿ that resolve waves of every direction equally well."""
    reach = n_points ** (1 / torus_dim)
    waves = torch.arange(1, math.ceil(2 * reach) + 1, dtype=torch.float64)
    return _best_lattice(torch.exp(-FALL * (waves / reach) ** 2), n_points, torus_dim).double() / n_points


@cache
def cloud_points(n_points: int, torus_dim: int) -> Float[Tensor, "point torus"]:
    """Return places around a mode, in its widths: draws from a logistic density on every axis, symmetric about 0.

    The integrand is a Gaussian over the proposal at quantile u. The lattice's point at infinity is left out; its
    weight is 0.
    """
    middles = (torch.arange(N_FINE, dtype=torch.float64) + 0.5) / N_FINE
    quantiles = SPREAD * torch.special.logit(middles)
    ratio = torch.exp(-0.5 * (quantiles / NARROW) ** 2) / (middles * (1 - middles))
    sizes = torch.fft.rfft(ratio).abs()
    lattice = _best_lattice(sizes[1:200] / sizes[0], n_points, torus_dim)
    lattice = lattice[(lattice != n_points // 2).all(dim=1)]
    places = (torch.arange(n_points, dtype=torch.float64) / n_points + 0.5) % 1
    return SPREAD * torch.special.logit(places)[lattice]


def _best_lattice(sizes: Float[Tensor, " wave"], n_points: int, torus_dim: int) -> Int[Tensor, "point torus"]:
    """Return k·(1, a, a², …) mod M for an integrand whose waves 1, 2, … have these sizes along every axis.

    Such a rank-1 lattice, the many-dimensional trapezoidal rule, integrates every wave exactly whose integer vector is
    not in the dual lattice. Of all odd a the best has the least mean over k of a product over the axes.
    """
    steps = torch.arange(n_points)
    waves = torch.arange(1, len(sizes) + 1, dtype=torch.float64)
    places = steps.double() / n_points
    kernel = 1 + 2 * (sizes * torch.cos(2 * torch.pi * places[:, None] * waves)).sum(dim=1)

    def lattice(a: int) -> Int[Tensor, "point torus"]:
        return steps[:, None] * torch.tensor([pow(a, power, n_points) for power in range(torus_dim)]) % n_points

    odd = range(1, max(2, n_points // 2), 2)
    return lattice(min(odd, key=lambda a: float(kernel[lattice(a)].prod(dim=1).mean())))
