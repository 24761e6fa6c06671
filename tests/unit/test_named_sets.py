"""Sets of images that have a name: synthetic, bundled and fetched ones."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from liesparse.data import (
    datasets,
    list_datasets,
    load_data,
    load_images,
    shears_stretches,
    unit_norm,
)
from unit.writing import idx, make_pixels


def test_n_of_a_named_set_is_how_many_are_looked_at():
    found = load_images("digits:n=30", (8, 8))
    assert len(found.images) == len(found.names) == 30
    every = load_images("digits:n_test=1700", (8, 8))
    at = list(every.places).index(found.places[3]) if found.places[3] in every.places else None
    assert at is None or every.images[at].equal(found.images[3])  # the number is that in the whole set
    assert max(found.places) > 30
    with pytest.raises(ValueError, match="has one size only"):
        load_images("mnist-mini", (8, 8))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("translatoin", "Did you mean translation?"),
        ("MNIST", "Did you mean mnist?"),
        ("", "a path or one of translation, rotation-scaling"),
        ("zzzzzz", "Pass one of these, or a path."),
        ("translation:size=3", "one of n, n_test, seed, max_shift, wrap, got 'size'"),
        ("translation:n", "parameters of translation: expected key=value pairs, such as n=1000,seed=3, got 'n'"),
        ("translation:n=0", "n: expected a whole number >= 1, got int 0"),
        ("translation:n=many", "n: expected a whole number >= 1, got 'many'"),
        ("translation:n=5,n=6", "n: expected each parameter once"),
        ("translation:wrap=perhaps", "wrap: expected yes or no"),
        ("translation:max_shift=nan", "max_shift: expected a finite number"),
        ("rotation-scaling:min_scale=2", "scales: expected (lowest, highest)"),
        ("digits:n=5000", "n + n_test: expected at most 1,797 images"),
    ],
)
def test_names_and_parameters_are_checked(spec, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011, the text is checked below
        load_data(spec)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "n_factors"),
    [("translation", 2), ("rotation-scaling", 2), ("shear-stretch", 2), ("translation-rotation", 3)],
)
def test_synthetic_sets_know_their_truth(name, n_factors):
    data = load_data(f"{name}:n=40,n_test=20,seed=3")
    again, other = load_data(name, n=40, n_test=20, seed=3), load_data(name, n=40, n_test=20, seed=4)
    assert data.train.equal(again.train)
    assert not data.train.equal(other.train)
    assert not data.train[:20].equal(data.test)
    assert data.factors.shape == (40, n_factors)
    assert data.test_factors.shape == (20, n_factors)
    assert len(data.factor_names) == n_factors
    assert data.labels[:12].tolist() == [*range(10), 0, 1]
    assert data.summary() == f"{name}: 40 images to learn from and 20 to test, 28 × 28 pixels; 0 blank skipped"


def test_parameters_reach_the_synthetic_sets():
    assert float(load_data("translation:n=200,n_test=1,max_shift=2").factors.abs().max()) <= 2
    log_scales = load_data("rotation-scaling:n=200,n_test=1,min_scale=0.9,max_degrees=5").factors[:, 1]
    assert float(log_scales.exp().min()) >= 0.9 - 1e-6
    shears, log_stretches = load_data("shear-stretch:n=200,n_test=1,max_shear=0.1,max_stretch=0.7").factors.unbind(1)
    assert float(shears.abs().max()) <= 0.1
    assert float(log_stretches.exp().max()) <= 0.7 + 1e-6
    three = load_data("translation-rotation:n=200,n_test=1,max_shift=1,max_degrees=10").factors
    assert (three.abs().amax(dim=0) <= torch.tensor([1.0, 1.0, math.radians(10)])).all()
    assert (three.abs().amax(dim=0) > torch.tensor([0.9, 0.9, math.radians(9)])).all()


def test_shear_leans_to_the_right_and_stretch_widens():
    source = torch.zeros(1, 41, 41)
    source[0, 9:12, 25:28] = 1  # six pixels right of the centre (20, 20), and ten above
    found = shears_stretches(200, sources=source, generator=torch.Generator().manual_seed(0))
    down, right = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    for image, (shear, log_stretch) in zip(found.images, found.factors, strict=True):
        weights = image / image.sum()
        expected = float(log_stretch.exp() * (6 + 10 * shear))
        assert float((weights * right.flatten()).sum()) == pytest.approx(expected, abs=0.2)
        assert float((weights * down.flatten()).sum()) == pytest.approx(-10, abs=0.2)
    with pytest.raises(ValueError, match="stretches: expected"):
        shears_stretches(5, stretches=(1.0, 0.5), generator=torch.Generator())


def test_embedded_and_bundled_sets():
    with np.load(datasets.MINI) as packed:
        images, labels = unit_norm(torch.from_numpy(packed["images"]).flatten(1).float()), packed["labels"]
    labels = torch.from_numpy(labels).long()
    assert images.shape == (2000, 784)
    assert labels.bincount().gt(100).all()
    mini = load_data("mnist-mini")
    assert (len(mini.train), len(mini.test)) == (1800, 200)
    nearest = (mini.test @ images.T).argmax(dim=1)
    assert_close(mini.test, images[nearest])
    assert mini.test_labels.equal(labels[nearest])
    digits = load_data("digits:n=100,n_test=10")
    assert digits.train.shape == (100, 64)
    assert digits.image_shape == (8, 8)
    assert len(digits.test_labels) == 10


def test_sources_are_listed(tmp_path):
    listed = {info.name: info for info in list_datasets(tmp_path)}
    made = ["translation", "rotation-scaling", "shear-stretch", "translation-rotation"]
    assert list(listed) == [*made, "mnist", "mnist-mini", "fashion-mnist", "digits"]
    assert "liesparse data fetch mnist" in listed["mnist"].where
    assert listed["translation"].parameters["max_shift"] == 7
    for split in ("train", "t10k"):
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(make_pixels()))
    assert {info.name: info.where for info in list_datasets(tmp_path)}["mnist"] == str(tmp_path)
