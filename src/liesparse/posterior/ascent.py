"""Climbing: FISTA on the codes α, and Newton steps to the modes of the pose's density."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse.torus import Frequencies

Natural = Float[Tensor, "batch irrep 2"]  # η, or R̄: two numbers for each plane
Poses = Float[Tensor, "batch torus"]
PosesOfModes = Float[Tensor, "batch mode torus"]
Codes = Float[Tensor, "batch component"]
PerImage = Float[Tensor, " batch"]
Turn = Float[Tensor, "outer_column column"]  # M = W₂ᵀW, which leads from planes of W to those of an outer group

N_STEPS = 12  # Newton steps; they converge in about half as many
ARRIVED = 0.2  # nats left to climb from which a start stands on a mode of its own
FLAT = 1e-3  # a curvature below this share of the largest is as good as none
RIDGE = 1.0  # added to the curvature: no mode counts as wider than a radian


def fista(advance: Callable[[Tensor], Tensor], start: Tensor, n_steps: int) -> Tensor:
    """Accelerate the fixed-point iteration x ← advance(x) by Nesterov's momentum [Beck09, eq. 4.1-4.3]."""
    current = ahead = start
    momentum = 1.0
    for _ in range(n_steps):
        previous, current = current, advance(ahead)
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = torch.lerp(previous, current, 1 + (momentum - 1) / next_momentum)
        momentum = next_momentum
    return current


class Ascent(NamedTuple):
    """What FISTA on the codes needs to know [Chau20, app. D]: A = WᵀΦ, v = WᵀI and a few numbers."""

    image_planes: Natural
    dictionary_planes: Float[Tensor, "component irrep 2"]
    pose_prior: Float[Tensor, "irrep 2"]
    n_steps: int
    step: Float[Tensor, ""]
    sparsity: float
    variance: float
    exact: bool  # gradient of the likelihood, else the approximate one
    subgradient: bool  # of the sparsity with sign(0) = 0, else a proximal step
    turn: Turn | None = None  # M, where there is an outer group

    def climb(self, codes: Codes, expect_rotation: Callable[[Natural], Natural]) -> Codes:
        """Return the codes after all steps, where ``expect_rotation`` gives R̄ [Chau20, Algorithm 1 lines 4-9].

        Conjugate planes ū, v̄ throughout: then η̂ = η + ūv/σ² and R̄ᵀv - u need no conjugation in the loop.
        """
        as_complex, planes = torch.view_as_complex, self.image_planes
        atoms = torus.conjugate(self.dictionary_planes).flatten(1)  # Ā
        evidence, mirrored = as_complex(planes / self.variance), as_complex(torus.conjugate(planes))
        prior = as_complex(self.pose_prior)
        back = (atoms * (self.step / self.variance)).T

        def advance(codes: Codes) -> Codes:
            shape = as_complex((codes @ atoms).unflatten(1, (-1, 2)))  # ū
            natural = shape * evidence + prior
            rotation = as_complex(expect_rotation(torch.view_as_real(natural)))
            residual = rotation * mirrored - shape if self.exact else rotation * (mirrored - rotation.conj() * shape)
            uphill = torch.view_as_real(residual).flatten(1) @ back
            shrink = codes.sign() if self.subgradient else 1.0
            return (codes + uphill - self.step * self.sparsity * shrink).clamp_(min=0)

        with torch.inference_mode():  # a tenth faster; the clone is an ordinary tensor again
            found = fista(advance, codes, self.n_steps)
        return found.clone()


class Modes(NamedTuple):
    """Distinct local maxima, highest first; where there are fewer, the rest have log density -inf."""

    poses: PosesOfModes
    log_density: Float[Tensor, "batch mode"]  # η·T(s), not normalised
    curvature: Float[Tensor, "batch mode torus torus"]  # the negative second derivatives, no eigenvalue below 0


def pose_log_density(natural: Natural, frequencies: Frequencies, poses: Poses) -> PerImage:
    """Return η·T(s), the unnormalised log density, at any pose [Chau20, app. B]."""
    return (natural * torus.features(torus.phases(frequencies, poses))).sum(dim=(1, 2))


def slope_and_curvature(
    natural: Natural, frequencies: Frequencies, poses: Poses
) -> tuple[Poses, Float[Tensor, "batch torus torus"]]:
    """Return the gradient of η·T(s) and its negative Hessian."""
    omega = frequencies.to(natural)
    cos, sin = torus.features(torus.phases(frequencies, poses)).unbind(-1)
    slope = (natural[..., 1] * cos - natural[..., 0] * sin) @ omega
    return slope, torch.einsum("bl,li,lj->bij", natural[..., 0] * cos + natural[..., 1] * sin, omega, omega)


