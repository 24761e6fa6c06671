"""Pose-invariant classification with a pipeline: labels for few images, poses for none."""

from __future__ import annotations

from pathlib import Path

import common
import numpy as np
from matplotlib.figure import Figure
from sklearn.frozen import FrozenEstimator
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline

from liesparse import SparseCoder

LABELLED = (10, 20, 50, 100, 200, 500)


def main(out: Path, *, n_images: int = 20_000, n_epochs: int = 10, n_test: int = 1000) -> None:
    """Learn codes from unlabelled images, then compare one nearest neighbour on three kinds of features."""
    train, test = common.shifted_digits(n_images, seed=0), common.shifted_digits(n_test, seed=1)
    labelled = common.shifted_digits(max(LABELLED), seed=2)
    lie = common.learn(train.images, n_epochs=n_epochs)
    plain = SparseCoder(10, n_epochs=n_epochs, random_state=0).fit(train.images)
    features = {
        "pixels": "passthrough",
        "plain sparse codes": FrozenEstimator(plain),  # learned from all images, not from the labelled ones alone
        "codes of LieSparseCoder": FrozenEstimator(lie),
    }
    accuracy: dict[str, list[float]] = {}
    for name, feature in features.items():
        pipeline: Pipeline = make_pipeline(feature, KNeighborsClassifier(1))
        accuracy[name] = []
        for n in LABELLED:
            pipeline.fit(labelled.images[:n].numpy(), labelled.labels[:n].numpy())
            accuracy[name].append(pipeline.score(test.images.numpy(), test.labels.numpy()))
        told = ", ".join(f"{value:.1%} from {n}" for n, value in zip(LABELLED, accuracy[name], strict=True))
        print(f"1-nearest-neighbour accuracy on {name}: {told} labelled images.")
    common.save_picture(draw(accuracy), out / "howto-classify.png")


def draw(accuracy: dict[str, list[float]]) -> Figure:
    """Plot accuracy against the number of labelled images."""
    figure = Figure(figsize=(6, 3.6), layout="constrained", facecolor="white")
    axes = figure.subplots(1, 1)
    for (name, values), colour in zip(accuracy.items(), ("#9aa5b1", "#d08770", "#1f6f8b"), strict=True):
        axes.semilogx(LABELLED, 100 * np.array(values), marker="o", label=name, color=colour)
    axes.set_xticks(LABELLED, [str(n) for n in LABELLED])
    axes.minorticks_off()
    axes.set_ylim(0, 103)
    axes.set_xlabel("labelled images")
    axes.set_ylabel("accuracy, %")
    axes.set_title("One nearest neighbour on shifted digits", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.93))
    return figure


if __name__ == "__main__":
    main(common.output_folder(__doc__))
