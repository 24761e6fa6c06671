"""Every kind of data behind one call: ``load_data`` takes the DATA argument of the command line.

It is a name or a path, then perhaps parameters, as in ``translation:n=20000,max_shift=5``.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from liesparse._checks import check_choice, check_count, check_real, count, refusing, reject
from liesparse.data import arrays, pictures
from liesparse.data.datasets import COUNTS, DATASETS, LoadedData, hold_out
from liesparse.data.downloads import Folder
from liesparse.data.images import CHOICES, ImageArray, ImageSet, Preprocessing, check_array
from liesparse.data.shards import Shards, list_shards, open_shards
from liesparse.parallel import ALONE, Group

STREAM_FROM = 512 * 2**20  # bytes of images in memory from which on they stay on disk
N_SAMPLE = 10_000  # images of a stream to draw, to start from, and to compare with
_PAIR = r"[A-Za-z_]\w*=[^,=]*"
_PAIRS = re.compile(rf"{_PAIR}(,{_PAIR})*")
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_Images = TypeVar("_Images", LoadedData, ImageSet | Shards)


class ImagesInOrder(NamedTuple):
    """All images of a file or folder in their order, for a model to look at."""

    name: str
    images: Float[Tensor, "image pixel"]  # unit norm
    places: NDArray[np.int64]  # of each in the file; blank ones are left out
    n_blank: int
    notes: tuple[str, ...]
    names: tuple[str, ...]  # the path of each picture from its folder, else a number
    labels: tuple[str, ...] = ()  # where they are known
    preprocessing: Preprocessing = Preprocessing()  # what was done to them

    @property
    def files(self) -> tuple[str, ...]:
        """The path of each picture from its folder; where one file holds all, its name and the number in it."""
        whole = Path(self.name).name
        return tuple(name if Path(name).suffix else f"{whole}[{name}]" for name in self.names)

    def summary(self) -> str:
        """Say in one line how many images there are and what was done to them."""
        counted = f"{self.name}: {count(len(self.images), 'image')}"
        return "; ".join([counted, f"{self.n_blank:,} blank skipped", *self.notes])


def load_data(
    spec: str, *, data_dir: Folder = None, download: bool = True, group: Group = ALONE, **parameters: str | float
) -> LoadedData:
    """Read or make the images that a name or a path stands for, as unit-norm rows; blank ones are skipped.

    Parameters
    ----------
    spec : str
        A name of ``list_datasets()``, or a path: .npy, .npz, idx (gzipped or not), .parquet, a folder or .zip of
        pictures, or a folder of .npy, .npz and .parquet files, which is streamed if it is large. Parameters may
        follow, as in ``translation:n=20000,seed=3`` or ``faces/:size=28,crop=yes``. A name wins over a file of the
        same name; write ``./mnist`` for the file.
    data_dir : str or Path, optional
        The only folder in which to look for the files of MNIST or Fashion-MNIST.
    download : bool, default=True
        Whether to fetch these files if they are not here, unless ``data_dir`` is given.
    group : Group, optional
        Processes that share the first look through a folder of shards (:func:`liesparse.parallel.join`).
    **parameters
        The same parameters as keywords; they win over those in ``spec``. All files know ``n`` and ``n_test`` (images
        to learn from and to test), ``seed`` (which are drawn), ``size`` (28 or "28x20") and ``fit`` ("crop", "pad" or
        "stretch" to its aspect), ``crop`` (to the central square, before resizing), ``invert``, ``ground`` ("keep",
        or "subtract" the median of the edge) and ``colour`` (keep it: images of shape (height, width, 3)); .npz and
        .parquet also ``key`` and ``labels``; a folder of shards ``key`` and ``stream`` (whether to leave the images on
        disk; unless given, from 512 MiB on).

    Raises
    ------
    ValueError, FileNotFoundError
        With one line that says what was wrong and what to do.
    """
    head, given = parse_spec(spec)
    given = {**given, **{key: str(value) for key, value in parameters.items()}}
    if head in DATASETS:
        dataset, options = DATASETS[head], {"data_dir": data_dir, "download": download}
        values = _read_parameters(head, dataset.parameters, given)
        return dataset.load(**values, **{key: options[key] for key in dataset.options})
    images, values = _open_path(_find_path(head), given, group=group)
    counts = [values[key] for key in COUNTS]
    if isinstance(images, ImageSet):
        return hold_out(images, *counts)
    train, test = images.split(*counts)
    size = 4 * len(train) * math.prod(images.image_shape)
    streamed = size > STREAM_FROM if values["stream"] is None else values["stream"]
    how = "streamed" if streamed else "in memory"
    notes = (*images.notes, f"{len(images.files):,} shards, {how} ({size / 2**20:,.0f} MiB)")
    rows = train.sample(N_SAMPLE) if streamed else train.rows()
    stream = train if streamed else None
    return LoadedData(images.name, rows, test, images.image_shape, n_blank=images.n_blank, notes=notes, stream=stream)


def load_images(
    spec: str, image_shape: tuple[int, ...], *, data_dir: Folder = None, download: bool = True
) -> ImagesInOrder:
    """Read every image of a file or folder, in its order, or the test images of a named set.

    They must have the shape that a model was trained on; ``size`` among the parameters of ``spec`` resizes them. Only
    a named set takes ``seed`` and ``n``, here the number of test images. Colours are kept for a model that has them.
    """
    head, given = parse_spec(spec)
    if head in DATASETS:
        few: dict[str, Any] = {"n": 1, "n_test": given.get("n_test", given["n"])} if "n" in given else {}
        loaded = check_shape(load_data(spec, data_dir=data_dir, download=download, **few), image_shape)
        names = loaded.test_names or tuple(f"test-{place:06d}" for place in range(len(loaded.test)))
        numbers = [name.removeprefix("test-") for name in names]
        places = np.array([int(number) if number.isdecimal() else place for place, number in enumerate(numbers)])
        labels = _label_names(loaded.test_labels, loaded.label_names)
        return ImagesInOrder(head, loaded.test, places, loaded.n_blank, loaded.notes, names, labels)
    path = _find_path(head)
    extra = [key for key in given if key in COUNTS]
    if extra:
        got = ", ".join(f"{key}={given[key]}" for key in extra)
        reject(f"parameters of {path}", "none that choose among its images", got, f"Leave {', '.join(extra)} out.")
    kept = {"colour": "yes"} if len(image_shape) == 3 else {}
    opened, values = _open_path(path, kept | given, least=1)
    images = check_shape(opened, image_shape)
    names, labels = tuple(f"{place:06d}" for place in images.places), ()
    if isinstance(images, ImageSet):
        names, labels = images.names(), _label_names(images.labels(), images.array.label_names)
    said = images.n_blank, images.notes, names, labels, _preprocessing(values)
    return ImagesInOrder(images.name, images.rows(), images.places, *said)


def _label_names(labels: Tensor | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the label of each image as text; nothing where there are none."""
    return () if labels is None else tuple(names[label] if names else str(label) for label in labels.tolist())


