"""The checker that the suite puts around every function of liesparse: an int is a fine float.

Constructors of estimators take anything, as scikit-learn's contract has it, and complain in ``fit``.
"""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    if getattr(function, "__module__", "").startswith("liesparse.estimators") and function.__name__ == "__init__":
        return function
    return _check(function)
