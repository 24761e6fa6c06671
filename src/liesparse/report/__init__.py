"""One page that answers what a model has learned: numbers, shapes, motions, examples, and how it came about."""

from liesparse.report.write import write_report

__all__ = ["write_report"]
