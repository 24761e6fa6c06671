"""The checker that the suite puts around every function of liesparse: an int is a fine float.

Left out is what takes anything and complains in words of its own: constructors of estimators (scikit-learn's contract),
recipes, and commands, whose arguments typer has checked.
"""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    module = getattr(function, "__module__", "")
    constructs = function.__name__ == "__init__" and module.startswith(("liesparse.estimators", "liesparse.recipes"))
    return function if constructs or module.startswith("liesparse.cli") else _check(function)
