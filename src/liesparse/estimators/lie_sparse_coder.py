"""LieSparseCoder: shapes, codes and poses behind scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from liesparse._checks import check_count, reject
from liesparse.checkpoint import pack_parameters, unpack_parameters
from liesparse.data import ShardBatches, Shards
from liesparse.devices import to_cpu
from liesparse.estimators.base import Images, Stream, is_stream
from liesparse.estimators.motions import Motions
from liesparse.files import Sealed
from liesparse.inference import infer_codes, map_poses
from liesparse.initialization import random_start, start_from_data
from liesparse.learning import Progress, Shuffled, State, advance
from liesparse.metrics import MAP_STEPS
from liesparse.model import (
    Parameters,
    PosePrior,
    reconstruct,
    uniform_prior,
)
from liesparse.posterior import Engine, make_engine
from liesparse.recipes import Recipe, load_recipe
from liesparse.training import N_MONITORED, CheckpointPolicy, History, Interrupted, Trained, train

MOST_IRREPS = 128  # the paper's L, where the images have room for it
N_START = 2000  # images of a stream from which learning starts


class LieSparseCoder(Motions):
    """Sparse shapes moved by a learned torus transformation: I = W R(s) Wᵀ Φ α + ε.

    Images may be rows, (n, height, width) or (n, height, width, 3) arrays or tensors; ``fit`` also takes a torch
    ``DataLoader``, an iterator of batches, or a folder of files by :func:`liesparse.data.open_shards`. Each image is
    scaled to norm 1 for the model, and what comes back as an image has the scale and shape that came in; tensors in,
    tensors out. Codes belong to the image of norm 1. Learning passes over blank images with a warning; elsewhere a
    blank image has no codes and stays blank.

    Parameters
    ----------
    n_components : int, default=10
        Shapes in the dictionary (paper: K).
    n_irreps : int or "auto", default="auto"
        Rotation planes (paper: L); needs ``2 * n_irreps <= n_features``. "auto" is 128, or as many as fit.
    torus_dim : int, default=2
        Dimension of the pose (paper: n).
    multiplicity : int, default=1
        Planes for each frequency; 2 for data such as MNIST.
    sparsity : float, default=10.0
        Rate of the exponential prior on the codes (paper: λ).
    noise_std : float, default=0.1
        Standard deviation of the pixel noise of an image of norm 1 (paper: σ).
    pose_prior : "uniform" or PosePrior, default="uniform"
        Prior of the pose; :func:`liesparse.narrow_prior` makes one around 0.
    recipe : str or path, default="best"
        How the model is found: "best", "paper" or a TOML file.
    n_epochs : int, default=None
        Passes over the images, instead of the recipe's.
    settings : dict, default=None
        Other values of the recipe, as ``{"learning.em_rate": 0.05}``.
    exact_codes : bool, default=True
        Whether codes go on to the exact maximum of P(α|I), with true zeros, or stop where the paper's 20 steps do.
    checkpoint_dir : path, default=None
        Folder in which ``fit`` saves its state; the same ``fit`` again goes on from there, to the same bits.
    callbacks : list of callables, default=None
        Each is called with a :class:`liesparse.learning.Progress` after every batch; ``history_`` grows meanwhile.
    warm_start : bool, default=False
        Whether ``fit`` starts from the model that is there.
    dtype : {"float32", "float64"}, default="float32"
        Type of all computations and results; float32 is several times faster.
    device : {"auto", "cpu", "cuda", "cuda:1", …}, default="auto"
        Where to compute; "auto" is CUDA if there is any, else the CPU, for which there are compiled kernels.
    random_state : int, RandomState or None, default=None
        Seed: same seed, same numbers.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        One shape per row: the transpose of the paper's Φ.
    group_basis_ : ndarray of shape (n_features, 2 * n_irreps)
        Orthonormal columns, two for each plane (paper: W).
    frequencies_ : ndarray of shape (n_irreps, torus_dim)
        How fast each plane turns (paper: ω).
    model_ : Parameters
        All of it, for the functions of the library.
    n_iter_ : int
        Batches that were learned from.
    history_ : list of dict
        Health after each epoch on up to 200 of the training images.
    n_features_in_, image_shape_
        Size and shape of an image.
    """

    _kind = "LieSparseCoder"

    def __init__(
        self,
        n_components: int = 10,
        *,
        n_irreps: int | str = "auto",
        torus_dim: int = 2,
        multiplicity: int = 1,
        sparsity: float = 10.0,
        noise_std: float = 0.1,
        pose_prior: str | PosePrior = "uniform",
        recipe: str | Path = "best",
        n_epochs: int | None = None,
        settings: Mapping[str, Any] | None = None,
        exact_codes: bool = True,
        checkpoint_dir: str | Path | None = None,
        callbacks: list[Any] | None = None,
        warm_start: bool = False,
        dtype: str = "float32",
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.n_irreps = n_irreps
        self.torus_dim = torus_dim
        self.multiplicity = multiplicity
        self.sparsity = sparsity
        self.noise_std = noise_std
        self.pose_prior = pose_prior
        self.recipe = recipe
        self.n_epochs = n_epochs
        self.settings = settings
        self.exact_codes = exact_codes
        self.checkpoint_dir = checkpoint_dir
        self.callbacks = callbacks
        self.warm_start = warm_start
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    @classmethod
    def from_model(
        cls, model: Parameters, image_shape: tuple[int, ...] | None = None, **settings: Any
    ) -> LieSparseCoder:
        """Return a fitted estimator around a model from elsewhere, such as :func:`liesparse.load_model`."""
        shape = image_shape or (model.n_pixels,)
        if math.prod(shape) != model.n_pixels:
            reject("image_shape", f"a product of {model.n_pixels} pixels", str(shape), "Give (height, width).")
        estimator = cls(
            model.n_components,
            n_irreps=model.n_irreps,
            torus_dim=model.torus_dim,
            sparsity=model.sparsity,
            noise_std=model.noise_std,
            dtype=str(model.dtype).removeprefix("torch."),
            **settings,
        )
        estimator.image_shape_, estimator.n_features_in_ = tuple(shape), model.n_pixels
        return estimator._learned(Trained(model.validate(), [], 0))

    # ---- learning

    def fit(self, X: Any, y: Any = None) -> LieSparseCoder:  # noqa: ARG002
        """Learn shapes and transformations from images."""
        recipe = self._recipe()
        generator = self._generator()
        stream: Stream | ShardBatches | None = None
        if isinstance(X, Shards):
            drawn = int(torch.randint(2**31, (), generator=generator))
            images = self._images_to_learn(X.sample(max(N_START, self.n_components), drawn).unflatten(1, X.image_shape))
            stream = ShardBatches(X, recipe.learning.batch_size, dtype=self._dtype())
        elif is_stream(X):
            first = True

            def prepare(batch: Any) -> Tensor:
                nonlocal first
                reset, first = first, False
                return self._images_to_learn(batch, reset=reset)

            stream = loader = Stream(X, prepare)
            images = loader.look_ahead(max(N_START, self.n_components))
            if loader.once:
                recipe = recipe.with_values({"learning.n_epochs": 1, "learning.single_shape_epochs": 0})
        else:
            images = self._images_to_learn(X)
        if self.warm_start and hasattr(self, "model_"):
            start = self.model_
            if start.n_pixels != images.shape[1]:
                raise ValueError(
                    f"X has {images.shape[1]} features, but the {type(self).__name__} to be continued has "
                    f"{start.n_pixels}. Set warm_start=False."
                )
        else:
            start = self._start(images, recipe, generator)
        monitor_images = images[torch.randperm(len(images), generator=generator)[:N_MONITORED].to(images.device)]
        checkpoints = CheckpointPolicy(Path(self.checkpoint_dir)) if self.checkpoint_dir is not None else None

        def tell(progress: Progress, history: History) -> None:
            self.history_ = list(history)
            for callback in self.callbacks or ():
                callback(progress)

        try:
            trained = train(
                start,
                stream if stream is not None else images,
                recipe.learning,
                generator=generator,
                monitor_images=monitor_images,
                checkpoints=checkpoints,
                callback=tell,
            )
        except Interrupted as stopped:  # what was learned stays usable
            state, history = stopped.checkpoint.state, stopped.checkpoint.history
            self._learned(Trained(state.parameters, history, state.step))
            raise
        return self._learned(trained)

    def partial_fit(self, X: Any, y: Any = None) -> LieSparseCoder:  # noqa: ARG002
        """Learn from some more images, once; the first call also makes the start. No rate falls."""
        begun = hasattr(self, "model_")
        images = self._images_to_learn(X, reset=not begun)
        settings = replace(self._recipe().learning, single_shape_epochs=0)
        if not begun:
            start = self._start(images, self._recipe(), self._generator())
            self._learned(Trained(start, [], 0))
        state = getattr(self, "_state", None)
        if state is None:
            state = State.begin(self.model_, self._generator())._replace(step=self.n_iter_)
        engine = make_engine(
            settings.posterior,
            state.parameters.frequencies,
            settings.n_grid,
            dtype=self._dtype(),
            device=state.parameters.device,
        )
        generator = torch.Generator()
        generator.set_state(state.random)
        with torch.no_grad():
            for batch in Shuffled(images, settings.batch_size).epoch(generator):
                state, _ = advance(state, batch, settings, engine)
        state = state._replace(random=generator.get_state())
        self._learned(Trained(state.parameters, self.history_, state.step))
        self._state = state
        return self

    def _recipe(self) -> Recipe:
        values = dict(self.settings or {})
        recipe = load_recipe(self.recipe)
        if self.n_epochs is not None:
            values["learning.n_epochs"] = self.n_epochs
            # A short run must not spend all of its time on single shapes.
            shortened = min(recipe.learning.single_shape_epochs, check_count("n_epochs", self.n_epochs) // 3)
            values.setdefault("learning.single_shape_epochs", shortened)
        return recipe.with_values(values)

    def _start(self, images: Tensor, recipe: Recipe, generator: torch.Generator) -> Parameters:
        n_samples, n_features = images.shape
        if n_features < 2:
            raise ValueError(f"n_features={n_features}, but {type(self).__name__} needs at least 2 pixels.")
        if check_count("n_components", self.n_components) > n_samples and recipe.start == "data":
            raise ValueError(f"n_samples={n_samples} should be >= n_components={self.n_components}.")
        start = random_start(
            n_features,
            n_components=self.n_components,
            n_irreps=min(MOST_IRREPS, n_features // 2) if self.n_irreps == "auto" else self.n_irreps,  # type: ignore[arg-type]
            torus_dim=self.torus_dim,
            multiplicity=self.multiplicity,
            include_zero=recipe.include_zero,
            noise_std=self.noise_std,
            sparsity=self.sparsity,
            generator=generator,
            dtype=images.dtype,
        )
        start = replace(start, pose_prior=self._prior(start))
        if recipe.start == "data":
            start = start_from_data(start, images, generator=generator)
        return start.to(images.device)

    def _prior(self, start: Parameters) -> Tensor:
        if isinstance(self.pose_prior, PosePrior):
            return self.pose_prior.natural(start.frequencies, dtype=start.dtype)
        if self.pose_prior != "uniform":
            reject("pose_prior", "'uniform' or a PosePrior", repr(self.pose_prior), "See liesparse.narrow_prior.")
        return uniform_prior(start.n_irreps, dtype=start.dtype)

    def _learned(self, trained: Trained) -> LieSparseCoder:
        model, self.history_, self.n_iter_ = trained
        self.model_ = model.to(self._device())
        self.components_ = to_cpu(self.model_.dictionary.T).contiguous().numpy()
        self.group_basis_ = to_cpu(self.model_.group_basis).numpy()
        self.frequencies_ = to_cpu(self.model_.frequencies).numpy()
        self._state = None
        return self

    # ---- scikit-learn's transformer

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_state"}

    def transform(self, X: Any) -> Any:
        """Return the codes α̂ of each image, of shape (n_images, n_components): what is in it, wherever it is."""
        images = self._known_images(X)
        return images.give_back(self._codes(images))

    def inverse_transform(self, codes: Any, poses: Any = None) -> Any:
        """Return the images T(s)Φα of norm-1 scale; without ``poses`` at s = 0."""
        check_is_fitted(self)
        model = self.model_
        as_tensor = isinstance(codes, Tensor)
        codes = self._tensor(codes)
        poses = codes.new_zeros(len(codes), model.torus_dim) if poses is None else self._tensor(poses)
        rows = reconstruct(model, codes, poses)
        return Images(rows, rows[:, :1], self.image_shape_, as_tensor).give_back_images(rows)

    def score_samples(self, X: Any) -> Any:
        """Return ln P(I | α̂) of each norm-1 image, the pose integrated out."""
        images = self._known_images(X)
        return images.give_back(self._log_likelihood(images, self._codes(images)))

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the mean of :meth:`score_samples`."""
        return float(np.mean(np.asarray(self.score_samples(X))))

    # ---- inside

    def _engine(self) -> Engine:
        model = self.model_
        return make_engine("auto", model.frequencies, dtype=model.dtype, device=model.device)

    def _codes(self, images: Images) -> Tensor:
        engine, learning = self._engine(), self._recipe().learning

        def find(rows: Tensor) -> Tensor:
            codes = infer_codes(
                self.model_, rows, engine, n_code_steps=learning.n_code_steps, start=learning.code_start
            )
            if not self.exact_codes:
                return codes
            return infer_codes(
                self.model_, rows, engine, n_code_steps=MAP_STEPS, start=codes, update="proximal", gradient="exact"
            )

        return self._by_chunks(find, images.rows) * images.seen

    def _infer(self, images: Images) -> tuple[Tensor, Tensor]:
        codes, engine = self._codes(images), self._engine()

        def find(rows: Tensor, codes: Tensor) -> Tensor:
            return map_poses(self.model_, rows, codes, engine)

        return codes, self._by_chunks(find, images.rows, codes) * images.seen

    def _as_plain(self, value: Any) -> Any:  # type: ignore[override]
        if isinstance(value, PosePrior):
            return {"PosePrior": asdict(value)}
        return super()._as_plain(value)

    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header, tensors = pack_parameters(self.model_)
        return header | {"history": self.history_, "n_iter": self.n_iter_}, tensors

    def _unpack(self, sealed: Sealed, path: str | Path) -> None:
        if isinstance(self.pose_prior, dict):
            try:
                saved = self.pose_prior["PosePrior"]
                frequencies = tuple(tuple(int(entry) for entry in omega) for omega in saved["frequencies"])
                self.pose_prior = PosePrior(frequencies, tuple(saved["concentrations"]), tuple(saved["means"]))
            except (KeyError, TypeError) as error:
                reject("path", "a saved PosePrior", f"{path} ({error})", "Use another copy.")
        model, header = unpack_parameters(sealed, path), sealed.header
        if not isinstance(header.get("history"), list) or not isinstance(header.get("n_iter"), int):
            reject("path", "a complete file", f"{path} without history or n_iter", "Use another copy.")
        if math.prod(self.image_shape_) != model.n_pixels:
            reject("path", f"an image shape of {model.n_pixels} pixels", str(self.image_shape_), "Use another copy.")
        self.n_features_in_ = model.n_pixels
        self._learned(Trained(model, header["history"], header["n_iter"]))
