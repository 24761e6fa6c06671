"""How good a model is: signal-to-noise ratio, active codes, and the health of a training run.

:func:`register_metric` adds a metric of one's own; ``liesparse evaluate`` computes all that are registered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse import stiefel
from liesparse._checks import check_choice, check_images, reject
from liesparse.inference import infer_codes, map_poses
from liesparse.model import Codes, Images, Numbers, Parameters, Poses, log_prior_codes, reconstruct
from liesparse.posterior import PoseEngine, log_likelihood, pose_posterior
from liesparse.torus import cut_open, wrap

ACTIVE_THRESHOLD = 0.05
ALIVE_SHARE = 0.001  # a template is alive if it is active in this share of the images
MOST_TURNS = 4  # a circle may go round up to so many times while another goes once
RIVAL = 3.0  # nats below the highest mode within which a second one counts
MOST_WINDINGS = 10  # of an encoding round a circle, while the factor goes round once
MAP_STEPS = 100  # proximal steps with the exact gradient, from the paper's estimate


def snr(images: Images, reconstructions: Images) -> Numbers:
    """Return ‖I‖² / ‖I - Î‖² for each image: linear, not decibel [Chau20, sec. 5]."""
    return images.square().sum(dim=1) / (images - reconstructions).square().sum(dim=1)


def torus_match(factors: Float[Tensor, "batch factor"], poses: Poses, period: float | None = None) -> list[float]:
    """Return for each true factor how well the poses of one template give it: 1 for exactly, 0 for not at all.

    A circular factor of some ``period`` is compared with integer combinations m·s of the pose, as the mean length of
    exp i(factor - m·s) for the best m. For other factors it is the multiple correlation with n such combinations, each
    cut open where it has the largest gap, the best choice of them. So signs, swaps and multiples do not matter.
    """
    torus_dim = poses.shape[1]
    combinations = torch.tensor(list(itertools.product(range(-MOST_TURNS, MOST_TURNS + 1), repeat=torus_dim))).double()
    if period is not None:
        phases = poses.double() @ combinations.T
        angles = factors.double() * (2 * torch.pi / period)
        return [float(torch.exp(1j * (angle[:, None] - phases)).mean(dim=0).abs().amax()) for angle in angles.T]
    simple = [m for m in combinations if m.abs().amax() == 1 and m[m != 0][0] > 0]
    best = torch.zeros(factors.shape[1]).double()
    centred = (factors - factors.mean(dim=0)).double()
    for chosen in itertools.combinations(simple, torus_dim):
        directions = torch.stack(chosen)
        if torch.linalg.matrix_rank(directions) == torus_dim:
            opened = cut_open(poses.double() @ directions.T)
            fitted = opened @ torch.linalg.lstsq(opened, centred).solution
            left = (centred - fitted).square().sum(dim=0) / centred.square().sum(dim=0).clamp(min=1e-300)
            best = torch.maximum(best, (1 - left).clamp(min=0).sqrt())
    return best.tolist()


def d_lsbd(encodings: Any) -> float:
    """Return how far encodings are from linear symmetry-based disentanglement: 0 is perfect [Tonnaer22, sec. 4].

    ``encodings`` has the shape (N₁, …, N_K, d): row (i₁, …, i_K) belongs to the image whose factor k is turned by
    i_k / N_k of its circle. For each factor the mean over it is taken off, and the two principal axes of what is left,
    each scaled to a mean square of ½, are turned back by an integer multiple of the factor's angle. Their variance, for
    the best integer, is that factor's part; the parts are added. So it lies between 0 and K.
    """
    codes = torch.as_tensor(encodings, dtype=torch.float64)
    total = 0.0
    for axis in range(codes.ndim - 1):
        left = (codes - codes.mean(dim=axis, keepdim=True)).flatten(0, -2)
        axes = torch.linalg.eigh(left.T @ left).eigenvectors[:, -2:]
        plane = left @ axes
        plane = plane / plane.square().mean(dim=0).mul(2).sqrt().clamp(min=1e-300)
        points = torch.view_as_complex(plane.contiguous()).unflatten(0, codes.shape[:-1])
        turns = torch.arange(codes.shape[axis]) / codes.shape[axis]
        back = torch.exp(-2j * torch.pi * torch.outer(torch.arange(-MOST_WINDINGS, MOST_WINDINGS + 1), turns).double())
        means = back.to(points) @ points.movedim(axis, 0).flatten(1).mean(dim=1) / codes.shape[axis]
        total += float(points.abs().square().mean() - means.abs().square().amax())
    return total


def equivariance_error(poses: Any, moved_poses: Any, moves: Any) -> float:
    """Return how far poses are, in radians, from having changed by ``moves``: the mean distance on the torus.

    All have the shape (n_images, n_axes), in radians. 0 is perfect; poses drawn at random give π/2 for one axis.
    """
    before, after, by = (torch.as_tensor(part, dtype=torch.float64) for part in (poses, moved_poses, moves))
    return float(wrap(after - before - by).norm(dim=-1).mean())


def invariance_error(codes: Any, moved_codes: Any) -> float:
    """Return how much codes change where images only move: 0 for not at all, 1 if nothing is left in common.

    It is the mean of ‖a - b‖² / (‖a‖² + ‖b‖²) over the rows, for which 1 means orthogonal; two empty rows are equal.
    """
    before, after = (torch.as_tensor(part, dtype=torch.float64) for part in (codes, moved_codes))
    whole = (before.square() + after.square()).sum(dim=1)
    return float(((before - after).square().sum(dim=1) / whole.clamp(min=1e-300)).mean())


class Success(NamedTuple):
    """How often something was reached over seeds, and between which rates the true one lies with 95 % confidence."""

    rate: float
    low: float
    high: float


def success_over_seeds(reached: Iterable[bool]) -> Success:
    """Return the share of seeds that reached a bar, with Wilson's interval of 95 %."""
    from scipy.stats import binomtest  # slow to import

    found = [bool(one) for one in reached]
    return Success(sum(found) / len(found), *binomtest(sum(found), len(found)).proportion_ci(0.95, "wilson"))


