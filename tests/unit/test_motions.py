"""A motion in plain words: how far pictures go, against the truth of known groups, and silence where it is unknown."""

import math
import re
from dataclasses import replace

import pytest
import torch

from liesparse import LieSparseCoder, embedded_digits, translations
from liesparse.data import translations_rotations
from liesparse.groups import Rotations
from liesparse.initialization import known_translation
from liesparse.model import Parameters, uniform_prior
from liesparse.motions import describe_motion, motion_spans, motion_words
from liesparse.run_directory import Run, measure, model_card
from liesparse.verdict import Verdict


@pytest.fixture(scope="module")
def shapes():
    return torch.nn.functional.avg_pool2d(embedded_digits()[None], 2)[0]


def told(model, images):
    coder = LieSparseCoder.from_model(model, (14, 14))
    return describe_motion(model, *coder.infer(images), (14, 14))


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.?\d*", text)]


@pytest.mark.parametrize("shift", [2, 5])
def test_shifts_are_told_in_pixels(shapes, shift):
    generator = torch.Generator().manual_seed(shift)
    made = translations(230, max_shift=shift, wrap=True, sources=shapes, generator=generator)
    text = told(known_translation(shapes, n_irreps=60), made.images)
    assert text.startswith("Shapes are shifted by up to about")
    assert numbers(text) == pytest.approx([shift, shift, 14, 14], rel=0.15)
    assert "turned" not in text
    assert "scaled" not in text


@pytest.mark.parametrize("degrees", [30, 75, 180])
def test_turns_are_told_in_degrees(shapes, degrees):
    generator, some = torch.Generator().manual_seed(degrees), {"max_shift": 0, "sources": shapes[[2, 4, 5]]}
    all_round = translations_rotations(200, max_degrees=180, **some, generator=generator).images
    made = translations_rotations(150, max_degrees=degrees, **some, generator=generator).images
    basis = Rotations(14, 14).make_basis(all_round, 60)
    dictionary = torch.nn.functional.normalize(shapes[[2, 4, 5]].flatten(1), dim=1).T
    prior = uniform_prior(len(basis.frequencies))
    text = told(Parameters(basis.group_basis, dictionary, basis.frequencies, 0.1, 10.0, prior), made)
    if degrees == 180:
        assert text == "Shapes are turned all the way round."
    else:
        assert text.startswith("Shapes are turned by up to about")
        assert numbers(text) == pytest.approx([degrees], rel=0.15)


def test_nothing_is_said_of_a_motion_without_a_name_or_of_few_pictures(shapes):
    model = known_translation(shapes, n_irreps=20)
    made = translations(230, max_shift=3, wrap=True, sources=shapes, generator=torch.Generator()).images
    assert told(model, made[:30]) == ""
    random = torch.linalg.qr(torch.randn(196, 40, generator=torch.Generator().manual_seed(0))).Q
    assert told(replace(model, group_basis=random), made) == ""


def test_nothing_is_said_where_parts_go_their_own_ways(shapes):
    """The middle rows to the left while the others go to the right: a shift explains a part of it, not most."""
    places = torch.arange(196).reshape(14, 14)
    mixed = torch.cat((places[:4], places[4:10].flip(1), places[10:])).flatten()
    model = known_translation(shapes, n_irreps=60)
    parts = replace(model, group_basis=model.group_basis[mixed], dictionary=model.dictionary[mixed])
    made = translations(230, max_shift=3, wrap=True, sources=shapes, generator=torch.Generator()).images
    assert told(model, made) != ""
    assert told(parts, made[:, mixed]) == ""


RATES = {  # of one radian along each axis, and what poses between -1 and 1 of it mean
    "Shapes are scaled between about 0.74 and 1.35 times their middle size.": [[0.3, 0], [0, 0.3]],
    "Shapes are scaled between about 0.74 and 1.35 times their middle width.": [[0.3, 0], [0, 0]],
    "Shapes are slanted by up to about 17 degrees to either side.": [[0, 0.3], [0, 0]],
    "Shapes are turned by up to about 17 degrees to either side.": [[0, 0.3], [-0.3, 0]],
    "": [[0.01, 0], [0, 0]],
}


@pytest.mark.parametrize("text", RATES)
def test_each_motion_has_its_words(text):
    generators = torch.zeros(1, 3, 3, dtype=torch.float64)
    generators[0, :2, :2] = torch.tensor(RATES[text])
    poses = torch.linspace(-1, 1, 201)[:, None] + 3.0  # across the place where angles begin again
    spans = motion_spans(generators, torch.remainder(poses, 2 * math.pi), torch.zeros(201, dtype=torch.int64))
    assert motion_words(spans, (28, 28)) == text


def test_the_card_says_it_where_a_motion_was_found(shapes, tmp_path):
    made = translations(230, max_shift=3, wrap=True, sources=shapes, generator=torch.Generator()).images
    verdict = Verdict(True, 2, 2, 0.97, (0.5, 0.4), 30.0, 4.0)
    for found in (True, False):
        known = {"verdict": verdict._replace(found=found)}
        coder = LieSparseCoder.from_model(known_translation(shapes, n_irreps=60), (14, 14), **known)
        metrics = measure(coder, None, made)
        card = model_card(Run(tmp_path, coder, None, {}, metrics))
        assert ("Shapes are shifted by up to about" in card) == found
        assert ("motion" in metrics) == found
