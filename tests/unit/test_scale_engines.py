"""The measurement of the engines measures what it says; its times are never judged here."""

import torch

from liesparse.posterior import GridEngine, SamplingEngine
from liesparse.reproduce.scale import engines


def test_ratios_are_of_the_times_beside_them():
    found = engines.measure_times(repeats=1)
    for name in ("n3", "n4", "n6"):
        assert found[f"time_ratio_{name}"] == found["batch_ms"][name] / found["batch_ms"]["n2"]


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    seen = []
    times = engines.processor_times({"job": lambda: seen.append(torch.get_num_threads())}, repeats=2)
    assert (seen, torch.get_num_threads(), list(times)) == ([1, 1, 1], before, ["job"])


def test_the_long_estimate_and_brute_force_are_one():
    frequencies, natural = engines.own_naturals(2, 30, 3)
    truth = GridEngine(frequencies, 300, dtype=torch.float64).moments(natural.double()).rotation
    engine = SamplingEngine(frequencies)
    long = torch.stack([engines.long_estimate(row, engine, n_draws=1 << 17) for row in natural])
    assert engines.relative_error(engines.brute_force(natural, frequencies, 200), truth) < 1e-6
    assert engines.relative_error(long, truth) < 2e-3
    assert engines.relative_error(0.9 * truth, truth) > 0.09


def test_own_images_are_what_the_model_says():
    model, images = engines.own_images(3, n_irreps=20)
    assert images.shape == (engines.BATCH, model.n_pixels)
    torch.testing.assert_close(images.norm(dim=1), torch.ones(engines.BATCH))
