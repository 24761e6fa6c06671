"""The main promise in miniature: a few seconds of training at the defaults recover translation, on nearly every seed.

Which seeds fail depends on rounding, and so on the processor: no single one is asked for.
"""

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

SEEDS, MORE, ENOUGH = range(2), range(2, 6), 5
SCRIPT = Path(__file__).with_name("miniature.py")
_spec = importlib.util.spec_from_file_location("miniature", SCRIPT)
miniature = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(miniature)


class Learned(NamedTuple):
    parameters: Parameters
    test: TransformedImages


def train(seeds: range, folder: Path) -> list[Learned]:
    command = [sys.executable, str(SCRIPT), str(folder)]
    processes = [subprocess.Popen([*command, *map(str, own)]) for own in (seeds[::2], seeds[1::2])]
    assert [process.wait(timeout=600) for process in processes] == [0, 0]
    return [Learned(load_model(folder / f"{seed}.safetensors")[0], miniature.make_images(seed)[1]) for seed in seeds]


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> list[Learned]:
    return train(SEEDS, tmp_path_factory.mktemp("miniature"))


def correlation_of_pose_and_shift(model: Parameters, test: TransformedImages) -> float:
    """Return that of the worse axis, each from the middle of its shape; axes may be mixed or turned."""
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
    return float((1 - unexplained).clamp(min=0).sqrt().min())


class Outcome(NamedTuple):
    snr: float
    active: float
    alive: int
    correlation: float

    @property
    def good(self) -> bool:  # sparse coding without a group stays below an SNR of 5 here
        return self.snr > 20 and self.active < 1.5 and self.alive == miniature.N_SHAPES and self.correlation > 0.98


def judge(model: Parameters, test: TransformedImages) -> Outcome:
    found = evaluate(model, test.images, AdaptiveEngine(model.frequencies))
    correlation = correlation_of_pose_and_shift(model, test)
    return Outcome(found.snr, found.active_codes, found.templates_alive, correlation)


def test_most_trainings_explain_new_images_and_find_the_shift(learned, tmp_path):
    """Both of the first two, or else five of six."""
    outcomes = [judge(*one) for one in learned]
    if not all(outcome.good for outcome in outcomes):
        outcomes += [judge(*one) for one in train(MORE, tmp_path)]
        assert sum(outcome.good for outcome in outcomes) >= ENOUGH, outcomes


def test_moments_of_a_trained_model_are_right_to_a_thousandth(learned):
    """The posteriors of a learned group, from flat to ten times sharper, against 600 points per axis."""
    for model, test in learned:
        assert_right_to_a_thousandth(model, test.images[:6])


def assert_right_to_a_thousandth(model, images):
    codes = infer_codes(model, images, AdaptiveEngine(model.frequencies))
    natural = torch.cat([sharper * pose_natural(model, images, codes) for sharper in (0.0, 0.1, 1.0, 3.0, 10.0)])
    truth = GridEngine(model.frequencies, 600, dtype=torch.float64).moments(natural.double())
    found = AdaptiveEngine(model.frequencies).moments(natural)
    error = (found.rotation - truth.rotation).flatten(1).norm(dim=1)
    assert float((error / truth.rotation.flatten(1).norm(dim=1).clamp(min=1e-3)).max()) < 1e-3
    offset = (found.log_partition - truth.log_partition).abs() / truth.log_partition.abs().clamp(min=1)
    assert float(offset.max()) < 1e-3
