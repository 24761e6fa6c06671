"""Where learning starts: random parameters, or a motion and shapes that are found in the images before that."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.groups import Basis, Composition, KnownGroup, LearnedTorus
from liesparse.inference import infer_codes
from liesparse.initialization import PAPER_NOISE, random_start, start_from_data, suggest_noise
from liesparse.learning import engine_for, learn, resume
from liesparse.metrics import infer, objective
from liesparse.model import Parameters, PosePrior, undo_transform, uniform_prior
from liesparse.pairs import chain_shapes, choose_shapes, learn_motion, sort_again
from liesparse.pose_coordinates import faster_poses, improve_coordinates
from liesparse.posterior import PoseEngine
from liesparse.posterior.sampling import MOST_AXES_BY_GRID
from liesparse.settings import MOST_IRREPS, ModelSettings, Recipe
from liesparse.state import Progress, ShuffledArrays, State

FIRST_FREQUENCIES = 24  # of one axis, before the lattice is fitted
TRIAL_IMAGES = 600  # for each shape, in each round of trials of several starts
HOT_IMAGES, HOT_MEMORY = 3000, 12.0  # for each shape: seen before the pose gets its coordinates, and remembered
MOST_HOT_IMAGES = 100_000  # of all shapes
SEVERAL_CODES = 6.0  # in an image, by their weights, from which on it is no picture of one shape
N_COMPARED = 300  # images by which two models are compared
RIVAL_IMAGES, RIVAL_MEMORY = 400, 30.0  # for each shape: seen by a model whose pose turns faster, and remembered
FEW_IMAGES = 200  # below this, nobody looks for pairs
MORE_SHAPES = 3  # with the outer group of two alone, which sees a shape in each pose of the inner one as another
VIEWS = 6  # the same where the inner one is to be learned: only views that lie close together show how it moves
BROUGHT = 3000  # images from which the inner one is learned, brought together by the outer one
N_PASSES = 4  # as often, from where both groups then bring them; the best goes on
AGREEMENT = 0.2  # starts agree if their shares of pairs differ by no more

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """Where learning starts, and what is known of it."""

    parameters: Parameters
    pair_share: float | None = None  # of any two images, those that one motion carries into each other
    n_agreed: int = 1  # starts that found as many pairs as the best one
    one_shape: bool = True  # whether an image is a picture of one of the shapes, as pairs and a fitted lattice need it


def choose_start(
    images: Float[Tensor, "image pixel"],
    model: ModelSettings,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    monitor_images: Float[Tensor, "few pixel"],
) -> Start:
    """Make ``n_init`` starts and learn from each for a short time; the better half goes on, until one is left.

    What is better is said by the model's own objective on ``monitor_images``, ln P(I|α̂) + ln P(α̂).
    """
    settings = recipe.learning.resolve(model.n_components, len(images))
    source = ShuffledArrays(images, settings.batch_size)
    starts = [make_start(images, model, recipe, generator=generator) for _ in range(recipe.n_init)]
    states = [State.begin(start.parameters, generator) for start in starts]
    n_trial = max(1, round(TRIAL_IMAGES * model.n_components / settings.batch_size))
    rivals = list(zip(states, starts, strict=True))
    while len(rivals) > 1:
        rivals = [(resume(state, source, settings, until=state.step + n_trial), start) for state, start in rivals]
        rivals.sort(key=lambda rival: _objective(rival[0].parameters, monitor_images, recipe), reverse=True)
        rivals = rivals[: len(rivals) // 2]
    state, best = rivals[0]
    shares = [start.pair_share for start in starts]
    agreed = [
        share == best.pair_share or abs(share / best.pair_share - 1) < AGREEMENT if share and best.pair_share else False
        for share in shares
    ]
    return best._replace(parameters=state.parameters, n_agreed=sum(agreed))


def _has_several_codes(start: Parameters, images: Float[Tensor, "image pixel"], engine: PoseEngine) -> bool:
    """Tell whether a usual image is no picture of one shape, but a sum of several."""
    codes = infer_codes(start, images[-N_COMPARED:], engine)
    return bool(codes.sum(dim=1).square().mean() > SEVERAL_CODES * codes.square().sum(dim=1).mean())


def make_start(
    images: Float[Tensor, "image pixel"],
    model: ModelSettings,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    settled: bool = True,
) -> Start:
    """Return the parameters from which a model is learned: random ones, or some that are drawn from the images.

    Those from pairs are learned from for a short time if they are to be ``settled``. Where an image is a sum of several
    shapes, pairs of images tell little, and the start is drawn from the images.
    """
    n_pixels = images.shape[1]
    n_irreps = min(MOST_IRREPS, n_pixels // 2) if model.n_irreps == "auto" else int(model.n_irreps)
    if isinstance(model.group, Composition):
        return Start(_start_of_composition(images, model, model.group, n_irreps, recipe, generator))
    if model.group is not None:
        return Start(_start_of_group(images, model, model.group.make_basis(images, n_irreps), recipe, generator))
    grows = _grows(model, recipe)
    first = FIRST_FREQUENCIES if model.torus_dim == 1 and grows else n_irreps
    start = random_start(
        n_pixels,
        n_components=model.n_components,
        n_irreps=n_irreps,
        torus_dim=model.torus_dim,
        multiplicity=max(1, n_irreps // first) if model.multiplicity == "auto" else model.multiplicity,
        include_zero=recipe.include_zero,
        noise_std=_noise_std(images, model, n_irreps, recipe),
        sparsity=model.sparsity,
        generator=generator,
        dtype=images.dtype,
    )
    if isinstance(model.pose_prior, PosePrior):
        start = replace(start, pose_prior=model.pose_prior.natural(start.frequencies, dtype=start.dtype))
    if recipe.start != "random":
        start = start_from_data(start, images, generator=generator)
    start = start.to(images.device)
    if recipe.start != "pairs" or len(images) < FEW_IMAGES:
        return Start(start)
    engine = engine_for(start, recipe.learning)
    logger.info("first the motion from pairs of images")
    motion = learn_motion(start, images, engine, generator=generator)
    drawn, start = start, choose_shapes(motion, model.n_components, engine)
    if _has_several_codes(start, images, engine):
        logger.info("an image is a sum of several shapes: these are learned from random images")
        return Start(drawn, motion.share, one_shape=False)
    if recipe.learning.method == "em" and settled:
        start = _settle(start, images, recipe, grows, generator)
    return Start(start, motion.share)


def _noise_std(images: Float[Tensor, "image pixel"], model: ModelSettings, n_irreps: int, recipe: Recipe) -> float:
    if model.noise_std != "auto":
        return float(model.noise_std)
    return PAPER_NOISE if recipe.start == "random" else suggest_noise(images, 2 * n_irreps)


def _start_of_group(
    images: Float[Tensor, "image pixel"],
    model: ModelSettings,
    basis: Basis,
    recipe: Recipe,
    generator: torch.Generator,
    outer: Basis | None = None,
) -> Parameters:
    """Return a start with the W of a known group, and shapes that are sorted with its motion."""
    n_irreps = len(basis.frequencies)
    order = torch.randperm(len(images), generator=generator).to(images.device)
    prior = uniform_prior(n_irreps, dtype=images.dtype)
    if isinstance(model.pose_prior, PosePrior):
        prior = model.pose_prior.natural(basis.frequencies, dtype=images.dtype)
    start = Parameters(
        group_basis=basis.group_basis,
        dictionary=torch.nn.functional.normalize(images[order[: model.n_components]].T.contiguous(), dim=0),
        frequencies=basis.frequencies,
        noise_std=_noise_std(images, model, n_irreps, recipe),
        sparsity=model.sparsity,
        pose_prior=prior.to(images.device),
        outer=outer,
    )
    if recipe.start != "pairs":
        return start
    logger.info("first the shapes, by the motion that is given")
    return sort_again(start, images[order], engine_for(start, recipe.learning))


def _start_of_composition(
    images: Float[Tensor, "image pixel"],
    model: ModelSettings,
    group: Composition,
    n_irreps: int,
    recipe: Recipe,
    generator: torch.Generator,
) -> Parameters:
    """Return a start with an outer group, known or learned first.

    The outer group alone, with more shapes, brings the images together; what is left is the inner group's part. Its
    basis, known, or its motion and shapes, to be learned, are taken from there.
    """
    if isinstance(group.outer, LearnedTorus):
        alone = replace(model, n_components=min(MORE_SHAPES * model.n_components, len(images)))
        learned = make_start(images, _with_group(alone, group.outer), recipe, generator=generator).parameters
        basis = Basis(learned.group_basis, learned.frequencies)
    else:
        basis = group.outer.make_basis(images, n_irreps)
    to_learn = isinstance(group.inner, LearnedTorus)
    many = replace(model, n_components=min((VIEWS if to_learn else MORE_SHAPES) * model.n_components, len(images)))
    first = _start_of_group(images, many, basis, recipe, generator)
    engine = engine_for(first, recipe.learning)
    _, _, codes, poses, _ = infer(first, images, engine)
    if to_learn:  # where one view gives way to the next, nothing may jump
        poses = poses - chain_shapes(first, engine)[codes.argmax(dim=1)]
    together = _brought_back(first, images, poses)
    if isinstance(group.inner, LearnedTorus):
        alone = _with_group(model, group.inner)
        return _start_of_inner(first, images[:BROUGHT], together[:BROUGHT], alone, recipe, generator)
    inner = group.inner.make_basis(together, n_irreps)
    return _start_of_group(images, model, inner, recipe, generator, basis)


def _start_of_inner(
    first: Parameters,
    images: Float[Tensor, "image pixel"],
    together: Float[Tensor, "image pixel"],
    model: ModelSettings,
    recipe: Recipe,
    generator: torch.Generator,
) -> Parameters:
    """Learn an inner group from images that the outer one, that of ``first``, has brought together.

    In several passes: each shape may lie at a place of its own, and both groups know better where each image is.
    """
    outer = Basis(first.group_basis, first.frequencies)

    def compose(found: Parameters) -> Parameters:
        return replace(found, noise_std=first.noise_std, outer=outer)

    def score(both: Parameters) -> float:
        return _objective(both, images[-N_COMPARED:], recipe)

    if recipe.start != "pairs" or recipe.learning.method != "em" or len(images) < FEW_IMAGES:
        return compose(make_start(together, model, recipe, generator=generator).parameters)
    passes = []
    for _ in range(N_PASSES):
        found = make_start(together, model, recipe, generator=generator, settled=False).parameters
        both = compose(found)
        passes.append((score(both), found, together))
        _, _, _, poses, _ = infer(both, images, engine_for(both, recipe.learning))
        together = _brought_back(first, images, poses[:, : first.torus_dim])
    _, found, together = max(passes, key=lambda each: each[0])
    settled = _settle(found, together, recipe, _grows(model, recipe), generator)
    return max(compose(found), compose(settled), key=score)


def _brought_back(
    model: Parameters, images: Float[Tensor, "image pixel"], poses: Float[Tensor, "image torus"]
) -> Float[Tensor, "image pixel"]:
    """Return images with their poses undone, of norm 1."""
    return torch.nn.functional.normalize(undo_transform(model, images, poses), dim=1)


def _grows(model: ModelSettings, recipe: Recipe) -> bool:
    """Tell whether the lattice is fitted to the data; a prior of the pose holds it as it is."""
    return recipe.learning.lattice == "fitted" and model.pose_prior == "uniform"


def _with_group(model: ModelSettings, group: KnownGroup | LearnedTorus) -> ModelSettings:
    if isinstance(group, LearnedTorus):
        return replace(model, group=None, torus_dim=group.torus_dim)
    return replace(model, group=group)


def _settle(
    start: Parameters, images: Float[Tensor, "image pixel"], recipe: Recipe, grows: bool, generator: torch.Generator
) -> Parameters:
    """Learn with a short memory, in which a poor motion does not last; then find good coordinates for the pose.

    With few shapes so short a memory may also spoil a good motion: the better model of the two goes on.
    """
    n_images = len(images)
    whole = recipe.learning.resolve(start.n_components, n_images).n_epochs * n_images
    wanted = min(HOT_IMAGES * start.n_components, MOST_HOT_IMAGES, whole)  # no more than the training itself sees
    order = torch.randperm(n_images, generator=generator).to(images.device)
    n_epochs = -(-wanted // n_images)
    hot = replace(recipe.learning, n_epochs=n_epochs, first_memory=HOT_MEMORY, last_memory=HOT_MEMORY)
    logger.info("then a first short learning")

    def tell(progress: Progress) -> None:
        logger.debug("a first short learning, batch %d of %s", progress.step, progress.n_steps)

    learned = learn(start, images[order[:wanted]], hot, generator=generator, callback=tell)
    learned = sort_again(learned, images[order], engine_for(learned, recipe.learning))
    start = max(start, learned, key=lambda model: _objective(model, images[order[-N_COMPARED:]], recipe))
    if not grows or start.torus_dim > MOST_AXES_BY_GRID:  # the search grows with the square of the axes
        return start
    logger.info("then the coordinates of the pose")
    if start.torus_dim == 1:
        return _turn_faster(start, images[order], recipe, generator)
    better = improve_coordinates(start, images, engine_for(start, recipe.learning), generator=generator)
    return start if better is start else sort_again(better, images[order], engine_for(better, recipe.learning))


def _turn_faster(
    start: Parameters, images: Float[Tensor, "image pixel"], recipe: Recipe, generator: torch.Generator
) -> Parameters:
    """Learn for a short time from poses that turn faster, as long as the best of these models is better."""
    n_images = min(RIVAL_IMAGES * start.n_components, 2 * len(images))
    short = replace(recipe.learning, n_epochs=-(-n_images // len(images)), first_memory=RIVAL_MEMORY, lattice="paper")
    best, few = start, images[-N_COMPARED:]
    for _ in range(2):
        rivals = faster_poses(best, images, engine_for(best, recipe.learning), generator=generator)
        learned = [learn(rival, images[:n_images], short, generator=generator) for rival in (best, *rivals)]
        learned += [sort_again(model, images, engine_for(model, recipe.learning)) for model in learned[1:]]
        before, best = best, max(learned, key=lambda model: _objective(model, few, recipe))
        if best is learned[0]:
            return before
    return best


def _objective(model: Parameters, images: Float[Tensor, "few pixel"], recipe: Recipe) -> float:
    engine = engine_for(model, recipe.learning)
    return objective(model, images, infer_codes(model, images, engine), engine)
