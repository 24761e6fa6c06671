"""Opponents and relatives: plain sparse coding, and a one-parameter group learned from pairs of images."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import stiefel, torus
from liesparse._checks import check_count, check_images, check_matrix, check_real, check_unit_norm
from liesparse.posterior import AdaptiveEngine, natural_parameters
from liesparse.posterior.ascent import fista

Dictionary = Float[Tensor, "pixel component"]
Images = Float[Tensor, "batch pixel"]
Codes = Float[Tensor, "batch component"]
Basis = Float[Tensor, "pixel column"]
Frequencies = Int[Tensor, "irrep torus"]
Natural = Float[Tensor, "batch irrep 2"]
Scores = Float[Tensor, " batch"]


def _batches(
    n_images: int, settings: SparseCodingSettings | SubgroupSettings, generator: torch.Generator
) -> Iterator[tuple[Tensor, float]]:
    """Yield the rows of each batch with a factor for the learning rate, which falls along half a cosine."""
    n_steps = settings.n_epochs * -(-n_images // settings.batch_size)
    for epoch in range(settings.n_epochs):
        rows = torch.randperm(n_images, generator=generator).split(settings.batch_size)
        for step, chosen in enumerate(rows, epoch * len(rows)):
            yield chosen, 0.5 * (1 + math.cos(math.pi * step / n_steps))


# ---- plain sparse coding, I = Φα + ε: Olshausen and Field with the paper's second-order step [Chau20, app. E]


@dataclass(frozen=True)
class SparseCodingSettings:
    """How to learn the dictionary.

    Attributes
    ----------
    noise_std, sparsity : float
        As in the full model, for a fair comparison (paper: σ, λ).
    n_epochs, batch_size, n_code_steps : int
        Passes over the data, images per update, FISTA steps.
    dictionary_rate : float
        Learning rate at the start (paper: η_Φ, "manually optimized"); the second-order step makes it relative. It
        falls to 0 along half a cosine, which gives a better dictionary than any constant rate.
    history : int
        Batches over which α² is averaged (paper: 300).
    damping : float
        Added to that average (paper: ε = 0.001).
    """

    noise_std: float = 0.1
    sparsity: float = 10.0
    n_epochs: int = 20
    batch_size: int = 100
    n_code_steps: int = 50
    dictionary_rate: float = 0.001
    history: int = 300
    damping: float = 0.001

    def __post_init__(self) -> None:
        check_real("noise_std", self.noise_std, above=0)
        check_real("sparsity", self.sparsity, minimum=0)
        for name in ("n_epochs", "batch_size", "n_code_steps", "history"):
            check_count(name, getattr(self, name))
        check_real("dictionary_rate", self.dictionary_rate, minimum=0)
        check_real("damping", self.damping, above=0)


class SparseCodingProgress(NamedTuple):
    """What a callback sees after each batch."""

    step: int
    n_steps: int
    dictionary: Dictionary


def log_likelihood(dictionary: Dictionary, images: Images, codes: Codes, *, noise_std: float) -> Scores:
    """Return ln P(I|α), a Gaussian around Φα."""
    error = (images - codes @ dictionary.T).square().sum(dim=1)
    return -error / (2 * noise_std**2) - 0.5 * images.shape[1] * math.log(2 * math.pi * noise_std**2)


def infer_sparse_codes(
    dictionary: Dictionary, images: Images, *, noise_std: float, sparsity: float, n_code_steps: int = 50
) -> Codes:
    """Find α̂ >= 0 by FISTA with soft thresholding; here the objective is convex [Beck09]."""
    check_matrix("dictionary", dictionary, ("n_pixels", None), ("n_components", None))
    check_images(images, len(dictionary))
    gram = dictionary.T @ dictionary
    step = 1 / torch.linalg.eigvalsh(gram)[-1].double().clamp(min=1e-12)  # in units of σ²
    target, threshold = images @ dictionary * step, step * sparsity * noise_std**2
    start = images.new_zeros(len(images), dictionary.shape[1])

    def advance(codes: Codes) -> Codes:
        return (codes - codes @ gram * step + target - threshold).clamp_(min=0)

    return fista(advance, start, check_count("n_code_steps", n_code_steps))


def dictionary_step(
    dictionary: Dictionary, images: Images, codes: Codes, squares: Tensor, settings: SparseCodingSettings, rate: float
) -> Dictionary:
    """Take ΔΦ_k = η ∇_Φk / (mean of α_k² + ε), then unit columns [Chau20, app. E]; ``squares`` has those means."""
    gradient = (images - codes @ dictionary.T).T @ codes / (len(images) * settings.noise_std**2)
    return torch.nn.functional.normalize(dictionary + rate * gradient / (squares + settings.damping), dim=0)


def learn_sparse_coding(
    images: Float[Tensor, "image pixel"],
    n_components: int,
    settings: SparseCodingSettings,
    *,
    generator: torch.Generator,
    callback: Callable[[SparseCodingProgress], None] | None = None,
) -> Dictionary:
    """Learn a dictionary from unit-norm images, starting from images of the data.

    An image is the better start: a random direction correlates too little with any image to pass
    the threshold λσ², and would never be used.
    """
    check_unit_norm(check_images(images))
    chosen = torch.randperm(len(images), generator=generator)[: check_count("n_components", n_components)]
    dictionary = images[chosen].T.contiguous()
    squares: deque[Tensor] = deque(maxlen=settings.history)
    known = {name: getattr(settings, name) for name in ("noise_std", "sparsity", "n_code_steps")}
    n_steps = settings.n_epochs * -(-len(images) // settings.batch_size)
    for step, (rows, share) in enumerate(_batches(len(images), settings, generator), 1):
        batch, rate = images[rows], settings.dictionary_rate * share
        codes = infer_sparse_codes(dictionary, batch, **known)
        squares.append(codes.square().mean(dim=0))
        dictionary = dictionary_step(dictionary, batch, codes, torch.stack(tuple(squares)).mean(dim=0), settings, rate)
        if callback is not None:
            callback(SparseCodingProgress(step, n_steps, dictionary))
    return dictionary


# ---- toroidal subgroup analysis, I' = W R(s) Wᵀ I + ε: Cohen and Welling's model [Cohen14]
#
# The special case of ours in which the shape Φα is the other image of the pair. W is found by the same online EM: the
# expected log likelihood has the gradient G = E[I' (R̄u)ᵀ + I (R̄ᵀv - u)ᵀ] with u = WᵀI, v = WᵀI', and W becomes the
# polar factor of its running average.


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


def pair_natural(group_basis: Basis, first: Images, second: Images, noise_std: float) -> Natural:
    """Return the natural parameters of P(s | I, I') under a uniform prior [Cohen14]."""
    before, after = torus.to_planes(group_basis, first), torus.to_planes(group_basis, second)
    return natural_parameters(before, after, noise_std, before.new_zeros(before.shape[1:]))


def pair_log_likelihood(
    group_basis: Basis, frequencies: Frequencies, first: Images, second: Images, noise_std: float
) -> Scores:
    """Return ln P(I' | I) with the pose integrated out [Cohen14]."""
    engine = AdaptiveEngine(frequencies, dtype=first.dtype, device=first.device)
    log_partition = engine.log_partition(pair_natural(group_basis, first, second, noise_std))
    energy = (first @ group_basis).square().sum(dim=1) + second.square().sum(dim=1)
    constant = 0.5 * first.shape[1] * math.log(2 * math.pi * noise_std**2)
    prior = frequencies.shape[1] * math.log(2 * math.pi)
    return log_partition - prior - energy / (2 * noise_std**2) - constant


def pair_statistics(
    group_basis: Basis, first: Images, second: Images, engine: AdaptiveEngine, noise_std: float
) -> Basis:
    """Return I'(R̄u)ᵀ + I(R̄ᵀv)ᵀ averaged over a batch: σ² times the gradient, with I uᵀ added back.

    That term would only shrink W, whose columns have norm 1.
    """
    rotation = engine.moments(pair_natural(group_basis, first, second, noise_std)).rotation
    moved = torus.apply_mean_rotation(torus.to_planes(group_basis, first), rotation).flatten(1)
    returned = torus.apply_mean_rotation_transposed(torus.to_planes(group_basis, second), rotation).flatten(1)
    return (second.T @ moved + first.T @ returned) / len(first)


@torch.no_grad()
def learn_subgroup(
    group_basis: Basis,
    frequencies: Frequencies,
    first: Float[Tensor, "pair pixel"],
    second: Float[Tensor, "pair pixel"],
    settings: SubgroupSettings,
    *,
    generator: torch.Generator,
) -> Basis:
    """Learn W from pairs of unit-norm images, the second moved from the first."""
    check_unit_norm(check_images(first, len(group_basis), group_basis.dtype))
    check_matrix("second", second, ("pair", len(first)), ("n_pixels", len(group_basis)), group_basis.dtype)
    check_unit_norm(second, argument="second")
    engine = AdaptiveEngine(frequencies, dtype=first.dtype, device=first.device)
    average = None
    for rows, share in _batches(len(first), settings, generator):
        statistics = pair_statistics(group_basis, first[rows], second[rows], engine, settings.noise_std)
        average = statistics if average is None else torch.lerp(average, statistics, settings.em_rate * share)
        group_basis = stiefel.polar(average)
    return group_basis
