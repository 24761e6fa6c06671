"""What the explorer shows: a model, example images, uploaded pictures, what is inferred from an image, and the page."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field
from torch import Tensor

from liesparse._checks import reject
from liesparse.confidence import mode_shares
from liesparse.data import check_shape, load_data, parse_spec
from liesparse.data.images import Preprocessing
from liesparse.data.pictures import decode_all
from liesparse.devices import to_cpu
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.posterior import PoseEngine, engine_of, log_likelihood
from liesparse.run_directory import load_run
from liesparse.web import TEMPLATES

FOLDER = Path(__file__).parent / "page"
SCRIPTS = ("model", "paint", "gif", "pose", "sketch", "walk", "planes", "controls", "render", "app")  # in this order
LAYOUT = ("height", "width", "channels", "pixelStride", "channelStride")  # how the page calls them
DECIMALS = 5  # of inferred values in the page
DEMO = Path(__file__).parent / "demo"  # what `liesparse demo` writes, without its picture
N_EXAMPLES = 40
MAX_TEST = 10_000  # test images of which these are taken
MIN_SHARE = 0.01  # a mode with less of the posterior's mass is left out
MAX_PIXELS = 16_000_000  # of an uploaded picture
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")

logger = logging.getLogger(__name__)


class Mode(BaseModel):
    """A local maximum of the pose posterior."""

    pose: list[float] = Field(description="Radians, one for each axis of the torus.")
    share: float = Field(description="Posterior mass around the mode, by Laplace's approximation.")


class View(BaseModel):
    """What the model infers from one image."""

    pixels: list[float] = Field(description="The image that the model was given: norm 1, row by row.")
    codes: list[float] = Field(description="One coefficient for each shape.")
    pose: list[float] = Field(description="The most probable pose, radians.")
    modes: list[Mode] = Field(description="Modes of the pose posterior, the most probable first.")
    log_likelihood: float = Field(description="ln P(I | α), the pose integrated out.")
    sparse_codes: list[float] | None = Field(description="Codes of plain sparse coding, if the run has it.")
    note: str = Field(default="", description="How the image was changed before inference.")


class Session(NamedTuple):
    """A model that can be explored."""

    title: str
    coder: LieSparseCoder
    baseline: SparseCoder | None
    engine: PoseEngine
    examples: Float[Tensor, "image pixel"]


def open_session(folder: Path | None = None, *, data_dir: Path | None = None) -> Session:
    """Open a run, or the one that comes with the package; test images come from its data, none if they are gone."""
    run = load_run(folder or DEMO)
    spec, title = str(run.settings.get("data", "")), "Ten digits that move"
    if folder is not None:  # no full paths, as an exported page may be given to others
        title = f"{folder.resolve().name}: learned from {Path(parse_spec(spec).head).name or 'unknown data'}"
        title = title.encode(errors="replace").decode()  # file names may hold bytes that are not valid text
    model = run.coder.model_
    try:
        if not spec:
            reject("run.json", "the name of the data", "none", "Train anew to have test images.")
        # No training images are needed. One is the minimum; with n=1 a synthetic set draws other test images.
        many = re.fullmatch(r"[1-9][\d_]{4,}", parse_spec(spec).parameters.get("n_test", ""))
        few: dict[str, Any] = {"n_test": MAX_TEST} if many else {}
        loaded = load_data(spec, data_dir=data_dir, download=False, n=1, **few)
        test = check_shape(loaded, run.coder.image_shape_).test
    except (ValueError, OSError) as error:
        logger.warning("No test images to show: %s", error)
        test = torch.zeros(0, model.n_pixels)
    chosen = torch.linspace(0, len(test) - 1, min(N_EXAMPLES, len(test))).round().long()  # evenly spread
    return Session(title, run.coder, run.baseline, engine_of(model), test[chosen].to(model.dtype))


def normalized(pixels: Float[Tensor, " pixel"]) -> Float[Tensor, " pixel"]:
    """Scale an image to norm 1, as the model expects."""
    scaled = pixels / pixels.abs().max().clamp(min=torch.finfo(pixels.dtype).tiny)
    norm = scaled.norm()
    if not bool(norm > 0):
        reject("image", "something to see", "a blank one", "Draw something, or choose another image.")
    return scaled / norm


def picture_layout(shape: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    """Return height, width, channels, and the strides from pixel to pixel and from channel to channel."""
    if len(shape) <= 2:
        return shape[-2] if len(shape) == 2 else 1, shape[-1], 1, 1, 1
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[0], shape[1], shape[2], shape[2], 1
    if len(shape) != 3 or shape[0] not in (1, 3):
        reject("RUN", "a model of grey or colour images", f"one of shape {shape}", "Train on (height, width) images.")
    return shape[1], shape[2], shape[0], 1, shape[1] * shape[2]


def read_upload(session: Session, content: bytes) -> tuple[Float[Tensor, " pixel"], str]:
    """Decode a picture, resize it for the model, and say what was done; a bad one gives a ``ValueError``."""
    width, height = _picture_size(content)
    rows, columns, channels, _, _ = picture_layout(session.coder.image_shape_)
    if channels != 1:
        reject("image", "a model of grey images", f"one with {channels} channels", "Pick a test image instead.")
    preprocessing = Preprocessing((rows, columns), "crop" if rows == columns else "stretch")
    raw = decode_all([("the picture", content)], preprocessing, "the upload")
    pixels = torch.from_numpy(np.asarray(raw.pixels[0], dtype=np.float32))
    if bool(pixels.min() == pixels.max()):
        reject("image", "something to see", "one colour all over", "Choose another file.")
    notes = ["cropped to the central square"] if preprocessing.fit == "crop" and width != height else []
    if (width, height) != (columns, rows):
        notes.append(f"{width} × {height} pixels brought to {columns} × {rows}")
    known = session.examples if len(session.examples) else session.coder.model_.dictionary.T
    n_light = sum(_has_light_edge(image.reshape(rows, columns)) for image in known)
    if _has_light_edge(pixels) and 2 * n_light <= len(known):
        pixels = pixels.max() - pixels
        notes.append("inverted, as the model knows light shapes on dark ground")
    return normalized(pixels.flatten()), ", ".join(notes)


def _picture_size(content: bytes) -> tuple[int, int]:
    """Read width and height from the header, before anything is decompressed."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            width, height = picture.size
            got = f"{width:,} × {height:,}"
    except Image.DecompressionBombError:
        width, height, got = MAX_PIXELS, 2, "far more"
    except Exception:  # Pillow raises almost anything for damaged bytes
        reject("image", f"a picture ({', '.join(FORMATS)})", "something else", "Choose another file.")
    if width * height > MAX_PIXELS:
        reject("image", f"at most {MAX_PIXELS:,} pixels", got, "Shrink it first.")
    return width, height


