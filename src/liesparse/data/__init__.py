"""Images to learn from: made from embedded digits, MNIST and its like, or any file of images."""

from liesparse.data.datasets import (
    DatasetInfo,
    LabelledImages,
    LoadedData,
    find_mnist,
    list_datasets,
    load_mnist,
    load_mnist_mini,
    register_dataset,
    register_transformation,
    split_images,
)
from liesparse.data.downloads import cache_folder, fetch
from liesparse.data.loading import ImagesInOrder, check_shape, load_data, load_images, parse_spec
from liesparse.data.shards import Shards, open_shards
from liesparse.data.stream import ShardBatches
from liesparse.data.synthetic import (
    TransformedImages,
    embedded_digits,
    rotations_scalings,
    shears_stretches,
    translations,
    translations_rotations,
    unit_norm,
    warp,
)

__all__ = [
    "DatasetInfo",
    "ImagesInOrder",
    "LabelledImages",
    "LoadedData",
    "ShardBatches",
    "Shards",
    "TransformedImages",
    "cache_folder",
    "check_shape",
    "embedded_digits",
    "fetch",
    "find_mnist",
    "list_datasets",
    "load_data",
    "load_images",
    "load_mnist",
    "load_mnist_mini",
    "open_shards",
    "parse_spec",
    "register_dataset",
    "register_transformation",
    "rotations_scalings",
    "shears_stretches",
    "split_images",
    "translations",
    "translations_rotations",
    "unit_norm",
    "warp",
]
