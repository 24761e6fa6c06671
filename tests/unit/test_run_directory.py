"""What is measured of a finished run, beside what the tests of the metrics know."""

from dataclasses import replace

import pytest
import torch

from liesparse import LieSparseCoder
from liesparse.cli.common import console, set_console
from liesparse.cli.train import print_metrics
from liesparse.inference import infer_codes
from liesparse.initialization import random_start
from liesparse.model import reconstruct
from liesparse.posterior import SamplingEngine, pose_natural
from liesparse.run_directory import measure


def make_run(torus_dim, repeats=1, noise_std=0.1):
    """A model whose density repeats itself along each axis, and images of its own."""
    rng = torch.Generator().manual_seed(0)
    model = random_start(
        30, n_components=3, n_irreps=8, torus_dim=torus_dim, noise_std=noise_std, sparsity=1.0, generator=rng
    )
    model = replace(model, frequencies=repeats * model.frequencies)
    codes, poses = torch.rand(6, 3, generator=rng), 6 * torch.rand(6, torus_dim, generator=rng)
    return model, torch.nn.functional.normalize(reconstruct(model, codes, poses), dim=1)


def printed(metrics):
    set_console()
    with console.capture() as said:
        print_metrics(metrics)
    return said.get()


# 125 equal modes are too many, and rounding decides which of them get a cloud.
@pytest.mark.parametrize(("repeats", "trusted", "tolerance"), [(1, True, 0.02), (5, False, 0.5)])
def test_the_least_effective_sample_size_is_that_of_the_weights(repeats, trusted, tolerance):
    model, images = make_run(3, repeats)
    metrics = measure(LieSparseCoder.from_model(model), None, images)
    engine = SamplingEngine(model.frequencies)
    natural = pose_natural(model, images, infer_codes(model, images, engine))
    weights = torch.softmax(
        SamplingEngine(model.frequencies, dtype=torch.float64).nodes(natural.double()).log_weights, dim=1
    )
    least = metrics["least_effective_sample_size"]
    assert least == pytest.approx(float((1 / weights.square().sum(dim=1)).min()), rel=tolerance)
    assert (least >= 50) == trusted
    warning = f"Do not trust the integrals over the pose: the least effective sample size is {least:.0f}, below 50."
    assert (warning in printed(metrics)) != trusted


@pytest.mark.slow
def test_what_the_warning_advises_helps():
    sharp, flat = (
        measure(LieSparseCoder.from_model(model), None, images)["least_effective_sample_size"]
        for model, images in (make_run(3, 5, noise_std) for noise_std in (0.1, 0.5))
    )
    assert sharp < 50 < flat
    model, images = make_run(2, 5)
    metrics = measure(LieSparseCoder.from_model(model), None, images)
    assert "least_effective_sample_size" not in metrics
    assert "Do not trust" not in printed(metrics)