def check_shape(loaded: _Images, image_shape: tuple[int, ...]) -> _Images:
    """Return data whose images have the shape that a model was trained on."""
    if math.prod(loaded.image_shape) != math.prod(image_shape):
        told, wanted = (" × ".join(map(str, shape)) for shape in (loaded.image_shape, image_shape))
        colour = ",colour=yes" if len(image_shape) == 3 else ""
        size = "x".join(map(str, image_shape[:2]))
        fix = f"Resize them: {loaded.name}:size={size}{colour}."
        if loaded.name in DATASETS and "size" not in DATASETS[loaded.name].parameters:
            fix = f"{loaded.name} has one size only; pass images of your own, as photos/:size={size}{colour}."
        reject("images", f"{wanted} pixels, as the model was trained on", told, fix)
    return loaded


def _find_path(head: str) -> Path:
    path = os.path.expanduser(head)
    if os.path.exists(path):  # unlike Path, also for "" and for names that are too long
        return Path(path)
    name, colon, rest = head.partition(":")
    if colon and name in DATASETS:
        reject(f"parameters of {name}", "key=value pairs, such as n=1000,seed=3", repr(rest), "Write them like this.")
    if not set(head) & set("/\\."):
        near = difflib.get_close_matches(head.lower(), DATASETS, n=1, cutoff=0.5)
        fix = f"Did you mean {near[0]}?" if near else "Pass one of these, or a path."
        reject("data", f"a path or one of {', '.join(DATASETS)}", repr(head), fix)
    raise FileNotFoundError(f"data: expected a file or folder, got {head!r}, which does not exist. Check the path.")


