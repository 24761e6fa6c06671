"""The page: one HTML document that holds markup, style, script and the model as JSON."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from liesparse.devices import to_cpu
from liesparse.files import write_atomically
from liesparse.web.session import Session, infer, picture_layout

FOLDER = Path(__file__).parent / "page"
SCRIPTS = ("model", "paint", "gif", "pose", "sketch", "walk", "planes", "controls", "render", "app")  # in this order
DECIMALS = 5  # of inferred values


class Document(NamedTuple):
    """A page, and the Content-Security-Policy that allows only its own script and style."""

    content: str
    policy: str


def make_document(session: Session, *, live: bool) -> Document:
    """Return the page; with ``live=False`` it needs no server, but cannot infer new images."""
    style = _read("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_read(f"{name}.js") for name in SCRIPTS) + "\n})();\n"
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    session_json = serialize_session(session, live=live)
    parts = {
        "title": html.escape(session.title),
        "policy": html.escape(policy),
        "style": style,
        "session": session_json.replace("<", "\\u003c"),  # so that no text can close the element
        "script": script,
    }
    # One pass only: braces inside an inserted part stay as they are.
    content = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("index.html"))
    return Document(content, policy)


def export_page(session: Session, path: Path) -> None:
    """Write the page with the model inside; it opens from disk, offline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, make_document(session, live=False).content.encode())


def serialize_session(session: Session, *, live: bool) -> str:
    """Return the model, the examples and their views as JSON; ``live`` tells the page that a server can infer."""
    model, baseline = session.coder.model_, session.baseline
    height, width, channels, pixel_stride, channel_stride = picture_layout(session.coder.image_shape_)
    views = infer(session, session.examples) if len(session.examples) else []
    arrays = {"basis": to_cpu(model.group_basis).numpy(), "shapes": session.coder.components_}
    if baseline is not None:
        arrays["plain"] = baseline.components_
    arrays["images"] = to_cpu(session.examples).numpy()
    shapes, block = pack_arrays(arrays)
    content = {
        "title": session.title,
        "live": live,
        "height": height,
        "width": width,
        "channels": channels,
        "pixelStride": pixel_stride,
        "channelStride": channel_stride,
        "noiseStd": model.noise_std,
        "frequencies": model.frequencies.tolist(),
        "prior": np.round(to_cpu(model.pose_prior).double().numpy(), DECIMALS).tolist(),
        "views": [_rounded(view.model_dump_json(exclude={"pixels", "note"})) for view in views],
        "arrays": shapes,
        "block": block,
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def pack_arrays(arrays: dict[str, NDArray[Any]]) -> tuple[dict[str, list[int]], str]:
    """Return the shapes, and all values as little-endian float16, gzipped, in base64; equal arrays give equal text."""
    block = b"".join(np.ascontiguousarray(array, dtype="<f2").tobytes() for array in arrays.values())
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return shapes, base64.b64encode(gzip.compress(block, mtime=0)).decode()


def _rounded(text: str) -> Any:
    return json.loads(text, parse_float=lambda number: round(float(number), DECIMALS))


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
