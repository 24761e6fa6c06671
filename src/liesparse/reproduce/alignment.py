"""Heterogeneous multi-reference alignment: several signals, seen shifted and under noise [Boumal18].

The model is that of the publication: each signal is one of K shapes, shifted by one of its L whole samples, all equally
probable, with white noise of known σ. In terms of this package: the known group ``Shifts(L)``, a grid of L points as
the posterior of the pose, code 1 for one shape and 0 for the others, and all shapes weighed softly.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from liesparse import torus
from liesparse.groups import Shifts
from liesparse.posterior import Evidence, GridEngine

LENGTH, NOISE = 50, 1.0
N_STARTS, N_TRIED, START_STEPS = 10, 1000, 20  # signals and steps with which the starts are compared
MOST_STEPS, TOLERANCE, CHUNK = 50, 1e-5, 20_000
Signals = Float[Tensor, "signal sample"]
Shapes = Float[Tensor, "shape sample"]


class Mixture(NamedTuple):
    """Shapes, in the planes of the group, and how often each occurs."""

    planes: Float[Tensor, "shape irrep 2"]
    weights: Float[Tensor, " shape"]


class Alignment:
    """Expectation maximization for signals of one length and noise of one σ."""

    def __init__(self, length: int, noise_std: float) -> None:
        self.noise_std = noise_std
        self.basis = Shifts(length).make_basis(torch.zeros(1, length), length)
        self.engine = GridEngine(self.basis.frequencies, length)

    def planes(self, signals: Signals) -> Float[Tensor, "signal irrep 2"]:
        """Return signals in the planes of the group."""
        return torus.to_planes(self.basis.group_basis, signals)

    def step(self, mixture: Mixture, signals: Float[Tensor, "signal irrep 2"]) -> tuple[Mixture, float]:
        """Return the next shapes and weights, and the mean log likelihood of the old ones, up to a constant."""
        sums, counts, total = torch.zeros_like(mixture.planes), torch.zeros_like(mixture.weights), 0.0
        still = torch.zeros_like(mixture.planes[0])
        energies = mixture.planes.square().sum(dim=(1, 2)) / (2 * self.noise_std**2)
        for some in signals.split(CHUNK):
            evidence, returned = [], []
            for shape in mixture.planes:
                found = self.engine.moments(Evidence(shape[None], some, self.noise_std, still).natural)
                evidence.append(found.log_partition)
                returned.append(torus.apply_mean_rotation_transposed(some, found.rotation))
            logits = torch.stack(evidence, dim=1) - energies + mixture.weights.log()
            total += float(logits.logsumexp(dim=1).sum())
            share = logits.softmax(dim=1)
            sums += torch.stack(
                [(mine[:, None, None] * back).sum(dim=0) for mine, back in zip(share.T, returned, strict=True)]
            )
            counts += share.sum(dim=0)
        planes = self.planes((sums / counts.clamp(min=1e-9)[:, None, None]).flatten(1) @ self.basis.group_basis.T)
        return Mixture(planes, (counts / len(signals)).clamp(min=1e-9)), total / len(signals)

    def fit(self, signals: Signals, n_shapes: int, *, generator: torch.Generator) -> Shapes:
        """Return the shapes, from the best of several starts at signals that are drawn."""
        planes = self.planes(signals)
        tried = planes[torch.randperm(len(planes), generator=generator)[:N_TRIED]]
        best, highest = None, -torch.inf
        for _ in range(N_STARTS):
            drawn = torch.randperm(len(tried), generator=generator)[:n_shapes]
            mixture, likelihood = Mixture(tried[drawn], torch.full((n_shapes,), 1 / n_shapes)), 0.0
            for _ in range(START_STEPS):
                mixture, likelihood = self.step(mixture, tried)
            if likelihood > highest:
                best, highest = mixture, likelihood
        assert best is not None
        for _ in range(MOST_STEPS):
            last = best
            best, _ = self.step(last, planes)
            if float((best.planes - last.planes).norm()) < TOLERANCE * float(last.planes.norm()):
                break
        return best.planes.flatten(1) @ self.basis.group_basis.T


def make_signals(n_signals: int, shapes: Shapes, noise_std: float, *, generator: torch.Generator) -> Signals:
    """Return as many signals of each shape, shifted by whole samples, under noise."""
    length = shapes.shape[1]
    labels = torch.arange(n_signals) % len(shapes)
    places = torch.arange(length) - torch.randint(length, (n_signals, 1), generator=generator)
    return shapes[labels[:, None], places % length] + noise_std * torch.randn(n_signals, length, generator=generator)


def relative_error(found: Shapes, true: Shapes) -> float:
    """Return ‖X̂ - X‖ / ‖X‖ after the best permutation of the shapes, each with its best shift by whole samples."""
    overlaps = torch.fft.irfft(torch.fft.rfft(found)[:, None].conj() * torch.fft.rfft(true), n=true.shape[1])
    best = overlaps.amax(dim=2)
    apart = found.square().sum(dim=1)[:, None] + true.square().sum(dim=1) - 2 * best
    chosen = apart[linear_sum_assignment(apart.numpy())]
    return float(chosen.sum().clamp(min=0).sqrt() / true.norm())


def measure_alignment(n_shapes: int, n_signals: int, seeds: range) -> dict[str, float]:
    """Return the median relative error over runs, that of averages with known shapes and shifts, and the seconds."""
    errors, seconds = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        shapes = torch.randn(n_shapes, LENGTH, generator=generator)
        signals = make_signals(n_signals, shapes, NOISE, generator=generator)
        began = time.monotonic()
        found = Alignment(LENGTH, NOISE).fit(signals, n_shapes, generator=generator)
        seconds.append(time.monotonic() - began)
        errors.append(relative_error(found, shapes))
    oracle = NOISE * (n_shapes / n_signals) ** 0.5  # of the mean of M / K signals whose entries have variance 1
    return {
        "here": statistics.median(errors),
        "worst": max(errors),
        "all known": oracle,
        "s": statistics.median(seconds),
    }
