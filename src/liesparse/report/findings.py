"""What the report tells, as numbers: everything is computed here, nothing is drawn."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from liesparse import symmetry
from liesparse._checks import check_matrix, reject
from liesparse.confidence import DOUBTS
from liesparse.data import LoadedData, parse_spec
from liesparse.devices import to_cpu
from liesparse.figures import look_of, to_contrast
from liesparse.metrics import Explained, snr, templates_alive
from liesparse.model import apply_transform, reconstruct, undo_transform
from liesparse.run_directory import Run, compare, explained_by, motion_in_words
from liesparse.torus import wrap

MOST_IMAGES = 1000  # from which the report is made
MOST_WIDTHS = {1: 200, 2: 200}  # images whose posterior is measured; its grid grows with the dimension
MOST_FITTED = 300  # reconstructions to which known motions are fitted
N_EXAMPLES = 3  # best ones, and as many worst ones
N_MOVED = 4  # shapes that are shown moving
MOST_LABELS = 40  # that a table can show


class LabelFit(NamedTuple):
    """Templates against labels."""

    names: list[str]
    counts: list[list[int]]  # images of each template (rows, as ``templates``) and label
    templates: list[int]
    purity: float  # share of the images that have the label most frequent in their template
    most_frequent: float  # the same if there were one template only
    before: float  # share of the images whose nearest neighbour has their label, as they came
    after: float  # the same in the same pose


class Findings:
    """What the report tells of a model: it is looked at on held-out images."""

    def __init__(self, run: Run, data: LoadedData) -> None:
        coder, test, image_shape = run.coder, data.test, data.image_shape
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
        shown = to_cpu(images).reshape(-1, *self.shape).numpy()
        inverted = parse_spec(str(run.settings.get("data") or "")).parameters.get("invert") in ("yes", "true", "1")
        self.images, self.look = images, look_of(shown, inverted=inverted)
        self.signed = self.look == "signed"
        kept = seen.nonzero()[:MOST_IMAGES, 0].tolist()
        self.names = [data.test_names[row] if data.test_names else f"image {row + 1}" for row in kept]
        inferred, self.posterior, scores, self.confidence = coder.describe(images)
        self.codes, self.poses = (part.to(images) for part in inferred)
        self.largest = symmetry.largest_code(self.codes)  # template of each image, -1 without any
        self.reconstructions = reconstruct(model, self.codes, self.poses)
        self.ratios = snr(images, self.reconstructions)  # of each image
        width = self.posterior[: MOST_WIDTHS.get(model.torus_dim, 20)].width
        still = [one for one in (run.baseline, run.large_baseline) if one is not None]
        ours = Explained(self.codes, 1 / self.ratios, scores.to(self.codes), self.poses.shape[1])
        self.ours, *plain = compare(model, [ours, *(explained_by(one, images) for one in still)])
        self.plain = [  # plain sparse coding beside it
            {"plain_components": len(one.components_), **{f"plain_{name}": value for name, value in found.items()}}
            for one, found in zip(still, plain, strict=True)
        ]
        self.ours |= {"templates_alive": templates_alive(self.codes), "posterior_width": float(width.mean())}
        known = coder.pose_ranges_
        self.ranges = (  # of each template and axis: the middle, and the ends of its poses about it
            symmetry.pose_ranges(self.codes, self.poses) if known is None else torch.from_numpy(known).to(images)
        )
        # Each template where the data has it: at its own origin, s = 0, there may never have been a picture.
        self.templates = apply_transform(model, model.dictionary.T, self.ranges[..., 0])
        self.canonical = undo_transform(model, images, self.poses)
        self.labels = None
        if data.test_labels is not None:
            seen_as = (to_cpu(part) for part in (self.largest, images, self.canonical))
            self.labels = fit_labels(to_cpu(data.test_labels)[kept], data.label_names, *seen_as)
        use = self.codes.sum(dim=0) / self.codes.sum().clamp(min=1e-12)
        self.use: list[float] = use.tolist()  # share of each template in the sum of all codes
        self.n_pictures: list[int] = [int((self.largest == template).sum()) for template in range(len(use))]
        self.order: list[int] = use.argsort(descending=True, stable=True).tolist()  # templates, most used first
        self.factors: tuple[symmetry.FactorFit, ...] = ()
        self.truth: Tensor | None = None  # the factors of each image, if they are known
        self.prediction: Tensor | None = None
        if data.test_factors is not None and data.factor_names:
            factors, names = to_cpu(data.test_factors)[kept], data.factor_names
            self.factors = symmetry.fit_factors(*inferred, factors, names)
            self.truth = truth = symmetry.count_factors(factors, names)
            self.prediction = symmetry.predict_factors(*inferred, truth)
        self.motion = motion_in_words(coder, self.codes, self.poses, image_shape)
        self.group = symmetry.fit_motions(model, self.codes[:MOST_FITTED], self.poses[:MOST_FITTED], self.shape)

    def pixels(self, rows: Float[Tensor, "*image pixel"]) -> NDArray[np.floating]:
        """Return rows as arrays of shape (…, height, width[, 3]), fit to be looked at."""
        array: NDArray[np.floating] = to_cpu(rows).reshape(*rows.shape[:-1], *self.shape).numpy()
        height, width = self.shape[:2]
        return array.repeat(max(2, width // 6), axis=rows.ndim - 1) if height == 1 else array

    def shown(self, rows: Float[Tensor, "*image pixel"]) -> NDArray[np.floating]:
        """Return rows as pictures, each in a contrast of its own: ink up to 1, or signed values."""
        return to_contrast(self.pixels(rows), self.look, len(self.shape))

    def reach(self) -> list[float]:
        """Return the share of each circle that the poses fill, the median over templates."""
        used = self.largest[self.largest >= 0].unique()
        widths = (self.ranges[used, :, 2] - self.ranges[used, :, 1]) / (2 * math.pi)
        return widths.median(dim=0).values.tolist() if len(used) else [0.0] * self.model.torus_dim

    def examples(self) -> tuple[list[int], list[int]]:
        """Return images of which the model is surest, each of another template if there are, and least sure."""
        order = self._least_sure_first()[::-1]
        templates = self.largest.tolist()
        first = {templates[row]: row for row in reversed(order)}  # the surest of each template
        best = sorted(first.values(), key=order.index)[:N_EXAMPLES]
        best += [row for row in order if row not in best][: N_EXAMPLES - len(best)]
        return best, [row for row in order[::-1] if row not in best][:N_EXAMPLES]

    def doubtful(self) -> list[int]:
        """Return the images that are not to be trusted, the worst first."""
        return [row for row in self._least_sure_first() if bool(self.confidence.uncertain[row])]

    def doubt(self, row: int) -> str:
        """Return why an image is not to be trusted, nothing if it is."""
        return DOUBTS[int(self.confidence.doubt[row])]

    def _least_sure_first(self) -> list[int]:
        """Return all images by the kind of doubt, the worst first, and those of one kind by confidence."""
        kinds = torch.where(self.confidence.uncertain, self.confidence.doubt, len(DOUBTS))
        order = self.confidence.confidence.argsort(stable=True)
        return order[kinds[order].argsort(stable=True)].tolist()

    def poor_templates(self) -> dict[str, list[int]]:
        """Return the templates of these images that are not to be trusted, by what is wrong with them."""
        known = {} if self.verdict is None else {"unmoved": self.verdict.unmoved, "mixed": self.verdict.mixed}
        return {
            name: [template for template in self.order if template in templates and self.n_pictures[template]]
            for name, templates in known.items()
        }

    def one_of_each(self, n_images: int) -> list[int]:
        """Return an image of each of the most used shapes, or the first image if no image has codes."""
        largest = self.largest.tolist()
        return [largest.index(template) for template in self.order if template in largest][:n_images] or [0]

    def traversal(self, axis: int, shares: Float[Tensor, " step"]) -> Float[Tensor, "shape step pixel"]:
        """Move the most used shapes along one axis: share 0 is where the poses of each begin, 1 where they end."""
        strips = []
        for template in self.order[:N_MOVED]:
            middle, low, high = self.ranges[template].unbind(dim=1)
            poses = middle.repeat(len(shares), 1)
            poses[:, axis] += low[axis] + shares.to(poses) * (high - low)[axis]
            codes = torch.eye(self.model.n_components).to(poses)[template].repeat(len(shares), 1)
            strips.append(reconstruct(self.model, codes, wrap(poses)))
        return torch.stack(strips)

    def plane_energies(self) -> Float[Tensor, " irrep"]:
        """Return the share of the images' energy in each plane of W."""
        return self.model.to_planes(self.images).square().sum(dim=-1).mean(dim=0)


