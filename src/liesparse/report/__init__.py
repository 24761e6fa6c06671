"""One page that answers what a model has learned: numbers, shapes, motions, examples, and how it came about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.files import write_atomically
from liesparse.report import sections
from liesparse.report.findings import Findings
from liesparse.report.page import build

__all__ = ["write_report"]
PAGE = "report.html"
PICTURES = "report"  # folder beside the page


@torch.no_grad()
def write_report(
    folder: Path,
    coder: LieSparseCoder,
    *,
    test: Float[Tensor, "image pixel"],
    image_shape: tuple[int, ...],
    baseline: SparseCoder | None = None,
    factors: Float[Tensor, "image factor"] | None = None,
    factor_names: tuple[str, ...] = (),
    title: str = "What the model has learned",
    facts: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write ``report.html``, one self-contained page, and its pictures as files into ``folder/report``.

    Parameters
    ----------
    folder : Path
        Where to write; it is made if need be.
    coder : LieSparseCoder
        A fitted model.
    test : Tensor of shape (n_images, n_pixels)
        Held-out images, of any scale; the first 1000 that are not blank are used.
    image_shape : tuple of int
        (height, width) of an image, or (height, width, 3) in colour; (n_pixels,) is drawn as one row.
    baseline : SparseCoder, optional
        Plain sparse coding of the same data, to compare with.
    factors : Tensor of shape (n_images, n_factors), optional
        What made the test images, such as shifts; ``factor_names`` has a name for each column.
    title : str
        Headline of the page.
    facts, metrics : mappings, optional
        What made the model (data, recipe, seed, time), and the numbers that the run wrote.

    Returns
    -------
    Path
        The page.
    """
    found = Findings(
        coder, test, image_shape=image_shape, baseline=baseline, factors=factors, factor_names=factor_names
    )
    pictures: dict[str, bytes] = {}
    values = {"title": title} | sections.summary(found) | sections.numbers(found, len(test))
    for section in sections.DRAWN:
        values |= section(found, pictures)
    values |= sections.curves(coder.history_, pictures) | sections.run(facts or {}, metrics or {})
    page = build(values)
    for name, content in pictures.items():
        write_atomically(folder / PICTURES / name, content)
    write_atomically(folder / PAGE, page.encode())  # last, so that it is only there when all is
    return folder / PAGE
