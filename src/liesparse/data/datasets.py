"""Data sets that have a name, and how to add one: by a function that loads it, or by one that moves digits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from liesparse._checks import check_choice, count, reject
from liesparse.data import synthetic
from liesparse.data.arrays import read_idx
from liesparse.data.downloads import DOWNLOADS, Folder, fetch, find_files
from liesparse.data.images import ImageArray, ImageSet, check_array, count_parts, height_width
from liesparse.data.shards import Shards
from liesparse.data.synthetic import TransformedImages, unit_norm

Split = Literal["train", "test"]
Where = str | Callable[[Folder], str]
COUNTS: dict[str, Any] = {"n": None, "n_test": None, "seed": 0}  # parameters of all sets that are drawn from
MINI = Path(__file__).with_name("mnist_mini.npz")
_FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}


@dataclass(frozen=True)
class LoadedData:
    """Unit-norm images to learn from and to test, with the truth where it is known.

    ``factors`` has one column per name in ``factor_names``: the transformation that made each synthetic image.
    A folder of shards that is large has all images to learn from in ``stream``, and a sample of them in ``train``.
    """

    name: str
    train: Float[Tensor, "image pixel"]
    test: Float[Tensor, "test pixel"]
    image_shape: tuple[int, ...]  # (height, width), or (height, width, 3) with colours
    labels: Int[Tensor, " image"] | None = None
    test_labels: Int[Tensor, " test"] | None = None
    factors: Float[Tensor, "image factor"] | None = None
    test_factors: Float[Tensor, "test factor"] | None = None
    factor_names: tuple[str, ...] | None = None
    n_blank: int = 0
    notes: tuple[str, ...] = ()
    stream: Shards | None = None
    label_names: tuple[str, ...] = ()  # of the labels 0, 1, …, where they have names
    test_names: tuple[str, ...] = ()  # the file, or the number, of each image to test

    def summary(self) -> str:
        """Say in one line how many images there are and what was done to them."""
        size = " × ".join(map(str, self.image_shape))
        counts = f"{count(len(self.stream or self.train), 'image')} to learn from and {len(self.test):,} to test"
        return "; ".join([f"{self.name}: {counts}, {size} pixels", f"{self.n_blank:,} blank skipped", *self.notes])


class Dataset(NamedTuple):
    """A named data set, as it was registered."""

    name: str
    size: str
    where: Where
    parameters: dict[str, Any]  # with what they are unless given
    load: Callable[..., LoadedData]
    options: tuple[str, ...] = ()  # of load_data that it wants to know


DATASETS: dict[str, Dataset] = {}


def register_dataset(
    name: str, load: Callable[..., LoadedData], *, size: str, where: Where, parameters: Mapping[str, Any] | None = None
) -> None:
    """Give a data set a name, by which ``load_data``, the command line and ``list_datasets`` know it.

    Parameters
    ----------
    name : str
        Letters, digits and hyphens.
    load : callable
        Returns a :class:`LoadedData`. Its keyword arguments with defaults are the parameters that may follow the name:
        bool, int, float and str are read by the type of the default, ``n``, ``n_test``, ``seed`` and ``size`` as for
        any data. If it has arguments ``data_dir`` and ``download``, it gets those of ``load_data``.
    size : str
        How many images of which size, for the list, such as "2,000 of 28 × 28".
    where : str or callable
        Where the data is, for the list, or a function of ``data_dir`` that tells.
    parameters : dict, optional
        Names and defaults of the parameters, where the arguments of ``load`` do not tell them.
    """
    arguments = inspect.signature(load).parameters
    options = tuple(key for key in ("data_dir", "download") if key in arguments)
    if parameters is None:
        parameters = {key: argument.default for key, argument in arguments.items() if key not in options}
    if not re.fullmatch(r"\w[\w-]*", name):
        reject("name", "letters, digits and hyphens", repr(name), "Rename it.")
    if name in DATASETS:
        reject("name", "one that is not taken", repr(name), "Choose another.")
    missing = [key for key, default in parameters.items() if default is inspect.Parameter.empty]
    if missing:
        reject(f"parameters of {name}", "a default for each", f"none for {', '.join(missing)}", "Add one.")
    DATASETS[name] = Dataset(name, size, where, dict(parameters), load, options)


def register_transformation(
    name: str,
    make: Callable[..., TransformedImages],
    *,
    size: str = "any number of 28 × 28",
    ranges: Mapping[str, str] | None = None,
) -> None:
    """Give a transformation a name, by which ``load_data`` makes images to learn from and others to test.

    Parameters
    ----------
    name : str
        Letters, digits and hyphens.
    make : callable
        ``make(n_images, *, generator, ...)`` returns :class:`TransformedImages`, such as by ``liesparse.data.warp``.
        Its other keyword arguments with a default, ``sources`` excepted, are the parameters that may follow the name.
    size : str
        For the list of data sets.
    ranges : dict, optional
        Arguments that are pairs (lowest, highest): ``{"scales": "scale"}`` makes parameters min_scale and max_scale.
    """
    ranges = ranges or {}
    parameters: dict[str, Any] = {"n": 60_000, "n_test": 10_000, "seed": 0}
    for argument in inspect.signature(make).parameters.values():
        if argument.name in ranges:
            noun = ranges[argument.name]
            parameters[f"min_{noun}"], parameters[f"max_{noun}"] = argument.default
        elif argument.default is not argument.empty and argument.name != "sources":
            parameters[argument.name] = argument.default

    def load(*, n: int, n_test: int, seed: int, **values: Any) -> LoadedData:
        for argument, noun in ranges.items():
            values[argument] = (values.pop(f"min_{noun}"), values.pop(f"max_{noun}"))
        generator = torch.Generator().manual_seed(seed)
        train, test = make(n, generator=generator, **values), make(n_test, generator=generator, **values)
        truth = train.labels, test.labels, train.factors, test.factors, train.factor_names
        return LoadedData(name, train.images, test.images, height_width(train.images.shape), *truth)

    register_dataset(name, load, size=size, where="made from ten embedded digits", parameters=parameters)


def list_datasets(data_dir: Folder = None) -> tuple[Dataset, ...]:
    """Return every named data set, how large it is, and where it is or how to get it."""
    found = DATASETS.values()
    return tuple(known._replace(where=known.where(data_dir)) if callable(known.where) else known for known in found)


def split_images(
    name: str,
    pixels: NDArray[Any],
    labels: NDArray[Any] | None = None,
    *,
    n: int | None = None,
    n_test: int | None = None,
    seed: int = 0,
) -> LoadedData:
    """Check an array of images, and hold some of them out to test."""
    return hold_out(check_array(ImageArray(pixels, labels), name), n, n_test, seed)


def hold_out(images: ImageSet, n: int | None, n_test: int | None, seed: int) -> LoadedData:
    """Read images of a set that has no split of its own."""
    n, n_test = count_parts(len(images), n, n_test)
    test, train = images.draw((n_test, n), seed)
    return _read(images.name, train, test, images.n_blank)


def _read(name: str, train: ImageSet, test: ImageSet, n_blank: int) -> LoadedData:
    size, labels = train.image_shape, (train.labels(), test.labels())
    known: dict[str, Any] = {"label_names": test.array.label_names, "test_names": test.names()}
    return LoadedData(name, train.rows(), test.rows(), size, *labels, n_blank=n_blank, notes=train.notes, **known)


def load_mnist(split: Split = "train", folder: Folder = None) -> Float[Tensor, "image pixel"]:
    """Return the unit-norm images of one split, rows of 784 pixels.

    Looks for the idx file, gzipped or not, in ``folder``, else in LIESPARSE_DATA, else in the user's cache;
    ``liesparse.data.fetch`` puts it there.
    """
    file = _FILES[check_choice("split", split, tuple(_FILES))]
    pixels = read_idx(find_files("mnist", folder, [file])[file], argument="MNIST file", n_axes=3)
    return unit_norm(torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.float32)))


def _load_mini(**counts: Any) -> LoadedData:
    """Read 2,000 MNIST training images, by Y. LeCun, C. Cortes and C. Burges, licensed CC BY-SA 3.0."""
    with np.load(MINI, allow_pickle=False) as arrays:
        return split_images("mnist-mini", arrays["images"], arrays["labels"], **counts)


def _load_digits(**counts: Any) -> LoadedData:
    from sklearn.datasets import load_digits  # slow to import

    return split_images("digits", *load_digits(return_X_y=True), **counts)


def _load_idx_files(
    name: str, data_dir: Folder, download: bool, n: int | None, n_test: int | None, seed: int
) -> LoadedData:
    """Read MNIST or Fashion-MNIST, with the labels if they lie beside the images."""
    title, needed = DOWNLOADS[name].title, _FILES.values()
    if download and not data_dir and not set(needed) <= find_files(name).keys():
        fetch(name)
    found = find_files(name, data_dir, needed)
    parts: list[ImageSet] = []
    for (split, file), argument, wanted in zip(_FILES.items(), ("n", "n_test"), (n, n_test), strict=True):
        pixels = read_idx(found[file], argument=f"{title} file", n_axes=3)
        path = found.get(file.replace("images-idx3", "labels-idx1"))
        labels = read_idx(path, argument=f"{title} file", kind="labels") if path else None
        images = check_array(ImageArray(pixels, labels), f"{name}'s {split}ing set")
        if wanted and wanted > len(images):
            reject(argument, f"at most {len(images):,} images", f"{wanted:,}", "Ask less.")
        parts += images.draw((wanted or len(images),), seed)
    train, test = parts
    if train.image_shape != test.image_shape:
        got = f"{train.image_shape} and {test.image_shape}"
        reject(title, "images of one size in both files", got, "Fetch them anew.")
    loaded = _read(name, train, test, train.n_blank + test.n_blank)
    return replace(loaded, test_names=tuple(f"test-{number}" for number in loaded.test_names))


def _register_idx_files(name: str) -> None:
    def where(data_dir: Folder) -> str:
        found = find_files(name, data_dir)
        if set(_FILES.values()) <= found.keys():
            return str(found[_FILES["train"]].parent)
        return f"not here; fetched on first use, or by liesparse data fetch {name}"

    load = partial(_load_idx_files, name)
    register_dataset(name, load, size="60,000 + 10,000 of 28 × 28", where=where, parameters=COUNTS)


register_transformation("translation", synthetic.translations)
register_transformation("rotation-scaling", synthetic.rotations_scalings, ranges={"scales": "scale"})
register_transformation("shear-stretch", synthetic.shears_stretches, ranges={"stretches": "stretch"})
register_transformation("translation-rotation", synthetic.translations_rotations)
_register_idx_files("mnist")
register_dataset("mnist-mini", _load_mini, size="2,000 of 28 × 28", where="in this package", parameters=COUNTS)
_register_idx_files("fashion-mnist")
register_dataset("digits", _load_digits, size="1,797 of 8 × 8", where="in scikit-learn", parameters=COUNTS)
