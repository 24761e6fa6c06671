"""The joint point estimate of pose and codes, as an engine: what integrating the pose out is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from liesparse import torus
from liesparse.model import Codes
from liesparse.posterior import Ascent, GridEngine, Moments
from liesparse.posterior.interface import Natural, slope_and_curvature
from liesparse.torus import Frequencies

N_NEWTON = 2


class PointEngine(GridEngine):
    """The most probable pose in place of the integral: R(ŝ) where others have R̄.

    With ``n_starts`` the codes climb together with a pose, two Newton steps in each of its axes for one of theirs, from
    as many random poses, and the best pair counts. Without, the best of all grid points is taken anew at each step of
    the codes.
    """

    def __init__(self, frequencies: Frequencies, n_grid: int, n_starts: int | None, generator: torch.Generator) -> None:
        super().__init__(frequencies, n_grid)
        self.n_starts, self.generator = n_starts, generator
        self._poses: Tensor | None = None  # of the images whose codes were climbed last

    def moments(self, natural: Natural) -> Moments:
        """Return the height of the best pose, and R there."""
        poses = self._poses
        if poses is None or len(poses) != len(natural):
            poses = self.points[self.values(natural).argmax(dim=1)]
        rotation = torus.features(torus.phases(self.frequencies, poses))
        return Moments((natural * rotation).sum(dim=(1, 2)), rotation)

    def find_codes(self, codes: Codes, ascent: Ascent) -> Codes:
        """Climb codes and pose together."""
        self._poses = None
        if self.n_starts is None:
            return ascent.climb(codes, lambda natural: self.moments(natural).rotation)
        many = self.n_starts * len(codes)
        poses = 2 * torch.pi * torch.rand(many, self.torus_dim, generator=self.generator)
        longest = 1 / int(self.frequencies.abs().max())

        def follow(natural: Natural) -> Natural:
            nonlocal poses
            for _ in range(N_NEWTON):
                slope, curvature = slope_and_curvature(natural, self.frequencies, poses)
                stiffness = curvature.diagonal(dim1=1, dim2=2).abs().clamp(min=1e-6)  # uphill also from a valley
                poses = poses + (slope / stiffness).clamp(-longest, longest)
            return torus.features(torus.phases(self.frequencies, poses))

        repeated = ascent._replace(image_planes=ascent.image_planes.repeat(self.n_starts, 1, 1))
        found = repeated.climb(codes.repeat(self.n_starts, 1), follow)
        shapes = torch.einsum("bk,klc->blc", found, ascent.dictionary_planes)
        drawn = torus.rotate(shapes, torus.phases(self.frequencies, poses))
        error = (repeated.image_planes - drawn).square().sum(dim=(1, 2))
        height = -error / (2 * ascent.variance) - ascent.sparsity * found.sum(dim=1)
        best = height.view(self.n_starts, -1).argmax(dim=0) * len(codes) + torch.arange(len(codes))
        self._poses = poses[best]
        return found[best]
