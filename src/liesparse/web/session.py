"""What the explorer shows: a model, example images, uploaded pictures, and what is inferred from an image."""

from __future__ import annotations

import io
import logging
import math
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from pydantic import BaseModel, Field
from torch import Tensor

from liesparse import torus
from liesparse._checks import reject
from liesparse.data import check_shape, load_data, parse_spec
from liesparse.data.images import Preprocessing
from liesparse.data.pictures import decode_all
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.posterior import Engine, Modes, log_likelihood, make_engine, pose_natural
from liesparse.run_directory import Run, load_run

DEMO = Path(__file__).parent / "demo"  # what `liesparse demo` writes, without its picture
N_EXAMPLES = 40
MAX_MODES = 5
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
    engine: Engine
    examples: Float[Tensor, "image pixel"]


def open_session(folder: Path | None = None, *, data_dir: Path | None = None) -> Session:
    """Open a run, or the one that comes with the package; test images come from the data of the run."""
    run = load_run(DEMO if folder is None else folder)
    spec = str(run.settings.get("data", ""))
    title = _title(folder, spec) if folder is not None else "Ten digits that move"
    model = run.coder.model_
    engine = make_engine("auto", model.frequencies, dtype=model.dtype)
    return Session(title, run.coder, run.baseline, engine, _examples(run, spec, data_dir))


def _title(folder: Path, spec: str) -> str:
    """Name the run and its data without their full paths, as an exported page may be given to others."""
    data = Path(parse_spec(spec).head).name or "unknown data"
    text = f"{folder.resolve().name}: learned from {data}"
    return text.encode(errors="replace").decode()  # file names may hold bytes that are not valid text


def _examples(run: Run, spec: str, data_dir: Path | None) -> Float[Tensor, "image pixel"]:
    """Return some test images, evenly spread; none where the data cannot be found."""
    model = run.coder.model_
    try:
        if not spec:
            reject("run.json", "the name of the data", "none", "Train anew to have test images.")
        # No training images are needed. One is the minimum; with n=1 a synthetic set draws other test images.
        test = check_shape(load_data(spec, data_dir=data_dir, download=False, n=1), run.coder.image_shape_).test
    except (ValueError, OSError) as error:
        logger.warning("No test images to show: %s", error)
        return torch.zeros(0, model.n_pixels, dtype=model.dtype)
    chosen = torch.linspace(0, len(test) - 1, min(N_EXAMPLES, len(test))).round().long()
    return test[chosen].to(model.dtype)


def normalized(pixels: Float[Tensor, " pixel"]) -> Float[Tensor, " pixel"]:
    """Scale an image to norm 1, as the model expects."""
    scaled = pixels / pixels.abs().max().clamp(min=torch.finfo(pixels.dtype).tiny)
    norm = scaled.norm()
    if not bool(norm > 0):
        reject("image", "something to see", "a blank one", "Draw something, or choose another image.")
    return scaled / norm


def picture_layout(shape: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    """Return height, width, channels, and the strides from pixel to pixel and from channel to channel."""
    if len(shape) == 1:
        return 1, shape[0], 1, 1, 1
    if len(shape) == 2:
        return shape[0], shape[1], 1, 1, 1
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
    preprocessing = Preprocessing(size=(rows, columns), crop=rows == columns)
    raw = decode_all([("the picture", content)], preprocessing, "the upload")
    pixels = torch.from_numpy(np.asarray(raw.pixels[0], dtype=np.float32))
    if bool(pixels.min() == pixels.max()):
        reject("image", "something to see", "one colour all over", "Choose another file.")
    notes = ["cropped to the central square"] if preprocessing.crop and width != height else []
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
    natural = pose_natural(model, images, codes)
    found = engine.modes(natural, MAX_MODES)
    shares = _mode_shares(found, engine.log_partition(natural))
    poses = torus.wrap(found.poses).tolist()
    scores = log_likelihood(model, images, codes, engine)
    plain = session.baseline.transform(images) if session.baseline is not None else None
    views = []
    for place, image in enumerate(images):
        modes = [Mode(pose=pose, share=share) for pose, share in zip(poses[place], shares[place], strict=True)]
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


def _mode_shares(modes: Modes, log_partition: Float[Tensor, " batch"]) -> list[list[float]]:
    """Return the probability of each mode, as of a Gaussian with its height and curvature."""
    stiffness = torch.linalg.eigvalsh(modes.curvature).clamp(min=1e-12)
    log_mass = modes.log_density - log_partition[:, None] + 0.5 * (math.log(2 * math.pi) - stiffness.log()).sum(dim=-1)
    shares = log_mass.clamp(max=0).exp()
    return (shares / shares.sum(dim=1, keepdim=True).clamp(min=1)).tolist()  # Gaussians may count some mass twice
