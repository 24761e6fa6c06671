"""Signal-to-noise ratio and active codes."""

import pytest
import torch
from torch.testing import assert_close

from liesparse.inference import infer_codes, map_poses
from liesparse.metrics import active_codes, evaluate, snr
from liesparse.model import reconstruct
from liesparse.posterior import GridEngine


def test_snr_is_linear_and_per_image():
    images = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    rough = torch.tensor([[3.0, 3.0], [0.5, 0.0]])
    assert snr(images, rough).tolist() == [25.0, 4.0]


def test_a_reconstruction_short_by_a_tenth_has_snr_a_hundred():
    image = torch.tensor([[0.6, 0.8]])
    assert float(snr(image, 0.9 * image)) == pytest.approx(100, rel=1e-5)


def test_ripples_are_not_active():
    assert active_codes(torch.tensor([[0.9, 0.03, 0.0], [0.5, 0.5, 0.06]])) == 2.0


def test_evaluation_is_the_mean_over_all_images_whatever_the_batch(make_model, draw):
    model = make_model(1, noise_std=0.1)
    images, _, _ = draw(model, batch=7)
    engine = GridEngine(model.frequencies, 20, dtype=torch.float64)
    codes = infer_codes(model, images, engine)
    poses = map_poses(model, images, codes, engine)
    expected = snr(images, reconstruct(model, codes, poses)).mean()
    for batch_size in (2, 7):
        found = evaluate(model, images, engine, batch_size=batch_size)
        assert_close(found.snr, float(expected), rtol=1e-9, atol=0)
        assert found.active_codes == pytest.approx(active_codes(codes))
    assert evaluate(model, images, engine, refine=False).snr <= found.snr + 1e-9
