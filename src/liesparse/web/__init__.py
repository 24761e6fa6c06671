"""The explorer: a learned session in the browser. Thin routes over the estimators, and one page."""
