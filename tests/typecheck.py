"""The checker that the suite puts around every function of liesparse: an int is a fine float.

Left out is what takes anything and complains in words of its own: constructors of estimators (scikit-learn's contract),
recipes, and commands, whose arguments typer has checked. In each test the first thousand calls are checked and no
more after them: a learning of thousands of equal steps would otherwise take twice as long.
"""

import functools
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

CHECKED = 1000  # calls in each test
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_n_calls = 0


def begin() -> None:
    """Check the next calls again, as a new test begins."""
    global _n_calls
    _n_calls = 0
    jaxtyping.config.update("jaxtyping_disable", False)


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    module = getattr(function, "__module__", "")
    constructs = function.__name__ == "__init__" and module.startswith(("liesparse.estimators", "liesparse.settings"))
    if constructs or module.startswith("liesparse.cli"):
        return function
    checked = _check(function)

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _n_calls
        _n_calls += 1
        if _n_calls == CHECKED:  # jaxtyping looks at this before it does anything for a call
            jaxtyping.config.update("jaxtyping_disable", True)
        return checked(*args, **kwargs)

    return counted
