"""From an image and its codes to the natural parameters η̂ of the pose, and to ln P(I|α)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import check_images
from liesparse.model import Parameters, compose
from liesparse.posterior.base import Engine


def natural_parameters(
    shape_planes: Float[Tensor, "batch irrep 2"],
    image_planes: Float[Tensor, "batch irrep 2"],
    noise_std: float,
    pose_prior: Float[Tensor, "irrep 2"],
) -> Float[Tensor, "batch irrep 2"]:
    """Return η̂ = η + (u₁v₁ + u₂v₂, u₁v₂ - u₂v₁)/σ² for each plane [Chau20, app. B].

    u are the planes of the untransformed shape WᵀΦα, v those of the image WᵀI.
    """
    u1, u2 = shape_planes.unbind(-1)
    v1, v2 = image_planes.unbind(-1)
    evidence = torch.stack((u1 * v1 + u2 * v2, u1 * v2 - u2 * v1), dim=-1)
    return pose_prior + evidence / noise_std**2


def pose_natural(
    parameters: Parameters, images: Float[Tensor, "batch pixel"], codes: Float[Tensor, "batch component"]
) -> Float[Tensor, "batch irrep 2"]:
    """Return η̂ of P(s | I, α) [Chau20, app. B]."""
    shape_planes = parameters.to_planes(compose(parameters, codes))
    return natural_parameters(shape_planes, parameters.to_planes(images), parameters.noise_std, parameters.pose_prior)


def log_likelihood(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    engine: Engine,
) -> Float[Tensor, " batch"]:
    """Return ln P(I | α) with the pose integrated out [Chau20, app. B, last line]."""
    engine.check_fits(parameters)
    check_images(images, parameters.n_pixels, parameters.dtype)
    shape_planes = parameters.to_planes(compose(parameters, codes))
    natural = pose_natural(parameters, images, codes)
    variance = parameters.noise_std**2
    energy = (shape_planes.square().sum(dim=(1, 2)) + images.square().sum(dim=1)) / (2 * variance)
    constant = 0.5 * parameters.n_pixels * math.log(2 * math.pi * variance)
    prior = engine.log_partition(parameters.pose_prior[None])
    return engine.log_partition(natural) - prior - energy - constant
