"""What the explorer shows: a model, images to begin with, and what the model thinks of an image."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from pydantic import BaseModel, Field
from torch import Tensor

from liesparse import torus
from liesparse._checks import reject
from liesparse.data import check_shape, load_data, parse_spec
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.posterior import Engine, Modes, log_likelihood, make_engine, pose_natural
from liesparse.run_directory import Run, load_run

DEMO = Path(__file__).parent / "demo"  # what `liesparse demo` writes, without its picture
N_EXAMPLES = 40
MOST_MODES = 5
LEAST_SHARE = 0.01  # of the posterior's mass, for a mode to be told

logger = logging.getLogger(__name__)


class Mode(BaseModel):
    """A place where the pose may well be."""

    pose: list[float] = Field(description="Radians, one for each axis of the torus.")
    share: float = Field(description="Of the posterior's mass around it, by Laplace's approximation.")


class View(BaseModel):
    """What the model thinks of one image."""

    pixels: list[float] = Field(description="The image as the model saw it: norm 1, row by row.")
    codes: list[float] = Field(description="One for each shape: how much of it is there.")
    pose: list[float] = Field(description="The most probable pose, radians.")
    modes: list[Mode] = Field(description="Where else the pose may be, the most probable first.")
    log_likelihood: float = Field(description="ln P(I | α), the pose integrated out.")
    sparse_codes: list[float] | None = Field(description="Codes of plain sparse coding, if the run has it.")
    note: str = Field(default="", description="What was done to the image first.")


class Session(NamedTuple):
    """A model that can be explored."""

    title: str
    coder: LieSparseCoder
    baseline: SparseCoder | None
    engine: Engine
    examples: Float[Tensor, "image pixel"]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Height and width, perhaps with channels."""
        return self.coder.image_shape_


def open_session(folder: Path | None = None, *, data_dir: Path | None = None) -> Session:
    """Open a run, or the one that comes with the package; test images come from the data of the run."""
    run = load_run(DEMO if folder is None else folder)
    spec = str(run.settings.get("data", ""))
    title = _title(folder, spec) if folder is not None else "Ten digits that move"
    model = run.coder.model_
    engine = make_engine("auto", model.frequencies, dtype=model.dtype)
    return Session(title, run.coder, run.baseline, engine, _examples(run, spec, data_dir))


def _title(folder: Path, spec: str) -> str:
    """Name the run and its data, but not where on this machine they are: an exported page goes to others."""
    data = Path(parse_spec(spec).head).name or "unknown data"
    text = f"{folder.resolve().name}: learned from {data}"
    return text.encode(errors="replace").decode()  # a file's name may hold bytes that are no text


def _examples(run: Run, spec: str, data_dir: Path | None) -> Float[Tensor, "image pixel"]:
    """Return some test images, evenly spread; none where the data cannot be found."""
    model = run.coder.model_
    try:
        if not spec:
            reject("run.json", "the name of the data", "none", "Train anew to have test images.")
        # One image to learn from, as none is needed; a set that is made then makes other draws.
        test = check_shape(load_data(spec, data_dir=data_dir, download=False, n=1), run.coder.image_shape_).test
    except (ValueError, OSError) as error:
        logger.warning("No test images to show: %s", error)
        return torch.zeros(0, model.n_pixels, dtype=model.dtype)
    chosen = torch.linspace(0, len(test) - 1, min(N_EXAMPLES, len(test))).round().long()
    return test[chosen].to(model.dtype)


def normalized(pixels: Float[Tensor, " pixel"]) -> Float[Tensor, " pixel"]:
    """Scale an image to norm 1, as the model knows images."""
    scaled = pixels / pixels.abs().max().clamp(min=torch.finfo(pixels.dtype).tiny)
    norm = scaled.norm()
    if not bool(norm > 0):
        reject("image", "something to see", "a blank one", "Draw something, or choose another image.")
    return scaled / norm


@torch.no_grad()
def infer(session: Session, images: Float[Tensor, "batch pixel"]) -> list[View]:
    """Infer codes and poses of unit-norm images, and say how sure the model is."""
    model, engine = session.coder.model_, session.engine
    images = images.to(model.dtype)
    codes = session.coder.transform(images)
    natural = pose_natural(model, images, codes)
    found = engine.modes(natural, MOST_MODES)
    shares = _mode_shares(found, engine.log_partition(natural))
    scores = log_likelihood(model, images, codes, engine)
    plain = session.baseline.transform(images) if session.baseline is not None else None
    views = []
    for place in range(len(images)):
        modes = [
            Mode(pose=pose, share=share)
            for rank, (pose, share) in enumerate(
                zip(torus.wrap(found.poses[place]).tolist(), shares[place], strict=True)
            )
            if rank == 0 or share >= LEAST_SHARE
        ]
        views.append(
            View(
                pixels=images[place].tolist(),
                codes=codes[place].tolist(),
                pose=modes[0].pose,
                modes=modes,
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
