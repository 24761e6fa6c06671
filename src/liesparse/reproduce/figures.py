"""The demo, and figures 1 to 4 of the paper: what each panel shows, computed from learned models [Chau20, sec. 5]."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from liesparse.data import translations
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.figures import Array, draw_sheet, new_figure, paper, to_unit_peak
from liesparse.figures.paper import ModelPanels, RowPanels
from liesparse.metrics import infer
from liesparse.model import Parameters, apply_transform, reconstruct
from liesparse.posterior import AdaptiveEngine, TorusPosterior, pose_natural
from liesparse.reproduce.parts import Tell, part_of
from liesparse.reproduce.table1 import IMAGE_SHAPE, Order, RowImages, find_or_learn, find_or_learn_baseline, load_images
from liesparse.run_directory import measure
from liesparse.settings import ModelSettings, load_recipe
from liesparse.training import N_MONITORED, Watch, learn_model

TITLES = {"translation": "2D translation", "rotation-scaling": "Rotation + scaling", "mnist-10": "MNIST"}
COMPARED = "mnist-10"  # beside plain sparse coding, in a figure of its own
SPANS = {COMPARED: (-1.5, 1.0)}  # of the traversals; elsewhere the whole circle
N_SAMPLES, N_COLUMNS, N_EXAMPLES, N_STEPS, N_GRID = 80, 100, 5, 11, 76
N_TEST = 2000  # held-out images of the demo


def row_panels(name: str, model: Parameters, images: RowImages, seed: int) -> RowPanels:
    """Compute all that the figures show of one data set; examples are drawn at random from it."""
    generator = torch.Generator().manual_seed(seed)
    samples = images.train[torch.randperm(len(images.train), generator=generator)[:N_SAMPLES]]
    inputs, walked = pick_examples(images, seed)
    span = SPANS.get(name, (-math.pi, math.pi))
    _, _, codes, _, outputs = infer(model, inputs, AdaptiveEngine(model.frequencies))  # T(ŝ)Φα̂
    density = TorusPosterior(pose_natural(model, inputs, codes), model.frequencies).density(N_GRID)
    templates = square(model.dictionary.T)
    return RowPanels(
        title=TITLES[name],
        samples=square(samples),
        columns=square(model.group_basis.T[slowest_columns(model.frequencies)[:N_COLUMNS]]),
        model=ModelPanels(templates, square(inputs), codes.numpy(), density.numpy(), square(outputs)),
        traversals=traverse(model, walked, span),
        span=span,
    )


def plain_panels(baseline: SparseCoder, images: RowImages, seed: int) -> ModelPanels:
    """Compute what plain sparse coding makes of the same inputs."""
    inputs, _ = pick_examples(images, seed)
    codes, outputs = baseline.transform(inputs).numpy(), baseline.reconstruct(inputs)
    templates = baseline.components_.reshape(-1, *baseline.image_shape_)
    return ModelPanels(templates, square(inputs), codes, None, square(outputs))


def draw(rows: dict[str, RowPanels], plain: ModelPanels | None) -> dict[str, Figure]:
    """Draw the figures for which there is something to show."""
    every, results = list(rows.values()), [panels for name, panels in rows.items() if name != COMPARED]
    drawn = {}
    if every:
        drawn["figure1"] = paper.sheets_figure({row.title: row.samples for row in every}, signed=False)
        drawn["figure2"] = paper.sheets_figure({row.title: row.columns for row in every}, signed=True)
    if results:
        drawn["figure3"] = paper.results_figure(results)
    if COMPARED in rows and plain is not None:
        drawn["figure4"] = paper.comparison_figure(rows[COMPARED], plain)
    return drawn


def make(orders: Sequence[Order], n_images: int, data_dir: Path | None, tell: Tell) -> dict[str, Figure]:
    """Find or learn the models, and draw; ``tell`` hears the name of each, and how far all are."""
    panels, plain = {}, None
    for place, order in enumerate(orders):
        images = load_images(order.row, order.seed, data_dir, n_images)
        tell_part = part_of(tell, order.name, place, 1, len(orders))
        model = find_or_learn(order, images, tell_part).coder.model_
        panels[order.name] = row_panels(order.name, model, images, order.seed)
        if order.name == COMPARED:
            tell_part = part_of(tell, f"{order.name}, plain sparse coding", place, 1, len(orders))
            plain = plain_panels(find_or_learn_baseline(order, images, tell_part), images, order.seed)
    return draw(panels, plain)


def slowest_columns(frequencies: Int[Tensor, "irrep torus"]) -> Int[Tensor, " column"]:
    """Return the columns of W by increasing ‖ω‖, the two of a plane together."""
    planes = frequencies.double().norm(dim=1).argsort(stable=True)
    return torch.stack((2 * planes, 2 * planes + 1), dim=1).flatten()


def pick_examples(images: RowImages, seed: int) -> tuple[Tensor, Tensor]:
    """Return held-out images for inference, and others for the traversals."""
    order = torch.randperm(len(images.test), generator=torch.Generator().manual_seed(seed))
    return images.test[order[:N_EXAMPLES]], images.test[order[N_EXAMPLES : 2 * N_EXAMPLES]]


def traverse(model: Parameters, inputs: Float[Tensor, "example pixel"], span: tuple[float, float]) -> tuple[Array, ...]:
    """Apply T(s) with one coordinate of s going through ``span``, the others at 0."""
    found = []
    for direction in torch.eye(model.torus_dim):
        poses = torch.linspace(*span, N_STEPS)[:, None] * direction
        frames = [apply_transform(model, image.expand(N_STEPS, -1), poses) for image in inputs]
        found.append(square(torch.stack(frames)))
    return tuple(found)


def square(rows: Float[Tensor, "*image pixel"]) -> Array:
    """Return images as squares of pixels."""
    side = math.isqrt(rows.shape[-1])
    return rows.unflatten(-1, (side, side)).numpy()


def run_demo(
    n_images: int, n_epochs: int, seed: int, *, callback: Watch | None = None
) -> tuple[LieSparseCoder, SparseCoder, dict[str, Any], Figure]:
    """Learn from translated digits, learn plain sparse coding, compare the two by numbers, and draw what was learned.

    The model is the paper's (K = 10, L = 128, n = 2, σ² = 0.01, λ = 10).
    """
    began = time.monotonic()
    generator = torch.Generator().manual_seed(seed)
    images = translations(n_images, generator=generator).images
    test = translations(N_TEST, generator=generator).images  # other draws of the shifts
    trained = learn_model(
        images,
        ModelSettings(noise_std=0.1),
        load_recipe("best").with_values({"learning.n_epochs": n_epochs}),
        generator=generator,
        monitor_images=test[:N_MONITORED],
        callback=callback,
    )
    seconds = time.monotonic() - began
    known: dict[str, Any] = {"history": trained.history, "verdict": trained.verdict, "random_state": seed}
    coder = LieSparseCoder.from_model(trained.parameters, IMAGE_SHAPE, **known)
    baseline = SparseCoder(coder.n_components, n_epochs=5, random_state=seed).fit(images)
    metrics = measure(coder, baseline, test) | {"training_seconds": round(seconds, 1)}
    metrics |= {"n_images": n_images, "n_epochs": n_epochs, "seed": seed}
    metrics["total_seconds"] = round(time.monotonic() - began, 1)
    headline = (
        f"Learned from {n_images:,} unlabelled images: held-out SNR {metrics['lsc_snr']:.1f}"
        f" (plain sparse coding: {metrics['sparse_coding_snr']:.1f})"
    )
    return coder, baseline, metrics, demo_figure(coder.model_, test[:20], headline)


def demo_figure(model: Parameters, inputs: Float[Tensor, "example pixel"], headline: str) -> Figure:
    """Show templates, planes of W, inference examples, and a traversal along each torus axis."""
    _, _, codes, poses, moved = infer(model, inputs, AdaptiveEngine(model.frequencies))
    figure = new_figure(12, 7.6)
    figure.suptitle(headline, fontsize=13, x=0.01, ha="left")
    top, middle, bottom = np.asarray(figure.subfigures(3, 1, height_ratios=(2.55, 2.0, 2.3)))
    left, right = top.subplots(1, 2)
    draw_sheet(left, to_unit_peak(square(model.dictionary.T)), 5, "Shapes: the learned dictionary Φ")
    columns = square(model.group_basis.T[:60])
    title = f"Group: the first {len(columns)} columns of W, slowest planes first"
    draw_sheet(right, to_unit_peak(columns), 12, title, signed=True)

    triples = to_unit_peak(square(torch.stack((inputs, moved, reconstruct(model, codes, 0 * poses)))), 1)
    title = "Inference on held-out images: the input, its reconstruction T(ŝ)Φα̂, and its shape brought to s = 0"
    labels = ("input", "reconstruction", "canonical")
    rows = triples.reshape(-1, *triples.shape[2:])
    draw_sheet(middle.subplots(1, 1), rows, len(inputs), title, row_labels=labels)

    walks = traverse(model, moved[[2, 4, 6, 9]], (-math.pi, math.pi))
    for place, axes in enumerate(bottom.subplots(1, len(walks), squeeze=False)[0]):
        frames = walks[place] / np.abs(walks[place][:, N_STEPS // 2, None]).max(axis=(-2, -1), keepdims=True)
        title = f"Traversal of s{'₁₂₃₄₅₆'[place]} from -π to π"
        draw_sheet(axes, frames.reshape(-1, *frames.shape[2:]), N_STEPS, title)  # unmoved: 1
    return figure
