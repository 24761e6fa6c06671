"""Did learning find a motion? What the model and the images alone can say, without any truth.

A motion was found where the model explains the pictures (all but their noise), where pictures of one template lie in
different poses and look different there, and where it has more evidence than plain sparse coding with as many shapes,
and with as many free numbers. All three are compared at one σ: what the best of them leaves of the pictures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse._checks import reject
from liesparse.baselines import SparseCodingSettings, infer_sparse_codes, learn_sparse_coding
from liesparse.baselines import log_likelihood as plain_log_likelihood
from liesparse.data.images import edge_pixels
from liesparse.devices import to_cpu
from liesparse.metrics import Explained, active_codes, compare_evidence, infer, template_share
from liesparse.model import Codes, Images, Numbers, Parameters, Poses, reconstruct
from liesparse.posterior import PoseEngine, log_likelihood
from liesparse.symmetry import centred_poses

LEAST_EXPLAINED = 0.85  # of the pictures, noise apart
MOST_NOISE = 0.99
LEAST_FIT = 0.5  # share of a picture that must be explained, noise apart, to be one of the model's kind
FIT_SLACK, FIT_DEVIATIONS = 0.1, 6.0  # where most are explained better: so far below the median, the larger of the two
MANY_CODES, SHARED = 1.5, 0.9  # templates in a picture, of which the verdict speaks unless one has so much of it
MANY_STRANGE = 0.05  # of the pictures, from which on the verdict speaks of them
LEAST_EFFECT = 0.02  # share of a picture that must change along a motion
LEAST_MOVED = 0.25  # of the change in a usual template's pictures, what must change in those of one to trust its poses
SPREAD_SLACK, SPREAD_DEVIATIONS = 0.1, 3.0  # so far below the median share of its largest template, a picture is spread
N_GAPS, LEAST_FILLED, LEAST_SEEN = 3, 0.4, 12  # gaps between poses, what must lie outside them, and of how many images
IMAGES_PER_TEMPLATE, MOST_IMAGES = 40, 2000  # whose poses say so
MOST_TEMPLATES = 10**6  # of which a file may speak
N_PLAIN, PLAIN_EPOCHS = 4000, 4  # images and passes of plain sparse coding
MUCH_GROUND, N_GROUND = 0.8, 500  # of a picture's energy, and pictures that are looked at
GROUND = (
    "Most of each picture is an even light ground, which hides how the rest moves. Take it away: DATA:ground=subtract; "
    "or, where dark shapes stand on white, turn light and dark round: DATA:invert=yes on the command line, "
    "images.max() - images in Python."
)
SOME_GROUND, EVEN = 0.05, 0.15  # of a picture's energy, and of its range, within which half of its edge lies
GREY = (
    "{share:.0%} of each picture is an even grey ground, which does not move with the shapes. Take it away: "
    "DATA:ground=subtract on the command line."
)
IN_WORDS = {0: "no motion", 1: "one motion", 2: "two motions", 3: "three motions"}


class Verdict(NamedTuple):
    """Whether a motion was found, and on what evidence."""

    found: bool
    n_motions: int  # independent directions in which pictures of one template differ
    torus_dim: int
    explained: float  # share of the pictures, noise apart
    effects: tuple[float, ...]  # share of a picture that changes along each direction of the poses, largest first
    snr: float
    plain_snr: float  # of plain sparse coding with as many free numbers
    pair_share: float | None = None  # of any two images, those that the motion carries into each other
    n_starts: int = 1
    n_agreed: int = 1  # starts that found the same share
    given: bool = False  # the motion was known, and only shapes were learned
    ground: float = 0.0  # share of a picture that is an even ground
    noise: float = 0.0  # share of the energy of the pictures that is white noise
    least_fit: float = LEAST_FIT  # share that is explained, noise apart, below which a picture is a stranger
    strange: float = 0.0  # share of the pictures that are
    n_codes: float = 1.0  # templates in a usual picture
    usual_share: float = 1.0  # of what a usual picture is explained by, what its largest template alone would be
    least_share: float = 0.0  # below which a picture is spread over more templates than usual
    unmoved: tuple[int, ...] = ()  # templates seen too rarely, or never seen moving, to trust their poses
    mixed: tuple[int, ...] = ()  # templates that explain less of their own pictures than others of theirs

    def __str__(self) -> str:
        """Return the verdict in one or two sentences."""
        evidence = (
            f"{self.explained:.0%} of the pictures explained (noise apart); SNR {self.snr:.1f}, plain sparse coding "
            f"with as many free numbers {self.plain_snr:.1f}"
        )
        if self.n_starts > 1:
            evidence += f"; {self.n_agreed} of {self.n_starts} starts agree"
        if self.found and self.strange >= MANY_STRANGE:
            evidence += (
                f"; {self.strange:.0%} of the pictures are like no template (more --components if they should be)"
            )
        if self.found and self.n_codes >= MANY_CODES and self.usual_share < SHARED:
            evidence += (
                f"; {self.n_codes:.1f} templates in a picture, where one would give it a clear pose (other numbers of "
                "--components may do better: `liesparse suggest DATA`)"
            )
        if self.found:
            unused = self.torus_dim - self.n_motions
            rest = f"; {unused} {'axis is' if unused == 1 else 'axes are'} unused" if unused else ""
            if unused and not self.given:
                rest += f" (--torus-dim {self.n_motions} may do better)"
            if self.given:
                return f"The pictures move as was given{rest}: {evidence}."
            return f"Found {IN_WORDS.get(self.n_motions, f'{self.n_motions} motions')}{rest}: {evidence}."
        head = "The given motion does not explain them" if self.given else "No motion found"
        return f"{head}: {evidence}. {self.advice}"

    @property
    def _other_motion(self) -> str:
        return "another --group" if self.given else "another --torus-dim, a motion that you know (--group rotation)"

    @property
    def advice(self) -> str:
        """What to try next where nothing was found."""
        if self.ground > MUCH_GROUND:
            return GROUND
        if self.explained < LEAST_EXPLAINED:
            return (
                f"Much of the pictures is left: try more templates (--components), {self._other_motion}, more images, "
                "or another --seed; `liesparse suggest DATA` compares some."
            )
        if not self.n_motions:
            return (
                "The pictures of each template do not move in this model. If they should: try "
                f"{self._other_motion}, other numbers of --components, or more images."
            )
        return (
            "By evidence, shapes that do not move explain the pictures as well: they may have no motion in common. If "
            f"they have one, try {self._other_motion}, or more images."
        )


@torch.no_grad()
def judge(
    parameters: Parameters,
    images: Images,
    training_images: Float[Tensor, "more pixel"],
    engine: PoseEngine,
    *,
    seen: tuple[Tensor, Tensor] | None = None,
    plain: Float[Tensor, "pixel plain_component"] | None = None,
    pair_share: float | None = None,
    n_starts: int = 1,
    n_agreed: int = 1,
    given: bool = False,
) -> Verdict:
    """Return the verdict on a model from ``images``; plain sparse coding learns from other ``training_images``.

    ``seen`` and ``plain`` are what ``poses_of_many`` and ``plain_dictionary`` found, if that is known already.
    """
    _, _, codes, poses, found = infer(parameters, images, engine)
    seen = seen or poses_of_many(parameters, training_images, engine)
    effects = motion_effects(parameters, *seen)
    large = plain_dictionary(parameters, training_images) if plain is None else plain
    small = plain_dictionary(parameters, training_images, parameters.n_components)
    ours = Explained(
        codes,
        (images - found).square().sum(dim=1),
        log_likelihood(parameters, images, codes, engine),
        n_axes=parameters.torus_dim,
    )
    theirs = [explain_plainly(parameters, one.to(images), images) for one in (large, small)]
    evidence, *of_still = compare_evidence(parameters, (ours, *theirs))
    better = all(float((evidence - other).mean()) > 0 for other in of_still)
    noise = noise_share(parameters, images)
    explained = min(1.0, max(0.0, 1 - (float(ours.left.mean()) - noise) / (1 - noise)))
    n_motions = sum(effect >= LEAST_EFFECT for effect in effects)
    good = explained >= LEAST_EXPLAINED and n_motions > 0 and better
    fit = alignments(images, found, noise).square()
    _, least_fit = usual(fit.clamp(max=1), FIT_SLACK, FIT_DEVIATIONS, LEAST_FIT)
    usual_share, least_share = usual(template_share(parameters, codes, poses), SPREAD_SLACK, SPREAD_DEVIATIONS)
    return Verdict(
        good,
        n_motions,
        parameters.torus_dim,
        explained,
        effects,
        snr=float((1 / ours.left).mean()),
        plain_snr=float((1 / theirs[0].left).mean()),
        pair_share=pair_share,
        n_starts=n_starts,
        n_agreed=n_agreed,
        given=given,
        ground=ground_share(images),
        noise=noise,
        least_fit=least_fit,
        strange=float((fit < least_fit).float().mean()),
        n_codes=active_codes(codes),
        usual_share=usual_share,
        least_share=least_share,
        unmoved=() if given else unmoved_templates(parameters, *seen),
        mixed=mixed_templates(parameters, *seen),
    )


def alignments(images: Images, found: Images, noise: float) -> Numbers:
    """Return the cosine between each unit-norm image without its noise and what the model makes of it.

    The noise is that of most images; where one has less, the cosine may come out above 1.
    """
    cosine = (images * found).sum(dim=1) / found.norm(dim=1).clamp(min=1e-12)
    return cosine.clamp(min=0) / math.sqrt(1 - noise)


def usual(values: Numbers, slack: float, deviations: float, floor: float = 0.0) -> tuple[float, float]:
    """Return the median, and the least that is usual: so many deviations below, or the slack, the larger of the two."""
    lower, middle = values.quantile(values.new_tensor([0.25, 0.5])).tolist()
    return middle, max(floor, middle - max(slack, deviations * (middle - lower) / 0.6745))  # of a Gaussian


def unmoved_templates(parameters: Parameters, codes: Codes, poses: Poses) -> tuple[int, ...]:
    """Return the templates whose pictures hardly differ by their poses, compared with those of a usual picture's.

    Nobody has seen them move, so their poses are a guess. A template of a single picture is among them; of one without
    any nothing is known.
    """
    largest, effects = codes.argmax(dim=1), codes.new_full((codes.shape[1],), math.inf)
    for template in largest.unique().tolist():
        mine = largest == template
        moved, away = reconstruct(parameters, codes[mine], poses[mine]), centred_poses(poses[mine])
        still = reconstruct(parameters, codes[mine], poses[mine] - away)
        effects[template] = (moved - still).square().sum() / moved.square().sum().clamp(min=1e-12)
    least = LEAST_MOVED * effects[largest].median()
    return tuple((effects < least).nonzero().flatten().tolist())


def mixed_templates(parameters: Parameters, codes: Codes, poses: Poses) -> tuple[int, ...]:
    """Return the templates whose usual picture is spread over more templates than a usual picture of all.

    Such a template is often a mean of several shapes, and what it takes from pictures says little of them.
    """
    largest, shares = codes.argmax(dim=1), template_share(parameters, codes, poses)
    of_template = shares.new_full((codes.shape[1],), math.inf)
    for template in largest.unique().tolist():
        of_template[template] = shares[largest == template].median()
    least = of_template[largest].median() - SPREAD_SLACK
    return tuple((of_template < least).nonzero().flatten().tolist())


def ground_share(images: Images) -> float:
    """Return how much of the energy of unit-norm images is one and the same value in all pixels."""
    return float((images.sum(dim=1).square() / images.shape[1]).mean())


def warn_of_ground(images: Images, image_shape: tuple[int, ...]) -> str:
    """Return what to do about an even ground that is light, or grey, or nothing where there is none."""
    if ground_share(images) > MUCH_GROUND:
        return GROUND
    if len(image_shape) < 2 or not len(images):
        return ""
    few = images[:N_GROUND]
    edges = edge_pixels(few.reshape(-1, *image_shape)).flatten(1)
    lower, middle, upper = edges.quantile(few.new_tensor([0.25, 0.5, 0.75]), dim=1)
    even = (upper - lower) < EVEN * (few.amax(dim=1) - few.amin(dim=1))
    share = float((middle.square() * images.shape[1] * even).median())
    return GREY.format(share=share) if share > SOME_GROUND else ""


def noise_share(parameters: Parameters, images: Images) -> float:
    """Return how much of the energy of the images is white noise: in each pixel as much as outside the span of W."""
    n_pixels, n_columns = parameters.group_basis.shape
    outside = 1 - float((images @ parameters.group_basis).square().sum(dim=1).mean())
    return min(MOST_NOISE, max(0.0, outside) * n_pixels / (n_pixels - n_columns)) if n_pixels > n_columns else 0.0


def motion_effects(parameters: Parameters, codes: Codes, poses: Poses) -> tuple[float, ...]:
    """Return how much a picture changes along each principal direction of the poses: 0 not at all, 1 all of it.

    The poses are taken about the mean of their template. Along a direction each picture is moved to that mean.
    Where the poses only jump between a few places, that is no motion: it makes a few still pictures of one template.
    """
    moved = reconstruct(parameters, codes, poses)
    energy = float(moved.square().sum())
    if not energy > 0:
        return (0.0,) * parameters.torus_dim
    largest = codes.argmax(dim=1)
    apart = torch.zeros_like(poses)
    for template in largest.unique():
        apart[largest == template] = centred_poses(poses[largest == template])
    directions = torch.linalg.eigh(apart.T @ apart).eigenvectors
    effects = []
    for direction in directions.T:
        along = apart @ direction
        still = reconstruct(parameters, codes, poses - along[:, None] * direction)
        effect = float((moved - still).square().sum()) / (2 * energy)
        effects.append(effect if share_filled(along, largest) >= LEAST_FILLED else 0.0)
    return tuple(sorted(effects, reverse=True))


def share_filled(along: Numbers, template: Int[Tensor, " batch"]) -> float:
    """Return how much of their range the poses fill, but for the three largest gaps, over templates of many images."""
    shares, counts = [], []
    for each in template.unique():
        ordered = along[template == each].sort().values
        gaps = ordered.diff()
        if len(ordered) >= LEAST_SEEN and float(gaps.sum()) > 0:
            shares.append(1 - float(gaps.topk(N_GAPS).values.sum() / gaps.sum()))
            counts.append(len(ordered))
    return sum(share * count for share, count in zip(shares, counts, strict=True)) / sum(counts) if counts else 1.0


def poses_of_many(parameters: Parameters, images: Images, engine: PoseEngine) -> tuple[Tensor, Tensor]:
    """Return the codes and poses of some tens of images for each template."""
    wanted = min(MOST_IMAGES, IMAGES_PER_TEMPLATE * parameters.n_components)
    parts = [infer(parameters, batch, engine)[2:4] for batch in images[:wanted].split(250)]
    codes, poses = zip(*parts, strict=True)
    return torch.cat(codes), torch.cat(poses)


def explain_plainly(
    parameters: Parameters, dictionary: Float[Tensor, "pixel plain_component"], images: Images
) -> Explained:
    """Return how shapes that do not move explain images, at the λ and σ of a model."""
    codes = infer_sparse_codes(dictionary, images, noise_std=parameters.noise_std, sparsity=parameters.sparsity)
    left = (images - codes @ dictionary.T).square().sum(dim=1)
    return Explained(codes, left, plain_log_likelihood(dictionary, images, codes, noise_std=parameters.noise_std))


def plain_dictionary(
    parameters: Parameters, training_images: Float[Tensor, "more pixel"], n_components: int | None = None
) -> Float[Tensor, "pixel plain_component"]:
    """Learn plain sparse coding at the same λ and σ; usually with as many free numbers as Φ and W have."""
    n_pixels, n_columns = parameters.group_basis.shape
    in_basis = n_pixels * n_columns - n_columns * (n_columns + 1) // 2
    some = to_cpu(training_images[:: -(-len(training_images) // N_PLAIN)])
    n_components = min(n_components or parameters.n_components + -(-in_basis // n_pixels), len(some))
    settings = SparseCodingSettings(parameters.noise_std, parameters.sparsity, n_epochs=PLAIN_EPOCHS)
    return learn_sparse_coding(some, n_components, settings, generator=torch.Generator().manual_seed(0))


def read_verdict(saved: object, path: object) -> Verdict | None:
    """Return the verdict that a file holds as JSON; files from before there were verdicts hold none."""
    if saved is None:
        return None
    needed = set(Verdict._fields) - set(Verdict._field_defaults)
    numbers = saved if isinstance(saved, dict) and needed <= set(saved) <= set(Verdict._fields) else {}
    effects = numbers.get("effects")
    templates = {name: numbers.get(name, []) for name in ("unmoved", "mixed")}
    rest = {name: value for name, value in numbers.items() if name not in ("effects", *templates)}
    plain = all(isinstance(value, int | float) or (name, value) == ("pair_share", None) for name, value in rest.items())
    plain = plain and 0 <= numbers.get("noise", 0) <= MOST_NOISE
    lists = ((effects, float), *((one, int) for one in templates.values()))
    whole = all(isinstance(values, list) and all(isinstance(one, kind) for one in values) for values, kind in lists)
    whole = whole and all(0 <= template < MOST_TEMPLATES for one in templates.values() for template in one)
    if not numbers or not plain or not whole:
        reject("path", "a saved verdict", str(path), "Use another copy.")
    return Verdict(
        **numbers | {"effects": tuple(effects or ())} | {name: tuple(one) for name, one in templates.items()}
    )
