"""Relatives with the same face: plain sparse coding, and a transformation learned from pairs of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from liesparse import baselines, stiefel
from liesparse._checks import MOST, check_count, check_matrix, check_n_pixels, check_real
from liesparse.devices import to_cpu
from liesparse.estimators.base import Coder, ImageBatch, ImageEstimator
from liesparse.files import Sealed
from liesparse.inference import map_poses
from liesparse.initialization import leading_subspace
from liesparse.lattice import half_lattice
from liesparse.model import Parameters, apply_transform
from liesparse.posterior import AdaptiveEngine, TorusPosterior, log_likelihood, pose_natural


@dataclass(eq=False, repr=False)
class SparseCoder(Coder):
    """Plain sparse coding I = Φα + ε with codes >= 0: what :class:`LieSparseCoder` is without a group.

    Parameters
    ----------
    n_components : int, default=10
        Shapes in the dictionary.
    sparsity, noise_std : float
        As in :class:`LieSparseCoder`.
    n_epochs : int, default=10
        Passes over the images.
    dictionary_rate : float, default=0.001
        Learning rate at the start.
    n_code_steps : int, default=200
        FISTA steps for each image in ``transform``; the objective is convex.
    dtype, device, random_state
        As in :class:`LieSparseCoder`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        One shape per row.
    n_iter_ : int
        Batches that were learned from.
    """

    n_components: int = 10
    _: KW_ONLY
    sparsity: float = 10.0
    noise_std: float = 0.1
    n_epochs: int = 10
    dictionary_rate: float = 0.001
    n_code_steps: int = 200
    _kind = "SparseCoder"
    _values: ClassVar = {"n_iter": int}
    _arrays = ("components",)

    @classmethod
    def from_dictionary(cls, dictionary: Tensor, image_shape: tuple[int, ...], **settings: Any) -> SparseCoder:
        """Return a fitted estimator around a dictionary (D, K) from elsewhere."""
        estimator = cls(dictionary.shape[1], **settings)
        estimator.components_, estimator.n_iter_ = to_cpu(dictionary.T).contiguous().numpy(), 0
        estimator.image_shape_, estimator.n_features_in_ = tuple(image_shape), len(dictionary)
        return estimator

    def fit(self, X: Any, y: Any = None) -> SparseCoder:  # noqa: ARG002
        """Learn the dictionary from images."""
        images = self._images_to_learn(X)
        if check_count("n_components", self.n_components) > len(images):
            raise ValueError(f"n_samples={len(images)} should be >= n_components={self.n_components}.")
        shared = {name: getattr(self, name) for name in ("noise_std", "sparsity", "n_epochs", "dictionary_rate")}
        settings = baselines.SparseCodingSettings(**shared)
        dictionary = baselines.learn_sparse_coding(images, self.n_components, settings, generator=self._generator())
        self.components_ = to_cpu(dictionary.T).contiguous().numpy()
        self.n_iter_ = self.n_epochs * -(-len(images) // settings.batch_size)
        return self

    def _unpack(self, sealed: Sealed, path: str | Path) -> None:
        super()._unpack(sealed, path)
        rows = sealed.tensors["components"]
        check_matrix("components", rows, ("n_components", None), ("n_pixels", self.n_features_in_))
        check_count("n_components", len(rows))
        check_real("components", float(rows.abs().max()), maximum=MOST)
        names = ("noise_std", "sparsity", "n_epochs", "dictionary_rate", "n_code_steps")
        baselines.SparseCodingSettings(**{name: getattr(self, name) for name in names})

    def inverse_transform(self, codes: Any) -> Any:
        """Return the images Φα of norm-1 scale."""
        check_is_fitted(self)
        return self._as_images(self._tensor(codes) @ self._dictionary().T, like=codes)

    def _draw(self, images: ImageBatch) -> Tensor:
        return self._codes(images) @ self._dictionary().T

    def _row_log_likelihood(self, rows: Tensor, codes: Tensor) -> Tensor:
        return baselines.log_likelihood(self._dictionary(), rows, codes, noise_std=self.noise_std)

    def _dictionary(self) -> Tensor:
        return self._tensor(self.components_.T).contiguous()

    def _codes(self, images: ImageBatch) -> Tensor:
        settings = {name: getattr(self, name) for name in ("noise_std", "sparsity", "n_code_steps")}
        find = partial(baselines.infer_sparse_codes, self._dictionary(), **settings)
        return self._by_chunks(find, images.rows) * images.seen


@dataclass(eq=False, repr=False, kw_only=True)
class ToroidalSubgroup(ImageEstimator):
    """Toroidal subgroup analysis (Cohen and Welling 2014): I' = W R(s) Wᵀ I + ε, learned from pairs (I, I').

    The special case n = 1 of the model in which the shape is the other image. It finds the transformation that
    turns the first images into the second, such as rotation, and the angle for each pair. Small to moderate
    angles (up to about a radian) are learned reliably; pairs turned by any angle have poor local optima.

    Parameters
    ----------
    n_irreps : int or "auto", default="auto"
        Rotation planes; "auto" is 30, or as many as fit into the images.
    multiplicity : int, default=5
        Planes for each frequency 0, 1, 2, …
    noise_std : float, default=0.2
        Standard deviation of the pixel noise for images of norm 1.
    n_epochs : int, default=10
        Passes over the pairs.
    dtype, device, random_state
        As in :class:`LieSparseCoder`.

    Attributes
    ----------
    group_basis_ : ndarray of shape (n_features, 2 * n_irreps)
        Orthonormal columns, two for each plane (paper: W).
    frequencies_ : ndarray of shape (n_irreps, 1)
        How fast each plane turns.
    """

    n_irreps: int | str = "auto"
    multiplicity: int = 5
    noise_std: float = 0.2
    n_epochs: int = 10
    _kind = "ToroidalSubgroup"
    _arrays = ("group_basis", "frequencies")

    def fit(self, X: Any, y: Any) -> ToroidalSubgroup:
        """Learn from first images ``X`` and second images ``y``."""
        first, second = (images.rows for images in self._pair(X, y, reset=True))
        n_irreps = min(30, first.shape[1] // 2) if self.n_irreps == "auto" else int(self.n_irreps)
        check_n_pixels(first.shape[1], n_irreps)
        frequencies = half_lattice(1, n_irreps, multiplicity=self.multiplicity, include_zero=True)
        generator = self._generator()
        subspace = leading_subspace(torch.cat((first, second)), 2 * n_irreps)
        mixing = stiefel.random_point(2 * n_irreps, 2 * n_irreps, generator=generator, dtype=self._dtype())
        known: dict[str, Any] = {"noise_std": self.noise_std, "n_epochs": self.n_epochs, "generator": generator}
        learned = baselines.learn_subgroup(subspace @ mixing.to(subspace), frequencies, first, second, **known)
        self.group_basis_, self.frequencies_ = to_cpu(learned).numpy(), frequencies.numpy()
        return self

    def _unpack(self, sealed: Sealed, path: str | Path) -> None:
        super()._unpack(sealed, path)
        basis, frequencies = sealed.tensors["group_basis"], sealed.tensors["frequencies"]
        check_matrix("group_basis", basis, ("n_pixels", self.n_features_in_), ("2 * n_irreps", None))
        baselines.pair_model(basis, frequencies, basis[:, :1].T, self.noise_std).validate()

    def infer_pose(self, X: Any, y: Any) -> Any:
        """Return the angle s from each first image to its second, of shape (n_pairs,), in [-π, π]."""
        first, poses = self._for_pairs(map_poses, X, y)
        return first.restore(poses[:, 0])

    def pose_posterior(self, X: Any, y: Any) -> TorusPosterior:
        """Return P(s | I, I') for each pair."""
        _, natural = self._for_pairs(lambda model, images, codes, _: pose_natural(model, images, codes), X, y)
        return TorusPosterior(natural, torch.from_numpy(self.frequencies_))

    def move(self, X: Any, delta: Any) -> Any:
        """Apply T(δ) to each image: one angle for all, or one for each."""
        images, delta = self._known_images(X), self._tensor(delta)
        if delta.ndim > 1 or delta.numel() not in (1, len(images.rows)):
            raise ValueError(f"delta has shape {tuple(delta.shape)}, expected () or ({len(images.rows)},).")
        poses = delta.expand(len(images.rows))[:, None]
        return images.restore_images(images.norms * apply_transform(self._model(images.rows), images.rows, poses))

    def score(self, X: Any, y: Any) -> float:
        """Return the mean of ln P(I' | I)."""
        return float(self._for_pairs(log_likelihood, X, y)[1].mean())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _pair(self, X: Any, y: Any, *, reset: bool = False) -> tuple[ImageBatch, ImageBatch]:
        first, second = self._take_images(X, reset=reset), self._take_images(y)
        if len(first.rows) != len(second.rows):
            raise ValueError(f"X has {len(first.rows)} images and y {len(second.rows)}: give pairs.")
        if not bool((first.seen * second.seen).all()):
            raise ValueError("A blank image is no partner: drop the pairs with a blank row.")
        return first, second

    def _for_pairs(self, function: Callable[..., Tensor], X: Any, y: Any) -> tuple[ImageBatch, Tensor]:
        """Apply a function of model, images, codes and engine; the shape of each second image is its first."""
        check_is_fitted(self)
        first, second = self._pair(X, y)
        engine = AdaptiveEngine(torch.from_numpy(self.frequencies_), dtype=self._dtype(), device=first.rows.device)

        def apply(shapes: Tensor, images: Tensor) -> Tensor:
            return function(self._model(shapes), images, torch.eye(len(shapes)).to(shapes), engine)

        return first, self._by_chunks(apply, first.rows, second.rows)

    def _model(self, shapes: Tensor) -> Parameters:
        basis, frequencies = self._tensor(self.group_basis_), torch.from_numpy(self.frequencies_)
        return baselines.pair_model(basis, frequencies, shapes, self.noise_std)
