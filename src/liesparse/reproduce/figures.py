"""Figures 1 to 4 of the paper: what each panel shows, computed from learned models [Chau20, sec. 5]."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from liesparse.estimators import SparseCoder
from liesparse.figures import Array, paper
from liesparse.figures.paper import InferencePanels, PlainPanels, RowPanels
from liesparse.inference import infer_codes, map_poses
from liesparse.model import Parameters, apply_transform, reconstruct
from liesparse.posterior import AdaptiveEngine, TorusPosterior, pose_natural
from liesparse.reproduce.rows import RowImages

TITLES = {"translation": "2D translation", "rotation-scaling": "Rotation + scaling", "mnist-10": "MNIST"}
COMPARED = "mnist-10"  # beside plain sparse coding, in a figure of its own
SPANS = {COMPARED: (-1.5, 1.0)}  # of the traversals; elsewhere the whole circle
N_SAMPLES, N_COLUMNS, N_EXAMPLES, N_STEPS, N_GRID = 80, 100, 5, 11, 76


def row_panels(name: str, parameters: Parameters, images: RowImages, seed: int) -> RowPanels:
    """Compute all that the figures show of one data set; examples are drawn at random from it."""
    generator = torch.Generator().manual_seed(seed)
    samples = images.train[torch.randperm(len(images.train), generator=generator)[:N_SAMPLES]]
    span = SPANS.get(name, (-math.pi, math.pi))
    return RowPanels(
        title=TITLES[name],
        samples=_square(samples),
        columns=_square(parameters.group_basis.T[slowest_columns(parameters.frequencies)[:N_COLUMNS]]),
        templates=_square(parameters.dictionary.T),
        inference=infer(parameters, pick_examples(images, seed)[0]),
        traversals=traverse(parameters, pick_examples(images, seed)[1], span),
        span=span,
    )


def plain_panels(baseline: SparseCoder, images: RowImages, seed: int) -> PlainPanels:
    """Compute what plain sparse coding makes of the same inputs."""
    inputs = pick_examples(images, seed)[0]
    inference = InferencePanels(
        _square(inputs), baseline.transform(inputs).numpy(), None, _square(baseline.reconstruct(inputs))
    )
    return PlainPanels(baseline.components_.reshape(-1, *baseline.image_shape_), inference)


def draw(rows: dict[str, RowPanels], plain: PlainPanels | None) -> dict[str, Figure]:
    """Draw the figures for which there is something to show."""
    every, results = list(rows.values()), [panels for name, panels in rows.items() if name != COMPARED]
    drawn = {"figure1": paper.samples_figure(every), "figure2": paper.columns_figure(every)} if every else {}
    if results:
        drawn["figure3"] = paper.results_figure(results)
    if COMPARED in rows and plain is not None:
        drawn["figure4"] = paper.comparison_figure(rows[COMPARED], plain)
    return drawn


def slowest_columns(frequencies: Int[Tensor, "irrep torus"]) -> Int[Tensor, " column"]:
    """Return the columns of W by increasing ‖ω‖, the two of a plane together."""
    planes = frequencies.double().norm(dim=1).argsort(stable=True)
    return torch.stack((2 * planes, 2 * planes + 1), dim=1).flatten()


def pick_examples(
    images: RowImages, seed: int
) -> tuple[Float[Tensor, "example pixel"], Float[Tensor, "example pixel"]]:
    """Return held-out images for inference, and others for the traversals."""
    order = torch.randperm(len(images.test), generator=torch.Generator().manual_seed(seed))
    return images.test[order[:N_EXAMPLES]], images.test[order[N_EXAMPLES : 2 * N_EXAMPLES]]


def infer(parameters: Parameters, inputs: Float[Tensor, "example pixel"]) -> InferencePanels:
    """Find codes, the posterior of the pose, and the reconstruction T(ŝ)Φα̂."""
    engine = AdaptiveEngine(parameters.frequencies)
    codes = infer_codes(parameters, inputs, engine)
    density = TorusPosterior(pose_natural(parameters, inputs, codes), parameters.frequencies).density(N_GRID)
    outputs = reconstruct(parameters, codes, map_poses(parameters, inputs, codes, engine))
    return InferencePanels(_square(inputs), codes.numpy(), density.numpy(), _square(outputs))


def traverse(
    parameters: Parameters, inputs: Float[Tensor, "example pixel"], span: tuple[float, float]
) -> tuple[Array, ...]:
    """Apply T(s) with one coordinate of s going through ``span``, the others at 0."""
    side = math.isqrt(parameters.n_pixels)
    found = []
    for axis in range(parameters.torus_dim):
        poses = torch.zeros(N_STEPS, parameters.torus_dim)
        poses[:, axis] = torch.linspace(*span, N_STEPS)
        frames = [apply_transform(parameters, image.expand(N_STEPS, -1), poses) for image in inputs]
        found.append(torch.stack(frames).reshape(-1, N_STEPS, side, side).numpy())
    return tuple(found)


def _square(rows: Float[Tensor, "image pixel"]) -> Array:
    side = math.isqrt(rows.shape[1])
    array: Array = rows.reshape(-1, side, side).numpy()
    return array
