"""The main promise in miniature: ten seconds of training recover translation, on three seeds out of three."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from liesparse import torus
from liesparse.checkpoint import load_model
from liesparse.data import TransformedImages
from liesparse.inference import infer_codes, map_poses
from liesparse.metrics import evaluate
from liesparse.model import Parameters
from liesparse.posterior import AdaptiveEngine, GridEngine, pose_natural

SEEDS = (0, 1, 2)
SCRIPT = Path(__file__).with_name("miniature.py")
_spec = importlib.util.spec_from_file_location("miniature", SCRIPT)
miniature = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(miniature)


class Learned(NamedTuple):
    parameters: Parameters
    test: TransformedImages


@pytest.fixture(scope="module", params=SEEDS)
def learned(request, tmp_path_factory) -> Learned:
    path = tmp_path_factory.mktemp("miniature") / "model.safetensors"
    subprocess.run([sys.executable, str(SCRIPT), str(request.param), str(path)], check=True, timeout=600)
    return Learned(load_model(path)[0], miniature.make_images(request.param)[1])


def test_it_explains_images_it_has_not_seen(learned):
    found = evaluate(learned.parameters, learned.test.images, AdaptiveEngine(learned.parameters.frequencies))
    assert found.snr > 20  # sparse coding without a group stays below 5 here
    assert found.templates_alive == miniature.N_SHAPES
    assert found.active_codes < 1.5


def test_the_pose_is_the_shift(learned):
    """Correlate inferred poses with true shifts, each from the middle of its shape; axes may be mixed or turned."""
    model, test = learned
    engine = AdaptiveEngine(model.frequencies)
    codes = infer_codes(model, test.images, engine)
    winners = codes.argmax(dim=1)
    poses, shifts = map_poses(model, test.images, codes, engine), test.factors.clone()
    for shape in winners.unique():
        own = winners == shape
        turned = torus.wrap(poses[own] - torch.atan2(poses[own].sin().mean(dim=0), poses[own].cos().mean(dim=0)))
        poses[own] = turned - turned.mean(dim=0)
        shifts[own] -= shifts[own].mean(dim=0)
    fitted = poses @ torch.linalg.lstsq(poses, shifts).solution
    unexplained = (shifts - fitted).square().sum(dim=0) / shifts.square().sum(dim=0)
    assert float((1 - unexplained).sqrt().min()) > 0.98


def test_moments_of_a_trained_model_are_right_to_a_thousandth(learned):
    """The posteriors of a learned group, from flat to ten times sharper, against 600 points per axis."""
    model, test = learned
    images = test.images[:6]
    codes = infer_codes(model, images, AdaptiveEngine(model.frequencies))
    natural = torch.cat([sharper * pose_natural(model, images, codes) for sharper in (0.0, 0.1, 1.0, 3.0, 10.0)])
    truth = GridEngine(model.frequencies, 600, dtype=torch.float64).moments(natural.double())
    found = AdaptiveEngine(model.frequencies).moments(natural)
    error = (found.rotation - truth.rotation).flatten(1).norm(dim=1)
    assert float((error / truth.rotation.flatten(1).norm(dim=1).clamp(min=1e-3)).max()) < 1e-3
    offset = (found.log_partition - truth.log_partition).abs() / truth.log_partition.abs().clamp(min=1)
    assert float(offset.max()) < 1e-3
