"""Images to learn from: the embedded digits, their controlled transformations, and MNIST."""

from liesparse.data.digits import (
    TransformedImages,
    embedded_digits,
    rotations_scalings,
    translations,
    unit_norm,
)
from liesparse.data.mnist import load_mnist

__all__ = ["TransformedImages", "embedded_digits", "load_mnist", "rotations_scalings", "translations", "unit_norm"]
