"""What all estimators share: images in any form, results in the same form, and files."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from liesparse import groups
from liesparse._checks import check_choice, check_count, reject
from liesparse.checkpoint import versions
from liesparse.devices import choose_device, to_cpu
from liesparse.files import Sealed, need, read_sealed, write_sealed
from liesparse.model import PosePrior

CHUNK = 64  # always so many rows at once, so that no result depends on an image's companions
Array = NDArray[Any]
Estimator = TypeVar("Estimator", bound="ImageEstimator")


class ImageBatch(NamedTuple):
    """Images as the model takes them, and what it takes to give results back as they came."""

    rows: Tensor  # unit norm, (n_images, n_features); a blank image has an arbitrary one
    norms: Tensor  # (n_images, 1), 0 for a blank image
    shape: tuple[int, ...]  # of one image
    as_tensor: bool

    @property
    def seen(self) -> Tensor:
        """1.0 for an image, 0.0 for a blank one, of shape (n_images, 1)."""
        return (self.norms > 0).to(self.norms)

    def restore(self, values: Tensor) -> Any:
        """Return numbers as numpy, or as a tensor if tensors came."""
        return to_cpu(values) if self.as_tensor else to_cpu(values).numpy()

    def restore_images(self, rows: Tensor) -> Any:
        """Return rows as images of the shape that came."""
        return self.restore(rows.reshape(*rows.shape[:-1], *self.shape))


@dataclass(eq=False, repr=False, kw_only=True)
class ImageEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base class: an estimator is a dataclass whose fields are its parameters, and every one has these three."""

    dtype: str = "float32"
    device: str = "auto"
    random_state: Any = None
    _kind: ClassVar[str]
    _values: ClassVar[dict[str, type]] = {}  # of the fitted estimator, less the underscore, as its file holds them
    _arrays: ClassVar[tuple[str, ...]] = ()

    def _images_to_learn(self, X: Any, *, reset: bool = True) -> Tensor:
        """Return unit-norm images without the blank ones, of which there must not be only such."""
        images = self._take_images(X, reset=reset)
        blank = (images.norms[:, 0] == 0).nonzero().flatten().tolist()
        if len(blank) == len(images.rows):
            raise ValueError(f"Every row of X is blank (n_samples={len(blank)}): there is nothing to learn from.")
        if blank:
            found = f"X contains {len(blank)} blank row(s), the first at row {blank[0]}"
            warnings.warn(f"{found}; {type(self).__name__} learns from the others.", UserWarning, stacklevel=3)
        return images.rows[images.norms[:, 0] > 0]

    def _take_images(self, X: Any, *, reset: bool = False) -> ImageBatch:
        """Check images as scikit-learn does, flatten them, and scale them to norm 1."""
        as_tensor = isinstance(X, Tensor)
        if as_tensor:
            X = to_cpu(X).numpy()
        shape: tuple[int, ...] = ()
        if getattr(X, "ndim", 2) > 2:
            shape = tuple(X.shape[1:])
            X = np.asarray(X).reshape(len(X), -1)
        X = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], order="C")
        if reset:
            self.image_shape_: tuple[int, ...] = shape or (X.shape[1],)
        scale = np.abs(X).max(axis=1, keepdims=True)
        blank = scale == 0
        scaled = np.where(blank, 1, X) / np.where(blank, 1, scale)  # no overflow, no underflow
        norms = np.linalg.norm(scaled, axis=1, keepdims=True)
        rows = torch.from_numpy(np.ascontiguousarray(scaled / norms)).to(choose_device(self.device), self._dtype())
        return ImageBatch(rows, torch.from_numpy(norms * scale).to(rows), shape or (X.shape[1],), as_tensor)

    def _known_images(self, X: Any) -> ImageBatch:
        check_is_fitted(self)
        return self._take_images(X)

    def _dtype(self) -> torch.dtype:
        return getattr(torch, check_choice("dtype", self.dtype, ("float32", "float64")))

    def _tensor(self, values: Any) -> Tensor:
        """Return numbers that came, as a tensor or not, where and as the model computes."""
        plain = to_cpu(values) if isinstance(values, Tensor) else np.asarray(values)
        return torch.as_tensor(plain).to(choose_device(self.device), self._dtype())

    def _generator(self) -> torch.Generator:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        return torch.Generator().manual_seed(seed)

    def _by_chunks(self, function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
        """Apply a function to equal chunks of rows, the last one filled up."""
        results = []
        for parts in zip(*(column.split(CHUNK) for column in columns), strict=True):
            n = len(parts[0])
            padded = [torch.cat((part, part[-1:].expand(CHUNK - n, *part.shape[1:]))) for part in parts]
            results.append(function(*padded)[:n])
        return torch.cat(results)

    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what the fitted estimator knows: plain values and tensors."""
        tensors = {name: torch.from_numpy(getattr(self, f"{name}_")) for name in self._arrays}
        return {name: getattr(self, f"{name}_") for name in self._values}, tensors

    def _unpack(self, sealed: Sealed, path: str | Path) -> None:
        """Take up what :meth:`_pack` gave."""
        need(sealed, path, self._values, self._arrays)
        known = {name: sealed.header[name] for name in self._values}
        for name, value in (known | {name: sealed.tensors[name].numpy() for name in self._arrays}).items():
            setattr(self, f"{name}_", value)

    def save(self, path: str | Path) -> None:
        """Save the fitted estimator as one safetensors file with its settings as JSON; never pickle."""
        check_is_fitted(self)
        try:
            settings = json.loads(json.dumps(self.get_params(deep=False), default=_as_plain))
        except TypeError as error:
            reject("estimator", "parameters that JSON can hold", str(error), "Set callbacks to None before saving.")
        header, tensors = self._pack()
        common = {"settings": settings, "image_shape": list(self.image_shape_), "versions": versions()}
        write_sealed(path, self._kind, header | common, tensors)

    @classmethod
    def load(cls: type[Estimator], path: str | Path) -> Estimator:
        """Load an estimator that :meth:`save` wrote; any other file gives a ``ValueError``."""
        sealed = read_sealed(path, cls._kind)
        settings, shape = sealed.header.get("settings"), sealed.header.get("image_shape")
        known = set(cls._get_param_names())
        if not isinstance(settings, dict) or not set(settings) <= known or not isinstance(shape, list):
            reject("path", f"a saved {cls.__name__}", str(path), "Use another copy.")
        for size in shape:
            check_count("image_shape", size)
        try:
            choose_device(settings.get("device", "auto"))
        except ValueError:  # a model that was saved on a device which is not here computes on one that is
            settings |= {"device": "auto"}
        estimator = cls(**settings)
        estimator.image_shape_, estimator.n_features_in_ = tuple(shape), math.prod(shape)
        estimator._dtype()
        estimator._unpack(sealed, path)
        return estimator


def _as_plain(value: Any) -> Any:
    """Return a parameter as JSON can hold it."""
    if isinstance(value, PosePrior):
        return {"PosePrior": asdict(value)}
    if isinstance(value, groups.Group):
        # Its sizes are those of the images, or its W that of the model.
        parts = value.name.split("@")
        return "@".join(part if part in groups.NAMES else groups.Fixed.name for part in parts)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


class Coder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ImageEstimator):  # type: ignore[misc]
    """An estimator that turns images into codes, one for each of ``components_``."""

    components_: Array
    noise_std: Any  # a number, or "auto"

    def _noise_std(self) -> float:
        return self.noise_std

    def _codes(self, images: ImageBatch) -> Tensor:
        raise NotImplementedError

    def transform(self, X: Any) -> Any:
        """Return the codes α̂ of each image, of shape (n_images, n_components): what is in it."""
        images = self._known_images(X)
        return images.restore(self._codes(images))

    def reconstruct(self, X: Any) -> Any:
        """Return what the model makes of each image: T(ŝ)Φα̂, or Φα̂ without a pose."""
        images = self._known_images(X)
        return images.restore_images(images.norms * self._draw(images))

    def _draw(self, images: ImageBatch) -> Tensor:
        raise NotImplementedError

    def _as_images(self, rows: Tensor, *, like: Any) -> Any:
        """Return rows as images of the shape that was learned from, as a tensor if that is what came."""
        return ImageBatch(rows, rows[:, :1], self.image_shape_, isinstance(like, Tensor)).restore_images(rows)

    def score_samples(self, X: Any) -> Any:
        """Return ln P(I | α̂) of each norm-1 image."""
        images = self._known_images(X)
        return images.restore(self._log_likelihood(images, self._codes(images)))

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the mean of :meth:`score_samples`."""
        return float(np.mean(np.asarray(self.score_samples(X))))

    def _log_likelihood(self, images: ImageBatch, codes: Tensor) -> Tensor:
        found = self._by_chunks(self._row_log_likelihood, images.rows, codes)
        return found + (1 - images.seen[:, 0]) / (2 * self._noise_std() ** 2)  # a blank image has no energy

    def _row_log_likelihood(self, rows: Tensor, codes: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # results have the type of the parameter dtype
        tags.input_tags.three_d_array = True
        return tags
