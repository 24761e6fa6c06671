"""Peaks of the pose density, found on a grid and refined between its points."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import torus
from liesparse.posterior.base import Engine


def refined_peaks(
    natural: Float[Tensor, "batch irrep 2"], engine: Engine, n_peaks: int, *, n_steps: int = 12
) -> tuple[Float[Tensor, "batch peak torus"], Float[Tensor, "batch peak"]]:
    """Refine the highest peaks of the grid; return them with their log densities.

    Several of them may climb the same hill, and the best grid point may lie on the lower of two.
    """
    starts = engine.modes(natural, n_peaks)
    repeated = natural.repeat_interleave(starts.shape[1], dim=0)
    poses = refine_poses(repeated, engine.frequencies, starts.flatten(0, 1), n_steps=n_steps)
    values = pose_log_density(repeated, engine.frequencies, poses)
    return poses.view_as(starts), values.view(starts.shape[:2])


def pose_log_density(
    natural: Float[Tensor, "batch irrep 2"],
    frequencies: Int[Tensor, "irrep torus"],
    poses: Float[Tensor, "batch torus"],
) -> Float[Tensor, " batch"]:
    """Return η·T(s), the unnormalised log density, at any pose [Chau20, app. B]."""
    return (natural * torus.features(torus.phases(frequencies, poses))).sum(dim=(1, 2))


def slope_and_bend(
    natural: Float[Tensor, "batch irrep 2"],
    frequencies: Int[Tensor, "irrep torus"],
    poses: Float[Tensor, "batch torus"],
) -> tuple[Float[Tensor, "batch torus"], Float[Tensor, "batch torus torus"]]:
    """Return the gradient of η·T(s) and its negative Hessian."""
    omega = frequencies.to(natural)
    cos, sin = torus.features(torus.phases(frequencies, poses)).unbind(-1)
    slope = (natural[..., 1] * cos - natural[..., 0] * sin) @ omega
    return slope, torch.einsum("bl,li,lj->bij", natural[..., 0] * cos + natural[..., 1] * sin, omega, omega)


def refine_poses(
    natural: Float[Tensor, "batch irrep 2"],
    frequencies: Int[Tensor, "irrep torus"],
    poses: Float[Tensor, "batch torus"],
    *,
    n_steps: int = 12,
) -> Float[Tensor, "batch torus"]:
    """Climb η·T(s) from ``poses`` by safeguarded Newton steps; the result is never worse than the start.

    Each image has its own damping: a step that does not climb is not taken and the next is shorter.
    """
    value = pose_log_density(natural, frequencies, poses)
    damping = torch.zeros_like(value)
    for _ in range(n_steps):
        slope, bend = slope_and_bend(natural, frequencies, poses)
        eigenvalues, axes = torch.linalg.eigh(bend)
        # |bend| turns saddles into ascent directions; the floor keeps flat directions finite.
        floor = 1e-6 * eigenvalues.abs().amax(dim=1, keepdim=True) + torch.finfo(natural.dtype).tiny
        stiffness = eigenvalues.abs().maximum(floor) * (1 + damping[:, None])
        step = torch.einsum("bij,bj,bkj,bk->bi", axes, 1 / stiffness, axes, slope)
        trial = poses + step.nan_to_num(0.0)
        trial_value = pose_log_density(natural, frequencies, trial)
        better = trial_value > value
        poses = torch.where(better[:, None], trial, poses)
        value = torch.where(better, trial_value, value)
        damping = torch.where(better, damping / 4, 4 * damping + 1)
    return poses
