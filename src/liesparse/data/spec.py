"""The DATA argument: a name or a path, then perhaps parameters, as in ``translation:n=20000,max_shift=5``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from liesparse._checks import check_count, check_real, reject

_PAIR = r"[A-Za-z_]\w*=[^,=]*"
_PAIRS = re.compile(rf"{_PAIR}(,{_PAIR})*")
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


class Spec(NamedTuple):
    """A name or path, and the text of each parameter."""

    head: str
    parameters: dict[str, str]


class Parameter(NamedTuple):
    """How a parameter is read, what it is unless given, and what it means."""

    read: Callable[[str, str], Any]
    default: Any
    about: str


def parse_spec(spec: str) -> Spec:
    """Split off the parameters; a path that exists is taken as it is, whatever colons it has."""
    if os.path.exists(spec):
        return Spec(spec, {})
    head, _, tail = spec.rpartition(":")
    if not head or not _PAIRS.fullmatch(tail):
        return Spec(spec, {})
    parameters: dict[str, str] = {}
    for pair in tail.split(","):
        key, _, value = pair.partition("=")
        if key in parameters:
            reject(key, "each parameter once", f"{key} twice in {spec}", "Remove one.")
        parameters[key] = value
    return Spec(head, parameters)


def read_parameters(owner: str, known: Mapping[str, Parameter], given: Mapping[str, str]) -> dict[str, Any]:
    """Return all parameters of a source, those given read from their text."""
    for key in given:
        if key not in known:
            reject(f"parameter of {owner}", f"one of {', '.join(known)}", repr(key), "Remove or rename it.")
    return {
        key: parameter.read(key, given[key].strip()) if key in given else parameter.default
        for key, parameter in known.items()
    }


def at_least(minimum: int) -> Callable[[str, str], int]:
    """Read a whole number, in which _ may part the thousands."""

    def read(key: str, text: str) -> int:
        if not re.fullmatch(r"-?\d{1,18}|\d{1,3}(_\d{3}){1,4}", text, re.ASCII):
            reject(key, f"a whole number >= {minimum}", repr(text), f"Pass {key}={max(minimum, 1000)}.")
        return check_count(key, int(text), minimum)

    return read


def real(key: str, text: str) -> float:
    """Read a finite number."""
    try:
        return check_real(key, float(text))
    except ValueError:
        reject(key, "a finite number", repr(text), f"Pass {key}=1.5.")


def flag(key: str, text: str) -> bool:
    """Read yes or no."""
    if text.lower() not in _FLAGS:
        reject(key, "yes or no", repr(text), f"Pass {key}=yes or {key}=no.")
    return _FLAGS[text.lower()]


def size(key: str, text: str) -> tuple[int, int]:
    """Read 28, or 28x20 for height and width."""
    if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})?", text, re.ASCII):
        reject(key, "a side such as 28, or height and width such as 28x20", repr(text), f"Pass {key}=28.")
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def words(key: str, text: str) -> str:
    """Take the text as it is, unless empty."""
    if not text:
        reject(key, "a name", "nothing", f"Pass {key}=NAME, or leave it out.")
    return text


COUNTS = {
    "n": Parameter(at_least(1), None, "images to learn from, drawn at random; all unless given"),
    "n_test": Parameter(at_least(1), None, "images to test"),
    "seed": Parameter(at_least(0), 0, "seed of every draw"),
}
FIT = {
    "size": Parameter(size, None, "side, or HEIGHTxWIDTH, to resize to"),
    "crop": Parameter(flag, False, "crop to the central square first"),
    "invert": Parameter(flag, False, "swap dark and light"),
    "colour": Parameter(flag, False, "keep red, green and blue"),
}
KEYS = {
    "key": Parameter(words, None, "array or column of the images"),
    "labels": Parameter(words, None, "array or column of the labels"),
}
