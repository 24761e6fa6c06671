"""Gradients of ln P(I|α̂) with respect to Φ and W [Chau20, eq. 4 and app. C]."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from liesparse import torus
from liesparse.inference import Gradient, PoseExpectation, unturned_residual
from liesparse.model import Parameters, compose
from liesparse.posterior import GridBased, pose_natural


class Gradients(NamedTuple):
    """The two directions of a step, each a mean over a batch."""

    dictionary: Float[Tensor, "pixel component"]
    group_basis: Float[Tensor, "pixel column"]


def parameter_gradients(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    expectation: PoseExpectation,
    gradient: Gradient = "exact",
) -> Gradients:
    """Return both gradients of ln P(I|α̂)."""
    return Gradients(
        dictionary_gradient(parameters, codes, expectation, gradient),
        group_basis_gradient(parameters, images, codes, expectation, gradient),
    )


def dictionary_gradient(
    parameters: Parameters,
    codes: Float[Tensor, "batch component"],
    expectation: PoseExpectation,
    gradient: Gradient = "exact",
) -> Float[Tensor, "pixel component"]:
    """Return ∇_Φ ln P(I|α̂) = E[T(s)ᵀε̂] α̂ᵀ / σ², averaged over the batch [Chau20, eq. 4 and app. C]."""
    residual = unturned_residual(expectation, gradient).flatten(1)
    scale = len(codes) * parameters.noise_std**2
    return parameters.group_basis @ (residual.T @ codes) / scale


def group_basis_gradient(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    expectation: PoseExpectation,
    gradient: Gradient = "exact",
    second_moment: Float[Tensor, "column column"] | None = None,
) -> Float[Tensor, "pixel column"]:
    """Return ∇_W ln P(I|α̂), averaged over the batch [Chau20, eq. 4 and app. C].

    With u = WᵀΦα̂ it is (I (R̄u)ᵀ + Φα̂ (Wᵀ E[T(s)ᵀε̂])ᵀ - W S) / σ². The exact S = E[R u uᵀ Rᵀ] is what
    the paper calls difficult, the approximate one is R̄u (R̄u)ᵀ; either is symmetric, so W S is
    normal to the Stiefel manifold and every Riemannian step removes it. It is left out unless
    ``second_moment`` is given, and on the manifold the exact gradient costs no more.
    """
    moved = torus.apply_mean_rotation(expectation.shape_planes, expectation.rotation).flatten(1)
    residual = unturned_residual(expectation, gradient).flatten(1)
    total = images.T @ moved + compose(parameters, codes).T @ residual
    scale = len(codes) * parameters.noise_std**2
    if second_moment is not None:
        total = total - len(codes) * parameters.group_basis @ second_moment
    return total / scale


def approximate_second_moment(expectation: PoseExpectation) -> Float[Tensor, "column column"]:
    """Return R̄u (R̄u)ᵀ averaged over the batch: S with T(s) and ε taken as independent [Chau20, app. C]."""
    moved = torus.apply_mean_rotation(expectation.shape_planes, expectation.rotation).flatten(1)
    return moved.T @ moved / len(moved)


def exact_second_moment(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    engine: GridBased,
) -> Float[Tensor, "column column"]:
    """Return E[R(s) u uᵀ R(s)ᵀ] averaged over the batch, by dense quadrature [Chau20, app. C].

    Only needed for the Euclidean gradient of W; see :func:`group_basis_gradient`.
    """
    probabilities = engine.probabilities(pose_natural(parameters, images, codes))
    angles = torus.phases(parameters.frequencies, engine.points.to(images))
    total = images.new_zeros(2 * parameters.n_irreps, 2 * parameters.n_irreps)
    for weights, planes in zip(probabilities, parameters.to_planes(compose(parameters, codes)), strict=True):
        turned = torus.rotate(planes.expand(len(angles), -1, -1), angles).flatten(1)
        total += turned.T @ (weights[:, None] * turned)
    return total / len(images)
