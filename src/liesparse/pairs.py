"""The motion from pairs of images, before any shape is known.

Two images that look much alike are often one shape in two poses, so each is a template for the other. From such pairs
W is learned by the M-step of :mod:`liesparse.em`, with one image of a pair in the place of Φα. The motion is then good
for short ways; pairs that lie further apart, which it can already explain, teach it longer ones, until it carries
every image of a shape into every other. Images that explain many others are the first shapes. To learn W from pairs
alone, and from near ones only, is toroidal subgroup analysis [Cohen14].
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor

from liesparse import stiefel, torus
from liesparse.devices import to_cpu
from liesparse.inference import overlap_poses
from liesparse.initialization import MUCH_COMMON, PAPER_NOISE
from liesparse.model import Parameters, Poses, apply_transform
from liesparse.posterior import Evidence, PoseEngine

MOST_IMAGES = 6000  # among which neighbours are looked for
N_NEIGHBOURS = 10
TOO_NEAR = 0.9  # images of a larger overlap, over the part of them that is not noise, have hardly moved
NEAR_STEPS, FAR_STEPS, STEPS_PER_UPDATE = 600, 100, 2
MOST_BLOCKS, GROWTH = 12, 1.05  # blocks of far steps, and how many more pairs each must explain
N_NEAR, N_FAR, N_POOL = 200, 600, 400  # pairs in each step, and images from which far ones are drawn
STEPS_SHOWN = 20  # after which somebody is told
MEMORY = 1000  # pairs that the running average remembers
EXPLAINED = 0.35  # of the way from the residual of neighbours to that of any two images
N_CANDIDATES = 300  # images from which the first shapes are chosen
N_SORTED, N_ROUNDS, LAST_ROUNDS = 1500, 10, 3  # images that are sorted by shape, how often, and how often undisturbed
ALIKE = 0.5  # of the images of a usual shape, those that are averaged for a new one
N_ALIGNED = 3  # times that each shape is brought to the pose of the others
WON = 2.0  # how much more a new shape must explain than is lost with an old one

logger = logging.getLogger(__name__)

Coords = Float[Tensor, "image column"]  # of images in the span of the first W
Planes = Float[Tensor, "image irrep 2"]
Returned = Float[Tensor, "image shape_irrep 2"]  # turned back, in the planes of the shapes
Shape = Float[Tensor, "shape_irrep 2"]
Shapes = Float[Tensor, "component shape_irrep 2"]


class Motion(NamedTuple):
    """A motion that carries images into each other, and what it says of them."""

    parameters: Parameters  # with the W of the motion; its shapes are none yet
    planes: Planes  # some of the images
    explained: Bool[Tensor, "few few"]  # which of the first of them it carries into which

    @property
    def share(self) -> float:
        """Of any two images, those that the motion carries into each other: one over the number of shapes."""
        n = len(self.explained)
        return float((self.explained.sum() - self.explained.diagonal().sum()) / max(1, n * n - n))


def learn_motion(
    parameters: Parameters, images: Float[Tensor, "image pixel"], engine: PoseEngine, *, generator: torch.Generator
) -> Motion:
    """Learn from pairs of images how they move, within the span that the W of ``parameters`` has."""
    chosen = torch.randperm(len(images), generator=generator)[:MOST_IMAGES].to(images.device)
    coords = images[chosen] @ parameters.group_basis
    common = coords.mean(dim=0)
    shared, signal = float(common.square().sum()), (parameters.noise_std / PAPER_NOISE) ** 2  # as in suggest_noise
    if shared > MUCH_COMMON:  # what is left says which images are alike, and how they move
        signal *= (1 - MUCH_COMMON) / max(1 - shared, 1e-12)
        coords, own = coords - common, torch.nn.functional.normalize(coords - common, dim=1)
    else:
        common, own = torch.zeros_like(common), coords
    near = find_neighbours(own, N_NEIGHBOURS, TOO_NEAR * min(1.0, signal))
    turn, limit = _learn_turn(coords, common, near, parameters, engine, generator)
    planes = ((coords + common)[:N_SORTED] @ turn).unflatten(1, (-1, 2))
    few = planes[:N_CANDIDATES]
    carried = (_carry(one, few, parameters, engine)[0] for one in few)
    explained = torch.stack([(few - moved).square().sum(dim=(1, 2)) < limit for moved in carried])
    return Motion(replace(parameters, group_basis=parameters.group_basis @ turn), planes, explained)


def choose_shapes(motion: Motion, n_components: int, engine: PoseEngine) -> Parameters:
    """Return the model of a motion with the shapes that it carries, each the mean of images brought to one pose."""
    first = torch.zeros_like(motion.planes[:1]).repeat(n_components, 1, 1)  # which explain nothing
    return _with_shapes(motion.parameters, sort_images(motion.planes, first, motion.parameters, engine))


def sort_again(parameters: Parameters, images: Float[Tensor, "image pixel"], engine: PoseEngine) -> Parameters:
    """Return the model with its shapes sorted anew from some images, as its motion has become better."""
    n_sorted = N_SORTED // len(engine.tori)  # two take longer
    shapes, planes = parameters.to_planes(parameters.dictionary.T), parameters.seen_planes(images[:n_sorted])
    return _with_shapes(parameters, sort_images(planes, shapes, parameters, engine))


def _with_shapes(parameters: Parameters, shapes: Shapes) -> Parameters:
    dictionary = torch.nn.functional.normalize(parameters.group_basis @ shapes.flatten(1).T, dim=0)
    return replace(parameters, dictionary=dictionary)


def find_neighbours(coords: Coords, n_neighbours: int, too_near: float) -> Int[Tensor, "image neighbour"]:
    """Return for each image some that look most like it, but for those that look the same."""
    nearest = []
    for first in range(0, len(coords), 1000):
        rows = coords[first : first + 1000]
        overlaps = rows @ coords.T
        overlaps[overlaps > too_near] = -torch.inf
        own = torch.arange(len(rows), device=coords.device)
        overlaps[own, own + first] = -torch.inf
        nearest.append(overlaps.topk(min(n_neighbours, len(coords) - 1), dim=1).indices)
    return torch.cat(nearest)


def _learn_turn(
    coords: Coords,
    common: Float[Tensor, " column"],
    near: Int[Tensor, "image neighbour"],
    parameters: Parameters,
    engine: PoseEngine,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "column column"], float]:
    """Return how the columns of W are turned within their span, and the residual up to which a pair is explained.

    What images have in ``common`` was taken away from their coordinates; it does not move, as the plane of ω = 0.
    """

    def draw(high: int, count: int) -> Int[Tensor, " pair"]:
        return torch.randint(high, (count,), generator=generator).to(coords.device)

    turn = torch.eye(coords.shape[1]).to(coords)
    average, far_residual, limit = torch.zeros_like(turn), 0.0, torch.inf
    still = torch.zeros_like(turn)
    for plane in (parameters.frequencies == 0).all(dim=1).nonzero().flatten().tolist()[:1]:
        still[:, 2 * plane] = 2 * common.norm() * common  # of both images of a pair
    step, n_steps, counts = 0, NEAR_STEPS, [0.0]
    while step < n_steps:
        first = draw(len(coords), N_NEAR)
        second = near[first, draw(near.shape[1], N_NEAR)]
        far = step >= NEAR_STEPS
        if far:  # any two of some images, so that there are few products with W
            pool = draw(len(coords), N_POOL)
            first, second = (
                torch.cat((first, pool[draw(N_POOL, N_FAR)])),
                torch.cat((second, pool[draw(N_POOL, N_FAR)])),
            )
        onto, source = ((coords[rows] @ turn).unflatten(1, (-1, 2)) for rows in (first, second))
        moved, returned = _carry(source, onto, parameters, engine)
        residual = (onto - moved).square().sum(dim=(1, 2))
        kept = torch.ones_like(residual)
        if far:
            near_residual = float(residual[:N_NEAR].median())
            far_residual = far_residual or float(residual[N_NEAR:].median())
            limit = near_residual + EXPLAINED * max(0.0, far_residual - near_residual)
            kept = (residual < limit).to(residual)
            counts[-1] += float(kept[N_NEAR:].sum())
        # I (R̄u)ᵀ + I' (R̄ᵀu')ᵀ for both images of a pair, in coordinates.
        new = (coords[first] * kept[:, None]).T @ moved.flatten(1)
        new += (coords[second] * kept[:, None]).T @ returned.flatten(1)
        weight = float(kept.sum())
        average = torch.lerp(average, new / max(1.0, weight) + still, min(1.0, weight / MEMORY) if step else 1.0)
        step += 1
        if step % STEPS_SHOWN == 0:
            logger.debug("the motion from pairs of images, step %d of %d or more", step, n_steps)
        if step % STEPS_PER_UPDATE == 0:
            turn = stiefel.polar(average, turn)
        if step == n_steps and len(counts) <= MOST_BLOCKS:  # as long as more and more pairs are explained
            if len(counts) < 3 or counts[-1] > GROWTH * counts[-2]:
                n_steps += FAR_STEPS
            counts.append(0.0)
    return turn, limit


def _carry(
    source: Shape | Returned, onto: Planes, parameters: Parameters, engine: PoseEngine
) -> tuple[Planes, Returned]:
    """Return R̄u and R̄ᵀu', where R̄ is expected to carry the first image, or one for all, into the second."""
    return engine.carry(Evidence.of_planes(parameters, source if source.ndim == onto.ndim else source[None], onto))