def active_count(codes: Codes) -> Numbers:
    """Return how many codes of each unit-norm image exceed 0.05."""
    return (codes > ACTIVE_THRESHOLD).sum(dim=1).to(codes)


def active_codes(codes: Codes) -> float:
    """Return how many codes of a unit-norm image exceed 0.05, averaged over the images.

    The paper's subgradient step leaves ripples of about λ times the step size, here 0.01 to 0.03,
    where the exact maximum has zeros; the threshold passes over them.
    """
    return float(active_count(codes).mean())


def template_share(parameters: Parameters, codes: Codes, poses: Poses) -> Numbers:
    """Return how much of what the model makes of each image its largest template alone would be: cos² between the two.

    It is 1 for one template, and for several that are the same shape in the same place.
    """
    alone = torch.nn.functional.one_hot(codes.argmax(dim=1), codes.shape[1]).to(codes)
    one, whole = (reconstruct(parameters, each, poses) for each in (alone, codes))
    return torch.cosine_similarity(one, whole, dim=1).square()


def templates_alive(codes: Codes) -> int:
    """Return how many templates are active in at least one image of a thousand."""
    return int(((codes > ACTIVE_THRESHOLD).float().mean(dim=0) >= ALIVE_SHARE).sum())


class Inferred(NamedTuple):
    """Images and what a model made of them: the argument of every metric."""

    parameters: Parameters
    images: Images  # of norm 1, (n_images, n_pixels)
    codes: Codes  # (n_images, n_components)
    poses: Poses  # (n_images, torus_dim), in radians
    reconstructions: Images  # the images, drawn again by the model


Metric = Callable[[Inferred], float]

_METRICS: dict[str, Metric] = {
    "snr": lambda inferred: float(snr(inferred.images, inferred.reconstructions).mean()),
    "active_codes": lambda inferred: active_codes(inferred.codes),
    "templates_alive": lambda inferred: templates_alive(inferred.codes),
}


def register_metric(name: str) -> Callable[[Metric], Metric]:
    """Add a function from :class:`Inferred` to a float as a metric, by a decorator that returns it unchanged.

    ``liesparse evaluate`` then writes its value to JSON under ``name``. A name that is taken already is an error.

    Examples
    --------
    >>> from liesparse.metrics import register_metric
    >>> @register_metric("largest_code")
    ... def largest_code(inferred):
    ...     return float(inferred.codes.max())
    """
    if name in _METRICS:
        reject("name", "one that is not taken", repr(name), "Choose another.")

    def add(metric: Metric) -> Metric:
        _METRICS[name] = metric
        return metric

    return add


def metric_names() -> tuple[str, ...]:
    """Return the names that :func:`compute_metric` knows."""
    return tuple(_METRICS)


def compute_metric(name: str, inferred: Inferred) -> float:
    """Return the value of one metric."""
    return _METRICS[check_choice("metric", name, metric_names())](inferred)


class Evaluation(NamedTuple):
    """Held-out quality of a model."""

    snr: float
    active_codes: float
    templates_alive: int
    registered: Mapping[str, float] = MappingProxyType({})  # what :func:`register_metric` added


def refine_codes(parameters: Parameters, images: Images, codes: Codes, engine: PoseEngine) -> Codes:
    """Go on from the paper's α̂ to the exact maximum of P(α|I), by proximal steps with the exact gradient."""
    how: dict[str, Any] = {"n_code_steps": MAP_STEPS, "update": "proximal", "gradient": "exact"}
    return infer_codes(parameters, images, engine, start=codes, **how)


