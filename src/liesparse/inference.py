"""Inference: FISTA on the codes α with the pose integrated out, then the most probable pose.

Also the gradients of ln P(I|α̂) with respect to α, Φ and W [Chau20, eq. 4 and 6, app. C].
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_choice, check_count, check_images, check_matrix, check_real, reject
from liesparse.devices import full_precision
from liesparse.model import Codes, Images, Parameters, Planes, Poses, compose
from liesparse.posterior import Ascent, Evidence, PoseEngine, PoseExpectation

Gradient = Literal["approximate", "exact"]
GRADIENTS: tuple[Gradient, ...] = ("approximate", "exact")
CodeUpdate = Literal["subgradient", "proximal"]
CODE_UPDATES: tuple[CodeUpdate, ...] = ("subgradient", "proximal")

STEP_SAFETY = 1.5  # [Chau20, app. D]


class Gradients(NamedTuple):
    """The two directions of a step, each a mean over a batch."""

    dictionary: Float[Tensor, "pixel component"]
    group_basis: Float[Tensor, "pixel column"]


def expect_pose(parameters: Parameters, images: Images, codes: Codes, engine: PoseEngine) -> PoseExpectation:
    """Integrate the pose out at fixed codes: R̄ = E[R(s)] under P(s | I, α) [Chau20, app. B and C]."""
    engine.check_fits(parameters)
    frame = images.T if parameters.outer is None else parameters.outer.group_basis
    return engine.expect(Evidence.of(parameters, images, codes))._replace(frame=frame)


def unturned_residual(expectation: PoseExpectation, gradient: Gradient) -> Planes:
    """Return Wᵀ E[T(s)ᵀ ε], the residual turned back to s = 0, which every gradient contains [Chau20, app. C].

    exact: R̄ᵀv - u.  approximate: R̄ᵀ(v - R̄u), where T(s) and ε are taken as independent.
    """
    return expectation.returned - (expectation.explained if gradient == "exact" else expectation.damped)


def code_gradient(
    parameters: Parameters, codes: Codes, expectation: PoseExpectation, gradient: Gradient = "exact"
) -> Codes:
    """Return ∇_α ln P(α|I) with the subgradient sign(0) = 0 [Chau20, eq. 6 and app. C]."""
    residual = parameters.from_planes(unturned_residual(expectation, gradient))
    return residual @ parameters.dictionary / parameters.noise_std**2 - parameters.sparsity * codes.sign()


def parameter_gradients(
    parameters: Parameters, codes: Codes, expectation: PoseExpectation, gradient: Gradient = "exact"
) -> Gradients:
    """Return ∇_Φ and ∇_W of ln P(I|α̂), each averaged over the batch [Chau20, eq. 4 and app. C].

    With u = WᵀΦα̂ and r = Wᵀ E[T(s)ᵀε̂] they are W r α̂ᵀ / σ² and (I (R̄u)ᵀ + Φα̂ rᵀ - W S) / σ². The exact
    S = E[R u uᵀ Rᵀ] is what the paper calls difficult, the approximate one is R̄u (R̄u)ᵀ; either is symmetric, so W S is
    normal to the Stiefel manifold and every Riemannian step removes it. It is left out: on the manifold the exact
    gradient costs no more.
    """
    residual = unturned_residual(expectation, gradient).flatten(1)
    by_dictionary = parameters.group_basis @ (residual.T @ codes)
    by_group_basis = expectation.frame @ expectation.cross + compose(parameters, codes).T @ residual
    scale = len(codes) * parameters.noise_std**2
    return Gradients(by_dictionary / scale, by_group_basis / scale)


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
    images: Images,
    engine: PoseEngine,
    *,
    n_code_steps: int = 20,
    start: float | Codes = 0.01,
    update: CodeUpdate = "subgradient",
    gradient: Gradient = "approximate",
) -> Codes:
    """Find α̂ = argmax P(α|I) of unit-norm images by FISTA [Chau20, Algorithm 1 lines 4-9, app. D].

    Everything happens in the 2L plane coordinates A = WᵀΦ and v = WᵀI; no step touches the pixels.
    The codes carry no gradient.

    Parameters
    ----------
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
    size = (len(images), parameters.n_components)
    if isinstance(start, Tensor):
        check_matrix("start", start, ("batch", size[0]), ("n_components", size[1]), images.dtype)
        if start.is_cpu and bool((start < 0).any()):
            reject("start", "codes >= 0", f"a minimum of {float(start.min())}", "Clamp them at 0.")
    else:
        start = images.new_full(size, check_real("start", start, minimum=0))
    dictionary_planes = parameters.to_planes(parameters.dictionary.T)
    ascent = Ascent(
        parameters.seen_planes(images),
        dictionary_planes,
        parameters.pose_prior,
        n_steps=n_code_steps,
        step=code_step_size(dictionary_planes.flatten(1), parameters.noise_std),
        sparsity=parameters.sparsity,
        variance=parameters.noise_std**2,
        exact=gradient == "exact",
        subgradient=update == "subgradient",
        turn=parameters.turn,
    )
    return engine.find_codes(start, ascent)


@full_precision
def map_poses(
    parameters: Parameters, images: Images, codes: Codes, engine: PoseEngine, *, refine: bool = True
) -> Poses:
    """Find ŝ = argmax P(s|I,α̂): the best grid point, then refined continuously [Chau20, sec. 5].

    The highest peaks of the grid are all refined: the best grid point may lie on the lower of two.
    """
    engine.check_fits(parameters)
    check_images(images, parameters.n_pixels, parameters.dtype)
    return torus.wrap(engine.find_poses(Evidence.of(parameters, images, codes), refine=refine))


def overlap_poses(parameters: Parameters, shapes: Planes, onto: Planes, engine: PoseEngine) -> Poses:
    """Return the poses in which shapes overlap most with others, both given in planes.

    Shapes that overlap are found more easily: from equal codes FISTA sees the pose of an image by all of them at once.
    """
    evidence = Evidence.of_planes(parameters, shapes, onto)
    flat = torch.zeros_like(parameters.pose_prior)
    return engine.find_poses(evidence._replace(image=evidence.show(onto), prior=flat))
