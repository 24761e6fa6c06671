"""SparseCoder: plain sparse coding with the same face, to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from liesparse._checks import check_count
from liesparse.baselines.sparse_coding import (
    SparseCodingSettings,
    infer_sparse_codes,
    learn_sparse_coding,
    log_likelihood,
)
from liesparse.devices import to_cpu
from liesparse.estimators.base import Coder, ImageBatch
from liesparse.files import Sealed, need


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

    _kind = "SparseCoder"

    def __init__(
        self,
        n_components: int = 10,
        *,
        sparsity: float = 10.0,
        noise_std: float = 0.1,
        n_epochs: int = 10,
        dictionary_rate: float = 0.001,
        n_code_steps: int = 200,
        dtype: str = "float32",
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.sparsity = sparsity
        self.noise_std = noise_std
        self.n_epochs = n_epochs
        self.dictionary_rate = dictionary_rate
        self.n_code_steps = n_code_steps
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

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
        settings = SparseCodingSettings(
            noise_std=self.noise_std,
            sparsity=self.sparsity,
            n_epochs=self.n_epochs,
            dictionary_rate=self.dictionary_rate,
        )
        dictionary = learn_sparse_coding(images, self.n_components, settings, generator=self._generator())
        self.components_ = to_cpu(dictionary.T).contiguous().numpy()
        self.n_iter_ = self.n_epochs * -(-len(images) // settings.batch_size)
        return self

    def inverse_transform(self, codes: Any) -> Any:
        """Return the images Φα of norm-1 scale."""
        check_is_fitted(self)
        as_tensor = isinstance(codes, Tensor)
        rows = self._tensor(codes) @ self._dictionary().T
        return ImageBatch(rows, rows[:, :1], self.image_shape_, as_tensor).restore_images(rows)

    def reconstruct(self, X: Any) -> Any:
        """Return Φα̂, what the model makes of each image."""
        images = self._known_images(X)
        return images.restore_images(images.norms * (self._codes(images) @ self._dictionary().T))

    def _row_log_likelihood(self, rows: Tensor, codes: Tensor) -> Tensor:
        return log_likelihood(self._dictionary(), rows, codes, noise_std=self.noise_std)

    def _dictionary(self) -> Tensor:
        return torch.from_numpy(self.components_.T).to(self._device(), self._dtype()).contiguous()

    def _codes(self, images: ImageBatch) -> Tensor:
        dictionary = self._dictionary()

        def find(rows: Tensor) -> Tensor:
            return infer_sparse_codes(
                dictionary, rows, noise_std=self.noise_std, sparsity=self.sparsity, n_code_steps=self.n_code_steps
            )

        return self._by_chunks(find, images.rows) * images.seen

    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"n_iter": self.n_iter_}, {"components": torch.from_numpy(self.components_)}

    def _unpack(self, sealed: Sealed, path: str | Path) -> None:
        need(sealed, path, {"n_iter": int}, ("components",))
        self.components_, self.n_iter_ = sealed.tensors["components"].numpy(), sealed.header["n_iter"]
        self.n_features_in_ = self.components_.shape[1]