def refine_poses(natural: Natural, frequencies: Frequencies, poses: Poses, *, n_steps: int = N_STEPS) -> Poses:
    """Climb η·T(s) from ``poses`` by safeguarded Newton steps; the result is never worse than the start.

    Each image has its own damping: a step that does not climb is not taken and the next is shorter. None goes further
    than a radian of the highest frequency: where the curvature changes its sign, Newton's own step has no end.
    """
    longest = 1 / max(1, int(frequencies.abs().max()))
    value = pose_log_density(natural, frequencies, poses)
    damping = torch.zeros_like(value)
    for _ in range(n_steps):
        slope, curvature = slope_and_curvature(natural, frequencies, poses)
        eigenvalues, axes = torch.linalg.eigh(curvature)
        # The absolute value turns saddles into ascent directions; the floor keeps flat directions finite.
        floor = 1e-6 * eigenvalues.abs().amax(dim=1, keepdim=True) + torch.finfo(natural.dtype).tiny
        stiffness = eigenvalues.abs().maximum(floor) * (1 + damping[:, None])
        step = torch.einsum("bij,bj,bkj,bk->bi", axes, 1 / stiffness, axes, slope)
        trial = poses + step.nan_to_num(0.0) * (longest / step.norm(dim=1, keepdim=True)).clamp(max=1).nan_to_num(0.0)
        trial_value = pose_log_density(natural, frequencies, trial)
        better = trial_value > value
        poses = torch.where(better[:, None], trial, poses)
        value = torch.where(better, trial_value, value)
        damping = torch.where(better, damping / 4, 4 * damping + 1)
    return poses


def find_modes(
    natural: Natural, frequencies: Frequencies, starts: PosesOfModes, n_modes: int, *, n_steps: int = N_STEPS
) -> Modes:
    """Climb from all starts and keep the ``n_modes`` highest distinct modes.

    A place is a mode if little is left to climb there and no way leads up, as from a saddle, and one of its own if no
    higher one lies within its width. The best place always counts: a flat density has no mode.
    """
    batch, n_starts, n = starts.shape
    repeated = natural.repeat_interleave(n_starts, dim=0)
    reached = refine_poses(repeated, frequencies, starts.flatten(0, 1), n_steps=n_steps)
    slopes, curvatures = slope_and_curvature(repeated, frequencies, reached)
    values, order = pose_log_density(repeated, frequencies, reached).view(batch, n_starts).sort(1, descending=True)
    poses, slopes = (part.view(batch, n_starts, n).take_along_dim(order[..., None], 1) for part in (reached, slopes))
    curvatures = curvatures.view(batch, n_starts, n, n).take_along_dim(order[..., None, None], 1)
    eigenvalues, axes = torch.linalg.eigh(curvatures)
    along = torch.einsum("bmij,bmi->bmj", axes, slopes)
    left = 0.5 * (along.square() / eigenvalues.clamp(min=torch.finfo(natural.dtype).tiny)).sum(dim=-1)
    summit = eigenvalues[..., 0] >= -FLAT * eigenvalues.abs().amax(dim=-1)
    arrived = (summit & (left < ARRIVED)) | (torch.arange(n_starts, device=natural.device) == 0)
    curvatures = torch.einsum("bmij,bmj,bmkj->bmik", axes, eigenvalues.clamp(min=0), axes)
    apart = torus.wrap(poses[:, :, None] - poses[:, None])  # of the first from the second, which is higher
    distances = torch.einsum("bmni,bnij,bmnj->bmn", apart, curvatures, apart) + RIDGE * apart.square().sum(dim=-1)
    kept = arrived & ~torch.tril(distances < 1, diagonal=-1).any(dim=2)
    chosen = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :n_modes]
    missing = max(0, n_modes - n_starts)
    chosen = torch.nn.functional.pad(chosen, (0, missing), value=n_starts - 1)
    log_density = values.masked_fill(~kept, -torch.inf).take_along_dim(chosen, 1)
    log_density[:, n_starts:] = -torch.inf
    poses = poses.take_along_dim(chosen[..., None], 1)
    return Modes(poses, log_density, curvatures.take_along_dim(chosen[..., None, None], 1))
