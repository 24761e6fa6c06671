"""The M-step in closed form: W and Φ that maximize the expected log likelihood over the recent batches.

With A = WᵀΦ held as a parameter of its own, E[ln P(I|s,α)] is linear in W but for a constant, so its maximum over
orthonormal W is a polar factor, and quadratic in A, so each column has its maximum in closed form. A plane of little
energy, to which a gradient step hardly listens, gets its direction as quickly as any other. Running averages over
the batches make it online EM; the paper takes gradient steps instead (:func:`liesparse.inference.parameter_gradients`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import stiefel
from liesparse.devices import read_numbers, to_cpu
from liesparse.lattice import energy_basis, fitted_lattice
from liesparse.model import Parameters, unit_columns
from liesparse.posterior import PoseExpectation

LEAST_USE = 1e-3  # a shape with less than this share of the mean α² stays as it is


class Averages(NamedTuple):
    """Running averages of what the M-step needs."""

    moved: Float[Tensor, "pixel column"]  # I (R̄u)ᵀ
    returned: Float[Tensor, "column component"]  # R̄ᵀv αᵀ
    gram: Float[Tensor, "component component"]  # α αᵀ

    @classmethod
    def zero(cls, parameters: Parameters) -> Averages:
        """Return the averages over no batch."""
        like, n_components = parameters.group_basis, parameters.n_components
        n_columns = like.shape[1]
        return cls(
            torch.zeros_like(like), like.new_zeros(n_columns, n_components), like.new_zeros(n_components, n_components)
        )

    def n_codes(self) -> float:
        """Return how many codes an image has, by their weights: (Σα)² / Σα², at least 1."""
        whole, squares = read_numbers(torch.stack((self.gram.sum(), self.gram.diagonal().sum())))
        return max(1.0, whole / squares) if squares > 0 else 1.0

    def without(self, shapes: list[int]) -> Averages:
        """Return the averages with some shapes forgotten."""
        kept = self.gram.new_ones(len(self.gram))
        kept[shapes] = 0
        return Averages(self.moved, self.returned * kept, self.gram * kept[:, None] * kept)

    def with_planes(self, signs: Float[Tensor, " column"]) -> Averages:
        """Return the averages with some columns of W mirrored (-1) or forgotten (0)."""
        return Averages(self.moved * signs, self.returned * signs[:, None], self.gram)


def average(
    averages: Averages, codes: Float[Tensor, "batch component"], expectation: PoseExpectation, share: float
) -> Averages:
    """Let a batch count for ``share`` of the averages and all before it for the rest.

    Through an outer group a shape is seen in part only: what is hidden counts as the model has it now, so that the
    M-step is one of majorization, and never lowers the expected likelihood.
    """
    seen = expectation.returned + (expectation.shape_planes - expectation.explained)
    rates: dict[str, Any] = {"beta": 1 - share, "alpha": share / len(codes)}
    return Averages(
        torch.addmm(averages.moved, expectation.frame, expectation.cross, **rates),
        torch.addmm(averages.returned, seen.flatten(1).T, codes, **rates),
        torch.addmm(averages.gram, codes.T, codes, **rates),
    )


def maximize(parameters: Parameters, averages: Averages, *, learn_group: bool = True) -> Parameters:
    """Return the model with W = polar(E[I (R̄u)ᵀ]) and Φ = WA, each column of A the best of norm 1 given the others.

    On the sphere E[‖A_k α_k‖²] is a constant, so the best A_k points along E[(R̄ᵀv - Σ_{j≠k} A_j α_j) α_k]. To solve
    for all columns at once and scale them afterwards is wrong where shapes overlap: it lowers the objective.
    The W of a group that is known stays as it is.
    """
    group_basis, returned = parameters.group_basis, averages.returned
    if learn_group:
        group_basis = stiefel.polar(averages.moved, group_basis)
    else:  # what turns into a column that is zero is lost
        returned = returned * group_basis.any(dim=0)[:, None]
    planes = unit_columns(parameters.group_basis.T @ parameters.dictionary)
    energies = averages.gram.diagonal()
    used = energies > LEAST_USE * energies.mean()
    for k in range(parameters.n_components):  # a choice by value for each column, and no device is waited for
        others = planes @ averages.gram[:, k] - planes[:, k] * energies[k]
        best = torch.nn.functional.normalize(returned[:, k] - others, dim=0)
        planes[:, k] = torch.where(used[k], best, planes[:, k])
    return replace(parameters, group_basis=group_basis, dictionary=group_basis @ planes)


def fit_lattice(parameters: Parameters, averages: Averages) -> tuple[Parameters, Averages]:
    """Return the model, and its averages, with frequencies that fit the energy of its planes.

    First the same frequencies in the shortest basis of the lattice that holds the energy, then those that are missing
    there. A plane with a new frequency keeps its columns of W and starts empty: the next M-steps fill it.
    """
    one_axis = parameters.frequencies.shape[1] == 1  # any fit there asks for still more frequencies, and fewer copies
    if one_axis or bool(parameters.pose_prior.any()):  # a prior on the pose is given by its own frequencies
        return parameters, averages
    group_basis, device = parameters.group_basis, parameters.device
    frequencies = to_cpu(parameters.frequencies)
    energies = to_cpu((group_basis.T @ parameters.dictionary).unflatten(0, (-1, 2)).square().sum(dim=(1, 2)))
    coords = torch.linalg.solve(energy_basis(frequencies, energies).double(), frequencies.T.double()).T
    renamed = coords.round()
    stray = (coords - renamed).abs().amax(dim=1) > 1e-6
    order = torch.arange(renamed.shape[1], 0, -1).double()  # the first entry that is not 0 decides the half
    mirrored = (renamed.sign() * 3.0**order).sum(dim=1) < 0
    renamed = torch.where(mirrored[:, None], -renamed, renamed).long()
    fitted = fitted_lattice(renamed, energies * ~stray, most_copies=parameters.n_components, free=stray)
    kept = ~stray & (fitted == renamed).all(dim=1)
    signs = torch.stack((kept.double(), torch.where(mirrored, -1.0, 1.0) * kept), dim=1).flatten().to(group_basis)
    planes = unit_columns((group_basis * signs).T @ parameters.dictionary)
    group_basis = group_basis * torch.where(signs < 0, -1.0, 1.0).to(group_basis)
    dictionary = parameters.dictionary if bool(kept.all()) else group_basis @ planes
    model = replace(parameters, group_basis=group_basis, dictionary=dictionary, frequencies=fitted.to(device))
    return model, averages.with_planes(signs)
