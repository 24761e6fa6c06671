"""Every kind of data behind one call: ``load_data`` takes the DATA argument of the command line."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from liesparse._checks import reject
from liesparse.data.arrays import read_npy, read_npz
from liesparse.data.digits import (
    TransformedImages,
    rotations_scalings,
    shears_stretches,
    translations,
    translations_rotations,
)
from liesparse.data.downloads import DOWNLOADS, fetch, find_file
from liesparse.data.folders import load_shards, open_folder
from liesparse.data.idx import looks_like_idx, read_idx
from liesparse.data.loaded import LoadedData
from liesparse.data.mnist import FILES, read_mnist_mini, read_split
from liesparse.data.parquet import read_parquet
from liesparse.data.pictures import SUFFIXES, read_folder, read_zip
from liesparse.data.rows import MIN_IMAGES, Fit, Images, RawImages, draw, hold_out, open_images
from liesparse.data.shards import list_shards
from liesparse.data.spec import COUNTS, FIT, KEYS, Parameter, at_least, flag, parse_spec, read_parameters, real


class SourceInfo(NamedTuple):
    """A line of the list of data sets."""

    name: str
    size: str
    where: str
    parameters: dict[str, Any]  # with what they are unless given


class _Options(NamedTuple):
    """What the reader of a named set may need."""

    name: str
    parameters: dict[str, Any]
    data_dir: str | Path | None
    download: bool


@dataclass(frozen=True)
class _Named:
    size: str
    parameters: Mapping[str, Parameter]
    load: Callable[[_Options], LoadedData]


def load_data(
    spec: str, *, data_dir: str | Path | None = None, download: bool = True, **parameters: str | float
) -> LoadedData:
    """Read or make the images that a name or a path stands for, as unit-norm rows; blank ones are skipped.

    Parameters
    ----------
    spec : str
        A name of ``list_sources()``, or a path: .npy, .npz, idx (gzipped or not), .parquet, a folder or .zip of
        pictures, or a folder of .npy, .npz and .parquet files, which is streamed if it is large. Parameters may
        follow, as in ``translation:n=20000,seed=3`` or ``faces/:size=28,crop=yes``. A name wins over a file of the
        same name; write ``./mnist`` for the file.
    data_dir : str or Path, optional
        The only folder in which to look for the files of MNIST or Fashion-MNIST.
    download : bool, default=True
        Whether to fetch these files if they are not here, unless ``data_dir`` is given.
    **parameters
        The same parameters as keywords; they win over those in ``spec``. All files know ``n`` and ``n_test`` (images
        to learn from and to test), ``seed`` (which are drawn), ``size`` (28 or "28x20"), ``crop`` (to the central
        square, before resizing), ``invert`` and ``colour`` (keep it: images of shape (height, width, 3)); .npz and
        .parquet also ``key`` and ``labels``; a folder of shards ``key`` and ``stream`` (whether to leave the images on
        disk; unless given, from 512 MiB on).

    Raises
    ------
    ValueError, FileNotFoundError
        With one line that says what was wrong and what to do.
    """
    head, given = parse_spec(spec)
    given = {**given, **{key: str(value) for key, value in parameters.items()}}
    if head in _NAMED:
        values = read_parameters(head, _NAMED[head].parameters, given)
        return _NAMED[head].load(_Options(head, values, data_dir, download))
    path = os.path.expanduser(head)
    if not os.path.exists(path):  # unlike Path, also for "" and for names that are too long
        _refuse_missing(head)
    return _load_path(Path(path), given)


class ImagesToUse(NamedTuple):
    """All images of a source in their order, for a model to look at."""

    name: str
    images: Float[Tensor, "image pixel"]  # unit norm
    places: NDArray[np.int64]  # of each in the source; blank ones are left out
    n_blank: int
    notes: tuple[str, ...]

    def summary(self) -> str:
        """Say in one line how many images there are and what was done to them."""
        return "; ".join([f"{self.name}: {len(self.images):,} images", f"{self.n_blank:,} blank skipped", *self.notes])


def load_images(
    spec: str, image_shape: tuple[int, ...], *, data_dir: str | Path | None = None, download: bool = True
) -> ImagesToUse:
    """Read every image of a file or folder, in its order, or the test images of a named set.

    They must have the shape that a model was trained on; ``size`` among the parameters of ``spec`` resizes them. Only
    a named set takes ``n``, ``n_test`` and ``seed``.
    Colours are kept for a model that has them.
    """
    head, given = parse_spec(spec)
    if head in _NAMED:
        loaded = check_shape(load_data(spec, data_dir=data_dir, download=download), image_shape)
        return ImagesToUse(head, loaded.test, np.arange(len(loaded.test)), loaded.n_blank, loaded.notes)
    path = Path(os.path.expanduser(head))
    if not os.path.exists(path):
        _refuse_missing(head)
    if set(given) & set(COUNTS):
        extra = [key for key in given if key in COUNTS]
        got = ", ".join(f"{key}={given[key]}" for key in extra)
        reject(f"parameters of {path}", "none that choose among its images", got, f"Leave {', '.join(extra)} out.")
    if path.is_dir() and list_shards(path):
        _, shards, n_all = open_folder(path, given)
        if math.prod(shards.image_shape) != math.prod(image_shape):
            _refuse_shape(str(path), shards.image_shape, image_shape)
        rows, places = shards.rows(np.arange(len(shards))), shards.places()
        return ImagesToUse(str(path), rows, places, n_all - len(shards), shards.notes)
    kept = {"colour": "yes"} if len(image_shape) == 3 else {}
    _, images = _open_path(path, kept | given, least=1)
    if math.prod(images.image_shape) != math.prod(image_shape):
        _refuse_shape(str(path), images.image_shape, image_shape)
    return ImagesToUse(str(path), images.rows(images.kept), images.kept.numpy(), images.n_blank, images.notes)


def check_shape(loaded: LoadedData, image_shape: tuple[int, ...]) -> LoadedData:
    """Return data whose images have the shape that a model was trained on."""
    if math.prod(loaded.image_shape) != math.prod(image_shape):
        _refuse_shape(loaded.name, loaded.image_shape, image_shape)
    return loaded


def _refuse_shape(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> NoReturn:
    told, wanted = (" × ".join(map(str, shape)) for shape in (got, expected))
    colour = ",colour=yes" if len(expected) == 3 else ""
    fix = f"Resize them: {name}:size={'x'.join(map(str, expected[:2]))}{colour}."
    reject("images", f"{wanted} pixels, as the model was trained on", told, fix)


def list_sources(data_dir: str | Path | None = None) -> tuple[SourceInfo, ...]:
    """Return every named data set, how large it is, and where it is or how to get it."""
    return tuple(
        SourceInfo(name, named.size, _where(name, data_dir), {key: p.default for key, p in named.parameters.items()})
        for name, named in _NAMED.items()
    )


def _where(name: str, data_dir: str | Path | None) -> str:
    if name in DOWNLOADS:
        found = [find_file(name, file, data_dir) for file in FILES.values()]
        if all(found):
            return str(Path(found[0] or "").parent)
        return f"not here; fetched on first use, or by liesparse data fetch {name}"
    return {"mnist-mini": "in this package", "digits": "in scikit-learn"}.get(name, "made from ten embedded digits")


def _refuse_missing(head: str) -> NoReturn:
    name, colon, rest = head.partition(":")
    if colon and name in _NAMED:
        reject(f"parameters of {name}", "key=value pairs, such as n=1000,seed=3", repr(rest), "Write them like this.")
    if not set(head) & set("/\\."):
        near = difflib.get_close_matches(head.lower(), _NAMED, n=1, cutoff=0.5)
        fix = f"Did you mean {near[0]}?" if near else "Pass one of these, or a path."
        reject("data", f"a path or one of {', '.join(_NAMED)}", repr(head), fix)
    raise FileNotFoundError(f"data: expected a file or folder, got {head!r}, which does not exist. Check the path.")


_MADE = {
    "n": Parameter(at_least(1), 60_000, "images to learn from"),
    "n_test": Parameter(at_least(1), 10_000, "images to test, other draws"),
    "seed": Parameter(at_least(0), 0, "seed of every draw"),
}


def _load_path(path: Path, given: Mapping[str, str]) -> LoadedData:
    if path.is_dir() and list_shards(path):
        return load_shards(path, given)
    values, images = _open_path(path, given)
    return _split(str(path), images, values)


def _open_path(path: Path, given: Mapping[str, str], *, least: int = MIN_IMAGES) -> tuple[dict[str, Any], Images]:
    suffix = path.suffix.lower()
    keys = KEYS if suffix in (".npz", ".parquet") and path.is_file() else {}
    values = read_parameters(str(path), {**keys, **COUNTS, **FIT}, given)
    fit = Fit(values["size"], values["crop"], values["invert"], values["colour"])
    try:
        raw, fit = _read_path(path, suffix, values, fit)
        return values, open_images(raw, fit, str(path), least=least)
    except OSError as error:
        reject("data", "a readable file", f"{path} ({error.strerror or error})", "Check its permissions.")


def _read_path(path: Path, suffix: str, values: dict[str, Any], fit: Fit) -> tuple[RawImages, Fit]:
    """Return the images of a file or folder, and what is left to do with them."""
    if path.is_dir():
        return read_folder(path, fit), Fit(colour=fit.colour)
    if suffix == ".zip":
        return read_zip(path, fit), Fit(colour=fit.colour)
    if suffix == ".parquet":
        return read_parquet(path, values["key"], values["labels"], fit)
    if suffix == ".npy":
        return read_npy(path), fit
    if suffix == ".npz":
        return read_npz(path, values["key"], values["labels"]), fit
    if suffix in SUFFIXES or not path.is_file() or not looks_like_idx(path):
        kinds = "a .npy, .npz, .parquet or idx file, or a folder or .zip of pictures"
        fix = "Put it into a folder with others." if suffix in SUFFIXES else "Convert it, such as with numpy.save."
        reject("data", kinds, str(path), fix)
    return RawImages(read_idx(path)), fit


def _split(name: str, images: Images, values: dict[str, Any]) -> LoadedData:
    """Hold out images to test, of a set without a split of its own."""
    train, test = hold_out(images, values["n"], values["n_test"], values["seed"])
    return LoadedData(
        name=name,
        train=images.rows(train),
        test=images.rows(test),
        image_shape=images.image_shape,
        labels=images.labels(train),
        test_labels=images.labels(test),
        n_blank=images.n_blank,
        notes=images.notes,
    )


def _load_idx_set(options: _Options) -> LoadedData:
    name, folder, values = options.name, options.data_dir, options.parameters
    if options.download and not folder and not all(find_file(name, file) for file in FILES.values()):
        fetch(name)
    train = open_images(read_split(name, "train", folder), Fit(), f"{name}'s training set")
    test = open_images(read_split(name, "test", folder), Fit(), f"{name}'s test set")
    if train.image_shape != test.image_shape:
        got = f"{train.image_shape} and {test.image_shape}"
        reject(DOWNLOADS[name].title, "images of one size in both files", got, "Fetch them anew.")
    places = draw(train, values["n"], values["seed"], "n")
    test_places = draw(test, values["n_test"], values["seed"], "n_test")
    return LoadedData(
        name=name,
        train=train.rows(places),
        test=test.rows(test_places),
        image_shape=train.image_shape,
        labels=train.labels(places),
        test_labels=test.labels(test_places),
        n_blank=train.n_blank + test.n_blank,
    )


def _load_mini(options: _Options) -> LoadedData:
    return _split(options.name, open_images(read_mnist_mini(), Fit(), options.name), options.parameters)


def _load_digits(options: _Options) -> LoadedData:
    from sklearn.datasets import load_digits  # slow to import

    found = load_digits()
    raw = RawImages(found.images, found.target)
    return _split(options.name, open_images(raw, Fit(), options.name), options.parameters)


def _make(make: Callable[..., TransformedImages], ranges: Mapping[str, str], options: _Options) -> LoadedData:
    """Make a synthetic set; its test set has other draws. ``ranges`` names arguments that are (min, max) pairs."""
    values = dict(options.parameters)
    n, n_test, seed = (values.pop(key) for key in ("n", "n_test", "seed"))
    for argument, noun in ranges.items():
        values[argument] = (values.pop(f"min_{noun}"), values.pop(f"max_{noun}"))
    generator = torch.Generator().manual_seed(seed)
    train, test = make(n, generator=generator, **values), make(n_test, generator=generator, **values)
    return LoadedData(
        name=options.name,
        train=train.images,
        test=test.images,
        image_shape=(28, 28),
        labels=train.labels,
        test_labels=test.labels,
        factors=train.factors,
        test_factors=test.factors,
        factor_names=train.factor_names,
    )


_NAMED: dict[str, _Named] = {
    "translation": _Named(
        "any number of 28 × 28",
        {
            **_MADE,
            "max_shift": Parameter(real, 7.0, "pixels each way"),
            "wrap": Parameter(flag, False, "what leaves on one side enters on the other"),
        },
        partial(_make, translations, {}),
    ),
    "rotation-scaling": _Named(
        "any number of 28 × 28",
        {
            **_MADE,
            "max_degrees": Parameter(real, 75.0, "each way"),
            "min_scale": Parameter(real, 0.5, "smallest"),
            "max_scale": Parameter(real, 1.0, "largest"),
        },
        partial(_make, rotations_scalings, {"scales": "scale"}),
    ),
    "shear-stretch": _Named(
        "any number of 28 × 28",
        {
            **_MADE,
            "max_shear": Parameter(real, 0.5, "sideways shift per pixel of height"),
            "min_stretch": Parameter(real, 0.6, "narrowest"),
            "max_stretch": Parameter(real, 1.2, "widest"),
        },
        partial(_make, shears_stretches, {"stretches": "stretch"}),
    ),
    "translation-rotation": _Named(
        "any number of 28 × 28",
        {
            **_MADE,
            "max_shift": Parameter(real, 3.0, "pixels each way"),
            "max_degrees": Parameter(real, 25.0, "each way"),
        },
        partial(_make, translations_rotations, {}),
    ),
    "mnist": _Named("60,000 + 10,000 of 28 × 28", COUNTS, _load_idx_set),
    "mnist-mini": _Named("2,000 of 28 × 28", COUNTS, _load_mini),
    "fashion-mnist": _Named("60,000 + 10,000 of 28 × 28", COUNTS, _load_idx_set),
    "digits": _Named("1,797 of 8 × 8", COUNTS, _load_digits),
}
