"""Coordinates of the pose in which the frequencies of a model serve best.

A learned motion is known up to a linear map of the pose: s' = Ms moves the same pictures as long as they do not go all
the way round. Which M is best depends on the lattice: with a short way on the torus the frequencies must be high, and
with a long one its ends meet although the pictures there differ. So M is searched. For each try W and the shapes are
fitted to the poses that the model infers, by a few M-steps with known poses, and what they explain is compared. On one
axis that only names the candidates: poses that turn too slowly are also too inexact to say how fast they could turn.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from liesparse import stiefel, torus
from liesparse.devices import to_cpu
from liesparse.inference import infer_codes, map_poses
from liesparse.lattice import useful_frequencies
from liesparse.model import Parameters
from liesparse.posterior import PoseEngine

N_IMAGES, IMAGES_PER_COMPONENT = 1500, 60
TRIAL_STEPS, LAST_STEPS = 5, 40  # M-steps with known poses, of a try and of the one that is taken
STEPS = (0.3,), (0.15, 0.075)  # by which an entry of ln M changes: from each start, and from the best of them
SLOWER = sorted((2, 3, 4, 5, *(1.03**power for power in range(14, 61))))  # so many times may one axis be too slow
MOST_RIVALS = 6  # of them that are learned from
FILLED = 0.4  # of each axis, where the directions are tried
GAIN, LEAST_GAIN = 1e-3, 0.05  # nats of the residual by which one try beats another, and the best one what there was

Matrix = Float[Tensor, "torus torus"]


class Seen(NamedTuple):
    """Images with the poses that a model infers."""

    coords: Float[Tensor, "image column"]  # in the span of W
    template: Int[Tensor, " image"]
    poses: Float[Tensor, "image torus"]  # around the mean of each template, so that no template is torn apart
    noise: float  # energy of white noise within the span


class Fit(NamedTuple):
    """W, within its span, and shapes that are fitted to known poses."""

    turn: Float[Tensor, "column column"]
    planes: Float[Tensor, "component irrep 2"]
    frequencies: Int[Tensor, "irrep torus"]
    score: float  # minus the log of the energy that is left, noise apart


def improve_coordinates(
    parameters: Parameters, images: Float[Tensor, "image pixel"], engine: PoseEngine, *, generator: torch.Generator
) -> Parameters:
    """Return the model with its pose in better coordinates, or as it is where none are better."""
    n_seen = max(N_IMAGES, IMAGES_PER_COMPONENT * parameters.n_components)
    chosen = torch.randperm(len(images), generator=generator)[:n_seen].to(images.device)
    seen = look(parameters, images[chosen], engine)
    first = (_climb(parameters, seen, start, STEPS[0]) for start in _starts(parameters, seen))
    best = _climb(parameters, seen, max(first, key=lambda one: one.score).coordinates, STEPS[1])
    as_it_is = torch.eye(parameters.torus_dim, dtype=torch.float64)
    fit, before = (fit_poses(parameters, seen, each, LAST_STEPS) for each in (best.coordinates, as_it_is))
    return parameters if fit.score < before.score + LEAST_GAIN else _with_fit(parameters, seen, fit)


def faster_poses(
    parameters: Parameters, images: Float[Tensor, "image pixel"], engine: PoseEngine, *, generator: torch.Generator
) -> list[Parameters]:
    """Return models of one axis whose pose turns faster, those that fit the inferred poses best first.

    The axis is often a circle, which only the right number closes, to a few hundredths; it may be no integer, as where
    the pictures come round after 0.3 of the axis. Which of these models is best is told by what they can learn.
    """
    n_seen = max(N_IMAGES, IMAGES_PER_COMPONENT * parameters.n_components)
    chosen = torch.randperm(len(images), generator=generator)[:n_seen].to(images.device)
    seen = look(parameters, images[chosen], engine)
    fits = [fit_poses(parameters, seen, torch.tensor([[times]], dtype=torch.float64)) for times in SLOWER]
    scores = [-math.inf, *(fit.score for fit in fits), -math.inf]
    tops = [fits[i] for i in range(len(fits)) if scores[i] <= scores[i + 1] >= scores[i + 2]]
    tops.sort(key=lambda fit: fit.score, reverse=True)
    return [_with_fit(parameters, seen, fit) for fit in tops[:MOST_RIVALS]]


def _with_fit(parameters: Parameters, seen: Seen, fit: Fit) -> Parameters:
    """Return the model with what was fitted; a template of which no image was seen keeps its shape."""
    group_basis = parameters.group_basis @ fit.turn
    dictionary = torch.nn.functional.normalize(group_basis @ fit.planes.flatten(1).T, dim=0)
    used = torch.zeros(parameters.n_components, dtype=torch.bool, device=dictionary.device)
    used[seen.template] = True
    dictionary = torch.where(used, dictionary, parameters.dictionary)
    return replace(parameters, group_basis=group_basis, dictionary=dictionary, frequencies=fit.frequencies)


def look(parameters: Parameters, images: Float[Tensor, "image pixel"], engine: PoseEngine) -> Seen:
    """Infer template and pose of each image."""
    codes = infer_codes(parameters, images, engine)
    poses = map_poses(parameters, images, codes, engine)
    template = codes.argmax(dim=1)
    circles = torch.polar(torch.ones_like(poses), poses)
    centre = circles.mean(dim=0).angle()
    sums = torch.zeros(parameters.n_components, parameters.torus_dim, dtype=circles.dtype, device=images.device)
    means = centre + torus.wrap(sums.index_add_(0, template, circles).angle() - centre)
    coords = images @ parameters.group_basis
    n_pixels, n_columns = parameters.group_basis.shape
    outside = max(0.0, 1 - float(coords.square().sum(dim=1).mean()))
    noise = outside * n_columns / (n_pixels - n_columns) if n_pixels > n_columns else 0.0
    own = means[template]
    return Seen(coords, template, own - centre + torus.wrap(poses - own), noise)


def fit_poses(parameters: Parameters, seen: Seen, coordinates: Matrix, n_steps: int = TRIAL_STEPS) -> Fit:
    """Fit W and the shapes to the poses Ms, with the frequencies that serve best there."""
    omega = parameters.frequencies.double() @ torch.linalg.inv(coordinates)
    stretch = float(torch.linalg.det(coordinates).abs())
    copies = int(torch.unique(parameters.frequencies, dim=0, return_counts=True)[1].max())
    copies = min(copies, parameters.n_components)  # no more than there are: further frequencies may be of more use
    frequencies = useful_frequencies(omega, _energies(parameters), most_copies=copies, stretch=stretch)
    phases = torus.phases(frequencies, seen.poses @ coordinates.T.to(seen.poses))
    sums = _turned_sums(seen, frequencies, phases, parameters.n_components)
    first = _leading_planes(sums, frequencies)
    turn = stiefel.polar(first, torch.eye(len(first)).to(first))
    for step in range(n_steps + 1):  # as in em.maximize, with one shape an image; all that it needs are the sums
        waves = torch.view_as_complex(turn.unflatten(1, (-1, 2))).T
        shapes = torch.nn.functional.normalize((waves[:, None] @ sums)[:, 0].T, dim=1)
        if step < n_steps:
            moved = (sums.conj() @ shapes.T[..., None])[..., 0].T
            turn = stiefel.polar(torch.view_as_real(moved).flatten(1), turn)
    planes = torch.view_as_real(shapes)
    overlaps = (torus.rotate(planes[seen.template], phases).flatten(1) @ turn.T * seen.coords).sum(dim=1)
    left = float((seen.coords.square().sum(dim=1) - overlaps.square()).mean())
    return Fit(turn, planes, frequencies, -math.log(max(left - seen.noise, 0.1 * left, 1e-12)))


def _turned_sums(
    seen: Seen, frequencies: Int[Tensor, "irrep torus"], phases: Float[Tensor, "image irrep"], n_components: int
) -> Complex[Tensor, "irrep column component"]:
    """Return Σ I exp(-iω·s) over the images of each template."""
    distinct, place = torch.unique(frequencies, dim=0, return_inverse=True)
    firsts = torch.stack([(place == i).nonzero()[0, 0] for i in range(len(distinct))])
    waves = torch.polar(torch.ones_like(phases[:, firsts]), -phases[:, firsts])
    of_each = []
    for k in range(n_components):
        rows = seen.template == k
        theirs = seen.coords[rows].T
        of_each.append(torch.complex(theirs @ waves[rows].real, theirs @ waves[rows].imag))
    return torch.stack(of_each, dim=-1).movedim(1, 0)[place]


def _leading_planes(
    sums: Complex[Tensor, "irrep column component"], frequencies: Int[Tensor, "irrep torus"]
) -> Float[Tensor, "column column"]:
    """Return for each plane the direction in which images of all templates turn most with its frequency."""
    copy = torch.tril((frequencies[:, None] == frequencies).all(dim=-1), diagonal=-1).sum(dim=1)  # equal ones before
    mixing = torch.linalg.eigh(sums.mH @ sums).eigenvectors.flip(-1)
    leading = (sums @ mixing).take_along_dim(copy[:, None, None], 2)[..., 0].T
    return torch.view_as_real(leading.conj().resolve_conj()).flatten(1)


def _starts(parameters: Parameters, seen: Seen) -> list[Matrix]:
    """Return maps from which M is searched, in which the poses fill a part of each axis.

    The axes lie along the directions in which the pictures change most and least over the range of the poses, or
    halfway between them.
    """
    torus_dim = seen.poses.shape[1]
    poses, template = to_cpu(seen.poses).double(), to_cpu(seen.template)
    of_template = torch.nn.functional.one_hot(template).double()
    means = of_template.T @ poses / of_template.sum(dim=0).clamp(min=1)[:, None]
    variances, axes = torch.linalg.eigh(torch.cov((poses - means[template]).T))
    deviations = variances.clamp(min=1e-6).sqrt()
    omega = parameters.frequencies.double() @ (axes * deviations)  # for poses of variance 1
    _, change = torch.linalg.eigh((omega.T * _energies(parameters)) @ omega)
    filling = 2 * math.pi * FILLED / math.sqrt(12) * (change.T / deviations) @ axes.T
    between = torch.zeros(torus_dim, torus_dim, dtype=torch.float64)
    upper = torch.triu_indices(torus_dim, torus_dim, offset=1)
    between[upper[0], upper[1]] = math.pi / 4
    return [filling, torch.linalg.matrix_exp(between - between.T) @ filling]


def _energies(parameters: Parameters) -> Float[Tensor, " irrep"]:
    planes = (parameters.group_basis.T @ parameters.dictionary).unflatten(0, (-1, 2))
    return to_cpu(planes.square().sum(dim=(1, 2))).double()


class Found(NamedTuple):
    """A map of the pose, and what a short fit in it explains."""

    coordinates: Matrix
    score: float


def _climb(parameters: Parameters, seen: Seen, coordinates: Matrix, steps: tuple[float, ...]) -> Found:
    """Change one entry of ln M after the other, as long as that helps, by each of some steps."""
    best, torus_dim = Found(coordinates, fit_poses(parameters, seen, coordinates).score), len(coordinates)
    changes = torch.eye(torus_dim**2, dtype=torch.float64).unflatten(1, (torus_dim, torus_dim))
    for step in steps:
        before = None
        while before is not best:
            before = best
            for i in range(len(changes)):
                for way in (changes[i].clone(), -changes[i]):  # the one that helped last comes first
                    trial = torch.linalg.matrix_exp(step * way) @ best.coordinates
                    score = fit_poses(parameters, seen, trial).score
                    if score > best.score + GAIN:
                        best, changes[i] = Found(trial, score), way
                        break
    return best
