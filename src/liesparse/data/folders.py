"""Folders of shards as data to learn from: in memory where they fit, else streamed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from liesparse._checks import reject
from liesparse.data.loaded import LoadedData
from liesparse.data.rows import Fit, default_n_test
from liesparse.data.shards import Shards, open_shards
from liesparse.data.spec import COUNTS, FIT, KEYS, Parameter, flag, read_parameters

STREAM_FROM = 512 * 2**20  # bytes of images in memory from which on they stay on disk
N_SAMPLE = 10_000  # images of a stream to draw, to start from, and to compare with
_SHARDS = {
    "key": KEYS["key"],
    "stream": Parameter(flag, None, "whether to leave the images on disk; large folders unless given"),
}


def load_shards(path: Path, given: Mapping[str, str]) -> LoadedData:
    """Read a folder of shards, or leave it on disk if it is large."""
    values, shards, n_all = open_folder(path, given)
    n_test = default_n_test(len(shards)) if values["n_test"] is None else values["n_test"]
    train, test = shards.split(values["n"], n_test, values["seed"])
    size = 4 * len(train) * math.prod(shards.image_shape)
    streamed = size > STREAM_FROM if values["stream"] is None else values["stream"]
    how = "streamed" if streamed else "in memory"
    return LoadedData(
        name=shards.name,
        train=train.sample(N_SAMPLE) if streamed else train.rows(np.arange(len(train))),
        test=test,
        image_shape=shards.image_shape,
        n_blank=n_all - len(shards),
        notes=(*shards.notes, f"{len(shards.files):,} shards, {how} ({size / 2**20:,.0f} MiB)"),
        stream=train if streamed else None,
    )


def open_folder(path: Path, given: Mapping[str, str]) -> tuple[dict[str, Any], Shards, int]:
    """Look through a folder; return also the parameters, and how many images there are with the blank ones."""
    values = read_parameters(str(path), {**_SHARDS, **COUNTS, **FIT}, given)
    try:
        fit = Fit(values["size"], values["crop"], values["invert"], values["colour"])
        shards = open_shards(path, values["key"], fit)
    except OSError as error:
        where = f"{error.filename or path} ({error.strerror or error})"
        reject("data", "readable files, and room in the cache folder", where, "Check permissions and space.")
    return values, shards, sum(file.n_images for file in shards.files)
