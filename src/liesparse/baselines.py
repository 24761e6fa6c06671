"""Opponents and relatives: plain sparse coding, and a one-parameter group learned from pairs of images."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse import stiefel
from liesparse._checks import MOST, NOISE, check_count, check_images, check_matrix, check_real, check_unit_norm
from liesparse.model import Codes, Images, Numbers, Parameters
from liesparse.posterior import AdaptiveEngine, Engine, Evidence
from liesparse.posterior.interface import fista
from liesparse.settings import MOST_STEPS

Dictionary = Float[Tensor, "pixel component"]
Basis = Float[Tensor, "pixel column"]
Frequencies = Int[Tensor, "irrep torus"]

PAIRS_PER_BATCH, PAIRS_RATE = 100, 0.05  # of toroidal subgroups: the share of one batch in the average at the start


def _batches(
    n_images: int, n_epochs: int, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, float]]:
    """Yield the rows of each batch with a factor for the learning rate, which falls along half a cosine."""
    n_steps = n_epochs * -(-n_images // batch_size)
    for epoch in range(n_epochs):
        rows = torch.randperm(n_images, generator=generator).split(batch_size)
        for step, chosen in enumerate(rows, epoch * len(rows)):
            yield chosen, 0.5 * (1 + math.cos(math.pi * step / n_steps))


# ---- plain sparse coding, I = Φα + ε: Olshausen and Field with the paper's second-order step [Chau20, app. E]


@dataclass(frozen=True)
class SparseCodingSettings:
    """How to learn the dictionary; σ and λ as in the full model, for a fair comparison.

    The learning rate falls to 0 along half a cosine, which gives a better dictionary than any constant one.
    """

    noise_std: float = 0.1
    sparsity: float = 10.0
    n_epochs: int = 20
    batch_size: int = 100
    n_code_steps: int = 50  # of FISTA
    dictionary_rate: float = 0.001  # at the start (paper: η_Φ, "manually optimized"), and relative
    history: int = 300  # batches over which α² is averaged
    damping: float = 0.001  # added to that average (paper: ε)

    def __post_init__(self) -> None:
        check_real("noise_std", self.noise_std, **NOISE)
        check_real("sparsity", self.sparsity, minimum=0, maximum=MOST)
        check_count("n_code_steps", self.n_code_steps, maximum=MOST_STEPS)
        for name in ("n_epochs", "batch_size", "history"):
            check_count(name, getattr(self, name))
        check_real("dictionary_rate", self.dictionary_rate, minimum=0)
        check_real("damping", self.damping, above=0)


def log_likelihood(dictionary: Dictionary, images: Images, codes: Codes, *, noise_std: float) -> Numbers:
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
    callback: Callable[[int, int], None] | None = None,
) -> Dictionary:
    """Learn a dictionary from unit-norm images, starting from images of the data.

    After each batch ``callback`` is told how many are done, and how many there are.
    An image is the better start: a random direction correlates too little with any image to pass
    the threshold λσ², and would never be used.
    """
    check_unit_norm(check_images(images))
    chosen = torch.randperm(len(images), generator=generator)[: check_count("n_components", n_components)]
    dictionary = images[chosen].T.contiguous()
    squares: deque[Tensor] = deque(maxlen=settings.history)
    known = {name: getattr(settings, name) for name in ("noise_std", "sparsity", "n_code_steps")}
    n_steps = settings.n_epochs * -(-len(images) // settings.batch_size)
    for step, (rows, share) in enumerate(_batches(len(images), settings.n_epochs, settings.batch_size, generator), 1):
        batch, rate = images[rows], settings.dictionary_rate * share
        codes = infer_sparse_codes(dictionary, batch, **known)
        squares.append(codes.square().mean(dim=0))
        dictionary = dictionary_step(dictionary, batch, codes, torch.stack(tuple(squares)).mean(dim=0), settings, rate)
        if callback is not None:
            callback(step, n_steps)
    return dictionary


# ---- toroidal subgroup analysis, I' = W R(s) Wᵀ I + ε: Cohen and Welling's model [Cohen14]
#
# The special case of ours in which the shape Φα is the other image of the pair. W is found by the same online EM: the
# expected log likelihood has the gradient G = E[I' (R̄u)ᵀ + I (R̄ᵀv - u)ᵀ] with u = WᵀI, v = WᵀI', and W becomes the
# polar factor of its running average.


def pair_model(group_basis: Basis, frequencies: Frequencies, first: Images, noise_std: float) -> Parameters:
    """Return the model of pairs [Cohen14]: the first images are its shapes, each with the code 1 for its own pair."""
    uniform = group_basis.new_zeros(len(frequencies), 2)
    return Parameters(group_basis, first.T, frequencies, noise_std, sparsity=0.0, pose_prior=uniform)


def pair_statistics(model: Parameters, second: Images, engine: Engine) -> Basis:
    """Return I'(R̄u)ᵀ + I(R̄ᵀv)ᵀ averaged over a batch: σ² times the gradient, with I uᵀ added back.

    That term would only shrink W, whose columns have norm 1.
    """
    evidence = Evidence.of_planes(model, model.to_planes(model.dictionary.T), model.to_planes(second))
    moved, returned = engine.carry(evidence)
    return (second.T @ moved.flatten(1) + model.dictionary @ returned.flatten(1)) / len(second)


@torch.no_grad()
def learn_subgroup(
    group_basis: Basis,
    frequencies: Frequencies,
    first: Float[Tensor, "pair pixel"],
    second: Float[Tensor, "pair pixel"],
    *,
    noise_std: float,
    n_epochs: int,
    generator: torch.Generator,
) -> Basis:
    """Learn W from pairs of unit-norm images, the second moved from the first."""
    engine = AdaptiveEngine(frequencies, dtype=first.dtype, device=first.device)
    average = None
    for rows, share in _batches(len(first), check_count("n_epochs", n_epochs), PAIRS_PER_BATCH, generator):
        model = pair_model(group_basis, frequencies, first[rows], noise_std)
        statistics = pair_statistics(model, second[rows], engine)
        average = statistics if average is None else torch.lerp(average, statistics, PAIRS_RATE * share)
        group_basis = stiefel.polar(average)
    return group_basis
