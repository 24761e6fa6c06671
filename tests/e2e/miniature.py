"""Learn a miniature at the defaults: ``miniature.py FOLDER SEED...`` writes a model for each seed.

Four digits at half their size, shifted by up to a quarter of the frame. A script, so that the suite's type checks do
not slow it down.
"""

import sys
from pathlib import Path

import torch

from liesparse.checkpoint import save_model
from liesparse.data import TransformedImages, embedded_digits, translations
from liesparse.settings import ModelSettings, load_recipe
from liesparse.training import learn_model

N_SHAPES = 4


def make_images(seed: int) -> tuple[TransformedImages, TransformedImages]:
    """Return training images, and test images with other shifts."""
    rng = torch.Generator().manual_seed(seed)
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None, :N_SHAPES], 2)[0]
    train, test = (translations(n, max_shift=3.5, sources=shapes, generator=rng) for n in (5000, 500))
    return train, test


def train(seed: int, path: Path) -> None:
    """Learn from the images alone and save the model."""
    torch.set_num_threads(1)  # the matrices are too small for more
    rng = torch.Generator().manual_seed(seed)
    model = ModelSettings(N_SHAPES, n_irreps=40)
    learned = learn_model(make_images(seed)[0].images, model, load_recipe("best"), generator=rng)
    save_model(path, learned.parameters)


if __name__ == "__main__":
    for seed in map(int, sys.argv[2:]):
        train(seed, Path(sys.argv[1]) / f"{seed}.safetensors")
