"""What the how-tos share: ten digits at half their size, each shifted by up to a quarter of the frame."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from liesparse import LieSparseCoder, embedded_digits, translations
from liesparse.data import TransformedImages
from liesparse.figures import to_png
from liesparse.files import write_atomically

SIDE = 14


def shifted_digits(n_images: int, seed: int) -> TransformedImages:
    """Return images with the labels and shifts that made them; no model ever sees those."""
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]
    generator = torch.Generator().manual_seed(seed)
    return translations(n_images, max_shift=3.5, sources=shapes, generator=generator)


def learn(images: torch.Tensor, *, n_epochs: int = 10, seed: int = 0) -> LieSparseCoder:
    """Learn ten shapes and a two-dimensional group from images alone."""
    coder = LieSparseCoder(
        10,
        n_irreps=50,
        n_epochs=n_epochs,
        settings={"learning.batch_size": 50, "learning.single_shape_epochs": min(3, n_epochs // 3)},
        random_state=seed,
    )
    return coder.fit(images.reshape(-1, SIDE, SIDE))


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure, and say where."""
    write_atomically(path, to_png(figure))
    print(f"Look at {path}.")


def output_folder(description: str | None) -> Path:
    """Read ``--out FOLDER`` from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder for the picture")
    return Path(parser.parse_args().out)
