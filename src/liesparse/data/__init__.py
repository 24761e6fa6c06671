"""Images to learn from: made from embedded digits, MNIST and its like, or any file of images."""

from liesparse.data.datasets import LoadedData as LoadedData
from liesparse.data.datasets import list_datasets as list_datasets
from liesparse.data.datasets import load_mnist as load_mnist
from liesparse.data.datasets import register_dataset as register_dataset
from liesparse.data.datasets import register_transformation as register_transformation
from liesparse.data.datasets import split_images as split_images
from liesparse.data.downloads import fetch as fetch
from liesparse.data.loading import ImagesInOrder as ImagesInOrder
from liesparse.data.loading import check_shape as check_shape
from liesparse.data.loading import load_data as load_data
from liesparse.data.loading import load_images as load_images
from liesparse.data.loading import parse_spec as parse_spec
from liesparse.data.shards import ShardBatches as ShardBatches
from liesparse.data.shards import Shards as Shards
from liesparse.data.shards import open_shards as open_shards
from liesparse.data.synthetic import TransformedImages as TransformedImages
from liesparse.data.synthetic import embedded_digits as embedded_digits
from liesparse.data.synthetic import rotations_scalings as rotations_scalings
from liesparse.data.synthetic import shears_stretches as shears_stretches
from liesparse.data.synthetic import translations as translations
from liesparse.data.synthetic import translations_rotations as translations_rotations
from liesparse.data.synthetic import unit_norm as unit_norm
from liesparse.data.synthetic import warp as warp
