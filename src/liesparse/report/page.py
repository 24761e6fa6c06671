"""The page around the pictures: one file, no network, light and dark, from phone to desktop."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence

KINDS = {"png": "image/png", "gif": "image/gif"}

# Pictures are ink on white: multiplied onto the page by day, inverted and screened onto it by night.
STYLE = """
:root { color-scheme: light dark; --page: #fbfbf9; --ink: #1b1f24; --soft: #5b6570; --line: #dcdfe3; --card: #ffffff;
  --bar: #b9d3ea; --accent: #2166ac; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e6e8ea; --soft: #9aa4ae; --line: #343a41;
  --card: #1b1f24; --bar: #234a6e; --accent: #7db8ea; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 920px; margin: 0 auto; padding: 28px 18px 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 52px 0 6px; padding-top: 14px; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 26px 0 6px; }
p { margin: 6px 0 12px; max-width: 70ch; }
.lead { font-size: 1.1rem; }
.soft, .how, figcaption { color: var(--soft); }
.how { font-size: .92rem; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0 0; font-size: .92rem; }
a { color: var(--accent); }
img { display: block; max-width: 100%; height: auto; }
.pixels { width: 100%; image-rendering: pixelated; }
img { mix-blend-mode: multiply; }
@media (prefers-color-scheme: dark) { img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; } }
figure { margin: 0; }
figcaption { font-size: .8rem; text-align: center; line-height: 1.3; padding-top: 3px; overflow-wrap: anywhere; }
.grid { display: grid; gap: 12px; margin: 14px 0; }
.cards { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.tiles { grid-template-columns: repeat(auto-fill, minmax(76px, 1fr)); }
.pairs { grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); }
.plots { grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); align-items: start; }
.plots img { max-width: 400px; width: 100%; }
.card, figure, .strip { min-width: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 1.6rem; line-height: 1.25; font-weight: 600; }
.card span { display: block; font-size: .85rem; color: var(--soft); }
.three { grid-template-columns: repeat(3, 1fr); gap: 8px; margin: 8px 0; }
.two { grid-template-columns: 1fr 1fr; gap: 4px; margin: 0; }
.examples { grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); }
.code { display: grid; grid-template-columns: 26px 1fr 3.2em; gap: 8px; align-items: center; margin: 4px 0;
  font-size: .85rem; }
.code i { display: block; height: 12px; border-radius: 2px; background: var(--accent); }
.posterior { max-width: 240px; margin: 4px auto 0; }
.strip { display: grid; grid-template-columns: 8.5em 1fr; gap: 10px; align-items: center; margin: 6px 0;
  font-size: .85rem; color: var(--soft); }
.loop { max-width: 600px; margin: 8px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; margin: 10px 0; }
th, td { text-align: left; padding: 5px 14px 5px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); }
td.share { background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)); min-width: 84px; }
.facts td { white-space: normal; overflow-wrap: anywhere; }
@media (max-width: 560px) { .strip { grid-template-columns: 1fr; gap: 2px; } h2 { margin-top: 36px; } }
"""

# Nothing but this file: the browser itself forbids scripts, frames and requests.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Album:
    """Pictures that go into the page and, those with a name, into files beside it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def keep(self, name: str, content: bytes) -> bytes:
        """Put a picture into a file too."""
        self.files[name] = content
        return content


def escape(text: object) -> str:
    """Make any text safe inside an element or a quoted attribute."""
    return html.escape(str(text), quote=True)


def address(content: bytes, kind: str = "png") -> str:
    """Return a picture as a data URI."""
    return f"data:{KINDS[kind]};base64,{base64.b64encode(content).decode()}"


def image(content: bytes, alt: str, *, kind: str = "png", name: str = "pixels") -> str:
    """Return an image element."""
    return f'<img class="{name}" src="{address(content, kind)}" alt="{escape(alt)}">'


def figure(picture: str, caption: str) -> str:
    """Return a picture with a caption, which may hold markup."""
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def grid(kind: str, parts: Iterable[str]) -> str:
    """Return parts side by side, as many as there is room for."""
    return f'<div class="grid {kind}">{"".join(parts)}</div>'


def how(text: str) -> str:
    """Return the sentence that says how to read what follows."""
    return f'<p class="how">{escape(text)}</p>'


def strip(label: str, picture: str) -> str:
    """Return a wide picture with a label."""
    return f'<div class="strip"><span>{escape(label)}</span>{picture}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, name: str = "") -> str:
    """Return a table of cells that are already ``td`` elements or plain text."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    top = f"<thead><tr>{titles}</tr></thead>" if head else ""
    return f'<div class="scroll"><table class="{name}">{top}<tbody>{body}</tbody></table></div>'


def _cell(content: str) -> str:
    return content if content.startswith("<td") else f"<td>{escape(content)}</td>"


def share_cell(share: float) -> str:
    """Return a cell with a percentage and a bar behind it."""
    filled = min(max(share, 0.0), 1.0)
    return f'<td class="share" style="--share: {100 * filled:.0f}%">{percent(share)}</td>'


def percent(share: float) -> str:
    """Return a share as one reads it: 97 %, 0.4 %, 99.96 %; 100 % only for all."""
    if not math.isfinite(share):
        return "–"
    digits = next((digits for digits in (0, 1, 2) if abs(share - 1) >= 10.0 ** -(2 + digits)), 0)
    if 0.0005 <= share < 0.0995:
        digits = 1
    return f"{100 * share:.{digits}f} %"


def number(value: float, digits: int = 3) -> str:
    """Return a number with as many digits as one reads."""
    if not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def direction(values: Sequence[float]) -> str:
    """Return a direction on the torus."""
    return f"({', '.join(f'{value:+.2f}' for value in values)})"


def build(title: str, lead: str, sections: Mapping[str, str]) -> str:
    """Return the whole page from its sections."""
    links = "".join(f'<a href="#part-{place}">{escape(name)}</a>' for place, name in enumerate(sections))
    body = "".join(
        f'<section><h2 id="part-{place}">{escape(name)}</h2>{content}</section>'
        for place, (name, content) in enumerate(sections.items())
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><header><h1>{escape(title)}</h1>{lead}<nav>{links}</nav></header>\n{body}\n</main></body></html>\n"
    )
