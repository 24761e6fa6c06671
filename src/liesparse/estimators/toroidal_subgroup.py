"""ToroidalSubgroup: a one-parameter transformation learned from pairs of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from liesparse import stiefel
from liesparse._checks import check_n_pixels
from liesparse.baselines.tsa import SubgroupSettings, learn_subgroup, pair_log_likelihood, pair_natural
from liesparse.devices import to_cpu
from liesparse.estimators.base import ImageBatch, ImageEstimator
from liesparse.files import Sealed, need
from liesparse.initialization import leading_subspace
from liesparse.lattice import half_lattice
from liesparse.posterior import AdaptiveEngine, TorusPosterior
from liesparse.torus import phases, rotate, to_planes, wrap


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

    _kind = "ToroidalSubgroup"

    def __init__(
        self,
        *,
        n_irreps: int | str = "auto",
        multiplicity: int = 5,
        noise_std: float = 0.2,
        n_epochs: int = 10,
        dtype: str = "float32",
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_irreps = n_irreps
        self.multiplicity = multiplicity
        self.noise_std = noise_std
        self.n_epochs = n_epochs
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> ToroidalSubgroup:
        """Learn from first images ``X`` and second images ``y``."""
        first, second = self._pair(X, y, reset=True)
        n_pixels = first.rows.shape[1]
        n_irreps = min(30, n_pixels // 2) if self.n_irreps == "auto" else int(self.n_irreps)
        check_n_pixels(n_pixels, n_irreps)
        frequencies = half_lattice(1, n_irreps, multiplicity=self.multiplicity, include_zero=True)
        generator = self._generator()
        subspace = leading_subspace(torch.cat((first.rows, second.rows)), 2 * n_irreps)
        mixing = stiefel.random_point(2 * n_irreps, 2 * n_irreps, generator=generator, dtype=self._dtype())
        settings = SubgroupSettings(noise_std=self.noise_std, n_epochs=self.n_epochs)
        learned = learn_subgroup(
            subspace @ mixing.to(subspace), frequencies, first.rows, second.rows, settings, generator=generator
        )
        self.group_basis_, self.frequencies_ = to_cpu(learned).numpy(), frequencies.numpy()
        return self

    def infer_pose(self, X: Any, y: Any) -> Any:
        """Return the angle s from each first image to its second, of shape (n_pairs,), in [-π, π]."""
        first, _, natural = self._natural(X, y)
        engine = AdaptiveEngine(self._frequencies(), dtype=natural.dtype, device=natural.device)
        return first.restore(wrap(engine.modes(natural).poses[:, 0, 0]))

    def pose_posterior(self, X: Any, y: Any) -> TorusPosterior:
        """Return P(s | I, I') for each pair."""
        return TorusPosterior(self._natural(X, y)[2], self._frequencies())

    def move(self, X: Any, delta: Any) -> Any:
        """Apply T(δ) to each image: one angle for all, or one for each."""
        check_is_fitted(self)
        images = self._take_images(X)
        delta = self._tensor(delta)
        if delta.ndim > 1 or delta.numel() not in (1, len(images.rows)):
            raise ValueError(f"delta has shape {tuple(delta.shape)}, expected () or ({len(images.rows)},).")
        basis, poses = self._basis(), delta.expand(len(images.rows))[:, None]
        planes = rotate(to_planes(basis, images.rows), phases(self._frequencies(), poses))
        return images.restore_images(images.norms * (planes.flatten(1) @ basis.T))

    def score(self, X: Any, y: Any) -> float:
        """Return the mean of ln P(I' | I)."""
        first, second, _ = self._natural(X, y)
        return float(
            pair_log_likelihood(self._basis(), self._frequencies(), first.rows, second.rows, self.noise_std).mean()
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _pair(self, X: Any, y: Any, *, reset: bool = False) -> tuple[ImageBatch, ImageBatch]:
        first = self._take_images(X, reset=reset)
        second = self._take_images(y)
        if len(first.rows) != len(second.rows):
            raise ValueError(f"X has {len(first.rows)} images and y {len(second.rows)}: give pairs.")
        if not bool((first.seen * second.seen).all()):
            raise ValueError("A blank image is no partner: drop the pairs with a blank row.")
        return first, second

    def _natural(self, X: Any, y: Any) -> tuple[ImageBatch, ImageBatch, Tensor]:
        check_is_fitted(self)
        first, second = self._pair(X, y)
        return first, second, pair_natural(self._basis(), first.rows, second.rows, self.noise_std)

    def _basis(self) -> Tensor:
        return torch.from_numpy(self.group_basis_).to(self._device())

    def _frequencies(self) -> Tensor:
        return torch.from_numpy(self.frequencies_)

    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"group_basis": torch.from_numpy(self.group_basis_), "frequencies": self._frequencies()}

    def _unpack(self, sealed: Sealed, path: str | Path) -> None:
        need(sealed, path, {}, ("group_basis", "frequencies"))
        self.group_basis_ = sealed.tensors["group_basis"].numpy()
        self.frequencies_ = sealed.tensors["frequencies"].numpy()
        self.n_features_in_ = len(self.group_basis_)
