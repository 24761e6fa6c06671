"""The checker that the suite puts around every function of liesparse: an int is a fine float.

Left out is what takes anything and complains in words of its own: constructors of estimators (scikit-learn's contract),
recipes, and commands, whose arguments typer has checked. In each test a function's first calls are all checked and then
one in eleven: a learning of thousands of equal steps would otherwise take twice as long.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

FIRST, ONE_IN = 20, 11  # a prime, which falls into step with few loops
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_counts: dict[int, int] = {}  # calls of each function since the test began
_numbers = itertools.count()


def begin() -> None:
    """Check the first calls of every function again."""
    _counts.clear()


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    module = getattr(function, "__module__", "")
    constructs = function.__name__ == "__init__" and module.startswith(("liesparse.estimators", "liesparse.recipes"))
    if constructs or module.startswith("liesparse.cli"):
        return function
    checked, number = _check(function), next(_numbers)

    @functools.wraps(function)
    def sometimes(*args: Any, **kwargs: Any) -> Any:
        _counts[number] = count = _counts.get(number, 0) + 1
        return checked(*args, **kwargs) if count <= FIRST or count % ONE_IN == 0 else None

    return sometimes
