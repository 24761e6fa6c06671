"""The main promise in miniature: ten seconds of training recover translation, on three seeds out of three."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from liesparse import torus
from liesparse.data import TransformedImages, embedded_digits, translations
from liesparse.inference import infer_codes, map_poses
from liesparse.learning import learn
from liesparse.metrics import evaluate
from liesparse.model import Parameters
from liesparse.posterior import AdaptiveEngine, GridEngine, pose_natural
from liesparse.recipes import load_recipe
from liesparse.starts import random_start, start_from_data

SEEDS = (0, 1, 2)
N_SHAPES = 4


class Learned(NamedTuple):
    parameters: Parameters
    test: TransformedImages


@pytest.fixture(scope="module", params=SEEDS)
def learned(request) -> Learned:
    """Train the default recipe on four digits at half their size, shifted by up to a quarter of the frame."""
    rng = torch.Generator().manual_seed(request.param)
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None, :N_SHAPES], 2)[0]
    images = translations(8000, max_shift=3.5, sources=shapes, generator=rng).images
    test = translations(500, max_shift=3.5, sources=shapes, generator=rng)
    start = random_start(196, n_components=N_SHAPES, n_irreps=40, include_zero=True, generator=rng)
    settings = replace(
        load_recipe("best").learning,
        n_epochs=8,
        batch_size=50,
    )
    return Learned(learn(start_from_data(start, images, generator=rng), images, settings, generator=rng), test)


def test_it_explains_images_it_has_not_seen(learned):
    found = evaluate(learned.parameters, learned.test.images, AdaptiveEngine(learned.parameters.frequencies))
    assert found.snr > 20  # sparse coding without a group stays below 5 here
    assert found.templates_alive == N_SHAPES
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
