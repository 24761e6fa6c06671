"""Good files, from which damaged ones are made."""

from __future__ import annotations

import contextlib
import io
import shutil
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from liesparse import LieSparseCoder, SparseCoder, ToroidalSubgroup, embedded_digits
from liesparse.checkpoint import list_checkpoints
from liesparse.data import load_data
from liesparse.figures import image_bytes
from liesparse.run_directory import BASELINE, MODEL, Run, save_run
from liesparse.web.session import Session, open_session

N_PIXELS = 64


class Samples(NamedTuple):
    """A run with a model, files of each kind of estimator, a recipe and a picture."""

    run: Path
    sealed: dict[str, Path]  # by kind
    images: torch.Tensor
    recipe: str
    png: bytes
    session: Session


def make_samples(folder: Path) -> Samples:
    """Learn tiny models of scikit-learn's digits, in a few seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    loaded = load_data("digits:n=200,n_test=20")
    sizes = {"n_irreps": 6, "n_epochs": 1, "random_state": 0}
    settings = {"start": "random", "learning.batch_size": 50}
    images = loaded.train.reshape(-1, 8, 8)
    with contextlib.redirect_stdout(io.StringIO()):
        coder = LieSparseCoder(3, settings=settings, checkpoint_dir=folder / "checkpoints", **sizes).fit(images)
        coder.set_params(checkpoint_dir=None)
        baseline = SparseCoder(3, n_epochs=1, random_state=0).fit(images)
        pairs = ToroidalSubgroup(n_irreps=3, multiplicity=1, n_epochs=1, random_state=0).fit(images, images.flip(0))
    run = folder / "run"
    how = {"data": "digits:n=200,n_test=20", "recipe": "best", "seed": 0, "settings": settings, "epochs": 1}
    metrics = {"n_test_images": 20, "lsc_snr": 1.5, "lsc_active_codes": 2.0, "lsc_log_likelihood": 1.0}
    save_run(Run(run, coder, baseline, how, metrics))
    pairs.save(folder / "pairs.safetensors")
    sealed = {
        "LieSparseCoder": run / MODEL,
        "SparseCoder": run / BASELINE,
        "ToroidalSubgroup": folder / "pairs.safetensors",
    }
    sealed["checkpoint"] = list_checkpoints(folder / "checkpoints")[-1]
    recipe = resources.files("liesparse").joinpath("recipes/best.toml").read_text(encoding="utf-8")
    png = image_bytes(np.asarray(embedded_digits()[0])[:6, :6] + np.eye(6))
    return Samples(run, sealed, loaded.test, recipe, png, open_session(run))
