"""What labels say of a model that never saw them: which template is which label, and whether alignment helps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

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


def nearest_neighbour_score(rows: Float[Tensor, "image pixel"], labels: Int[Tensor, " image"]) -> float:
    """Return how often the most similar other image has the same label."""
    similar = torch.nn.functional.normalize(rows, dim=1)
    similar = similar @ similar.T
    similar.fill_diagonal_(-torch.inf)
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
    scores = [nearest_neighbour_score(rows, labels) for rows in (images, canonical)]
    return LabelFit(words, counts[order].tolist(), [used[row] for row in order.tolist()], pure, frequent, *scores)
