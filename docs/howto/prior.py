"""Say that poses are small: with a narrow prior on s, the digit 1 gets a template of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
from matplotlib.figure import Figure

from liesparse import LieSparseCoder, narrow_prior
from liesparse.data import LoadedData, load_data
from liesparse.figures import draw_sheet, to_unit_peak

# The paper's random start, with faster steps that fall: 9 epochs instead of 20.
SETTINGS = {
    "learning.group_rate": 1.0,
    "learning.metric": "euclidean",
    "learning.schedule": "cosine",
    "learning.posterior": "adaptive",
}


class Outcome(NamedTuple):
    """What one prior led to."""

    name: str
    shapes: np.ndarray
    purity: float  # of the images whose largest code is the 1's favourite template, the share of 1s
    likeness: float  # of that template to the mean 1


def learn(name: str, prior: Any, data: LoadedData, n_epochs: int) -> Outcome:
    """Learn with a prior, and look for the 1 among the templates."""
    assert data.test_labels is not None
    coder = LieSparseCoder(
        10,
        multiplicity=2,
        recipe="paper",
        settings=SETTINGS,
        n_epochs=n_epochs,
        pose_prior=prior,
        random_state=0,
    ).fit(data.train.reshape(-1, 28, 28))
    codes, poses = (np.asarray(part) for part in coder.infer(data.test))
    largest, labels = codes.argmax(axis=1), data.test_labels.numpy()
    favourite = np.bincount(largest[labels == 1], minlength=10).argmax()
    # A uniform prior leaves the origin of each shape open: show it in the mean pose of its images.
    usual = [np.angle(np.exp(1j * poses[largest == k]).sum(axis=0)) for k in range(10)]
    shapes = coder.inverse_transform(np.eye(10, dtype=np.float32), np.stack(usual))
    one = data.test[labels == 1].mean(dim=0).numpy()
    template = shapes[favourite].ravel()
    likeness = float(template @ one / np.linalg.norm(template) / np.linalg.norm(one))
    purity = float((labels[largest == favourite] == 1).mean())
    print(
        f"{name}: {purity:.0%} of the images of the 1's template are 1s; its likeness to the mean 1 is {likeness:.2f}."
    )
    return Outcome(name, shapes, purity, likeness)


def main(
    out: Path, *, data: str = "mnist:n=20000,n_test=4000", data_dir: Path | None = None, n_epochs: int = 9
) -> None:
    """Learn from handwriting with a uniform and with a narrow prior, and draw both dictionaries."""
    loaded = load_data(data, data_dir=data_dir)
    outcomes = [
        learn("uniform prior", "uniform", loaded, n_epochs),
        learn("narrow prior", narrow_prior(0.1), loaded, n_epochs),
    ]
    figure = Figure(figsize=(8, 2.4), layout="constrained", facecolor="white")
    for axes, outcome in zip(figure.subplots(2, 1), outcomes, strict=True):
        draw_sheet(
            axes,
            to_unit_peak(np.maximum(outcome.shapes, 0)),
            10,
            f"The shapes in the mean pose of their images, {outcome.name}",
        )
    common.save_picture(figure, out / "howto-prior.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder for the picture")
    parser.add_argument("--data-dir", type=Path, help="folder with the MNIST idx files")
    arguments = parser.parse_args()
    main(arguments.out, data_dir=arguments.data_dir)
