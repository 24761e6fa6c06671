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
from liesparse.model import reconstruct
from liesparse.torus import wrap

MOST_IMAGES = 1000  # from which the report is made
MOST_WIDTHS = {1: 200, 2: 200}  # images whose posterior is measured; its grid grows with the dimension
MOST_FITTED = 300  # reconstructions to which known motions are fitted
N_EXAMPLES = 3  # best ones, and as many worst ones
N_MOVED = 6  # shapes that are shown moving


class Numbers(NamedTuple):
    """How good a model is on held-out images; NaN where a model has no such number."""

    snr: float
    active_codes: float
    templates_alive: int
    n_templates: int
    log_likelihood: float
    posterior_width: float


class Findings:
    """What the report tells of a model: it is looked at on held-out images."""

    def __init__(
        self,
        coder: LieSparseCoder,
        test: Float[Tensor, "image pixel"],
        *,
        image_shape: tuple[int, ...],
        baseline: SparseCoder | None = None,
        factors: Float[Tensor, "image factor"] | None = None,
        factor_names: tuple[str, ...] = (),
    ) -> None:
        model, self.verdict = coder.model_, coder.verdict_
        self.model = model
        coloured = len(image_shape) == 3 and image_shape[2] == 3
        if (len(image_shape) not in (1, 2) and not coloured) or math.prod(image_shape) != model.n_pixels:
            expected = f"(height, width) or (height, width, 3) with {model.n_pixels} pixels"
            reject("image_shape", expected, str(image_shape), "Give the shape of one image, colours last.")
        self.shape = image_shape if len(image_shape) > 1 else (1, *image_shape)  # (height, width[, 3])
        check_matrix("test", test, ("n_images", None), ("n_pixels", model.n_pixels))
        seen = test.norm(dim=1) > 0
        if not bool(seen.any()):
            reject("test", "images", f"{len(test)} blank rows", "Give held-out images.")
        images = torch.nn.functional.normalize(test[seen][:MOST_IMAGES].to(model.group_basis), dim=1)
        self.images, self.signed = images, float(images.min()) < -0.1 * float(images.max())
        inferred, self.posterior, scores, self.confidence = coder.describe(images)
        self.codes, self.poses = (part.to(images) for part in inferred)
        self.largest = symmetry.largest_code(self.codes)  # template of each image, -1 without any
        self.reconstructions = reconstruct(model, self.codes, self.poses)
        self.ratios = snr(images, self.reconstructions)  # of each image
        width = self.posterior[: MOST_WIDTHS.get(model.torus_dim, 20)].width
        self.ours = _numbers(self.codes, self.ratios, float(scores.mean()), float(width.mean()))
        self.theirs: Numbers | None = None
        if baseline is not None:
            codes, same = baseline.transform(to_cpu(images)), to_cpu(images)
            ratios = snr(same, codes @ torch.from_numpy(baseline.components_).to(codes))
            self.theirs = _numbers(codes, ratios, baseline.score(same), math.nan)
        use = self.codes.sum(dim=0) / self.codes.sum().clamp(min=1e-12)
        self.use: list[float] = use.tolist()  # share of each template in the sum of all codes
        self.order: list[int] = use.argsort(descending=True, stable=True).tolist()  # templates, most used first
        self.factors: tuple[symmetry.FactorFit, ...] = ()
        self.truth = self.prediction = None  # of the factors of each image, if they are known
        if factors is not None and factor_names:
            factors = to_cpu(factors[seen.to(factors.device)][:MOST_IMAGES])
            self.factors = symmetry.fit_factors(*inferred, factors, factor_names)
            self.truth = symmetry.count_factors(factors, factor_names)
            self.prediction = symmetry.predict_factors(*inferred, self.truth)
        self.group = symmetry.fit_fields(model, self.reconstructions[:MOST_FITTED], self.shape)

    def pixels(self, rows: Float[Tensor, "*image pixel"]) -> NDArray[np.floating]:
        """Return rows as arrays of shape (…, height, width[, 3]), fit to be looked at."""
        array: NDArray[np.floating] = to_cpu(rows).reshape(*rows.shape[:-1], *self.shape).numpy()
        height, width = self.shape[:2]
        return array.repeat(max(2, width // 6), axis=rows.ndim - 1) if height == 1 else array

    def reach(self) -> list[float]:
        """Return the share of each circle between the 5th and the 95th percentile, the median over templates."""
        ends = torch.tensor([0.05, 0.95]).to(self.poses)
        found = []
        for template in self.largest[self.largest >= 0].unique():
            low, high = symmetry.centred_poses(self.poses[self.largest == template]).quantile(ends, dim=0)
            found.append((high - low) / (2 * math.pi))
        return torch.stack(found).median(dim=0).values.tolist() if found else [0.0] * self.model.torus_dim

    def examples(self) -> tuple[list[int], list[int]]:
        """Return the best and the worst images by SNR, without an image twice."""
        order = self.ratios.argsort(descending=True, stable=True).tolist()
        best = order[:N_EXAMPLES]
        return best, [row for row in order[::-1][:N_EXAMPLES] if row not in best]

    def one_of_each(self, n_images: int) -> list[int]:
        """Return an image of each of the most used shapes, or the first image if no image has codes."""
        largest = self.largest.tolist()
        return [largest.index(template) for template in self.order if template in largest][:n_images] or [0]

    def traversal(self, axis: int, values: Float[Tensor, " step"]) -> Float[Tensor, "shape step pixel"]:
        """Move the most used shapes along one axis, from the middle of the poses that each has in the data."""
        strips = []
        for template in self.order[:N_MOVED]:
            mine = self.poses[self.largest == template]
            middle = symmetry.circular_mean(mine) if len(mine) else torch.zeros(self.model.torus_dim).to(mine)
            poses = middle.repeat(len(values), 1)
            poses[:, axis] = wrap(poses[:, axis] + values.to(poses))
            codes = torch.eye(self.model.n_components).to(poses)[template].repeat(len(values), 1)
            strips.append(reconstruct(self.model, codes, poses))
        return torch.stack(strips)

    def plane_energies(self) -> Float[Tensor, " irrep"]:
        """Return the share of the images' energy in each plane of W."""
        return self.model.to_planes(self.images).square().sum(dim=-1).mean(dim=0)


def _numbers(codes: Tensor, ratios: Tensor, log_likelihood: float, width: float) -> Numbers:
    counts = active_codes(codes), templates_alive(codes), codes.shape[1]
    return Numbers(float(ratios.mean()), *counts, log_likelihood, width)