def _open_path(
    path: Path, given: Mapping[str, str], *, least: int = 2, group: Group = ALONE
) -> tuple[ImageSet | Shards, dict[str, Any]]:
    """Look through a file or a folder; return also the parameters."""
    suffix, shards = path.suffix.lower(), path.is_dir() and bool(list_shards(path))
    named = suffix in (".npz", ".parquet") and path.is_file()
    keys = ("key", "stream") if shards else ("key", "labels") if named else ()
    known = {**dict.fromkeys(keys), **COUNTS, **Preprocessing()._asdict()}
    values = _read_parameters(str(path), known, given)
    preprocessing = _preprocessing(values)
    readable = "readable files, and room in the cache folder" if shards else "a readable file"
    with refusing(readable, path, "Check permissions and space.", OSError):
        if shards:
            return open_shards(path, values["key"], preprocessing, group=group), values
        if path.is_dir() or suffix == ".zip":
            array = pictures.read_pictures(path, preprocessing)
        elif suffix in arrays.SUFFIXES:
            array = arrays.read_file(path, values.get("key"), values.get("labels"), preprocessing)
        elif suffix in pictures.SUFFIXES or not path.is_file() or not arrays.looks_like_idx(path):
            kinds = "a .npy, .npz, .parquet or idx file, or a folder or .zip of pictures"
            picture = suffix in pictures.SUFFIXES
            fix = "Put it into a folder with others." if picture else "Convert it, such as with numpy.save."
            reject("data", kinds, str(path), fix)
        else:
            array = ImageArray(arrays.read_idx(path), None, preprocessing)
        return check_array(array, str(path), least=least), values


def _preprocessing(values: Mapping[str, Any]) -> Preprocessing:
    return Preprocessing(*(values[key] for key in Preprocessing._fields))


class Spec(NamedTuple):
    """A name or path, and the text of each parameter."""

    head: str
    parameters: dict[str, str]


def parse_spec(spec: str) -> Spec:
    """Split off the parameters; a path that exists is taken as it is, whatever colons it has."""
    if os.path.exists(spec):
        return Spec(spec, {})
    head, _, tail = spec.rpartition(":")
    if not head or not _PAIRS.fullmatch(tail):
        return Spec(spec, {})
    parameters: dict[str, str] = {}
    for key, text in (pair.split("=") for pair in tail.split(",")):
        if key in parameters:
            reject(key, "each parameter once", f"{key} twice in {spec}", "Remove one.")
        parameters[key] = text
    return Spec(head, parameters)


def _read_parameters(owner: str, defaults: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return all parameters, those given read from their text."""
    for key in given:
        if key not in defaults:
            reject(f"parameter of {owner}", f"one of {', '.join(defaults)}", repr(key), "Remove or rename it.")
    return {**defaults, **{key: _read(key, text.strip(), defaults[key]) for key, text in given.items()}}


def _read(key: str, text: str, default: Any) -> Any:
    """Read a parameter by its name, else by the type of its default."""
    if key == "size":  # 28, or 28x20 for height and width
        if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})?", text, re.ASCII):
            reject(key, "a side such as 28, or height and width such as 28x20", repr(text), f"Pass {key}=28.")
        height, _, width = text.partition("x")
        return int(height), int(width or height)
    if key in CHOICES:
        return check_choice(key, text, CHOICES[key])
    if key == "stream" or isinstance(default, bool):
        if text.lower() not in _FLAGS:
            reject(key, "yes or no", repr(text), f"Pass {key}=yes or {key}=no.")
        return _FLAGS[text.lower()]
    if key in ("n", "n_test") or isinstance(default, int):
        minimum = 1 if key in ("n", "n_test") else 0
        if not re.fullmatch(r"-?\d{1,18}|\d{1,3}(_\d{3}){1,4}", text, re.ASCII):  # _ may part the thousands
            reject(key, f"a whole number >= {minimum}", repr(text), f"Pass {key}={max(minimum, 1000)}.")
        return check_count(key, int(text), minimum)
    if isinstance(default, float):
        try:
            return check_real(key, float(text))
        except ValueError:
            reject(key, "a finite number", repr(text), f"Pass {key}=1.5.")
    return text
