"""What the report tells, as numbers: everything is computed here, nothing is drawn."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from liesparse import symmetry
from liesparse._checks import check_matrix, reject
from liesparse.devices import to_cpu
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.metrics import active_codes, snr, templates_alive
from liesparse.model import Parameters, reconstruct
from liesparse.posterior import TorusPosterior, log_likelihood, make_engine, pose_natural
from liesparse.torus import wrap

MOST_IMAGES = 1000  # from which the report is made
MOST_WIDTHS = {1: 200, 2: 200}  # images whose posterior is measured; its grid grows with the dimension
MOST_FITTED = 300  # reconstructions to which known motions are fitted
N_EXAMPLES = 3  # best ones, and as many worst ones
N_MOVED = 6  # shapes that are shown moving
BATCH = 250


class Numbers(NamedTuple):
    """How good a model is on held-out images; NaN where a model has no such number."""

    snr: float
    active_codes: float
    templates_alive: int
    n_templates: int
    log_likelihood: float
    posterior_width: float


class Findings(NamedTuple):
    """What the report tells of a model."""

    model: Parameters
    shape: tuple[int, ...]  # (height, width), or (height, width, 3)
    signed: bool  # the images have negative values
    images: Float[Tensor, "image pixel"]  # unit norm
    codes: Float[Tensor, "image component"]
    poses: Float[Tensor, "image torus"]
    reconstructions: Float[Tensor, "image pixel"]
    ratios: Float[Tensor, " image"]  # SNR of each image
    ours: Numbers
    theirs: Numbers | None
    order: list[int]  # templates, most used first
    use: list[float]  # share of each template in the sum of all codes
    factors: tuple[symmetry.FactorFit, ...]
    truth: Float[Tensor, "image factor"] | None
    prediction: Float[Tensor, "image factor"] | None
    group: symmetry.GroupFit
    reach: list[float]  # share of each axis's circle that the data fill

    def pixels(self, rows: Float[Tensor, "image pixel"]) -> NDArray[np.floating]:
        """Return rows as arrays of shape (image, height, width[, 3]), fit to be looked at."""
        array: NDArray[np.floating] = to_cpu(rows).reshape(-1, *self.shape).numpy()
        height, width = self.shape[:2]
        return array.repeat(max(2, width // 6), axis=1) if height == 1 else array


def find(
    coder: LieSparseCoder,
    test: Float[Tensor, "image pixel"],
    *,
    image_shape: tuple[int, ...],
    baseline: SparseCoder | None,
    factors: Float[Tensor, "image factor"] | None,
    factor_names: tuple[str, ...],
) -> Findings:
    """Look at a model on held-out images."""
    model = coder.model_
    shape = _drawable(image_shape, model.n_pixels)
    check_matrix("test", test, ("n_images", None), ("n_pixels", model.n_pixels))
    seen = test.norm(dim=1) > 0
    if not bool(seen.any()):
        reject("test", "images", f"{len(test)} blank rows", "Give held-out images.")
    images = torch.nn.functional.normalize(test[seen][:MOST_IMAGES].to(model.group_basis), dim=1)
    codes, poses = (part.to(images) for part in coder.infer(images))
    reconstructions = reconstruct(model, codes, poses)
    ratios = snr(images, reconstructions)
    use = codes.sum(dim=0) / codes.sum().clamp(min=1e-12)
    truth = prediction = None
    fits: tuple[symmetry.FactorFit, ...] = ()
    if factors is not None and factor_names:
        factors = to_cpu(factors[seen.to(factors.device)][:MOST_IMAGES])
        fits = symmetry.fit_factors(to_cpu(codes), to_cpu(poses), factors, factor_names)
        truth = symmetry.count_factors(factors, factor_names)
        prediction = symmetry.predict_factors(to_cpu(codes), to_cpu(poses), truth)
    return Findings(
        model=model,
        shape=shape,
        signed=float(images.min()) < -0.1 * float(images.max()),
        images=images,
        codes=codes,
        poses=poses,
        reconstructions=reconstructions,
        ratios=ratios,
        ours=_our_numbers(model, images, codes, float(ratios.mean())),
        theirs=None if baseline is None else _their_numbers(baseline, to_cpu(images)),
        order=use.argsort(descending=True, stable=True).tolist(),
        use=use.tolist(),
        factors=fits,
        truth=truth,
        prediction=prediction,
        group=symmetry.fit_fields(model, reconstructions[:MOST_FITTED], shape),
        reach=_reach(codes, poses),
    )


def _drawable(image_shape: tuple[int, ...], n_pixels: int) -> tuple[int, ...]:
    coloured = len(image_shape) == 3 and image_shape[2] == 3
    if (len(image_shape) not in (1, 2) and not coloured) or math.prod(image_shape) != n_pixels:
        expected = f"(height, width) or (height, width, 3) with {n_pixels} pixels"
        reject("image_shape", expected, str(image_shape), "Give the shape of one image, colours last.")
    return image_shape if len(image_shape) > 1 else (1, *image_shape)


def posterior_of(model: Parameters, images: Tensor, codes: Tensor) -> TorusPosterior:
    """Return P(s | I, α̂) of each image."""
    return TorusPosterior(pose_natural(model, images, codes), model.frequencies)


def _our_numbers(model: Parameters, images: Tensor, codes: Tensor, mean_snr: float) -> Numbers:
    engine = make_engine("auto", model.frequencies, dtype=model.dtype, device=model.device)
    pairs = zip(images.split(BATCH), codes.split(BATCH), strict=True)
    likelihoods = torch.cat([log_likelihood(model, rows, theirs, engine) for rows, theirs in pairs])
    few = slice(MOST_WIDTHS.get(model.torus_dim, 20))
    return Numbers(
        snr=mean_snr,
        active_codes=active_codes(codes),
        templates_alive=templates_alive(codes),
        n_templates=model.n_components,
        log_likelihood=float(likelihoods.mean()),
        posterior_width=float(posterior_of(model, images[few], codes[few]).width.mean()),
    )


def _their_numbers(baseline: SparseCoder, images: Tensor) -> Numbers:
    codes = baseline.transform(images)
    return Numbers(
        snr=float(snr(images, codes @ torch.from_numpy(baseline.components_).to(codes)).mean()),
        active_codes=active_codes(codes),
        templates_alive=templates_alive(codes),
        n_templates=len(baseline.components_),
        log_likelihood=baseline.score(images),
        posterior_width=math.nan,
    )


def _reach(codes: Tensor, poses: Tensor) -> list[float]:
    """Return the share of each circle between the 5th and the 95th percentile, the median over templates."""
    largest = symmetry.largest_code(codes)
    ends = torch.tensor([0.05, 0.95]).to(poses)
    found = []
    for template in largest[largest >= 0].unique().tolist():
        low, high = symmetry.centred_poses(poses[largest == template]).quantile(ends, dim=0)
        found.append((high - low) / (2 * math.pi))
    return torch.stack(found).median(dim=0).values.tolist() if found else [0.0] * poses.shape[1]


# ---- what is shown moving, and how


def examples(found: Findings) -> tuple[list[int], list[int]]:
    """Return the best and the worst images by SNR, without an image twice."""
    order = found.ratios.argsort(descending=True, stable=True).tolist()
    best = order[:N_EXAMPLES]
    return best, [row for row in order[::-1][:N_EXAMPLES] if row not in best]


def one_of_each(found: Findings, n_images: int) -> list[int]:
    """Return an image of each of the most used shapes, or the first image if no image has codes."""
    largest = symmetry.largest_code(found.codes).tolist()
    return [largest.index(template) for template in found.order if template in largest][:n_images] or [0]


def traversal(found: Findings, axis: int, values: Float[Tensor, " step"]) -> Float[Tensor, "shape step pixel"]:
    """Move the most used shapes along one axis, from the middle of the poses that each has in the data."""
    model, largest = found.model, symmetry.largest_code(found.codes)
    strips = []
    for template in found.order[:N_MOVED]:
        mine = found.poses[largest == template]
        middle = symmetry.circular_mean(mine) if len(mine) else torch.zeros(model.torus_dim).to(found.poses)
        poses = middle.repeat(len(values), 1)
        poses[:, axis] = wrap(poses[:, axis] + values.to(poses))
        codes = torch.zeros(len(values), model.n_components).to(poses)
        codes[:, template] = 1
        strips.append(reconstruct(model, codes, poses))
    return torch.stack(strips)


def plane_energies(found: Findings) -> Float[Tensor, " irrep"]:
    """Return the share of the images' energy in each plane of W."""
    return found.model.to_planes(found.images).square().sum(dim=-1).mean(dim=0)
