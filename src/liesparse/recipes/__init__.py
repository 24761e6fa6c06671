"""Recipes: everything that decides how a model is found and evaluated, as files.

``paper`` is what was published, ``best`` is ours and the default; any other TOML file of the same form will do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from liesparse._checks import check_choice, check_count, refusing, reject
from liesparse.groups import Composition, KnownGroup, LearnedTorus
from liesparse.model import Parameters
from liesparse.posterior import PoseEngine, engine_names, engine_of
from liesparse.settings import Settings

Start = Literal["random", "data", "pairs"]
STARTS: tuple[Start, ...] = ("random", "data", "pairs")
RECIPES = ("best", "paper")


@dataclass(frozen=True)
class EvaluationSettings:
    """How held-out images are reconstructed: the engine, its grid, and whether the best pose is refined."""

    posterior: str = "auto"
    n_grid: int = 100
    refine: bool = True

    def __post_init__(self) -> None:
        check_choice("posterior", self.posterior, engine_names())
        check_count("n_grid", self.n_grid, 2)
        if not isinstance(self.refine, bool):
            reject("refine", "true or false", repr(self.refine), "Write it without quotes.")

    def make_engine(self, model: Parameters) -> PoseEngine:
        """Return the engine for a model."""
        return engine_of(model, self.posterior, self.n_grid)


@dataclass(frozen=True)
class Recipe:
    """Where learning starts, how it goes on, and how the result is evaluated.

    ``n_init`` starts are tried, and the best goes on. ``include_zero`` gives the lattice a plane that does not turn;
    the paper leaves open whether ω = 0 is in it.
    """

    start: Start = "data"
    n_init: int = 1
    include_zero: bool = True
    learning: Settings = field(default_factory=Settings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        check_choice("start", self.start, STARTS)
        check_count("n_init", self.n_init)
        if not isinstance(self.include_zero, bool):
            reject("include_zero", "true or false", repr(self.include_zero), "Write it without quotes.")

    def for_group(self, group: KnownGroup | Composition | None) -> Recipe:
        """Return the recipe for a group that is known, or to be learned."""
        inner = group.inner if isinstance(group, Composition) else group
        learned = inner is None or isinstance(inner, LearnedTorus)
        return self if learned else self.with_values({"learning.learn_group": False})

    def values(self) -> dict[str, Any]:
        """Return all values, named as ``start`` or ``learning.n_epochs``."""
        return _flatten(asdict(self))

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """Return the recipe with some values changed, named as ``start`` or ``learning.n_epochs``."""
        recipe = self
        for name, value in values.items():
            if name not in names():
                reject("setting", f"one of {', '.join(names())}", repr(name), "Check its name.")
            part, _, key = name.rpartition(".")
            change = {part: replace(getattr(recipe, part), **{key: value})} if part else {key: value}
            recipe = replace(recipe, **change)
        return recipe


def names() -> list[str]:
    """Return the names of all values of a recipe."""
    return list(Recipe().values())


def load_recipe(name: str | Path = "best") -> Recipe:
    """Load a recipe that ships with the package, or any TOML file."""
    path = Path(str(name))  # a damaged model may name anything
    if str(name) in RECIPES:
        text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    elif path.suffix == ".toml" and path.is_file():
        with refusing("a TOML file", name, "Save it as UTF-8.", (OSError, UnicodeDecodeError), "recipe"):
            text = path.read_text(encoding="utf-8")
    else:
        reject("recipe", "'best', 'paper' or the path of a .toml file", repr(str(name)), "Check the name.")
    with refusing("a TOML file", name, "Correct that line.", tomllib.TOMLDecodeError, "recipe"):
        return Recipe().with_values(_flatten(tomllib.loads(text)))


def parse_values(pairs: list[str]) -> dict[str, Any]:
    """Turn ``key=value`` from the command line into values; numbers and true/false as TOML has them, else text."""
    values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            reject("setting", "key=value", repr(pair), "Put an equals sign between the name and the value.")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text.strip()
    return values


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
