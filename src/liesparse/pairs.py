"""The motion from pairs of images, before any shape is known.

Two images that look much alike are often one shape in two poses, so each is a template for the other. From such pairs
W is learned by the M-step of :mod:`liesparse.em`, with one image of a pair in the place of Φα. The motion is then good
for short ways; pairs that lie further apart, which it can already explain, teach it longer ones, until it carries
every image of a shape into every other. Images that explain many others are the first shapes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from liesparse import stiefel, torus
from liesparse.model import Parameters, Planes
from liesparse.posterior import Engine, natural_parameters

MOST_IMAGES = 6000  # among which neighbours are looked for
N_NEIGHBOURS = 8
TOO_NEAR = 0.9  # images of a larger overlap have hardly moved
NEAR_STEPS, FAR_STEPS = 600, 400
N_NEAR, N_FAR, N_POOL = 200, 1000, 600  # pairs in each step, and images from which far ones are drawn
MEMORY = 1000  # pairs that the running average remembers
EXPLAINED = 0.35  # of the way from the residual of neighbours to that of any two images
N_CANDIDATES = 300  # images from which the first shapes are chosen

Coords = Float[Tensor, "image column"]  # of images in the span of the first W


class PairStart(NamedTuple):
    """Where learning starts, and what the pairs say of it."""

    parameters: Parameters
    share: float  # of any two images, those that the motion carries into each other: one over the number of shapes


def start_from_pairs(
    parameters: Parameters, images: Float[Tensor, "image pixel"], engine: Engine, *, generator: torch.Generator
) -> PairStart:
    """Return ``parameters`` with a motion that carries images into each other, and images as shapes.

    W stays in the span that it has.
    """
    chosen = torch.randperm(len(images), generator=generator)[:MOST_IMAGES].to(images.device)
    coords = images[chosen] @ parameters.group_basis
    near = find_neighbours(coords)
    turn, limit = _learn_motion(coords, near, parameters, engine, generator)
    candidates = coords[:N_CANDIDATES]
    explained = _explained(candidates @ turn, limit, parameters, engine)
    shapes = _cover(explained, parameters.n_components)
    n = len(candidates)
    dictionary = torch.nn.functional.normalize(images[chosen[shapes]].T.contiguous(), dim=0)
    share = float((explained.sum() - n) / max(1, n * n - n))
    return PairStart(replace(parameters, group_basis=parameters.group_basis @ turn, dictionary=dictionary), share)


def find_neighbours(coords: Coords) -> Int[Tensor, "image neighbour"]:
    """Return for each image some that look most like it, but for those that look the same."""
    nearest = []
    for first in range(0, len(coords), 1000):
        rows = coords[first : first + 1000]
        overlaps = rows @ coords.T
        overlaps[overlaps > TOO_NEAR] = -torch.inf
        own = torch.arange(len(rows), device=coords.device)
        overlaps[own, own + first] = -torch.inf
        nearest.append(overlaps.topk(min(N_NEIGHBOURS, len(coords) - 1), dim=1).indices)
    return torch.cat(nearest)


def _learn_motion(
    coords: Coords,
    near: Int[Tensor, "image neighbour"],
    parameters: Parameters,
    engine: Engine,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "column column"], float]:
    """Return how the columns of W are turned within their span, and the residual up to which a pair is explained."""

    def draw(high: int, count: int) -> Int[Tensor, " pair"]:
        return torch.randint(high, (count,), generator=generator).to(coords.device)

    turn = torch.eye(coords.shape[1]).to(coords)
    average, far_residual, limit = torch.zeros_like(turn), 0.0, torch.inf
    for step in range(NEAR_STEPS + FAR_STEPS):
        first = draw(len(coords), N_NEAR)
        second = near[first, draw(near.shape[1], N_NEAR)]
        far = step >= NEAR_STEPS
        if far:
            pool = draw(len(coords), N_POOL)
            first, second = torch.cat((first, pool)), torch.cat((second, pool))
        planes = ((coords[first] @ turn).unflatten(1, (-1, 2)), (coords[second] @ turn).unflatten(1, (-1, 2)))
        rows = torch.arange(N_NEAR, device=coords.device)
        ends = (rows, rows)
        if far:
            any_two = (N_NEAR + draw(N_POOL, N_FAR), N_NEAR + draw(N_POOL, N_FAR))
            ends = (torch.cat((rows, any_two[0])), torch.cat((rows, any_two[1])))
        onto, source = planes[0][ends[0]], planes[1][ends[1]]
        moved, returned = _carry(source, onto, parameters, engine)
        residual = (onto - moved).square().sum(dim=(1, 2))
        kept = torch.ones_like(residual)
        if far:
            near_residual = float(residual[:N_NEAR].median())
            far_residual = far_residual or float(residual[N_NEAR:].median())
            limit = near_residual + EXPLAINED * max(0.0, far_residual - near_residual)
            kept = (residual < limit).to(residual)
        # I (R̄u)ᵀ + I' (R̄ᵀu')ᵀ for both images of a pair, in coordinates.
        new = (coords[first[ends[0]]] * kept[:, None]).T @ moved.flatten(1)
        new += (coords[second[ends[1]]] * kept[:, None]).T @ returned.flatten(1)
        weight = float(kept.sum())
        share = min(1.0, weight / MEMORY) if step else 1.0
        average = torch.lerp(average, new / max(1.0, weight), share)
        turn = stiefel.polar(average, turn)
    return turn, limit


def _carry(source: Planes, onto: Planes, parameters: Parameters, engine: Engine) -> tuple[Planes, Planes]:
    """Return R̄u and R̄ᵀu', where R̄ is expected to carry the first image of each pair into the second."""
    rotation = engine.moments(natural_parameters(source, onto, parameters.noise_std, parameters.pose_prior)).rotation
    return torus.apply_mean_rotation(source, rotation), torus.apply_mean_rotation_transposed(onto, rotation)


def _explained(
    columns: Coords, limit: float, parameters: Parameters, engine: Engine
) -> Bool[Tensor, "image image"]:
    """Tell which of two images the motion carries into each other."""
    planes = columns.unflatten(1, (-1, 2))
    return torch.stack(
        [
            (planes - _carry(one.expand_as(planes), planes, parameters, engine)[0]).square().sum(dim=(1, 2)) < limit
            for one in planes
        ]
    )


def _cover(explained: Bool[Tensor, "image image"], n_chosen: int) -> Int[Tensor, " chosen"]:
    """Return images that together explain as many others as possible, each in turn the best."""
    left, chosen = torch.ones(len(explained)), []
    for _ in range(n_chosen):
        gain = (explained.cpu() * left).sum(dim=1)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        left[explained[chosen[-1]].cpu()] = 0.01  # once all are explained, the most common shape comes twice
    return torch.tensor(chosen)
