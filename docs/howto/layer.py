"""A layer that turns: an autoencoder learns rotation from pairs of images.

Each pair shows one picture at two angles; the angles are never given. The encoder maps both images to features,
`TorusPose` infers the pose s between them, `TorusAction` moves the features of the first by s, and the decoder must
then draw the second. For training a picture is a blend of two digits, turned together: were each digit seen alone,
nothing would stop the network from giving every digit its own sense of rotation. Held-out pairs are single digits.

    python docs/howto/layer.py --out docs/images
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, mse_loss

from liesparse.data import embedded_digits
from liesparse.figures import draw_sheet, to_png
from liesparse.files import write_atomically
from liesparse.nn import TorusAction, TorusPose

MAX_DEGREES = 75.0
N_FEATURES = 64


class Pairs(NamedTuple):
    """Images at two angles; ``turns`` is the counter-clockwise angle from the first to the second, in radians."""

    first: Tensor
    second: Tensor
    turns: Tensor


class RotatingAutoencoder(nn.Module):
    """Encode, move the features, decode."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, N_FEATURES))
        self.decode = nn.Sequential(nn.Linear(N_FEATURES, 256), nn.ReLU(), nn.Linear(256, 784))
        # Slow planes, eight for each of ω = 0, 1, 2, 3: with fast ones the pose has many wrong peaks at first.
        self.action = TorusAction(N_FEATURES, torus_dim=1, n_irreps=32, multiplicity=8)
        self.pose = TorusPose(self.action)

    def infer(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the pose between the images of each pair."""
        return self.pose(self.encode(first), self.encode(second))

    def move(self, images: Tensor, poses: Tensor) -> Tensor:
        """Draw images moved by poses."""
        return self.decode(self.action(self.encode(images), poses))


def turn(pictures: Tensor, angles: Tensor) -> Tensor:
    """Turn pictures about their centre, counter-clockwise."""
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack((cos, -sin, zero, sin, cos, zero), dim=1).view(-1, 2, 3)
    grid = affine_grid(matrices, [len(pictures), 1, 28, 28], align_corners=False)
    return grid_sample(pictures[:, None], grid, align_corners=False).flatten(1)


def draw_pairs(n_pairs: int, *, blend: bool, generator: torch.Generator) -> Pairs:
    """Turn digits, or blends of two, by two random angles each."""
    digits = embedded_digits()
    chosen = torch.randint(len(digits), (2, n_pairs), generator=generator)
    shares = torch.rand(n_pairs, 1, 1, generator=generator) if blend else torch.ones(n_pairs, 1, 1)
    pictures = shares * digits[chosen[0]] + (1 - shares) * digits[chosen[1]]
    angles = math.radians(MAX_DEGREES) * (2 * torch.rand(2, n_pairs, generator=generator) - 1)
    return Pairs(turn(pictures, angles[0]), turn(pictures, angles[1]), angles[1] - angles[0])


def train(model: RotatingAutoencoder, n_steps: int, *, blend: bool, generator: torch.Generator) -> None:
    """Learn to draw the second image of each pair from the first, and the first from itself."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=n_steps)
    for _ in range(n_steps):
        first, second, _ = draw_pairs(100, blend=blend, generator=generator)
        poses = model.infer(first, second)
        loss = mse_loss(model.move(first, poses), second) + mse_loss(model.move(first, 0 * poses), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


class Outcome(NamedTuple):
    """What one seed gave on held-out pairs."""

    correlation: float  # of the inferred pose with the true angle, absolute
    slope: float  # pose per angle
    explained: float  # share of the variance of the second image that the moved first one explains
    seconds: float


@torch.no_grad()
def evaluate(model: RotatingAutoencoder, pairs: Pairs, seconds: float) -> tuple[Outcome, Tensor]:
    """Compare inferred poses with true angles, and moved images with true ones."""
    poses = model.infer(pairs.first, pairs.second)
    correlation = torch.corrcoef(torch.stack((poses[:, 0], pairs.turns)))[0, 1]
    slope = (poses[:, 0] @ pairs.turns) / pairs.turns.square().sum()
    missed = mse_loss(model.move(pairs.first, poses), pairs.second) / pairs.second.var(dim=0).mean()
    return Outcome(float(correlation.abs()), float(slope), 1 - float(missed), seconds), poses[:, 0]


@torch.no_grad()
def draw(model: RotatingAutoencoder, pairs: Pairs, poses: Tensor, outcome: Outcome) -> Figure:
    """Show digits moved through a sweep of poses, and inferred poses against true angles."""
    angles = torch.linspace(-MAX_DEGREES, MAX_DEGREES, 9)
    sweep = outcome.slope * torch.deg2rad(angles)
    shown = embedded_digits()[[2, 3, 4, 5, 7]].flatten(1)
    frames = [model.move(image.expand(len(sweep), -1), sweep[:, None]).view(-1, 28, 28) for image in shown]
    figure = Figure(figsize=(12, 4.9), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(1.9, 1))
    draw_sheet(
        left,
        torch.cat(frames).clamp(0, 1).numpy(),
        len(sweep),
        "Upright digits, drawn after TorusAction moved their features",
    )
    labels = [f"s = {pose:.2f}\n({angle:.0f}°)" for pose, angle in zip(sweep.tolist(), angles.tolist(), strict=True)]
    labels[len(labels) // 2] = "s = 0"
    left.set_xticks([15.5 + 30 * place for place in range(len(sweep))], labels, fontsize=9)
    degrees = torch.rad2deg(pairs.turns)
    right.scatter(degrees, poses, s=5, color="#2b6cb0", alpha=0.5, linewidths=0)
    right.set_title(f"Held-out pairs: |correlation| = {outcome.correlation:.4f}", fontsize=11, loc="left", pad=5)
    right.set_xlabel("true angle between the images, degrees")
    right.set_ylabel("inferred pose s, radians")
    right.set_xticks([-150, -75, 0, 75, 150])
    right.spines[["top", "right"]].set_visible(False)
    right.grid(color="#dfe3e8", linewidth=0.6)
    right.set_axisbelow(True)
    return figure


def main(
    out: Path, *, seeds: tuple[int, ...] = (0, 1, 2), n_steps: int = 1000, n_pairs: int = 1000, blend: bool = True
) -> list[Outcome]:
    """Train one network for each seed, print what it learned, and draw the first."""
    outcomes = []
    for seed in seeds:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        start = time.perf_counter()
        model = RotatingAutoencoder()
        train(model, n_steps, blend=blend, generator=generator)
        pairs = draw_pairs(n_pairs, blend=False, generator=generator)
        outcome, poses = evaluate(model, pairs, time.perf_counter() - start)
        print(
            f"seed {seed}: |correlation of pose and angle| = {outcome.correlation:.4f}, "
            f"pose per radian = {outcome.slope:+.2f}, variance explained = {outcome.explained:.3f} "
            f"({outcome.seconds:.0f} s)"
        )
        if not outcomes:
            write_atomically(out / "howto-layer.png", to_png(draw(model, pairs, poses, outcome), dpi=120))
        outcomes.append(outcome)
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn rotation from pairs of images; write howto-layer.png.")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), metavar="FOLDER")
    parser.add_argument("--no-blend", action="store_true", help="train on single digits, to see what blends are for")
    arguments = parser.parse_args()
    main(arguments.out, blend=not arguments.no_blend)
