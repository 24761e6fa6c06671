"""Toroidal subgroup analysis: a one-parameter group from pairs of images, I' = W R(s) Wᵀ I + ε.

Cohen and Welling's model [Cohen14], the special case of ours in which the shape Φα is the other image of the pair.
W is found by the same online EM: the expected log likelihood has the gradient
G = E[I' (R̄u)ᵀ + I (R̄ᵀv - u)ᵀ] with u = WᵀI, v = WᵀI', and W becomes the polar factor of its running average.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import stiefel, torus
from liesparse._checks import check_count, check_images, check_matrix, check_real, check_unit_norm
from liesparse.posterior import AdaptiveEngine, natural_parameters


@dataclass(frozen=True)
class SubgroupSettings:
    """How to learn W.

    Attributes
    ----------
    noise_std : float
        Standard deviation of the pixel noise for images of norm 1 (paper: σ).
    n_epochs, batch_size : int
        Passes over the pairs, pairs per batch.
    em_rate : float
        Share of one batch in the running average at the start; it falls along half a cosine.
    """

    noise_std: float = 0.2
    n_epochs: int = 10
    batch_size: int = 100
    em_rate: float = 0.05

    def __post_init__(self) -> None:
        check_real("noise_std", self.noise_std, above=0)
        check_count("n_epochs", self.n_epochs)
        check_count("batch_size", self.batch_size)
        check_real("em_rate", self.em_rate, above=0, maximum=1)


class SubgroupProgress(NamedTuple):
    """What a callback sees after each batch."""

    step: int
    n_steps: int
    group_basis: Float[Tensor, "pixel column"]


def pair_natural(
    group_basis: Float[Tensor, "pixel column"],
    first: Float[Tensor, "batch pixel"],
    second: Float[Tensor, "batch pixel"],
    noise_std: float,
) -> Float[Tensor, "batch irrep 2"]:
    """Return the natural parameters of P(s | I, I') under a uniform prior [Cohen14]."""
    flat = group_basis.new_zeros(group_basis.shape[1] // 2, 2)
    return natural_parameters(
        torus.to_planes(group_basis, first), torus.to_planes(group_basis, second), noise_std, flat
    )


def pair_log_likelihood(
    group_basis: Float[Tensor, "pixel column"],
    frequencies: Int[Tensor, "irrep torus"],
    first: Float[Tensor, "batch pixel"],
    second: Float[Tensor, "batch pixel"],
    noise_std: float,
) -> Float[Tensor, " batch"]:
    """Return ln P(I' | I) with the pose integrated out [Cohen14]."""
    engine = AdaptiveEngine(frequencies, dtype=first.dtype, device=first.device)
    log_partition = engine.log_partition(pair_natural(group_basis, first, second, noise_std))
    energy = (first @ group_basis).square().sum(dim=1) + second.square().sum(dim=1)
    constant = 0.5 * first.shape[1] * math.log(2 * math.pi * noise_std**2)
    prior = frequencies.shape[1] * math.log(2 * math.pi)
    return log_partition - prior - energy / (2 * noise_std**2) - constant


def pair_statistics(
    group_basis: Float[Tensor, "pixel column"],
    first: Float[Tensor, "batch pixel"],
    second: Float[Tensor, "batch pixel"],
    engine: AdaptiveEngine,
    noise_std: float,
) -> Float[Tensor, "pixel column"]:
    """Return I'(R̄u)ᵀ + I(R̄ᵀv)ᵀ averaged over a batch: σ² times the gradient, with I uᵀ added back.

    That term would only shrink W, whose columns have norm 1.
    """
    rotation = engine.moments(pair_natural(group_basis, first, second, noise_std)).rotation
    moved = torus.apply_mean_rotation(torus.to_planes(group_basis, first), rotation).flatten(1)
    returned = torus.apply_mean_rotation_transposed(torus.to_planes(group_basis, second), rotation).flatten(1)
    return (second.T @ moved + first.T @ returned) / len(first)


@torch.no_grad()
def learn_subgroup(
    group_basis: Float[Tensor, "pixel column"],
    frequencies: Int[Tensor, "irrep torus"],
    first: Float[Tensor, "pair pixel"],
    second: Float[Tensor, "pair pixel"],
    settings: SubgroupSettings,
    *,
    generator: torch.Generator,
    callback: Callable[[SubgroupProgress], None] | None = None,
) -> Float[Tensor, "pixel column"]:
    """Learn W from pairs of unit-norm images, the second moved from the first."""
    check_unit_norm(check_images(first, len(group_basis), group_basis.dtype))
    check_matrix("second", second, ("pair", len(first)), ("n_pixels", len(group_basis)), group_basis.dtype)
    check_unit_norm(second, argument="second")
    engine = AdaptiveEngine(frequencies, dtype=first.dtype, device=first.device)
    n_steps = settings.n_epochs * -(-len(first) // settings.batch_size)
    average = torch.zeros_like(group_basis)
    step = 0
    for _ in range(settings.n_epochs):
        order = torch.randperm(len(first), generator=generator).to(first.device)
        for chosen in order.split(settings.batch_size):
            statistics = pair_statistics(group_basis, first[chosen], second[chosen], engine, settings.noise_std)
            rate = settings.em_rate * 0.5 * (1 + math.cos(math.pi * step / n_steps))
            average = torch.lerp(average, statistics, rate if step else 1.0)
            group_basis = stiefel.polar(average)
            step += 1
            if callback is not None:
                callback(SubgroupProgress(step, n_steps, group_basis))
    return group_basis
