"""The model as the page takes it: JSON, with all arrays in one compressed block of half precision."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liesparse._checks import reject
from liesparse.devices import to_cpu
from liesparse.web.session import Session, View, infer

DIGITS = 5  # of what is inferred, as decimals


def serialize_session(session: Session, *, live: bool) -> str:
    """Return the JSON that the page begins with; ``live`` tells it that a server will infer new images."""
    model, baseline = session.coder.model_, session.baseline
    height, width, channels, pixel_stride, channel_stride = picture_layout(session.image_shape)
    views = infer(session, session.examples) if len(session.examples) else []
    arrays = {"basis": to_cpu(model.group_basis).numpy(), "shapes": session.coder.components_}
    if baseline is not None:
        arrays["plain"] = baseline.components_
    arrays["images"] = to_cpu(session.examples).numpy()
    layout, block = pack_arrays(arrays)
    return json.dumps(
        {
            "title": session.title,
            "live": live,
            "height": height,
            "width": width,
            "channels": channels,
            "pixelStride": pixel_stride,
            "channelStride": channel_stride,
            "noiseStd": model.noise_std,
            "frequencies": model.frequencies.tolist(),
            "prior": np.round(to_cpu(model.pose_prior).double().numpy(), DIGITS).tolist(),
            "views": [_short(view) for view in views],
            "arrays": layout,
            "block": block,
        },
        separators=(",", ":"),
        allow_nan=False,
    )


def pack_arrays(arrays: dict[str, NDArray[Any]]) -> tuple[dict[str, list[int]], str]:
    """Put arrays one after another as little-endian float16, gzipped, in base64; the same arrays give the same text."""
    block = b"".join(np.ascontiguousarray(array, dtype="<f2").tobytes() for array in arrays.values())
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return shapes, base64.b64encode(gzip.compress(block, mtime=0)).decode()


def picture_layout(shape: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    """Return height, width, channels, and how far the next pixel and the next channel lie in a row of the data."""
    if len(shape) == 1:
        return 1, shape[0], 1, 1, 1
    if len(shape) == 2:
        return shape[0], shape[1], 1, 1, 1
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[0], shape[1], shape[2], shape[2], 1
    if len(shape) != 3 or shape[0] not in (1, 3):
        reject("RUN", "a model of grey or colour images", f"one of shape {shape}", "Train on (height, width) images.")
    return shape[1], shape[2], shape[0], 1, shape[1] * shape[2]


def _short(view: View) -> dict[str, Any]:
    """Return an example's view; its pixels are in the block already, and no eye sees the sixth digit."""
    return {
        "codes": _rounded(view.codes),
        "pose": _rounded(view.pose),
        "modes": [{"pose": _rounded(mode.pose), "share": round(mode.share, DIGITS)} for mode in view.modes],
        "log_likelihood": round(view.log_likelihood, 2),
        "sparse_codes": None if view.sparse_codes is None else _rounded(view.sparse_codes),
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]
