"""What the report finds in a run, before anything is drawn."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from liesparse import LieSparseCoder, embedded_digits, translations
from liesparse.confidence import POSE, SPREAD, STRANGE
from liesparse.data import LoadedData
from liesparse.figures import draw_pixels
from liesparse.initialization import known_translation
from liesparse.report.findings import Findings
from liesparse.run_directory import Run


@pytest.fixture(scope="module")
def shapes():
    return torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]


@pytest.fixture(scope="module")
def coder(shapes):
    return LieSparseCoder.from_model(known_translation(shapes, n_irreps=50), (14, 14))


def look(coder, test):
    return Findings(Run(Path(), coder, None, {}, {}), LoadedData("some", test[:0], test, (14, 14)))


def test_strangers_come_before_shapes_whose_pose_alone_is_doubted(coder, shapes):
    images = translations(20, max_shift=3, wrap=True, sources=shapes, generator=torch.Generator().manual_seed(0)).images
    found = look(coder, images)
    kinds = torch.zeros(20, dtype=torch.long)
    kinds[[2, 5, 7, 11]] = torch.tensor((POSE, STRANGE, SPREAD, STRANGE))
    sure = torch.linspace(1.0, 0.05, 20)
    sure[2] = 0.001  # least sure of all, and only of its pose
    found.confidence = found.confidence._replace(confidence=sure, uncertain=kinds > 0, doubt=kinds)
    assert found.doubtful() == [11, 5, 7, 2]
    assert [found.doubt(row) for row in (11, 2, 0)] == ["like no template", "alike in other poses", ""]
    best, worst = found.examples()
    assert worst == [11, 5, 7]  # the same as are shown first among the doubtful
    assert not set(best) & {2, 5, 7, 11}


def test_photos_are_no_negatives(coder):
    photos = torch.rand(5, 196, generator=torch.Generator().manual_seed(0)) + 0.3
    found = look(coder, photos)
    assert found.look == "light"
    drawn = Image.open(io.BytesIO(draw_pixels(found.shown(found.images[0])))).convert("L")
    bright = int(found.images[0].argmax())
    assert drawn.getpixel((bright % 14, bright // 14)) == 255
