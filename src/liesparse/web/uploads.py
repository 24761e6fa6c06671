"""From bytes that anyone may send to an image that the model knows how to read."""

from __future__ import annotations

import io
import warnings
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import reject
from liesparse.data.images import Preprocessing
from liesparse.data.pictures import decode_all
from liesparse.web.serialize import picture_layout
from liesparse.web.session import Session, normalized

MAX_BYTES = 4 * 2**20
MAX_PIXELS = 16_000_000
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")


def read_upload(session: Session, content: bytes) -> tuple[Float[Tensor, " pixel"], str]:
    """Decode a picture, bring it to the model's size, and say what was done; a wrong one gives a ``ValueError``."""
    width, height = _size(content)
    if width * height > MAX_PIXELS:
        _refuse_size(f"{width:,} × {height:,}")
    rows, columns, channels, _, _ = picture_layout(session.image_shape)
    if channels != 1:
        reject("image", "a model of grey images", f"one with {channels} channels", "Pick a test image instead.")
    preprocessing = Preprocessing(size=(rows, columns), crop=rows == columns)
    raw = decode_all([("the picture", content)], preprocessing, "the upload")
    pixels = torch.from_numpy(np.asarray(raw.pixels[0], dtype=np.float32))
    if bool(pixels.min() == pixels.max()):
        reject("image", "something to see", "one colour all over", "Choose another file.")
    notes = ["cropped to the central square"] if preprocessing.crop and width != height else []
    if (width, height) != (columns, rows):
        notes.append(f"{width} × {height} pixels brought to {columns} × {rows}")
    if _edge_is_light(pixels) and not _edges_are_light(session):
        pixels = pixels.max() - pixels
        notes.append("inverted, as the model knows light shapes on dark ground")
    return normalized(pixels.flatten()), ", ".join(notes)


def _refuse_size(got: str) -> NoReturn:
    reject("image", f"at most {MAX_PIXELS:,} pixels", got, "Shrink it first.")


def _size(content: bytes) -> tuple[int, int]:
    """Read the size off the head of the file, before anything is unpacked."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
                return picture.size
    except Image.DecompressionBombError:
        _refuse_size("far more")
    except Exception:  # Pillow raises almost anything for damaged bytes
        reject("image", f"a picture ({', '.join(FORMATS)})", "something else", "Choose another file.")


def _edge_is_light(image: Float[Tensor, "height width"]) -> bool:
    edge = torch.cat((image[0], image[-1], image[:, 0], image[:, -1]))
    return bool(edge.mean() > (image.min() + image.max()) / 2)


def _edges_are_light(session: Session) -> bool:
    """Whether most of the model's own images have light edges."""
    height, width = picture_layout(session.image_shape)[:2]
    own = session.examples if len(session.examples) else session.coder.model_.dictionary.T
    light = [_edge_is_light(image.reshape(height, width)) for image in own]
    return 2 * sum(light) > len(light)