def _has_light_edge(image: Float[Tensor, "height width"]) -> bool:
    edge = torch.cat((image[0], image[-1], image[:, 0], image[:, -1]))
    return bool(edge.mean() > (image.min() + image.max()) / 2)


@torch.no_grad()
def infer(session: Session, images: Float[Tensor, "batch pixel"]) -> list[View]:
    """Infer codes and poses of unit-norm images, with the modes of the pose posterior and the log likelihood."""
    model, engine = session.coder.model_, session.engine
    images = images.to(model.dtype)
    codes = session.coder.transform(images)
    poses, shares = mode_shares(model, images, codes, engine)
    scores = log_likelihood(model, images, codes, engine)
    plain = session.baseline.transform(images) if session.baseline is not None else None
    views = []
    for place, image in enumerate(images):
        pairs = zip(poses[place].tolist(), shares[place].tolist(), strict=True)
        modes = [Mode(pose=pose, share=share) for pose, share in pairs]
        views.append(
            View(
                pixels=image.tolist(),
                codes=codes[place].tolist(),
                pose=modes[0].pose,
                modes=modes[:1] + [mode for mode in modes[1:] if mode.share >= MIN_SHARE],
                log_likelihood=float(scores[place]),
                sparse_codes=None if plain is None else plain[place].tolist(),
            )
        )
    return views


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
    content = serialize_session(session, live=live).replace("<", "\\u003c")  # no text can close the element
    parts = {"title": session.title, "policy": policy, "style": style, "session": content, "script": script}
    return Document(TEMPLATES.get_template("index.html").render(parts), policy)


def serialize_session(session: Session, *, live: bool) -> str:
    """Return the model, the examples and their views as JSON; ``live`` tells the page that a server can infer."""
    model, examples = session.coder.model_, session.examples
    inferred = infer(session, examples) if len(examples) else []
    views = [view.model_dump_json(exclude={"pixels", "note"}) for view in inferred]
    arrays = {"basis": to_cpu(model.group_basis).numpy(), "shapes": session.coder.components_}
    if session.baseline is not None:
        arrays["plain"] = session.baseline.components_
    if model.outer is not None:
        arrays["outerBasis"] = to_cpu(model.outer.group_basis).numpy()
    shapes, block = pack_arrays(arrays | {"images": to_cpu(examples).numpy()})
    content = {
        "title": session.title,
        "live": live,
        **dict(zip(LAYOUT, picture_layout(session.coder.image_shape_), strict=True)),
        "noiseStd": model.noise_std,
        "frequencies": model.frequencies.tolist(),
        "outerFrequencies": None if model.outer is None else model.outer.frequencies.tolist(),
        "names": session.coder.coordinate_names(),
        "ranges": None if session.coder.pose_ranges_ is None else session.coder.pose_ranges_.round(DECIMALS).tolist(),
        "prior": np.round(to_cpu(model.pose_prior).double().numpy(), DECIMALS).tolist(),
        "views": [json.loads(view, parse_float=lambda number: round(float(number), DECIMALS)) for view in views],
        "arrays": shapes,
        "block": block,
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def pack_arrays(arrays: dict[str, NDArray[Any]]) -> tuple[dict[str, list[int]], str]:
    """Return the shapes, and all values as little-endian float16, gzipped, in base64; equal arrays give equal text."""
    block = b"".join(np.ascontiguousarray(array, dtype="<f2").tobytes() for array in arrays.values())
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return shapes, base64.b64encode(gzip.compress(block, mtime=0)).decode()


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
