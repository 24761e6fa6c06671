"""How good a model is: signal-to-noise ratio, active codes, and both on held-out images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import check_images
from liesparse.inference import CodeUpdate, Gradient, infer_codes, map_poses
from liesparse.model import Parameters, reconstruct
from liesparse.posterior import Engine

ACTIVE_THRESHOLD = 0.05


def snr(images: Float[Tensor, "batch pixel"], reconstructions: Float[Tensor, "batch pixel"]) -> Float[Tensor, " batch"]:
    """Return ‖I‖² / ‖I - Î‖² for each image: linear, not decibel [Chau20, sec. 5]."""
    return images.square().sum(dim=1) / (images - reconstructions).square().sum(dim=1)


def active_codes(codes: Float[Tensor, "batch component"]) -> float:
    """Return how many codes of a unit-norm image exceed 0.05, averaged over the images.

    The paper's subgradient step leaves ripples of about λ times the step size, here 0.01 to 0.03,
    where the exact maximum has zeros; the threshold passes over them.
    """
    return float((codes > ACTIVE_THRESHOLD).sum(dim=1).float().mean())


class Evaluation(NamedTuple):
    """Held-out quality of a model."""

    snr: float
    active_codes: float


def evaluate(
    parameters: Parameters,
    images: Float[Tensor, "image pixel"],
    engine: Engine,
    *,
    n_code_steps: int = 20,
    code_start: float = 0.01,
    code_update: CodeUpdate = "subgradient",
    gradient: Gradient = "approximate",
    refine: bool = True,
    batch_size: int = 250,
) -> Evaluation:
    """Infer codes and the most probable pose, reconstruct, and compare [Chau20, table 1]."""
    check_images(images, parameters.n_pixels, parameters.dtype)
    ratios, actives = [], []
    for batch in images.split(batch_size):
        codes = infer_codes(
            parameters,
            batch,
            engine,
            n_code_steps=n_code_steps,
            start=code_start,
            update=code_update,
            gradient=gradient,
        )
        poses = map_poses(parameters, batch, codes, engine, refine=refine)
        ratios.append(snr(batch, reconstruct(parameters, codes, poses)))
        actives.append(active_codes(codes) * len(batch))
    return Evaluation(float(torch.cat(ratios).mean()), sum(actives) / len(images))
