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
from liesparse.data.loaded import LoadedData
from liesparse.data.mnist import LabelledImages, load_mnist, load_mnist_mini
from liesparse.data.shards import Shards, open_shards
from liesparse.data.shuffle import Streamed
from liesparse.data.sources import (
    ImagesToUse,
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
    "Shards",
    "SourceInfo",
    "Streamed",
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
    "open_shards",
    "rotations_scalings",
    "shears_stretches",
    "translations",
    "translations_rotations",
    "unit_norm",
]
