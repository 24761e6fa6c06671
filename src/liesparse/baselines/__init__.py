"""Opponents and relatives: plain sparse coding, and a group learned from pairs of images."""

from liesparse.baselines.sparse_coding import SparseCodingSettings, infer_sparse_codes, learn_sparse_coding
from liesparse.baselines.tsa import SubgroupSettings, learn_subgroup, pair_log_likelihood, pair_natural

__all__ = [
    "SparseCodingSettings",
    "SubgroupSettings",
    "infer_sparse_codes",
    "learn_sparse_coding",
    "learn_subgroup",
    "pair_log_likelihood",
    "pair_natural",
]
