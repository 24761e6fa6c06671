"""Kinds of images with a known motion, from which the battery and the composed groups are learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d, normalize, pad

from liesparse.data import (
    TransformedImages,
    embedded_digits,
    rotations_scalings,
    shears_stretches,
    translations,
    translations_rotations,
)
from liesparse.groups import Composition, KnownGroup, LearnedTorus, Rotations, Translations

SIZE, FINER = 28, 8  # pixels of a drawn shape, and how much finer it is drawn before it is averaged
PARTICLE_SIZE, PARTICLE_SHIFT, PARTICLE_NOISE = 40, 6.0, 2.0
TURN = 2 * math.pi
Part = tuple[str, tuple[int, ...], dict[str, Any]]  # of a drawing: what, where and how


@dataclass(frozen=True)
class Problem:
    """Images with a known motion; ``period`` is that of a circular factor, None for one that does not come round."""

    make: Callable[..., TransformedImages]  # of a number of images and a generator
    n_images: int = 10_000
    n_shapes: int = 10
    torus_dim: int = 2
    period: float | None = None
    control: bool = False  # nothing is to be found, or not yet
    group: KnownGroup | Composition | None = None  # as the user knows it
    values: Mapping[str, Any] = field(default_factory=dict)  # of the recipe
    bar: str = ""  # what is asked for on every seed
    any_angle: bool = False  # then errors of angle and shift say more than correlations


def _drawn(parts: Sequence[Part]) -> Tensor:
    """Draw a shape finely and average."""
    picture = Image.new("L", (FINER * SIZE, FINER * SIZE))
    for kind, places, how in parts:
        getattr(ImageDraw.Draw(picture), kind)([FINER * place for place in places], **how)
    return torch.from_numpy(np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float32) / 255)


def drawn_shapes() -> Tensor:
    """Draw five shapes without symmetry: an L, an arrow, an F, a triangle, and an open ring with a dot."""
    stroke: dict[str, Any] = {"fill": 255, "width": 2 * FINER + FINER // 2}
    shapes: tuple[list[Part], ...] = (
        [("line", (8, 6, 8, 22, 19, 22), stroke)],
        [("line", (14, 5, 14, 23), stroke), ("line", (8, 11, 14, 5, 20, 11), stroke)],
        [("line", (8, 6, 20, 6), stroke), ("line", (9, 6, 9, 23), stroke), ("line", (9, 14, 17, 14), stroke)],
        [("polygon", (9, 4, 20, 23, 9, 23), {"fill": 255})],
        [("arc", (6, 6, 22, 22), stroke | {"start": 0, "end": 250}), ("ellipse", (12, 12, 17, 17), {"fill": 255})],
    )
    return torch.stack([_drawn(parts) for parts in shapes])


def letters(alphabet: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", height: int = 20) -> Tensor:
    """Draw letters in the font that matplotlib ships."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    how = {"font": ImageFont.truetype(str(path), height * FINER), "fill": 255, "anchor": "mm"}
    return torch.stack([_drawn([("text", (SIZE // 2, SIZE // 2), how | {"text": letter})]) for letter in alphabet])


def turned(n_images: int, generator: Generator, sources: Tensor | None = None) -> TransformedImages:
    """Turn shapes by any angle."""
    made = translations_rotations(n_images, max_shift=0, max_degrees=180, sources=sources, generator=generator)
    return made._replace(factors=made.factors[:, 2:], factor_names=made.factor_names[2:])


def shifted_signals(n_images: int, generator: Generator, n_signals: int = 3, length: int = 50) -> TransformedImages:
    """Shift random signals round a circle, by any amount."""
    signals = torch.fft.rfft(torch.randn(n_signals, length, generator=generator))
    shifts = TURN * torch.rand(n_images, 1, generator=generator)
    labels = torch.arange(n_images) % n_signals
    moved = torch.fft.irfft(signals[labels] * torch.exp(-1j * shifts * torch.arange(signals.shape[1])), n=length)
    return TransformedImages(normalize(moved, dim=1), labels, shifts, ("shift",))


def with_noise(made: TransformedImages, norm: float, generator: Generator) -> TransformedImages:
    """Add pixel noise of some norm."""
    noise = norm * normalize(torch.randn(made.images.shape, generator=generator), dim=1)
    return made._replace(images=normalize(made.images + noise, dim=1))


def particles(n_images: int, generator: Generator) -> TransformedImages:
    """Draw five shapes in any angle, anywhere within ±6 of 40 × 40 pixels, under noise of twice their norm."""
    sources = pad(drawn_shapes(), ((PARTICLE_SIZE - SIZE) // 2,) * 4)
    how: dict[str, Any] = {"max_shift": PARTICLE_SHIFT, "max_degrees": 180, "sources": sources}
    return with_noise(translations_rotations(n_images, **how, generator=generator), PARTICLE_NOISE, generator)


def _noisy(n_images: int, generator: Generator, norm: float, **how: Any) -> TransformedImages:
    return with_noise(translations(n_images, **how, generator=generator), norm, generator)


def _shuffled(n_images: int, generator: Generator) -> TransformedImages:
    """Shift digits, then shuffle the pixels of each image anew."""
    made = translations(n_images, generator=generator)
    order = torch.rand(made.images.shape, generator=generator).argsort(dim=1)
    return made._replace(images=made.images.gather(1, order))


def _noise(n_images: int, generator: Generator) -> TransformedImages:
    made = translations(n_images, generator=generator)
    noise = torch.randn(made.images.shape, generator=generator)
    return made._replace(images=normalize(noise, dim=1))


def _small_digits(n_images: int, generator: Generator) -> TransformedImages:
    sources = avg_pool2d(embedded_digits()[None, :4], 2)[0]
    return translations(n_images, max_shift=3.5, sources=sources, generator=generator)


def _turned_shapes(n_images: int, generator: Generator, max_shift: float) -> TransformedImages:
    how: dict[str, Any] = {"max_degrees": 180, "sources": drawn_shapes(), "generator": generator}
    return translations_rotations(n_images, max_shift=max_shift, **how)


PROBLEMS = {
    "translation": Problem(translations),
    "translation-wrapped": Problem(partial(translations, max_shift=14, wrap=True), period=28.0),
    "rotation-scaling": Problem(rotations_scalings),
    "shear-stretch": Problem(shears_stretches),
    "rotation-360": Problem(turned, torus_dim=1, period=TURN),
    "rotation-360-few": Problem(lambda n, generator: turned(n, generator, drawn_shapes()), 3000, 5, 1, TURN),
    "miniature": Problem(_small_digits, n_shapes=4),
    "signals": Problem(shifted_signals, 5000, 3, 1, TURN),
    "noisy": Problem(partial(_noisy, norm=1.0)),
    "few": Problem(translations, 1000),
    "many-shapes": Problem(lambda n, generator: translations(n, sources=letters(), generator=generator), n_shapes=26),
}
EARLY = {"start": "data", "learning.n_epochs": 2}
CONTROLS = {
    "still": Problem(partial(_noisy, norm=0.2, max_shift=0), 3000, control=True),
    "shuffled": Problem(_shuffled, 3000, control=True),
    "noise": Problem(_noise, 3000, control=True),
    "stopped-early": Problem(translations, 3000, control=True, values=EARLY),
}
SHIFTS, TURNS = Translations(SIZE, SIZE), Rotations(SIZE, SIZE)
KNOWN = {  # the motion is given, so few images are enough; learned only if asked for by name
    "known-translation": Problem(translations, 500, group=SHIFTS),
    "known-rotation": Problem(turned, 500, 10, 1, TURN, group=TURNS),
}
_moved_digits = partial(translations_rotations, max_shift=4, max_degrees=40)
_moved_particles = Translations(PARTICLE_SIZE, PARTICLE_SIZE) @ Rotations(PARTICLE_SIZE, PARTICLE_SIZE)
GROUPS = {  # two of them, with both known, one of them, or none
    "known@known": Problem(_moved_digits, group=SHIFTS @ TURNS, bar="SNR 18, R 0.98"),
    "known@learned": Problem(_moved_digits, group=SHIFTS @ LearnedTorus(1), bar="SNR 13, R 0.95"),
    "learned@learned": Problem(_moved_digits, group=LearnedTorus(2) @ LearnedTorus(1), bar="none (SNR 9, R 0.9)"),
    "three-axes": Problem(_moved_digits, torus_dim=3, bar="none"),
    "any-angle": Problem(
        partial(_turned_shapes, max_shift=4),
        10_000,
        5,
        group=SHIFTS @ TURNS,
        bar="purity 0.98, angle 3°",
        any_angle=True,
    ),
    "particles": Problem(
        particles, 5000, 5, group=_moved_particles, bar="purity 0.95, angle 5°, shift 0.5 px", any_angle=True
    ),
    "known-500": replace(KNOWN["known-translation"], bar="all ten, SNR 30"),
}
EVERY = PROBLEMS | CONTROLS | KNOWN | GROUPS
