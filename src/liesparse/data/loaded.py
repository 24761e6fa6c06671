"""What every source of images gives."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from liesparse.data.shards import Shards


@dataclass(frozen=True)
class LoadedData:
    """Unit-norm images to learn from and to test, with the truth where it is known.

    ``factors`` has one column per name in ``factor_names``: the transformation that made each synthetic image.
    A folder of shards that is large has all images to learn from in ``stream``, and a sample of them in ``train``.
    """

    name: str
    train: Float[Tensor, "image pixel"]
    test: Float[Tensor, "test pixel"]
    image_shape: tuple[int, ...]  # (height, width), or (height, width, 3) with colours
    labels: Int[Tensor, " image"] | None = None
    test_labels: Int[Tensor, " test"] | None = None
    factors: Float[Tensor, "image factor"] | None = None
    test_factors: Float[Tensor, "test factor"] | None = None
    factor_names: tuple[str, ...] | None = None
    n_blank: int = 0
    notes: tuple[str, ...] = ()
    stream: Shards | None = None

    def summary(self) -> str:
        """Say in one line how many images there are and what was done to them."""
        size = " × ".join(map(str, self.image_shape))
        counts = f"{len(self.stream or self.train):,} images to learn from and {len(self.test):,} to test"
        parts = [f"{self.name}: {counts}, {size} pixels", f"{self.n_blank:,} blank skipped", *self.notes]
        return "; ".join(parts)
