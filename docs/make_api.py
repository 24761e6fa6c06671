"""Write docs/api.md from the docstrings: ``python docs/make_api.py``; the suite checks that it is up to date."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

PAGES = {
    "Estimators": ["estimators.LieSparseCoder", "estimators.SparseCoder", "estimators.ToroidalSubgroup"],
    "The posterior of the pose": ["posterior.TorusPosterior", "model.PosePrior", "model.narrow_prior"],
    "Layers": ["nn.TorusAction", "nn.TorusPose"],
    "The model": [
        "model.Parameters",
        "initialization.random_start",
        "initialization.start_from_data",
        "initialization.known_translation",
        "lattice.half_lattice",
        "model.apply_transform",
        "model.reconstruct",
        "posterior.log_likelihood",
    ],
    "Inference": [
        "inference.infer_codes",
        "inference.map_poses",
        "posterior.AdaptiveEngine",
        "posterior.SamplingEngine",
        "posterior.GridEngine",
        "posterior.ReferenceEngine",
    ],
    "Learning": [
        "settings.Settings",
        "learning.learn",
        "state.Progress",
        "training.train",
        "training.CheckpointPolicy",
        "parallel.join",
        "recipes.load_recipe",
        "metrics.evaluate",
        "metrics.examine",
        "metrics.snr",
    ],
    "Files and data": [
        "checkpoint.save_model",
        "checkpoint.load_model",
        "data.unit_norm",
        "data.embedded_digits",
        "data.translations",
        "data.rotations_scalings",
        "data.translations_rotations",
        "data.load_mnist",
        "data.load_data",
        "data.open_shards",
        "data.register_dataset",
        "data.register_transformation",
        "data.split_images",
        "data.warp",
    ],
}
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
ROLE = re.compile(r":(?:func|class|meth|mod):`~?([^`]+)`")


def signature(thing: Any, name: str) -> str:
    """Return a call without annotations of shapes, wrapped where it is long."""
    target = thing.__init__ if inspect.isclass(thing) and "__init__" in vars(thing) else thing
    parameters = []
    star = False
    for parameter in inspect.signature(target).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        given = "" if parameter.default is parameter.empty else f"={parameter.default!r}".replace("'", '"')
        parameters.append(f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name + given)
    line = f"{name}({', '.join(parameters)})"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(parameters) + ",\n)"


def prose(text: str) -> str:
    """Turn reStructuredText roles and double backticks into markdown."""
    return ROLE.sub(r"`\1`", text).replace("``", "`")


def docstring(thing: Any) -> str:
    """Return a numpydoc docstring as markdown: prose, then a list for each section."""
    parts = SECTION.split(inspect.getdoc(thing) or "")
    lines = [prose(parts[0]).strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        lines += ["", f"*{title}*", ""]
        for line in body.strip().splitlines():
            if line and not line.startswith(" "):
                name, _, kind = line.partition(" : ")
                lines.append(f"- `{name}`" + (f" ({prose(kind)})" if kind else "") + ":")
            elif line.strip():
                lines[-1] += " " + prose(line.strip())
    return "\n".join(lines)


def members(thing: type) -> list[str]:
    """Describe the public methods and properties that liesparse itself defines, in their order."""
    found: dict[str, Any] = {}
    for base in reversed(thing.__mro__):
        if base.__module__.startswith("liesparse"):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    lines = []
    for name, value in found.items():
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function) and inspect.getdoc(function):
            call = signature(function, name).replace("\n", " ").replace("(cls, ", "(").replace("(cls)", "()")
            lines.append(f"- `{re.sub(r'  +', ' ', call)}`: {prose(inspect.getdoc(function)).splitlines()[0]}")
        elif isinstance(value, property) or type(value).__name__ == "cached_property":
            lines.append(f"- `{name}`: {prose(inspect.getdoc(value) or '').splitlines()[0]}")
    return lines


def describe(path: str) -> list[str]:
    """Describe one public thing."""
    module, _, name = path.rpartition(".")
    thing = getattr(importlib.import_module(f"liesparse.{module}"), name)
    lines = [f"### `{name}`", "", f"`liesparse.{path}`", ""]
    if not (inspect.isclass(thing) and issubclass(thing, tuple)):
        lines += ["```python", signature(thing, name), "```", ""]
    lines += [docstring(thing), ""]
    if inspect.isclass(thing) and (methods := members(thing)):
        lines += ["*Methods and properties*", "", *methods, ""]
    return lines


def make() -> str:
    """Return the whole page."""
    lines = ["# API reference", "", "Made by `python docs/make_api.py` from the docstrings.", ""]
    for title, paths in PAGES.items():
        lines += [f"## {title}", ""]
        for path in paths:
            lines += describe(path)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(make(), encoding="utf-8")
