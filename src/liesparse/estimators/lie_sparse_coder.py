"""LieSparseCoder: shapes, codes and poses behind scikit-learn's interface."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from liesparse import torus
from liesparse._checks import check_count, reject
from liesparse.checkpoint import pack_parameters, unpack_parameters
from liesparse.data import ShardBatches, Shards
from liesparse.devices import choose_device, to_cpu
from liesparse.estimators.posed_coder import PosedCoder
from liesparse.files import Sealed
from liesparse.groups import Composition, Fixed, Group, LearnedTorus, find_group
from liesparse.learning import advance, engine_for
from liesparse.model import Parameters, PosePrior
from liesparse.parallel import ALONE
from liesparse.parallel import Group as Processes
from liesparse.settings import RECIPES, ModelSettings, Recipe, load_recipe, setting_names
from liesparse.start import make_start
from liesparse.state import BatchSource, LoaderBatches, Progress, ShuffledArrays, State, is_stream
from liesparse.training import CheckpointPolicy, History, Interrupted, Trained, learn_model
from liesparse.verdict import Verdict, read_verdict

N_START = 2000  # images of a stream from which learning starts


@dataclass(eq=False, repr=False)
class LieSparseCoder(PosedCoder):
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
    multiplicity : int or "auto", default="auto"
        Planes for each frequency at the start; "auto" is 1, or many of few frequencies for one axis.
    sparsity : float, default=10.0
        Rate of the exponential prior on the codes (paper: λ).
    noise_std : float or "auto", default="auto"
        Standard deviation of the pixel noise of an image of norm 1 (paper: σ). "auto" is the paper's 0.1, or less
        where the images hold white noise.
    pose_prior : "uniform" or PosePrior, default="uniform"
        Prior of the pose; :func:`liesparse.narrow_prior` makes one around 0.
    group : str or group of ``liesparse.groups``, default="learned"
        How the images move: "learned" finds it, with ``torus_dim`` axes; "translation", "rotation" (of grey pictures)
        and "shift" (of signals) are known, and only the shapes are learned. Two of them one after the other are
        "translation@rotation", which turns and then shifts, or "translation@learned".
    recipe : str or path, default="best"
        How the model is found: "best", "paper" or a TOML file.
    n_epochs : int, default=None
        Passes over the images, instead of the recipe's.
    settings : dict, default=None
        Other values of the recipe, as ``{"learning.first_memory": 20}``.
    exact_codes : bool, default=True
        Whether codes go on to the exact maximum of P(α|I), with true zeros, or stop where the paper's 20 steps do.
    checkpoint_dir : path, default=None
        Folder in which ``fit`` saves its state; the same ``fit`` again resumes exactly.
    callbacks : list of callables, default=None
        Each is called with a :class:`liesparse.state.Progress` after every batch; ``history_`` grows meanwhile.
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
    verdict_ : Verdict or None
        Whether ``fit`` found a motion, and on what evidence: ``print(coder.verdict_)``. None where nobody looked.
    pose_ranges_ : ndarray of shape (n_components, torus_dim, 3) or None
        Where the poses of each template lie: circular mean, and 2nd and 98th percentile about it, in radians.
    n_features_in_, image_shape_
        Size and shape of an image.
    """

    n_components: int = 10
    _: KW_ONLY
    n_irreps: int | str = "auto"
    torus_dim: int = 2
    multiplicity: int | str = "auto"
    sparsity: float = 10.0
    noise_std: float | str = "auto"
    pose_prior: str | PosePrior = "uniform"
    group: str | Group = "learned"
    recipe: str | Path = "best"
    n_epochs: int | None = None
    settings: Mapping[str, Any] | None = None
    exact_codes: bool = True
    checkpoint_dir: str | Path | None = None
    callbacks: list[Any] | None = None
    warm_start: bool = False
    _kind = "LieSparseCoder"
    _values: ClassVar = {"history": list, "n_iter": int}

    @classmethod
    def from_model(
        cls,
        model: Parameters,
        image_shape: tuple[int, ...] | None = None,
        *,
        history: History | None = None,
        verdict: Verdict | None = None,
        **settings: Any,
    ) -> LieSparseCoder:
        """Return a fitted estimator around a model from elsewhere, such as :func:`liesparse.load_model`."""
        shape = image_shape or (model.n_pixels,)
        if math.prod(shape) != model.n_pixels:
            reject("image_shape", f"a product of {model.n_pixels} pixels", str(shape), "Give (height, width).")
        names = ("n_components", "n_irreps", "torus_dim", "sparsity", "noise_std")
        known = {name: getattr(model, name) for name in names} | {"dtype": str(model.dtype).removeprefix("torch.")}
        if model.outer is not None:
            known |= {"group": f"{Fixed.name}@{Fixed.name}"}
        estimator = cls(**known | settings)
        estimator.image_shape_, estimator.n_features_in_ = tuple(shape), model.n_pixels
        return estimator._set_model(Trained(model.validate(), list(history or []), 0, verdict))

    def fit(self, X: Any, y: Any = None, *, group: Processes = ALONE) -> LieSparseCoder:  # noqa: ARG002
        """Learn shapes and transformations from images; the processes of ``group`` share each batch.

        Several processes (:func:`liesparse.parallel.join`) must call it with the same images and settings.
        """
        self._recipe = None  # a file is read anew
        recipe, generator = self.effective_recipe(), self._generator()
        self._recipe = None if self.recipe in RECIPES else (str(self.recipe), load_recipe(self.recipe))
        images, source, recipe = self._training_images(X, recipe, generator)
        start = self.model_ if self.warm_start and hasattr(self, "model_") else None
        self._check_sizes(images, recipe, start)

        def tell(progress: Progress, history: History) -> None:
            self.history_ = list(history)
            for callback in self.callbacks or ():
                callback(progress)

        try:
            trained = learn_model(
                images,
                self._model_settings(),
                recipe,
                generator=generator,
                source=source,
                start=start,
                checkpoints=CheckpointPolicy(Path(self.checkpoint_dir)) if self.checkpoint_dir is not None else None,
                callback=tell,
                group=group,
            )
        except Interrupted as stopped:  # what was learned stays usable
            state, history = stopped.checkpoint.state, stopped.checkpoint.history
            self._set_model(Trained(state.parameters, history, state.step))
            raise
        return self._set_model(trained)

    def _training_images(
        self, X: Any, recipe: Recipe, generator: torch.Generator
    ) -> tuple[Tensor, BatchSource | None, Recipe]:
        """Return the images from which learning starts, the source of the batches if it is another one, and how."""
        if isinstance(X, Shards):
            drawn = int(torch.randint(2**31, (), generator=generator))
            sample = X.sample(max(N_START, self.n_components), drawn).unflatten(1, X.image_shape)
            size = recipe.learning.resolve(self.n_components).batch_size
            return self._images_to_learn(sample), ShardBatches(X, size, dtype=self._dtype()), recipe
        if not is_stream(X):
            return self._images_to_learn(X), None, recipe
        unseen = iter((True,))  # the first batch decides the shape of the images
        loader = LoaderBatches(X, lambda batch: self._images_to_learn(batch, reset=next(unseen, False)))
        images = loader.look_ahead(max(N_START, self.n_components))
        if loader.once:
            recipe = recipe.with_values({"learning.n_epochs": 1})
        return images, loader, recipe

    def partial_fit(self, X: Any, y: Any = None) -> LieSparseCoder:  # noqa: ARG002
        """Learn from some more images, once; the first call also makes the start."""
        begun, recipe = hasattr(self, "model_"), self.effective_recipe()
        images = self._images_to_learn(X, reset=not begun)
        recipe = recipe.for_group(self._model_settings().group)
        settings = recipe.learning.resolve(self.n_components)
        if not begun:
            self._check_sizes(images, recipe, None)
            start = make_start(images, self._model_settings(), recipe, generator=self._generator())
            self._set_model(Trained(start.parameters, [], 0))
        state = getattr(self, "_state", None)
        if state is None:
            state = State.begin(self.model_, self._generator())._replace(step=self.n_iter_)
        engine = None
        generator = torch.Generator()
        generator.set_state(state.random)
        with torch.no_grad():
            for batch in ShuffledArrays(images, settings.batch_size).epoch(generator):
                engine = engine_for(state.parameters, settings, engine)
                state, _ = advance(state, batch, settings, engine)
        state = state._replace(random=generator.get_state())
        self._set_model(Trained(state.parameters, self.history_, state.step))
        self._state: State | None = state
        return self

    def _model_settings(self) -> ModelSettings:
        values = {name: getattr(self, name) for name in ModelSettings.__dataclass_fields__}
        group = self._group()
        if isinstance(group, LearnedTorus):
            return ModelSettings(**values | {"group": None, "torus_dim": group.torus_dim})
        return ModelSettings(**values | {"group": group})

    def _group(self) -> Group:
        if isinstance(self.group, Group):
            return self.group
        names = self.group.split("@") if isinstance(self.group, str) else []
        bases = self.model_.actions if hasattr(self, "model_") else ()
        if len(names) == len(bases) and (len(names) > 1 or Fixed.name in names):  # as a file has it
            parts = [
                Fixed(*basis) if name == Fixed.name else find_group(name, self.image_shape_, basis[1].shape[1])
                for name, basis in zip(names, bases, strict=True)
            ]
            return Composition(*parts) if len(parts) > 1 else parts[0]
        return find_group(self.group, self.image_shape_, self.torus_dim)

    def coordinate_names(self) -> list[str] | None:
        """Return the names of the pose's coordinates, where a part of the group is known."""
        group = self._group()
        return None if isinstance(group, LearnedTorus) else [each.name for each in group.coordinates]

    def poses_in_units(self, poses: Any) -> dict[str, Any]:
        """Return poses of a known group as columns in its own units, named as ``shift_x (pixels)``."""
        group = self._group()
        if isinstance(group, LearnedTorus):
            expected = "a known group, as group='translation'"
            reject("group", expected, "'learned'", "Compare its poses with known factors by liesparse.symmetry.")
        turns = to_cpu(torus.wrap(self._tensor(poses)) / (2 * math.pi))
        plain = turns if isinstance(poses, Tensor) else turns.numpy()
        return {
            f"{name} ({unit})": plain[:, axis] * per_turn
            for axis, (name, unit, per_turn) in enumerate(group.coordinates)
        }

    def _check_sizes(self, images: Tensor, recipe: Recipe, start: Parameters | None) -> None:
        """Reject too few images or pixels in scikit-learn's own words."""
        n_samples, n_features = images.shape
        if start is not None and start.n_pixels != n_features:
            raise ValueError(
                f"X has {n_features} features, but the {type(self).__name__} to be continued has "
                f"{start.n_pixels}. Set warm_start=False."
            )
        if n_features < 2:
            raise ValueError(f"n_features={n_features}, but {type(self).__name__} needs at least 2 pixels.")
        if check_count("n_components", self.n_components) > n_samples and recipe.start != "random" and start is None:
            raise ValueError(f"n_samples={n_samples} should be >= n_components={self.n_components}.")

    def _noise_std(self) -> float:
        return self.model_.noise_std

    def _set_model(self, trained: Trained) -> LieSparseCoder:
        model, self.history_, self.n_iter_, self.verdict_, ranges, plain = trained
        self.pose_ranges_ = None if ranges is None else to_cpu(ranges).numpy()
        self.plain_dictionary_ = None if plain is None else to_cpu(plain)  # for a comparison; not saved
        self.model_ = model.to(choose_device(self.device))
        self.components_ = to_cpu(self.model_.dictionary.T).contiguous().numpy()
        self.group_basis_ = to_cpu(self.model_.group_basis).numpy()
        self.frequencies_ = to_cpu(self.model_.frequencies).numpy()
        self._state = None
        return self

    def _repr_html_(self) -> str:
        """Show the templates and the verdict in a notebook, above scikit-learn's own table of parameters."""
        plain: str = super()._repr_mimebundle_().get("text/html", "")
        if not hasattr(self, "model_") or len(self.image_shape_) not in (2, 3):
            return plain
        from liesparse.figures import sheet_html  # only who looks waits for matplotlib

        used = self.components_[:60].reshape(-1, *self.image_shape_)
        verdict = "" if self.verdict_ is None else f"<p><b>{html.escape(str(self.verdict_))}</b></p>"
        return f"<div>{verdict}{sheet_html(used, 10)}</div>{plain}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return super()._repr_mimebundle_(**kwargs) | {"text/html": self._repr_html_()}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_state"}

    def _pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header, tensors = pack_parameters(self.model_)
        header |= {"verdict": self.verdict_ and self.verdict_._asdict()}
        if self.pose_ranges_ is not None:
            tensors["pose_ranges"] = torch.from_numpy(self.pose_ranges_)
        if self._recipe is not None:
            header["recipe"] = self._recipe[1].values()
        return header | super()._pack()[0], tensors

    def _unpack(self, sealed: Sealed, path: str | Path) -> None:
        if isinstance(self.pose_prior, dict):
            try:
                saved = self.pose_prior["PosePrior"]
                frequencies = tuple(tuple(int(entry) for entry in omega) for omega in saved["frequencies"])
                self.pose_prior = PosePrior(frequencies, tuple(saved["concentrations"]), tuple(saved["means"]))
            except (KeyError, TypeError) as error:
                reject("path", "a saved PosePrior", f"{path} ({error})", "Use another copy.")
        known = {name: value for name, value in (self.settings or {}).items() if name in setting_names()}
        self.settings = known or None  # what earlier versions called otherwise was for learning only
        super()._unpack(sealed, path)
        if not all(isinstance(entry, dict) for entry in self.history_):
            reject("path", "a history with one record for each epoch", str(path), "Use another copy.")
        model = unpack_parameters(sealed, path)
        if model.n_pixels != self.n_features_in_:
            reject("path", f"an image shape of {model.n_pixels} pixels", str(self.image_shape_), "Use another copy.")
        verdict, ranges = read_verdict(sealed.header.get("verdict"), path), sealed.tensors.get("pose_ranges")
        if ranges is not None and ranges.shape != (model.n_components, model.torus_dim, 3):
            reject("path", "pose ranges that fit the model", str(path), "Use another copy.")
        self._set_model(Trained(model, self.history_, self.n_iter_, verdict, ranges))
        if self.recipe not in RECIPES and isinstance(sealed.header.get("recipe"), dict):
            kept = {name: value for name, value in sealed.header["recipe"].items() if name in setting_names()}
            self._recipe = str(self.recipe), Recipe().with_values(kept)
