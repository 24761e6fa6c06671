"""Values, bytes, texts and trees that no honest program writes."""

from __future__ import annotations

import json
import string
from random import Random
from typing import Any

INTEGERS = (0, 1, -1, 2, 3, 7, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 10**30)
FLOATS = (0.0, -0.0, 1e-320, 1e-30, 1e-7, 0.1, 1.5, -1.5, 1e7, 1e30, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a",
        "\x1b[31m",
        "\u202e",
        "é",
        "𝟙",
        "\ud800",
        "..",
        "/",
        "../../etc/passwd",
        "%s%n",
        "{x}",
        "auto",
    ),
    *(
        "nan",
        "-1",
        "1e999",
        "true",
        "null",
        "None",
        "learned",
        "translation:n=9",
        "x" * 5000,
        "\n",
        "\r\n",
        "'\"",
        "<script>",
    ),
)
NUMBERS = (*INTEGERS, *FLOATS)


def scalar(rng: Random) -> Any:
    """Draw any plain value."""
    return rng.choice([*NUMBERS, *TEXTS, None, True, False])


def damage(content: bytes, rng: Random, most: int = 4) -> bytes:
    """Flip, cut, insert, repeat and overwrite a few bytes."""
    found = bytearray(content)
    for _ in range(rng.randint(1, most)):
        place, length = rng.randrange(len(found) + 1), rng.choice((1, 1, 2, 4, 8, 40))
        how = rng.randrange(6)
        if how == 0 and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            del found[place : place + length]
        elif how == 2:
            found[place:place] = rng.randbytes(length)
        elif how == 3:
            found[place : place + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
        elif how == 4:
            found += found[place : place + length]
        else:
            width = rng.choice((2, 4, 8))
            number = rng.choice(INTEGERS) % 2 ** (8 * width)
            found[place : place + width] = number.to_bytes(width, rng.choice(("little", "big")))
    if rng.random() < 0.05:
        del found[rng.randrange(len(found) + 1) :]
    return bytes(found)


def tree(value: Any, rng: Random) -> Any:
    """Change one place of a tree of dicts and lists."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        how = rng.random()
        if how < 0.08:
            return {name: entry for name, entry in value.items() if name != key}
        if how < 0.14:
            return value | {rng.choice(TEXTS): scalar(rng)}
        return value | {key: tree(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        how = rng.random()
        if how < 0.1:
            return value[:place] + value[place + 1 :]
        if how < 0.2:
            return value + value[place:]
        return [*value[:place], tree(value[place], rng), *value[place + 1 :]]
    return replacement(value, rng)


def replacement(value: Any, rng: Random) -> Any:
    """Draw something in the place of a value: near it, or far."""
    how = rng.random()
    if how < 0.25 and isinstance(value, int | float) and not isinstance(value, bool):
        return rng.choice((-value, value + 1, value * 10**9, value / 3, float(value), str(value), [value]))
    if how < 0.75:
        return scalar(rng)
    if how < 0.85:
        return {name: scalar(rng) for name in rng.sample(TEXTS, 2)}
    if how < 0.98:
        return [scalar(rng) for _ in range(rng.randint(0, 3))]
    return [[]] * 2000


def to_json(value: Any, rng: Random) -> bytes:
    """Write a tree, now and then as no JSON at all."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    how = rng.random()
    if how < 0.03:
        text = "[" * 50_000 + text
    elif how < 0.05:
        text = text.replace(":", ": " + "9" * 5000, 1)
    content = text.encode(errors="surrogatepass")
    return damage(content, rng) if how > 0.85 else content


def word(rng: Random) -> str:
    """Draw a short text of any characters but NUL, which no argument can hold."""
    letters = string.ascii_letters + string.digits + "=:,._-/\\ \t\n\x1b\x7fé\u202e…%{}[]()~*?"
    return "".join(rng.choice(letters) for _ in range(rng.randint(0, 12)))