def sort_images(planes: Planes, shapes: Shapes, parameters: Parameters, engine: PoseEngine) -> Shapes:
    """Return shapes as the means of the images that each explains best, all carried to one pose: k-means with motion.

    In the first rounds a shape that could well be spared gives way to one that explains more.
    """
    few = planes[: N_CANDIDATES // len(engine.tori)]
    candidates, of_candidates = _candidates(few, len(shapes), parameters, engine)
    for round_ in range(N_ROUNDS):
        logger.debug("the shapes that move, round %d of %d", round_ + 1, N_ROUNDS)
        shapes = _unit(shapes)
        scores, returned = zip(*(_score(one, planes, parameters, engine) for one in shapes), strict=True)
        winner = torch.stack(scores).argmax(dim=0)
        sums = [back[winner == k].sum(dim=0) for k, back in enumerate(returned)]
        used = torch.bincount(winner, minlength=len(shapes)) > 0
        shapes = torch.where(used[:, None, None], torch.stack(sums), shapes)
        if round_ < N_ROUNDS - LAST_ROUNDS:
            explained = torch.stack([score[: len(few)] for score in scores]).clamp(min=0).square()
            for spared, chosen in find_swaps(explained, of_candidates):
                shapes[spared] = candidates[chosen]
    empty = shapes.flatten(1).norm(dim=1) == 0  # no image ever chose them
    shapes[empty] = candidates[torch.arange(int(empty.sum())) % len(candidates)]
    return align_shapes(_unit(shapes), parameters, engine)


def _candidates(
    few: Planes, n_shapes: int, parameters: Parameters, engine: PoseEngine
) -> tuple[Shapes, Float[Tensor, "candidate image"]]:
    """Return for each of a few images the mean of those that look most like it, and what each mean explains of all."""
    n_alike = max(1, round(ALIKE * len(few) / n_shapes))
    means = []
    for one in _unit(Evidence.of_planes(parameters, few, few).hide(few)):
        score, returned = _score(one, few, parameters, engine)
        means.append(returned[score.topk(n_alike).indices].sum(dim=0))
    candidates = _unit(torch.stack(means))
    explained = torch.stack([_score(one, few, parameters, engine)[0] for one in candidates])
    return candidates, explained.clamp(min=0).square()


def find_swaps(
    explained: Float[Tensor, "component image"], of_candidates: Float[Tensor, "candidate image"]
) -> list[tuple[int, int]]:
    """Return which shapes should give way to which candidates: those without which least is lost, if more is won."""
    explained, swaps = explained.clone(), []
    for _ in range(len(explained)):
        best, second = explained.topk(2, dim=0).values if len(explained) > 1 else (explained[0], 0 * explained[0])
        lost = torch.zeros(len(explained)).to(explained).index_add_(0, explained.argmax(dim=0), best - second)
        spared = int(lost.argmin())
        others = explained.clone()
        others[spared] = 0
        won = (of_candidates - others.amax(dim=0)).clamp(min=0).sum(dim=1)
        chosen = int(won.argmax())
        if won[chosen] <= WON * lost[spared]:
            break
        explained[spared] = of_candidates[chosen]
        swaps.append((spared, chosen))
    return swaps


def align_shapes(shapes: Shapes, parameters: Parameters, engine: PoseEngine) -> Shapes:
    """Return the shapes in poses in which they overlap: those of one after the other, then each with all others.

    Codes are sought from the sum of all shapes. One that lies across the others is lost in it: its images find a wrong
    pose, and another shape takes them.
    """
    aligned = torch.zeros_like(shapes)
    aligned[0] = shapes[0]
    for step in range(1, N_ALIGNED * len(shapes) if len(shapes) > 1 else 0):
        k = step % len(shapes)
        shape, others = shapes[k][None], (aligned.sum(dim=0) - aligned[k])[None]
        poses = overlap_poses(parameters, shape, others, engine)
        aligned[k] = parameters.to_planes(apply_transform(parameters, parameters.from_planes(shape), poses))[0]
    return aligned


def chain_shapes(parameters: Parameters, engine: PoseEngine) -> Poses:
    """Return how far to move each shape so that it overlaps with the one that looks most like it.

    The shapes are joined by the shortest tree in which two are the nearer the more they overlap. So shapes that are
    views of one thing lie where it is, and their images, brought there, show how the thing itself moves.
    """
    shapes = _unit(parameters.to_planes(parameters.dictionary.T))
    n = len(shapes)
    first, second = torch.triu_indices(n, n, offset=1).to(shapes.device)
    poses = overlap_poses(parameters, shapes[first], shapes[second], engine)
    moved = torus.rotate(shapes[first], torus.phases(parameters.frequencies, poses))
    overlaps = (moved * shapes[second]).sum(dim=(1, 2))
    apart, ways = overlaps.new_zeros(n, n), poses.new_zeros(n, n, poses.shape[1])
    apart[first, second] = (1 - overlaps).clamp(min=1e-6)
    ways[first, second], ways[second, first] = poses, -poses
    order, parents = breadth_first_order(minimum_spanning_tree(to_cpu(apart).numpy()), 0, directed=False)
    placed = poses.new_zeros(n, poses.shape[1])
    for shape in order[1:].tolist():
        placed[shape] = ways[shape, parents[shape]] + placed[parents[shape]]
    return torus.wrap(placed)


def _unit(planes: Planes) -> Planes:
    return planes / planes.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-12)


def _score(shape: Shape, planes: Planes, parameters: Parameters, engine: PoseEngine) -> tuple[Tensor, Returned]:
    """Return the overlap of a shape with images in their most probable poses, and the images carried back to it."""
    moved, returned = _carry(shape, planes, parameters, engine)
    return (moved * planes).sum(dim=(1, 2)), returned
