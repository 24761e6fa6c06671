"""What a fitted model shows: walks where the data is, and itself in a notebook."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from liesparse import LieSparseCoder, embedded_digits, symmetry, torus, translations
from liesparse.initialization import known_translation
from liesparse.verdict import Verdict


def test_walks_go_where_the_data_is():
    shapes = torch.nn.functional.avg_pool2d(embedded_digits()[None, :2], 2)[0]
    data = translations(80, max_shift=1.5, wrap=True, sources=shapes, generator=torch.Generator().manual_seed(0))
    coder = LieSparseCoder.from_model(known_translation(shapes, n_irreps=60), (14, 14))
    images = data.images[:2].reshape(-1, 14, 14)
    assert coder.pose_ranges_ is None
    around = coder.traverse(images, 0)
    assert_close(around[:, 0], around[:, -1], atol=1e-4, rtol=0)  # the whole circle
    coder.pose_ranges_ = ranges = coder.pose_ranges(data.images)
    width = 2 * math.pi * 3 / 14  # of shifts by up to 1.5 of 14 pixels
    assert (ranges[..., 2] - ranges[..., 1] > 0.8 * width).all()
    assert (ranges[..., 2] - ranges[..., 1] < 1.1 * width).all()
    walk = coder.traverse(images, 0, steps=5)
    poses = coder.infer(walk.flatten(0, 1)).poses.view(2, 5, 2)
    for template in range(2):
        middle, low, high = ranges[template, 0]
        assert poses[template, :, 0].tolist() == pytest.approx(np.linspace(middle + low, middle + high, 5), abs=0.02)
    assert_close(coder.traverse(images, 0, full=True), around)


def test_the_middle_of_poses_on_a_curve_is_one_of_them():
    """One motion may wind round both axes of the torus: the mean of each axis alone lies where no picture is."""
    along = torch.linspace(0, 2 * math.pi, 101)[:100]
    poses = torch.stack((along, torus.wrap(2 * along + 0.5)), dim=1)
    found = symmetry.pose_ranges(torch.ones(100, 1), poses)
    assert (torus.wrap(poses - found[0, :, 0]).abs().amax(dim=1) < 1e-6).any()
    narrow = 0.3 * torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) + 3.0  # across the end of the circle
    middle, low, high = symmetry.pose_ranges(torch.ones(200, 1), torus.wrap(narrow))[0].unbind(dim=1)
    assert (torus.wrap(middle - 3.0).abs() < 0.15).all()
    assert_close(high - low, narrow.quantile(0.98, dim=0) - narrow.quantile(0.02, dim=0))


def test_a_notebook_shows_templates_and_the_verdict():
    model = known_translation(torch.nn.functional.avg_pool2d(embedded_digits()[None, :3], 2)[0], n_irreps=20)
    verdict = Verdict(True, 2, 2, 0.9, (0.5, 0.4), 20.0, 3.0)
    coder = LieSparseCoder.from_model(model, (14, 14), verdict=verdict)
    for shown in (coder._repr_html_(), coder._repr_mimebundle_()["text/html"]):
        assert "Found two motions" in shown
        assert 'src="data:image/png;base64,' in shown
        assert "n_components" in shown  # scikit-learn's own
    assert "data:image/png" not in LieSparseCoder()._repr_html_()
    assert "LieSparseCoder" in LieSparseCoder()._repr_mimebundle_()["text/plain"]
