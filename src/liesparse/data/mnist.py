"""MNIST: the full set from its idx files, and 2,000 of its images that ship with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from liesparse._checks import check_choice
from liesparse.data.digits import unit_norm
from liesparse.data.downloads import DOWNLOADS, find_file, places
from liesparse.data.idx import read_idx
from liesparse.data.rows import RawImages

Split = Literal["train", "test"]
FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}


class LabelledImages(NamedTuple):
    """Unit-norm images and what they show."""

    images: Float[Tensor, "image pixel"]
    labels: Int[Tensor, " image"]


def load_mnist(split: Split = "train", folder: str | Path | None = None) -> Float[Tensor, "image pixel"]:
    """Return the unit-norm images of one split, rows of 784 pixels.

    Looks for the idx file, gzipped or not, in ``folder``, else in LIESPARSE_DATA, else in the user's cache;
    ``liesparse.data.fetch`` puts it there.
    """
    pixels = read_idx(find_mnist(split, folder), argument="MNIST file", n_axes=3)
    return unit_norm(torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.float32)))


def find_mnist(split: Split, folder: str | Path | None = None) -> Path:
    """Return the path of one split's images, or say where it was looked for."""
    check_choice("split", split, tuple(FILES))
    return need_file("mnist", FILES[split], folder)


def need_file(name: str, file: str, folder: str | Path | None = None) -> Path:
    """Return the path of one idx file of MNIST or Fashion-MNIST, or say where it was looked for."""
    path = find_file(name, file, folder)
    if path is None:
        raise FileNotFoundError(
            f"{DOWNLOADS[name].title}: no {file}.gz in {' or '.join(map(str, places(name, folder)))}. "
            f"Pass the folder that has it (--data-dir), set LIESPARSE_DATA, or run liesparse data fetch {name}."
        )
    return path


def read_split(name: str, split: Split, folder: str | Path | None = None) -> RawImages:
    """Read one split of MNIST or Fashion-MNIST, with its labels if they lie beside it."""
    title = f"{DOWNLOADS[name].title} file"
    pixels = read_idx(need_file(name, FILES[split], folder), argument=title, n_axes=3)
    labels = find_file(name, FILES[split].replace("images-idx3", "labels-idx1"), folder)
    return RawImages(pixels, read_idx(labels, argument=title, kind="labels") if labels else None)


def read_mnist_mini() -> RawImages:
    """Read the embedded images as they are."""
    with (
        resources.files(__package__).joinpath("mnist_mini.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return RawImages(arrays["images"], arrays["labels"])


def load_mnist_mini() -> LabelledImages:
    """Return the 2,000 embedded MNIST training images, unit-norm rows of 784 pixels, and their labels.

    By Y. LeCun, C. Cortes and C. Burges, licensed CC BY-SA 3.0.
    """
    raw = read_mnist_mini()
    pixels = torch.from_numpy(np.asarray(raw.pixels)).flatten(1).float()
    return LabelledImages(unit_norm(pixels), torch.from_numpy(np.asarray(raw.labels)).long())
