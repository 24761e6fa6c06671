"""The page as one document: markup, style, script and model in one file, for the server and for the disk."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path
from typing import NamedTuple

from liesparse.files import write_atomically
from liesparse.web.serialize import serialize_session
from liesparse.web.session import Session

FOLDER = Path(__file__).parent / "page"
SCRIPTS = (
    "model.js",
    "paint.js",
    "gif.js",
    "pose.js",
    "sketch.js",
    "walk.js",
    "planes.js",
    "face.js",
    "app.js",
)  # in this order


SELF, NONE = "'self'", "'none'"


class Document(NamedTuple):
    """A page, and the policy by which the browser runs nothing but its own script and style."""

    content: str
    policy: str


def make_document(session: Session, *, live: bool) -> Document:
    """Return the page; without a server (``live=False``) it does all but infer new images."""
    style = _read("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_read, SCRIPTS)) + "\n})();\n"
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data: blob:; "
        f"connect-src {SELF if live else NONE}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": html.escape(session.title),
        "policy": html.escape(policy),
        "style": style,
        "session": serialize_session(session, live=live).replace("<", "\\u003c"),  # no text can end the element
        "script": script,
    }
    # In one pass: what looks like a place in a part is text.
    content = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read("index.html"))
    return Document(content, policy)


def export_page(session: Session, path: Path) -> None:
    """Write the page with the model inside; it opens from disk, offline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, make_document(session, live=False).content.encode())


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
