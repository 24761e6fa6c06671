"""What a fitted :class:`LieSparseCoder` does with images: find codes and poses, and move them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from liesparse._checks import check_count
from liesparse.confidence import BLANK, MIXED, NO_MOTION, STRANGE, UNMOVED, Confidence, rate_confidence
from liesparse.devices import to_cpu
from liesparse.estimators.base import Array, Coder, ImageBatch
from liesparse.inference import infer_codes, map_poses
from liesparse.metrics import refine_codes
from liesparse.model import Parameters, apply_transform, draw_codes, generate, reconstruct, undo_transform
from liesparse.posterior import AnyPosterior, TorusPosterior, engine_of, log_likelihood, pose_posterior
from liesparse.settings import Recipe, load_recipe
from liesparse.symmetry import pose_ranges
from liesparse.torus import wrap


class Inference(NamedTuple):
    """Codes (n_images, n_components) and most probable poses (n_images, torus_dim) of images."""

    codes: Any
    poses: Any


class Description(NamedTuple):
    """All that a model infers from images."""

    inference: Inference
    posterior: AnyPosterior
    log_likelihood: Any  # ln P(I | α̂) of each
    confidence: Confidence


class PosedCoder(Coder):
    """A coder whose fitted model knows poses."""

    model_: Parameters
    pose_ranges_: Array | None
    _recipe: tuple[Any, Recipe] | None = None  # the name of a recipe's file, and what it held when it was used
    exact_codes: bool
    recipe: str | Path
    n_epochs: int | None
    settings: Mapping[str, Any] | None

    def effective_recipe(self) -> Recipe:
        """Return the recipe with all changes that the parameters ask for."""
        file, kept = self._recipe or ("", None)
        recipe = kept if kept and file == str(self.recipe) else load_recipe(self.recipe)
        values = dict(self.settings or {})
        if self.n_epochs is not None:
            values["learning.n_epochs"] = self.n_epochs
        return recipe.with_values(values)

    def inverse_transform(self, codes: Any, poses: Any = None) -> Any:
        """Return the images T(s)Φα of norm-1 scale; without ``poses`` at s = 0."""
        check_is_fitted(self)
        model = self.model_
        alphas = self._tensor(codes)
        poses = alphas.new_zeros(len(alphas), model.torus_dim) if poses is None else self._tensor(poses)
        return self._as_images(reconstruct(model, alphas, poses), like=codes)

    def infer(self, X: Any) -> Inference:
        """Return codes and most probable poses."""
        images = self._known_images(X)
        return Inference(*map(images.restore, self._infer(images)))

    def pose_posterior(self, X: Any) -> AnyPosterior:
        """Return P(s | I, α̂), with modes, widths, densities and samples."""
        images = self._known_images(X)
        return pose_posterior(self.model_, images.rows, self._codes(images))

    def canonicalize(self, X: Any, *, keep_rest: bool = False, poses: Any = None) -> Any:
        """Bring each image to s = 0, from its most probable pose unless ``poses`` are given.

        The span of W moves; what lies outside it is dropped, or kept in its place with ``keep_rest``.
        """
        images = self._known_images(X)
        there = self._infer(images)[1] if poses is None else self._tensor(poses)
        return self._moved(images, there, keep_rest, undo=True)

    def move(self, X: Any, delta: Any, *, keep_rest: bool = False) -> Any:
        """Apply T(δ) to each image: one ``delta`` of shape (torus_dim,) for all, or one for each."""
        images, poses, n = self._known_images(X), self._tensor(delta), self.model_.torus_dim
        if tuple(poses.shape) not in ((n,), (len(images.rows), n)):
            raise ValueError(f"delta has shape {tuple(poses.shape)}, expected ({n},) or ({len(images.rows)}, {n}).")
        return self._moved(images, poses, keep_rest)

    def transfer_pose(self, source: Any, target: Any, *, keep_rest: bool = False) -> Any:
        """Bring each image of ``target`` into the pose of its partner in ``source``."""
        theirs, images = self._infer(self._known_images(source))[1], self._known_images(target)
        ours = self._infer(images)[1]
        if len(theirs) not in (1, len(ours)):
            raise ValueError(f"source has {len(theirs)} images and target {len(ours)}: give one source, or as many.")
        canonical = undo_transform(self.model_, images.rows, ours)
        there = apply_transform(self.model_, canonical, theirs.expand_as(ours))
        if keep_rest:
            there = there + images.rows - apply_transform(self.model_, canonical, ours)
        return images.restore_images(images.norms * there)

    def interpolate(self, a: Any, b: Any, steps: int = 9) -> Any:
        """Go from each image of ``a`` to its partner in ``b``: poses along the shorter way round the torus.

        Codes and scale change in equal steps. Returns (n_images, steps, …); the ends are the reconstructions.
        """
        check_count("steps", steps, 2)
        first, second = self._known_images(a), self._known_images(b)
        if len(first.rows) != len(second.rows):
            raise ValueError(f"a has {len(first.rows)} images and b {len(second.rows)}: give pairs.")
        (codes_a, poses_a), (codes_b, poses_b) = self._infer(first), self._infer(second)
        way = wrap(poses_b - poses_a)
        frames = []
        for share in np.linspace(0, 1, steps).tolist():
            frame = reconstruct(self.model_, torch.lerp(codes_a, codes_b, share), poses_a + share * way)
            frames.append(torch.lerp(first.norms, second.norms, share) * frame)
        return first.restore_images(torch.stack(frames, dim=1))

    def traverse(self, X: Any, axis: int, values: Any = None, *, steps: int = 9, full: bool = False) -> Any:
        """Move each reconstruction along one torus axis, in so many steps over the poses that its template has.

        That is the range of ``pose_ranges_``, from the 2nd to the 98th percentile of what was learned from; with
        ``full``, or where it is not known, the whole circle. Or by each of ``values``, of which 0 is the reconstruction
        itself. Returns (n_images, n_steps, …).
        """
        images, n = self._known_images(X), self.model_.torus_dim
        if not 0 <= axis < n:
            raise ValueError(f"axis={axis}, but the poses have axes 0 to {n - 1}.")
        codes, poses = self._infer(images)
        if values is None and not full and self.pose_ranges_ is not None:
            middle, low, high = self._tensor(self.pose_ranges_)[codes.argmax(dim=1), axis].unbind(dim=1)
            shares = torch.linspace(0, 1, check_count("steps", steps, 2)).to(poses)
            places = middle + low + shares[:, None] * (high - low)
        else:
            values = np.linspace(-math.pi, math.pi, check_count("steps", steps, 2)) if values is None else values
            places = poses[:, axis] + self._tensor(values)[:, None]
        frames = []
        for place in places:
            there = poses.clone()
            there[:, axis] = place
            frames.append(images.norms * reconstruct(self.model_, codes, there))
        return images.restore_images(torch.stack(frames, dim=1))

    def pose_ranges(self, X: Any) -> Array:
        """Return where the poses of images lie, of shape (n_components, torus_dim, 3).

        For each template and axis: the circular mean, and the 2nd and 98th percentile about it, in radians.
        """
        return to_cpu(pose_ranges(*self._infer(self._known_images(X)))).numpy()

    def sample(self, n_samples: int = 1, *, noise: bool = False) -> tuple[Array, Inference]:
        """Draw images from the model, codes and poses from their priors; returns them with both."""
        check_is_fitted(self)
        model, generator = self.model_, self._generator()
        codes = draw_codes(model, check_count("n_samples", n_samples), generator=generator)
        if model.outer is None:
            prior = TorusPosterior(model.pose_prior[None], model.frequencies)
            poses = prior.sample(n_samples, generator=generator)[0].to(codes)
        else:  # uniform
            turns = torch.rand(n_samples, model.torus_dim, generator=generator, dtype=torch.float64)
            poses = wrap(2 * math.pi * turns).to(codes)
        rows = generate(model, codes, poses, generator=generator) if noise else reconstruct(model, codes, poses)
        images, *found = (to_cpu(part).numpy() for part in (rows, codes, poses))
        return images.reshape(n_samples, *self.image_shape_), Inference(*found)

    def confidence(self, X: Any) -> Confidence:
        """Return how sure the model is of each image, and which are not to be trusted."""
        return self.describe(X).confidence

    def describe(self, X: Any) -> Description:
        """Return what ``infer``, ``pose_posterior``, ``score_samples`` and ``confidence`` do, by codes found once."""
        images, model = self._known_images(X), self.model_
        codes, poses = self._infer(images)
        scores, posterior = self._log_likelihood(images, codes), pose_posterior(model, images.rows, codes)
        known = getattr(self, "pose_ranges_", None)
        middles = torch.zeros(model.n_components, model.torus_dim) if known is None else self._tensor(known)[..., 0]
        verdict, known = getattr(self, "verdict_", None), (middles.to(poses), posterior.width)
        names = ("noise", "least_fit", "usual_share", "least_share")
        usual = {} if verdict is None else {name: getattr(verdict, name) for name in names}
        rated = rate_confidence(model, images.rows, codes, poses, scores, *known, engine_of(model), **usual)
        blank = images.norms[:, 0] == 0  # of which nothing is known
        doubt = rated.doubt
        for kind, templates in ((MIXED, verdict.mixed), (UNMOVED, verdict.unmoved)) if verdict is not None else ():
            theirs = torch.isin(codes.argmax(dim=1), torch.tensor(templates, dtype=torch.long).to(codes.device))
            doubt = torch.where(theirs & (doubt != STRANGE), kind, doubt)
        doubt = torch.where(blank, BLANK, doubt)
        if verdict is not None and not verdict.found:  # no pose to trust
            doubt = torch.full_like(doubt, NO_MOTION)
        rated = rated._replace(confidence=rated.confidence * ~blank, uncertain=doubt > 0, doubt=doubt)
        found, confidence = map(images.restore, (codes, poses)), Confidence(*map(images.restore, rated))
        return Description(Inference(*found), posterior, images.restore(scores), confidence)

    def _moved(self, images: ImageBatch, poses: Tensor, keep_rest: bool, *, undo: bool = False) -> Any:
        poses = poses.expand(len(images.rows), -1)
        moved = (undo_transform if undo else apply_transform)(self.model_, images.rows, poses)
        if keep_rest:
            moved = moved + images.rows - apply_transform(self.model_, images.rows, torch.zeros_like(poses))
        return images.restore_images(images.norms * moved)

    def _draw(self, images: ImageBatch) -> Tensor:
        return reconstruct(self.model_, *self._infer(images))  # T(ŝ)Φα̂

    def _row_log_likelihood(self, rows: Tensor, codes: Tensor) -> Tensor:
        return log_likelihood(self.model_, rows, codes, engine_of(self.model_))

    def _codes(self, images: ImageBatch) -> Tensor:
        engine, learning = engine_of(self.model_), self.effective_recipe().learning

        def find(rows: Tensor) -> Tensor:
            steps, start = learning.n_code_steps, learning.code_start
            codes = infer_codes(self.model_, rows, engine, n_code_steps=steps, start=start)
            return refine_codes(self.model_, rows, codes, engine) if self.exact_codes else codes

        return self._by_chunks(find, images.rows) * images.seen

    def _infer(self, images: ImageBatch) -> tuple[Tensor, Tensor]:
        codes, engine = self._codes(images), engine_of(self.model_)
        poses = self._by_chunks(lambda rows, codes: map_poses(self.model_, rows, codes, engine), images.rows, codes)
        return codes, poses * images.seen
