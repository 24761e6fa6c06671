"""The scikit-learn face: the only place that transposes Φ, scales images, and speaks numpy."""

from liesparse.estimators.lie_sparse_coder import LieSparseCoder
from liesparse.estimators.posed_coder import Inference
from liesparse.estimators.sparse_coder import SparseCoder
from liesparse.estimators.toroidal_subgroup import ToroidalSubgroup

__all__ = ["Inference", "LieSparseCoder", "SparseCoder", "ToroidalSubgroup"]
