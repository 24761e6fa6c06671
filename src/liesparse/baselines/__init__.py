"""Opponents: models without a learned group."""

from liesparse.baselines.sparse_coding import SparseCodingSettings, infer_sparse_codes, learn_sparse_coding

__all__ = ["SparseCodingSettings", "infer_sparse_codes", "learn_sparse_coding"]
