"""A contributor's own data set and transformation have a name that load_data and the command line know."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from liesparse.cli.tools import data as app
from liesparse.data import (
    datasets,
    list_datasets,
    load_data,
    load_images,
    parse_spec,
    register_dataset,
    register_transformation,
    split_images,
    warp,
)


@pytest.fixture(autouse=True)
def registry():
    """Forget afterwards what a test registered."""
    known = dict(datasets.DATASETS)
    yield
    datasets.DATASETS.clear()
    datasets.DATASETS.update(known)


def load_bars(*, n=None, n_test=None, seed=0, width=2, bright=False, level=0.5, data_dir=None):  # noqa: ARG001, given by load_data
    pixels = np.zeros((40, 6, 8))
    for number, image in enumerate(pixels):
        image[:, number % 5 : number % 5 + width] = (1 if bright else level) + number
    return split_images("bars", pixels, np.arange(40) % 5, n=n, n_test=n_test, seed=seed)


def turns(n_images, *, max_degrees=30.0, leans=(-0.5, 0.5), sources=None, generator):
    uniform = torch.rand(n_images, 2, generator=generator)
    angles = math.radians(max_degrees) * (2 * uniform[:, 0] - 1)
    leaning = leans[0] + (leans[1] - leans[0]) * uniform[:, 1]
    cos, sin = angles.cos(), angles.sin()
    matrices = torch.stack((cos, -sin + leaning, sin, cos), dim=1).reshape(-1, 2, 2)
    return warp(matrices, None, {"rotation": angles, "lean": leaning}, sources)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


MADE_HERE = [name for name, dataset in datasets.DATASETS.items() if "mnist" not in name or name == "mnist-mini"]


@pytest.mark.parametrize("name", MADE_HERE)
def test_every_data_set_keeps_its_promises(name):
    """What greets a new one: its name, counts, norms and sizes are as asked for, and a seed repeats."""
    data, again = (load_data(f"{name}:n=30,n_test=20,seed=3") for _ in range(2))
    assert (data.name, len(data.train), len(data.test)) == (name, 30, 20)
    assert data.train.shape[1] == data.test.shape[1] == math.prod(data.image_shape)
    both = torch.cat((data.train, data.test))
    assert both.isfinite().all()
    torch.testing.assert_close(both.norm(dim=1), torch.ones(50))
    assert data.train.equal(again.train)
    assert data.test.equal(again.test)


def test_a_data_set_of_ones_own(tmp_path):
    register_dataset("bars", load_bars, size="40 of 6 × 8", where=lambda data_dir: f"in {data_dir}")
    data = load_data("bars:n=20,n_test=10,width=3,bright=yes,level=0.25")
    assert (len(data.train), len(data.test), data.image_shape) == (20, 10, (6, 8))
    assert parse_spec("bars:n=20").head == data.name == "bars"
    assert data.train.count_nonzero(dim=1).tolist() == [18] * 20
    assert data.labels.max() == 4
    assert len(load_images("bars:n_test=7", (6, 8)).images) == 7
    info = list_datasets("here")[-1]
    assert info[:3] == ("bars", "40 of 6 × 8", "in here")
    assert info.parameters == {"n": None, "n_test": None, "seed": 0, "width": 2, "bright": False, "level": 0.5}
    assert "40 of 6 × 8" in run("list")[1]
    code, output = run("preview", "bars:n=20,n_test=10", "--out", tmp_path / "a.png")
    assert code == 0
    assert "bars: 20 images to learn from and 10 to test, 6 × 8 pixels" in output
    assert run("preview", "bars:width=wide", "--out", tmp_path / "b.png")[0] == 1
    with pytest.raises(ValueError, match="one of n, n_test, seed, width, bright, level, got 'height'"):
        load_data("bars:height=3")
    with pytest.raises(ValueError, match="Did you mean bars"):
        load_data("bar")


def test_a_data_set_whose_images_have_names_of_their_own():
    def load(*, n=None, n_test=None, seed=0):
        data = load_bars(n=n, n_test=n_test, seed=seed)
        return replace(data, test_names=tuple(f"bar/{name}.png" for name in data.test_names))

    register_dataset("named-bars", load, size="40 of 6 × 8", where="here")
    found = load_images("named-bars:n_test=3", (6, 8))
    assert all(name.startswith("bar/") for name in found.files)
    assert found.places.tolist() == [0, 1, 2]


def test_a_transformation_of_ones_own(tmp_path):
    register_transformation("turn-lean", turns, ranges={"leans": "lean"})
    data = load_data("turn-lean:n=50,n_test=20,max_degrees=10,min_lean=0.1,max_lean=0.2")
    assert (data.train.shape, data.test.shape, data.image_shape) == ((50, 784), (20, 784), (28, 28))
    assert data.factor_names == ("rotation", "lean")
    assert 0.1 <= float(data.factors[:, 1].min()) < float(data.factors[:, 1].max()) <= 0.2
    assert float(data.factors[:, 0].abs().max()) <= math.radians(10)
    assert data.train.equal(load_data("turn-lean:n=50,n_test=20,max_degrees=10,min_lean=0.1,max_lean=0.2").train)
    assert "turn-lean" in run("list")[1]
    assert run("preview", "turn-lean:n=50,n_test=20", "--out", tmp_path / "a.png")[0] == 0


def test_what_cannot_be_registered():
    for name in ("", "a:b", "a,b", "a/b"):
        with pytest.raises(ValueError, match="name: expected letters, digits and hyphens"):
            register_dataset(name, load_bars, size="", where="")
    with pytest.raises(ValueError, match="name: expected one that is not taken, got 'mnist'"):
        register_transformation("mnist", turns)
    with pytest.raises(ValueError, match="parameters of bars: expected a default for each, got none for n"):
        register_dataset("bars", lambda n: load_bars(n=n), size="", where="")
