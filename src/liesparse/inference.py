"""Inference: FISTA on the codes α with the pose integrated out, then the most probable pose."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_choice, check_count, check_images, check_matrix, check_real, reject
from liesparse.devices import full_precision, is_cpu
from liesparse.model import Parameters, compose
from liesparse.posterior import Ascent, Engine, natural_parameters, pose_natural

Gradient = Literal["approximate", "exact"]
GRADIENTS: tuple[Gradient, ...] = ("approximate", "exact")
CodeUpdate = Literal["subgradient", "proximal"]
CODE_UPDATES: tuple[CodeUpdate, ...] = ("subgradient", "proximal")

STEP_SAFETY = 1.5  # [Chau20, app. D]


class PoseExpectation(NamedTuple):
    """What the E-step knows of the pose: planes of shape and image, and R̄ and ln Z under P(s|I,α)."""

    shape_planes: Float[Tensor, "batch irrep 2"]
    image_planes: Float[Tensor, "batch irrep 2"]
    rotation: Float[Tensor, "batch irrep 2"]
    log_partition: Float[Tensor, " batch"]


def expect_pose(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    engine: Engine,
) -> PoseExpectation:
    """Integrate the pose out at fixed codes: R̄ = E[R(s)] under P(s | I, α) [Chau20, app. B and C]."""
    engine.check_fits(parameters)
    shape_planes = parameters.to_planes(compose(parameters, codes))
    image_planes = parameters.to_planes(images)
    natural = natural_parameters(shape_planes, image_planes, parameters.noise_std, parameters.pose_prior)
    log_partition, rotation = engine.moments(natural)
    return PoseExpectation(shape_planes, image_planes, rotation, log_partition)


def unturned_residual(expectation: PoseExpectation, gradient: Gradient) -> Float[Tensor, "batch irrep 2"]:
    """Return Wᵀ E[T(s)ᵀ ε], the residual turned back to s = 0, which every gradient contains [Chau20, app. C].

    exact: R̄ᵀv - u.  approximate: R̄ᵀ(v - R̄u), where T(s) and ε are taken as independent.
    """
    u, v, rotation = expectation.shape_planes, expectation.image_planes, expectation.rotation
    explained = u if gradient == "exact" else rotation.square().sum(dim=-1, keepdim=True) * u  # R̄ᵀR̄ = (c² + s²)·1
    return torus.apply_mean_rotation_transposed(v, rotation) - explained


def code_gradient(
    parameters: Parameters,
    codes: Float[Tensor, "batch component"],
    expectation: PoseExpectation,
    gradient: Gradient = "exact",
) -> Float[Tensor, "batch component"]:
    """Return ∇_α ln P(α|I) with the subgradient sign(0) = 0 [Chau20, eq. 6 and app. C]."""
    residual = parameters.from_planes(unturned_residual(expectation, gradient))
    return residual @ parameters.dictionary / parameters.noise_std**2 - parameters.sparsity * codes.sign()


def code_step_size(dictionary_planes: Float[Tensor, "component column"], noise_std: float) -> Float[Tensor, ""]:
    """Return 1 / (1.5 ‖ΦᵀWWᵀΦ‖₂ / σ²), the step of FISTA [Chau20, app. D].

    The norm is the largest eigenvalue of a K × K matrix: no pixel is touched.
    """
    gram = dictionary_planes @ dictionary_planes.T
    norm = torch.linalg.eigvalsh(gram)[-1].double()
    return noise_std**2 / (STEP_SAFETY * norm.clamp(min=1e-12))


@full_precision
def infer_codes(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    engine: Engine,
    *,
    n_code_steps: int = 20,
    start: float | Float[Tensor, "batch component"] = 0.01,
    update: CodeUpdate = "subgradient",
    gradient: Gradient = "approximate",
) -> Float[Tensor, "batch component"]:
    """Find α̂ = argmax P(α|I) by FISTA [Chau20, Algorithm 1 lines 4-9, app. D].

    Everything happens in the 2L plane coordinates A = WᵀΦ and v = WᵀI; no step touches the pixels.
    The codes carry no gradient.

    Parameters
    ----------
    parameters : Parameters
        The model.
    images : Tensor of shape (batch, n_pixels)
        Unit-norm images.
    engine : Engine
        Integrates the pose out.
    n_code_steps : int, default=20
        FISTA steps (paper: T).
    start : float or Tensor of shape (batch, n_components), default=0.01
        Initial codes (paper: α₀).
    update : {"subgradient", "proximal"}, default="subgradient"
        The paper subtracts λ·sign(α) and clamps at 0; a proximal step soft-thresholds, which gives
        exact zeros but never leaves them from a poor start.
    gradient : {"approximate", "exact"}, default="approximate"
        Which form of the likelihood gradient [Chau20, app. C].
    """
    engine.check_fits(parameters)
    check_images(images, parameters.n_pixels, parameters.dtype)
    check_count("n_code_steps", n_code_steps)
    check_choice("update", update, CODE_UPDATES)
    check_choice("gradient", gradient, GRADIENTS)
    codes = _start_codes(parameters, images, start)
    image_planes, dictionary_planes = parameters.to_planes(images), parameters.to_planes(parameters.dictionary.T)
    ascent = Ascent(
        image_planes,
        dictionary_planes,
        parameters.pose_prior,
        n_steps=n_code_steps,
        step=code_step_size(dictionary_planes.flatten(1), parameters.noise_std),
        sparsity=parameters.sparsity,
        variance=parameters.noise_std**2,
        exact=gradient == "exact",
        subgradient=update == "subgradient",
    )
    return engine.ascend(codes, ascent)


def _start_codes(
    parameters: Parameters, images: Tensor, start: float | Float[Tensor, "batch component"]
) -> Float[Tensor, "batch component"]:
    if isinstance(start, Tensor):
        check_matrix("start", start, ("batch", len(images)), ("n_components", parameters.n_components), images.dtype)
        if is_cpu(start.device) and bool((start < 0).any()):
            reject("start", "codes >= 0", f"a minimum of {float(start.min())}", "Clamp them at 0.")
        return start
    return images.new_full((len(images), parameters.n_components), check_real("start", start, minimum=0))


@full_precision
def map_poses(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    engine: Engine,
    *,
    refine: bool = True,
) -> Float[Tensor, "batch torus"]:
    """Find ŝ = argmax P(s|I,α̂): the best grid point, then refined continuously [Chau20, sec. 5].

    The highest peaks of the grid are all refined: the best grid point may lie on the lower of two.
    """
    engine.check_fits(parameters)
    check_images(images, parameters.n_pixels, parameters.dtype)
    natural = pose_natural(parameters, images, codes)
    found = engine.modes(natural).poses if refine else engine.coarse_modes(natural, 1)
    return torus.wrap(found[:, 0])
