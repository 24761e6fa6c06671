"""MNIST from its four idx files, wherever they lie on this machine."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import check_choice, reject
from liesparse.data.digits import unit_norm

Split = Literal["train", "test"]
FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
MAGIC = b"\x00\x00\x08\x03"  # unsigned bytes, three axes


def load_mnist(split: Split = "train", folder: str | Path | None = None) -> Float[Tensor, "image pixel"]:
    """Return the unit-norm images of one split, rows of 784 pixels.

    Looks for the idx file, gzipped or not, in ``folder``, else in LIESPARSE_DATA, else in the user's cache.
    """
    check_choice("split", split, tuple(FILES))
    path = find_mnist(split, folder)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content = file.read()
    except (EOFError, gzip.BadGzipFile):
        content = b""
    shape = [int.from_bytes(content[at : at + 4], "big") for at in (4, 8, 12)]
    if content[:4] != MAGIC or len(content) != 16 + math.prod(shape):
        reject("MNIST file", "an idx file of images", str(path), "Fetch it anew; it may be cut short.")
    pixels = np.frombuffer(content, np.uint8, offset=16).reshape(shape[0], -1)
    return unit_norm(torch.from_numpy(pixels.astype(np.float32)))


def find_mnist(split: Split, folder: str | Path | None = None) -> Path:
    """Return the path of one split's images, or say where it was looked for."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "liesparse"
    given = folder or os.environ.get("LIESPARSE_DATA")
    roots = [Path(given)] if given else [cache]
    places = [place for root in roots for place in (root, root / "mnist")]
    for place in places:
        for name in (FILES[split] + ".gz", FILES[split]):
            if (place / name).is_file():
                return place / name
    raise FileNotFoundError(
        f"MNIST: no {FILES[split]}.gz in {' or '.join(map(str, places))}. "
        "Pass the folder that has it (--data-dir), or set LIESPARSE_DATA."
    )
