"""Learning Φ and W: the paper's Algorithm 1. START HERE.

Each batch: find the codes with the pose integrated out, take the expectation over the pose, then
climb ln P(I|α̂) in the dictionary (projected to unit columns) and in the group basis (Riemannian
Adam on the Stiefel manifold).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import stiefel, torus
from liesparse._checks import check_choice, check_count, check_images, check_real, check_unit_norm
from liesparse.inference import (
    CODE_UPDATES,
    GRADIENTS,
    CodeUpdate,
    Gradient,
    PoseExpectation,
    expect_pose,
    infer_codes,
    unturned_residual,
)
from liesparse.model import Parameters, compose
from liesparse.posterior import ENGINES, Engine, EngineName, make_engine, pose_natural

Schedule = Literal["constant", "cosine"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine")


@dataclass(frozen=True)
class Settings:
    """How to learn. The defaults are the paper's [Chau20, app. E].

    Attributes
    ----------
    n_epochs, batch_size : int
        Passes over the data, and images per update (paper: B).
    posterior : {"grid", "adaptive"}
        How the pose is integrated out: the paper's grid, or as finely as each posterior needs.
    n_grid : int
        Quadrature points per torus axis of the grid (paper: N).
    n_code_steps, code_start, code_update, gradient
        Inference of the codes, see :func:`liesparse.inference.infer_codes`.
    dictionary_rate, group_rate : float
        Learning rates of Φ and W (paper: η_Φ, η_W).
    schedule : {"constant", "cosine"}
        Whether both rates stay or fall to 0 along half a cosine.
    metric : {"canonical", "euclidean"}
        Metric of the Stiefel manifold for Riemannian Adam; the paper's is canonical.
    single_shape_epochs : int
        During the first so many epochs only the largest code of each image counts in the updates.
        With several shapes per image the dictionary explains motion by mixing, and W learns nothing.
    """

    n_epochs: int = 20
    batch_size: int = 100
    posterior: EngineName = "grid"
    n_grid: int = 50
    n_code_steps: int = 20
    code_start: float = 0.01
    code_update: CodeUpdate = "subgradient"
    gradient: Gradient = "approximate"
    dictionary_rate: float = 0.05
    group_rate: float = 0.3
    schedule: Schedule = "constant"
    metric: stiefel.Metric = "canonical"
    single_shape_epochs: int = 0

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size", "n_code_steps"):
            check_count(name, getattr(self, name))
        check_count("n_grid", self.n_grid, 2)
        check_count("single_shape_epochs", self.single_shape_epochs, 0)
        for name in ("code_start", "dictionary_rate", "group_rate"):
            check_real(name, getattr(self, name), minimum=0)
        check_choice("posterior", self.posterior, ENGINES)
        check_choice("code_update", self.code_update, CODE_UPDATES)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("metric", self.metric, stiefel.METRICS)


class Progress(NamedTuple):
    """What a callback sees after each batch."""

    step: int
    n_steps: int
    epoch: int
    end_of_epoch: bool
    parameters: Parameters
    codes: Float[Tensor, "batch component"]


Callback = Callable[[Progress], None]


@torch.no_grad()
def learn(
    parameters: Parameters,
    images: Float[Tensor, "image pixel"],
    settings: Settings,
    *,
    generator: torch.Generator,
    callback: Callback | None = None,
) -> Parameters:
    """Learn Φ and W from unit-norm images, starting from ``parameters`` [Chau20, Algorithm 1].

    The learned model is returned; ``parameters`` stay as they were.
    """
    check_unit_norm(check_images(images, parameters.n_pixels, parameters.dtype))
    parameters.validate()
    engine = make_engine(settings.posterior, parameters.frequencies, settings.n_grid, dtype=images.dtype)
    adam = stiefel.AdamState.zero(parameters.group_basis)
    n_batches = -(-len(images) // settings.batch_size)
    n_steps = n_batches * settings.n_epochs
    for step, batch in enumerate(shuffled_batches(images, settings, generator)):
        epoch = step // n_batches
        codes = infer_codes(  # lines 4-9
            parameters,
            batch,
            engine,
            n_code_steps=settings.n_code_steps,
            start=settings.code_start,
            update=settings.code_update,
            gradient=settings.gradient,
        )
        used = largest_only(codes) if epoch < settings.single_shape_epochs else codes
        expectation = expect_pose(parameters, batch, used, engine)  # line 10
        parameters, adam = update(  # lines 11-14
            parameters, adam, batch, used, expectation, settings, decay(settings.schedule, step / n_steps)
        )
        end = (step + 1) % n_batches == 0
        if end:
            parameters.validate()  # rates too large end here, not in a model full of NaN
        if callback is not None:
            callback(Progress(step + 1, n_steps, epoch + 1, end, parameters, codes))
    return parameters


def update(
    parameters: Parameters,
    adam: stiefel.AdamState,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    expectation: PoseExpectation,
    settings: Settings,
    rate_factor: float = 1.0,
) -> tuple[Parameters, stiefel.AdamState]:
    """Take one step in Φ and one in W [Chau20, Algorithm 1, lines 11-14], both with gradients at the old parameters."""
    uphill = dictionary_gradient(parameters, codes, expectation, settings.gradient)
    dictionary = unit_columns(parameters.dictionary + settings.dictionary_rate * rate_factor * uphill)
    group_basis, adam = stiefel.adam_step(
        parameters.group_basis,
        -group_basis_gradient(parameters, images, codes, expectation, settings.gradient),
        adam,
        rate=settings.group_rate * rate_factor,
        metric=settings.metric,
    )
    return replace(parameters, dictionary=dictionary, group_basis=group_basis), adam


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
    engine: Engine,
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


def unit_columns(dictionary: Float[Tensor, "pixel component"]) -> Float[Tensor, "pixel component"]:
    """Project every column to norm 1 [Chau20, sec. 3.2]."""
    return torch.nn.functional.normalize(dictionary, dim=0)


def largest_only(codes: Float[Tensor, "batch component"]) -> Float[Tensor, "batch component"]:
    """Set all but the largest code of each image to zero."""
    return codes * (codes == codes.amax(dim=1, keepdim=True))


def decay(schedule: Schedule, progress: float) -> float:
    """Return the factor on the learning rates after a share ``progress`` of the training."""
    return 1.0 if schedule == "constant" else 0.5 * (1 + math.cos(math.pi * progress))


def shuffled_batches(
    images: Float[Tensor, "image pixel"], settings: Settings, generator: torch.Generator
) -> Iterator[Float[Tensor, "batch pixel"]]:
    """Yield the batches of all epochs, each epoch in a new random order."""
    for _ in range(settings.n_epochs):
        order = torch.randperm(len(images), generator=generator)
        for chosen in order.split(settings.batch_size):
            yield images[chosen]
