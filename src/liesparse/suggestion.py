"""Which number of torus axes and of templates fits some images: a short trial of each, judged by held-out evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from liesparse._checks import check_count, reject
from liesparse.learning import engine_for
from liesparse.metrics import examine
from liesparse.pairs import choose_shapes, learn_motion
from liesparse.settings import ModelSettings, load_recipe
from liesparse.start import FEW_IMAGES, make_start

N_HELD_OUT = 300
MOST_COMPONENTS = 60
FACTORS = (0.5, 1.0, 2.0)  # numbers of templates that are tried first, over the one that the pairs explained tell


class Trial(NamedTuple):
    """One size of a model and how well it does, before any longer training."""

    torus_dim: int
    n_components: int
    evidence: float  # mean over held-out images of ln P(I|α̂) - λ Σα̂, less ln K for each active code
    snr: float
    pair_share: float  # of any two images, those that the motion carries into each other


class Suggestion(NamedTuple):
    """The size that fits best, and all that were tried."""

    torus_dim: int
    n_components: int
    noise_std: float
    trials: tuple[Trial, ...]


def suggest(
    images: Any,
    *,
    torus_dims: Sequence[int] = (1, 2),
    random_state: int = 0,
    callback: Callable[[Trial], None] | None = None,
) -> Suggestion:
    """Try small torus dimensions and numbers of templates on images, and recommend one by held-out evidence.

    For each number of axes a motion is learned from pairs of images; how many pairs it explains tells how many shapes
    there are, and half and twice as many are tried too, and so on as long as the least or the most is best. The best
    evidence decides. What is returned has ``torus_dim``,
    ``n_components`` and ``noise_std`` for :class:`liesparse.LieSparseCoder`, and the ``trials``.

    Parameters
    ----------
    images : array or tensor of shape (n_images, ...)
        Images; blank ones are passed over.
    torus_dims : sequence of int, default=(1, 2)
        Numbers of axes to try; 3 takes many times as long.
    random_state : int, default=0
        Seed: same seed, same answer.
    callback : callable, optional
        Called with each ``Trial`` as it is done.
    """
    rows = torch.as_tensor(np.asarray(images), dtype=torch.float32).flatten(1)
    rows = rows[rows.norm(dim=1) > 0]
    n_held_out = min(N_HELD_OUT, len(rows) // 4)
    if len(rows) - n_held_out < FEW_IMAGES:
        reject(
            "images",
            f"at least {FEW_IMAGES * 4 // 3} images",
            str(len(rows)),
            "Give more, or try a few sizes with train.",
        )
    generator = torch.Generator().manual_seed(random_state)
    rows = torch.nn.functional.normalize(rows, dim=1)[torch.randperm(len(rows), generator=generator)]
    held_out, seen = rows[:n_held_out], rows[n_held_out:]
    recipe = replace(load_recipe("best"), start="data")
    trials, noise_std = [], 0.1
    for torus_dim in torus_dims:
        model = ModelSettings(1, torus_dim=check_count("torus_dims", torus_dim))
        start = make_start(seen, model, recipe, generator=generator).parameters
        noise_std, engine = start.noise_std, engine_for(start, recipe.learning)
        motion = learn_motion(start, seen, engine, generator=generator)
        likely = round(1 / max(motion.share, 1 / MOST_COMPONENTS))  # as many shapes, if so many pairs are of one
        to_try = sorted({max(1, round(likely * factor)) for factor in FACTORS})
        while to_try:
            n_components = to_try.pop(0)
            health = examine(choose_shapes(motion, n_components, engine), held_out, engine)
            # A density of K codes is larger the more codes there are; to name an active one costs ln K.
            free, named = n_components * math.log(start.sparsity), health.active_codes * math.log(n_components)
            evidence = health.objective - free - named
            trials.append(Trial(torus_dim, n_components, evidence, health.snr, motion.share))
            to_try = to_try or _beyond({one.n_components: one.evidence for one in trials if one.torus_dim == torus_dim})
            if callback is not None:
                callback(trials[-1])
    best = max(trials, key=lambda trial: trial.evidence)
    return Suggestion(best.torus_dim, best.n_components, noise_std, tuple(trials))


def _beyond(tried: dict[int, float]) -> list[int]:
    """Return the number of templates to try next: beyond the best one, where that is the most or the least."""
    best = max(tried, key=lambda n_components: tried[n_components])
    if best == max(tried) and 2 * best <= MOST_COMPONENTS:
        return [2 * best]
    return [best // 2] if best == min(tried) and best > 1 else []