def infer(
    parameters: Parameters, images: Images, engine: PoseEngine, *, exact_map: bool = False, refine: bool = True
) -> Inferred:
    """Find the codes and the most probable pose of each image, and draw it again by them."""
    codes = infer_codes(parameters, images, engine)
    if exact_map:
        codes = refine_codes(parameters, images, codes, engine)
    poses = map_poses(parameters, images, codes, engine, refine=refine)
    return Inferred(parameters, images, codes, poses, reconstruct(parameters, codes, poses))


def evaluate(
    parameters: Parameters,
    images: Images,
    engine: PoseEngine,
    *,
    exact_map: bool = False,
    refine: bool = True,
    batch_size: int = 250,
) -> Evaluation:
    """Infer codes and the most probable pose, reconstruct, and compare [Chau20, table 1].

    The paper's α̂ is what 20 steps of subgradient FISTA reach. With ``exact_map`` proximal steps with the exact
    gradient go on from there to the maximum of P(α|I), whose codes are smaller. Metrics that were added by
    :func:`register_metric` are in ``registered``.
    """
    check_images(images, parameters.n_pixels, parameters.dtype)
    batches = images.split(batch_size)
    parts = [infer(parameters, batch, engine, exact_map=exact_map, refine=refine)[1:] for batch in batches]
    inferred = Inferred(parameters, *(torch.cat(columns) for columns in zip(*parts, strict=True)))
    values = {name: compute_metric(name, inferred) for name in metric_names()}
    return Evaluation(values.pop("snr"), values.pop("active_codes"), int(values.pop("templates_alive")), values)


class Health(NamedTuple):
    """What tells whether a training run is well."""

    objective: float  # mean of ln P(I|α̂) + ln P(α̂)
    snr: float
    active_codes: float
    templates_alive: int
    orthonormality_error: float  # largest entry of |WᵀW - 1|
    posterior_width: float  # mean circular standard deviation of the pose, in radians
    multimodal_share: float  # posteriors with a second mode within 3 nats of the first


def objective(parameters: Parameters, images: Images, codes: Codes, engine: PoseEngine) -> float:
    """Return what learning climbs, the mean of ln P(I|α) + ln P(α) over the images."""
    return float((log_likelihood(parameters, images, codes, engine) + log_prior_codes(parameters, codes)).mean())


def examine(parameters: Parameters, images: Images, engine: PoseEngine) -> Health:
    """Look at a model on a few held-out images."""
    inferred = infer(parameters, images, engine)
    codes = inferred.codes
    posterior = pose_posterior(parameters, images, codes)
    first, second = posterior.modes(2).log_prob.unbind(dim=1)
    return Health(
        objective=objective(parameters, images, codes, engine),
        snr=float(snr(images, inferred.reconstructions).mean()),
        active_codes=active_codes(codes),
        templates_alive=templates_alive(codes),
        orthonormality_error=stiefel.orthonormality_error(parameters.group_basis),
        posterior_width=float(posterior.width.mean()),
        multimodal_share=float((second > first - RIVAL).float().mean()),
    )


class Explained(NamedTuple):
    """How a model explains unit-norm images."""

    codes: Codes
    left: Numbers  # energy of each image that is left
    log_likelihood: Numbers  # ln P(I|α̂) at the σ of learning
    n_axes: int = 0  # of the pose, which was integrated out


def code_cost(codes: Codes, sparsity: float) -> Numbers:
    """Return what the codes of each image cost in nats: λ Σα, and ln K to name each active one."""
    return sparsity * codes.sum(dim=1) + active_count(codes) * math.log(codes.shape[1])


def compare_evidence(parameters: Parameters, models: Sequence[Explained]) -> list[Numbers]:
    """Return the evidence of each image by each of some models: ln P(I|α̂) less what its codes cost, at one σ for all.

    The σ of learning says how exact a picture should be at first. Where it is large, models that leave a tenth or a
    thirtieth of a picture hardly differ by it. So it is what the best of them leaves, spread over the columns of W, if
    that is less. A pose is then known as much better: each axis costs ln of the ratio more, as a Gaussian's does.
    """
    n_pixels, n_columns = parameters.group_basis.shape
    least = min(float(model.left.mean()) for model in models)
    sharper = min(parameters.noise_std, math.sqrt(max(least, 1e-12) / n_columns))
    gain, ratio = 0.5 / parameters.noise_std**2 - 0.5 / sharper**2, math.log(parameters.noise_std / sharper)
    return [
        model.log_likelihood
        + gain * model.left
        + (n_pixels - model.n_axes) * ratio
        - code_cost(model.codes, parameters.sparsity)
        for model in models
    ]
