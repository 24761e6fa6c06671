"""Images to learn from: the embedded digits and their controlled transformations."""

from liesparse.data.digits import (
    TransformedImages,
    embedded_digits,
    rotations_scalings,
    translations,
    unit_norm,
)

__all__ = ["TransformedImages", "embedded_digits", "rotations_scalings", "translations", "unit_norm"]
