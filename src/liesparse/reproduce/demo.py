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

from liesparse import figures
from liesparse.data import TransformedImages, translations
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.inference import infer_codes, map_poses
from liesparse.model import Parameters, apply_transform, compose, reconstruct
from liesparse.posterior import AdaptiveEngine, Engine
from liesparse.recipes import Recipe, load_recipe
from liesparse.run_directory import measure
from liesparse.settings import ModelSettings
from liesparse.training import N_MONITORED, Watch, learn_model

N_TEST = 2000  # held-out images


@dataclass(frozen=True)
class DemoSettings:
    """How large the demo is; the model is the paper's (K = 10, L = 128, n = 2, σ² = 0.01, λ = 10)."""

    n_images: int = 30_000
    n_epochs: int = 10
    seed: int = 0

    @property
    def recipe(self) -> Recipe:
        """Return the default recipe with this number of epochs."""
        return load_recipe("best").with_values({"learning.n_epochs": self.n_epochs})


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
    test = translations(N_TEST, generator=generator)  # other draws of the shifts
    trained = learn_model(
        images,
        ModelSettings(),
        settings.recipe,
        generator=generator,
        monitor_images=test.images[:N_MONITORED],
        callback=report,
    )
    seconds = time.monotonic() - began
    coder = LieSparseCoder.from_model(trained.parameters, (28, 28), history=trained.history, random_state=settings.seed)
    baseline = SparseCoder(coder.n_components, n_epochs=5, random_state=settings.seed).fit(images)
    metrics = measure(coder, baseline, test.images) | {"training_seconds": round(seconds, 1), **asdict(settings)}
    metrics["total_seconds"] = round(time.monotonic() - began, 1)
    headline = (
        f"Learned from {settings.n_images:,} unlabelled images: held-out SNR {metrics['lsc_snr']:.1f}"
        f" (plain sparse coding: {metrics['sparse_coding_snr']:.1f})"
    )
    engine = AdaptiveEngine(trained.parameters.frequencies)
    panels = demo_panels(trained.parameters, test, engine)
    return DemoResult(coder, baseline, metrics, figures.demo_figure(panels, headline))


def demo_panels(
    parameters: Parameters, test: TransformedImages, engine: Engine, *, n_examples: int = 20, n_steps: int = 11
) -> figures.DemoPanels:
    """Compute the images that the demo's picture shows."""
    side = math.isqrt(parameters.n_pixels)
    inputs = test.images[:n_examples]
    codes = infer_codes(parameters, inputs, engine)
    poses = map_poses(parameters, inputs, codes, engine)
    shapes = compose(parameters, codes)
    moved = reconstruct(parameters, codes, poses)
    steps = torch.linspace(-math.pi, math.pi, n_steps)
    traversals = []
    for axis in range(parameters.torus_dim):
        offsets = torch.zeros(n_steps, parameters.torus_dim)
        offsets[:, axis] = steps
        frames = [apply_transform(parameters, image.expand(n_steps, -1), offsets) for image in moved[[2, 4, 6, 9]]]
        traversals.append(torch.stack(frames).reshape(-1, n_steps, side, side).numpy())
    canonical = apply_transform(parameters, shapes, torch.zeros_like(poses))

    def square(rows: Float[Tensor, "image pixel"]) -> figures.Array:
        array: figures.Array = rows.reshape(-1, side, side).numpy()
        return array

    return figures.DemoPanels(
        templates=square(parameters.dictionary.T),
        planes=square(parameters.group_basis.T[:60]),
        inputs=square(inputs),
        reconstructions=square(moved),
        canonical=square(canonical),
        traversals=tuple(traversals),
    )
