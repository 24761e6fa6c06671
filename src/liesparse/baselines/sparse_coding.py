"""Plain sparse coding, I = Φα + ε: Olshausen and Field with the paper's second-order step [Chau20, app. E]."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import check_count, check_images, check_matrix, check_real, check_unit_norm
from liesparse.posterior.ascent import fista


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
    dictionary: Float[Tensor, "pixel component"]


def log_posterior(
    dictionary: Float[Tensor, "pixel component"],
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    *,
    noise_std: float,
    sparsity: float,
) -> Float[Tensor, " batch"]:
    """Return ln P(I|α) + ln P(α): LSC's objective when T(s) is the identity [Chau20, app. E]."""
    constant = codes.shape[1] * math.log(sparsity) if sparsity > 0 else 0.0
    return log_likelihood(dictionary, images, codes, noise_std=noise_std) + constant - sparsity * codes.sum(dim=1)


def log_likelihood(
    dictionary: Float[Tensor, "pixel component"],
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    *,
    noise_std: float,
) -> Float[Tensor, " batch"]:
    """Return ln P(I|α), a Gaussian around Φα."""
    error = (images - codes @ dictionary.T).square().sum(dim=1)
    return -error / (2 * noise_std**2) - 0.5 * images.shape[1] * math.log(2 * math.pi * noise_std**2)


def infer_sparse_codes(
    dictionary: Float[Tensor, "pixel component"],
    images: Float[Tensor, "batch pixel"],
    *,
    noise_std: float,
    sparsity: float,
    n_code_steps: int = 50,
) -> Float[Tensor, "batch component"]:
    """Find α̂ >= 0 by FISTA with soft thresholding; here the objective is convex [Beck09]."""
    check_matrix("dictionary", dictionary, ("n_pixels", None), ("n_components", None))
    check_images(images, len(dictionary))
    gram = dictionary.T @ dictionary
    step = 1 / torch.linalg.eigvalsh(gram)[-1].double().clamp(min=1e-12)  # in units of σ²
    target, threshold = images @ dictionary * step, step * sparsity * noise_std**2
    start = images.new_zeros(len(images), dictionary.shape[1])

    def advance(codes: Float[Tensor, "batch component"]) -> Float[Tensor, "batch component"]:
        return (codes - codes @ gram * step + target - threshold).clamp_(min=0)

    return fista(advance, start, check_count("n_code_steps", n_code_steps))


def dictionary_step(
    dictionary: Float[Tensor, "pixel component"],
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    mean_square: Float[Tensor, " component"],
    *,
    noise_std: float,
    rate: float,
    damping: float = 0.001,
) -> Float[Tensor, "pixel component"]:
    """Take ΔΦ_k = η ∇_Φk / (mean of α_k² + ε), then unit columns [Chau20, app. E]."""
    gradient = (images - codes @ dictionary.T).T @ codes / (len(images) * noise_std**2)
    return torch.nn.functional.normalize(dictionary + rate * gradient / (mean_square + damping), dim=0)


def learn_sparse_coding(
    images: Float[Tensor, "image pixel"],
    n_components: int,
    settings: SparseCodingSettings,
    *,
    generator: torch.Generator,
    callback: Callable[[SparseCodingProgress], None] | None = None,
) -> Float[Tensor, "pixel component"]:
    """Learn a dictionary from unit-norm images, starting from images of the data.

    An image is the better start: a random direction correlates too little with any image to pass
    the threshold λσ², and would never be used.
    """
    check_unit_norm(check_images(images))
    chosen = torch.randperm(len(images), generator=generator)[: check_count("n_components", n_components)]
    dictionary = images[chosen.to(images.device)].T.contiguous()
    squares: deque[Tensor] = deque(maxlen=settings.history)
    n_steps = settings.n_epochs * -(-len(images) // settings.batch_size)
    step = 0
    for _ in range(settings.n_epochs):
        order = torch.randperm(len(images), generator=generator).to(images.device)
        for batch in order.split(settings.batch_size):
            codes = infer_sparse_codes(
                dictionary,
                images[batch],
                noise_std=settings.noise_std,
                sparsity=settings.sparsity,
                n_code_steps=settings.n_code_steps,
            )
            squares.append(codes.square().mean(dim=0))
            dictionary = dictionary_step(
                dictionary,
                images[batch],
                codes,
                torch.stack(tuple(squares)).mean(dim=0),
                noise_std=settings.noise_std,
                rate=settings.dictionary_rate * 0.5 * (1 + math.cos(math.pi * step / n_steps)),
                damping=settings.damping,
            )
            step += 1
            if callback is not None:
                callback(SparseCodingProgress(step, n_steps, dictionary))
    return dictionary