def _nearest_neighbour_score(rows: Float[Tensor, "image pixel"], labels: Int[Tensor, " image"]) -> float:
    """Return how often the most similar other image has the same label."""
    similar = torch.nn.functional.normalize(rows, dim=1)
    similar = (similar @ similar.T).fill_diagonal_(-torch.inf)
    return float((labels[similar.argmax(dim=1)] == labels).float().mean())


def fit_labels(
    labels: Int[Tensor, " image"],
    names: tuple[str, ...],
    templates: Int[Tensor, " image"],
    images: Float[Tensor, "image pixel"],
    canonical: Float[Tensor, "image pixel"],
) -> LabelFit | None:
    """Compare templates with labels; None for one label, or for too many."""
    found = labels.unique()
    if not 2 <= len(found) <= MOST_LABELS or len(images) < 2:
        return None
    used = [int(template) for template in templates.unique() if template >= 0]
    counts = torch.stack([(labels[templates == k][:, None] == found).sum(dim=0) for k in used])
    order = counts.argmax(dim=1).argsort(stable=True)  # templates of one label stand together
    words = [names[label] if names else str(label) for label in found.tolist()]
    pure = float(counts.amax(dim=1).sum()) / len(labels)
    frequent = float((labels[:, None] == found).sum(dim=0).max()) / len(labels)
    scores = [_nearest_neighbour_score(rows, labels) for rows in (images, canonical)]
    return LabelFit(words, counts[order].tolist(), [used[row] for row in order.tolist()], pure, frequent, *scores)
