"""The explorer: a learned world in the browser. Thin routes over the estimators, and one page."""
