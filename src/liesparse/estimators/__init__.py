"""The scikit-learn face: the only place that transposes Φ, scales images, and speaks numpy."""

from liesparse.estimators.baselines import SparseCoder, ToroidalSubgroup
from liesparse.estimators.lie_sparse_coder import LieSparseCoder
from liesparse.estimators.posed_coder import Inference

__all__ = ["Inference", "LieSparseCoder", "SparseCoder", "ToroidalSubgroup"]
