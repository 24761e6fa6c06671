"""Images to learn from: made from embedded digits, MNIST and its like, or any file of images."""

from liesparse.data.digits import (
    TransformedImages,
    embedded_digits,
    rotations_scalings,
    shears_stretches,
    translations,
    translations_rotations,
    unit_norm,
)
from liesparse.data.downloads import cache_folder, fetch
from liesparse.data.mnist import LabelledImages, load_mnist, load_mnist_mini
from liesparse.data.sources import (
    ImagesToUse,
    LoadedData,
    SourceInfo,
    check_shape,
    list_sources,
    load_data,
    load_images,
)

__all__ = [
    "ImagesToUse",
    "LabelledImages",
    "LoadedData",
    "SourceInfo",
    "TransformedImages",
    "cache_folder",
    "check_shape",
    "embedded_digits",
    "fetch",
    "list_sources",
    "load_data",
    "load_images",
    "load_mnist",
    "load_mnist_mini",
    "rotations_scalings",
    "shears_stretches",
    "translations",
    "translations_rotations",
    "unit_norm",
]
