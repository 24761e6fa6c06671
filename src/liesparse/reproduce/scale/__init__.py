"""How time and memory grow: one file for each thing that grows, each returns plain numbers.

A part returns a mapping of plain values; a list of mappings in it is a table, and so is a mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from liesparse._checks import check_choice
from liesparse.reproduce.scale.engines import measure_engines
from liesparse.reproduce.scale.images import measure_images
from liesparse.reproduce.scale.streaming import measure_streaming

PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "images": measure_images,
    "engines": measure_engines,
    "streaming": measure_streaming,
}


def run_scale(parts: Iterable[str] = (), *, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure some parts, or all of them, and return what each found under its name; ``report`` hears of each step."""
    chosen = [check_choice("part", part, tuple(PARTS)) for part in parts] or list(PARTS)
    found = {}
    for part in chosen:
        report(part)
        found[part] = PARTS[part](report=lambda what, part=part: report(f"{part}: {what}"))
    return found
