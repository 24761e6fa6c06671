"""Discover a symmetry: find out what makes images differ from each other."""

from __future__ import annotations

from pathlib import Path

import common
import numpy as np
from matplotlib.figure import Figure

from liesparse import LieSparseCoder
from liesparse.data import TransformedImages
from liesparse.figures import draw_sheet, to_unit_peak


def fit_poses(poses: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, float]:
    """Fit the poses, turned to their circular mean, linearly to the true factors; return the map and R²."""
    centred = np.angle(np.exp(1j * (poses - np.angle(np.exp(1j * poses).mean(axis=0)))))
    solution, _, _, _ = np.linalg.lstsq(np.c_[centred, np.ones(len(poses))], factors, rcond=None)
    residual = factors - np.c_[centred, np.ones(len(poses))] @ solution
    return solution[:-1].T, 1 - residual.var() / factors.var()


def main(out: Path, *, n_images: int = 20_000, n_epochs: int = 10, n_test: int = 1000) -> None:
    """Learn, compare the inferred poses with the true shifts, and draw."""
    train, test = common.shifted_digits(n_images, seed=0), common.shifted_digits(n_test, seed=1)
    coder = common.learn(train.images, n_epochs=n_epochs)
    images = test.images.reshape(-1, common.SIDE, common.SIDE)
    error = (coder.reconstruct(images) - images).flatten(1).square().sum(dim=1)
    print(f"Held-out SNR {float((1 / error).mean()):.1f}, ten shapes, two torus axes.")

    codes, poses = coder.infer(images)
    shares = []
    for label in range(10):  # each shape has its own origin on the torus
        mine = test.labels == label
        _, share = fit_poses(poses[mine].double().numpy(), test.factors[mine].double().numpy())
        shares.append(share)
    print(f"The pose explains {np.median(shares):.1%} of the true shifts (median over the digits).")
    common.save_picture(draw(coder, test, codes.numpy()), out / "howto-discover.png")


def draw(coder: LieSparseCoder, test: TransformedImages, codes: np.ndarray) -> Figure:
    """Show shapes, planes, and what a walk along each axis does."""
    figure = Figure(figsize=(10, 5.6), layout="constrained", facecolor="white")
    top, bottom = figure.subplots(2, 2, height_ratios=(1.2, 1))
    order = codes.sum(axis=0).argsort()[::-1]
    shapes = coder.inverse_transform(np.eye(10, dtype=np.float32)[order])
    draw_sheet(top[0], to_unit_peak(shapes), 5, "The shapes, most used first")
    planes = coder.group_basis_.T[2:42].reshape(-1, common.SIDE, common.SIDE)
    draw_sheet(top[1], to_unit_peak(planes), 10, "Columns of W, slowest planes first", signed=True)
    some = test.images[[2, 4, 6, 9]].reshape(-1, common.SIDE, common.SIDE)
    for axis, place in enumerate(bottom):
        frames = coder.traverse(some, axis, np.linspace(-1.2, 1.2, 9)).numpy()
        frames = frames / np.abs(frames[:, 4:5]).max(axis=(-2, -1), keepdims=True)
        title = f"A walk along axis {axis + 1}, 1.2 radians either way"
        draw_sheet(place, frames.reshape(-1, common.SIDE, common.SIDE), 9, title)
    return figure


if __name__ == "__main__":
    main(common.output_folder(__doc__))
