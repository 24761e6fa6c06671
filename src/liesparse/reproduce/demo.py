"""The demo: ten digits and two-dimensional translation, discovered from unlabelled images."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from liesparse.data import translations
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.figures import DemoPanels, demo_figure
from liesparse.inference import infer_codes, map_poses
from liesparse.model import Parameters, reconstruct
from liesparse.posterior import AdaptiveEngine
from liesparse.recipes import load_recipe
from liesparse.reproduce.figures import square, traverse
from liesparse.run_directory import measure
from liesparse.settings import ModelSettings
from liesparse.training import N_MONITORED, Watch, learn_model

N_TEST, N_EXAMPLES, N_COLUMNS = 2000, 20, 60  # held-out images; those that are shown, and columns of W
WALKED = [2, 4, 6, 9]  # examples that are moved


@dataclass(frozen=True)
class DemoSettings:
    """How large the demo is; the model is the paper's (K = 10, L = 128, n = 2, σ² = 0.01, λ = 10)."""

    n_images: int = 30_000
    n_epochs: int = 10
    seed: int = 0


class DemoResult(NamedTuple):
    """What the demo found."""

    coder: LieSparseCoder
    baseline: SparseCoder
    metrics: dict[str, Any]
    figure: Figure


def run_demo(settings: DemoSettings, *, report: Watch | None = None) -> DemoResult:
    """Learn from translated digits, compare with plain sparse coding, and draw what was learned."""
    began = time.monotonic()
    generator = torch.Generator().manual_seed(settings.seed)
    images = translations(settings.n_images, generator=generator).images
    test = translations(N_TEST, generator=generator).images  # other draws of the shifts
    recipe = load_recipe("best").with_values({"learning.n_epochs": settings.n_epochs})
    trained = learn_model(
        images, ModelSettings(), recipe, generator=generator, monitor_images=test[:N_MONITORED], callback=report
    )
    seconds = time.monotonic() - began
    coder = LieSparseCoder.from_model(trained.parameters, (28, 28), history=trained.history, random_state=settings.seed)
    baseline = SparseCoder(coder.n_components, n_epochs=5, random_state=settings.seed).fit(images)
    metrics = measure(coder, baseline, test) | {"training_seconds": round(seconds, 1), **asdict(settings)}
    metrics["total_seconds"] = round(time.monotonic() - began, 1)
    headline = (
        f"Learned from {settings.n_images:,} unlabelled images: held-out SNR {metrics['lsc_snr']:.1f}"
        f" (plain sparse coding: {metrics['sparse_coding_snr']:.1f})"
    )
    return DemoResult(coder, baseline, metrics, demo_figure(_panels(trained.parameters, test[:N_EXAMPLES]), headline))


def _panels(model: Parameters, inputs: Float[Tensor, "example pixel"]) -> DemoPanels:
    engine = AdaptiveEngine(model.frequencies)
    codes = infer_codes(model, inputs, engine)
    poses = map_poses(model, inputs, codes, engine)
    moved = reconstruct(model, codes, poses)
    return DemoPanels(
        templates=square(model.dictionary.T),
        planes=square(model.group_basis.T[:N_COLUMNS]),
        inputs=square(inputs),
        reconstructions=square(moved),
        canonical=square(reconstruct(model, codes, torch.zeros_like(poses))),
        traversals=traverse(model, moved[WALKED], (-math.pi, math.pi)),
    )
