"""Shapes that are wasted: one that another already is, in another pose, or one that no image uses.

Both are local optima that no gradient leaves. Such a shape starts anew as the image that the model explains worst.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.devices import to_cpu
from liesparse.em import LEAST_USE
from liesparse.inference import map_poses, overlap_poses
from liesparse.model import Parameters, apply_transform, reconstruct
from liesparse.posterior import PoseEngine

CANDIDATES = 4  # images among which each new shape is chosen, so that not all are the same one


def pose_overlaps(parameters: Parameters, engine: PoseEngine) -> Float[Tensor, "component component"]:
    """Return max over s of Φ_i·T(s)Φ_j, for shapes scaled to norm 1 inside the span of W: 1 for the same shape."""
    n = parameters.n_components
    planes = torch.nn.functional.normalize(parameters.to_planes(parameters.dictionary.T).flatten(1), dim=1)
    planes = planes.unflatten(1, (-1, 2))
    first, second = torch.triu_indices(n, n, offset=1, device=planes.device)
    overlaps = torch.eye(n, dtype=planes.dtype, device=planes.device)
    if n > 1:
        shapes, poses = parameters.from_planes(planes), overlap_poses(parameters, planes[first], planes[second], engine)
        moved = apply_transform(parameters, shapes[first], poses)
        overlaps[first, second] = overlaps[second, first] = (moved * shapes[second]).sum(dim=1)
    return overlaps


def wasted_shapes(
    overlaps: Float[Tensor, "component component"], use: Float[Tensor, " component"], threshold: float
) -> list[int]:
    """Return the shapes that are hardly used, or overlap with one that is used more by over ``threshold``."""
    rank = use.argsort(descending=True, stable=True).argsort()
    busier = rank[None, :] < rank[:, None]  # entry (i, j): j is used more than i
    repeated = (busier & (overlaps > threshold)).any(dim=1)
    return (repeated | (use < LEAST_USE * use.mean())).nonzero().flatten().tolist()


def reseed(
    parameters: Parameters,
    images: Float[Tensor, "batch pixel"],
    codes: Float[Tensor, "batch component"],
    engine: PoseEngine,
    threshold: float,
    use: Float[Tensor, " component"] | None = None,
) -> tuple[Parameters, list[int]]:
    """Turn wasted shapes into the worst explained images of a batch; return the model and which they were.

    ``use`` is the mean of α² over more images than the batch, where that is known.
    """
    use = codes.square().mean(dim=0) if use is None else use
    wasted = wasted_shapes(pose_overlaps(parameters, engine), use, threshold)[: len(images)]
    if not wasted:
        return parameters, []
    poses = map_poses(parameters, images, codes, engine)
    errors = (images - reconstruct(parameters, codes, poses)).square().sum(dim=1)
    worst = images[errors.argsort(descending=True)[: CANDIDATES * len(wasted)]]
    shapes = torch.nn.functional.normalize(worst, dim=1)
    shapes = shapes[_unlike(pose_overlaps(replace(parameters, dictionary=shapes.T), engine), len(wasted), threshold)]
    dictionary = parameters.dictionary.clone()
    dictionary[:, wasted] = 0
    onto = parameters.to_planes(dictionary.sum(dim=1)[None]).expand(len(shapes), -1, -1)
    if bool(onto.any()):
        poses = overlap_poses(parameters, parameters.to_planes(shapes), onto, engine)
        shapes = torch.nn.functional.normalize(apply_transform(parameters, shapes, poses), dim=1)
    dictionary[:, wasted] = shapes.T
    return replace(parameters, dictionary=dictionary), wasted


def _unlike(overlaps: Float[Tensor, "image image"], n_chosen: int, threshold: float) -> list[int]:
    """Return the first images of which none is another one in some pose, and more in their order if they are few."""
    chosen: list[int] = []
    alike = (to_cpu(overlaps) > threshold).tolist()
    for image in range(len(alike)):
        if not any(alike[image][other] for other in chosen):
            chosen.append(image)
    return (chosen + [image for image in range(len(alike)) if image not in chosen])[:n_chosen]
