"""The paper's figures: which numbers each panel shows, and models made or found."""

from dataclasses import replace

import pytest
import torch

from liesparse.data import translations
from liesparse.estimators import SparseCoder
from liesparse.figures import to_png
from liesparse.figures.paper import RowPanels
from liesparse.inference import infer_codes
from liesparse.initialization import random_start
from liesparse.lattice import half_lattice
from liesparse.model import apply_transform
from liesparse.posterior import AdaptiveEngine, TorusPosterior, pose_natural
from liesparse.reproduce import figures as work
from liesparse.reproduce.table1 import FOUND, ROWS, Order, RowImages, find_or_learn, find_or_learn_baseline
from liesparse.settings import load_recipe


@pytest.fixture(scope="module")
def images():
    rng = torch.Generator().manual_seed(0)
    return RowImages(translations(200, generator=rng).images, translations(40, generator=rng).images)


@pytest.fixture(scope="module")
def model():
    return random_start(784, n_irreps=60, include_zero=True, generator=torch.Generator().manual_seed(1))


def test_columns_go_from_slow_to_fast():
    frequencies = torch.tensor([[2, 1], [0, 0], [1, 1], [0, -1]])
    assert work.slowest_columns(frequencies).tolist() == [2, 3, 6, 7, 4, 5, 0, 1]
    lattice = half_lattice(2, 30)
    norms = lattice[work.slowest_columns(lattice)[::2] // 2].double().norm(dim=1)
    assert (norms.diff() >= 0).all()


def test_panels_are_what_the_model_says(model, images):
    shuffled = torch.randperm(60, generator=torch.Generator().manual_seed(2))
    mixed = replace(
        model,
        frequencies=model.frequencies[shuffled],
        group_basis=model.group_basis.unflatten(1, (60, 2))[:, shuffled].flatten(1),
    )
    panels = work.row_panels("translation", mixed, images, seed=3)
    assert panels.samples.shape == (80, 28, 28)
    expected = model.group_basis.T[:2].reshape(2, 28, 28).numpy()  # ω = 0 is the slowest, wherever it was put
    assert (panels.columns[:2] == expected).all()
    inputs = torch.from_numpy(panels.model.inputs).flatten(1)
    codes = infer_codes(mixed, inputs, AdaptiveEngine(mixed.frequencies))
    assert (panels.model.codes == codes.numpy()).all()
    posterior = TorusPosterior(pose_natural(mixed, inputs, codes), mixed.frequencies)
    torch.testing.assert_close(torch.from_numpy(panels.model.densities), posterior.density(work.N_GRID))
    moved, step = torch.from_numpy(panels.traversals[1]).flatten(2), 2
    unmoved = apply_transform(mixed, moved[:, 5], torch.zeros(5, 2))  # the middle one, from -π to π
    torch.testing.assert_close(unmoved, moved[:, 5])
    angle = torch.linspace(*panels.span, work.N_STEPS)[step]
    poses = torch.stack((torch.zeros(5), angle.expand(5)), dim=1)
    torch.testing.assert_close(apply_transform(mixed, moved[:, 5], poses), moved[:, step], atol=1e-5, rtol=1e-4)


def test_both_models_see_the_same_inputs(model, images):
    row = work.row_panels("mnist-10", model, images, seed=0)
    plain = work.plain_panels(SparseCoder.from_dictionary(model.dictionary, (28, 28)), images, seed=0)
    assert (row.model.inputs == plain.inputs).all()
    assert plain.densities is None
    assert row.span == (-1.5, 1.0)
    others = work.row_panels("mnist-10", model, images, seed=1)
    assert (row.model.inputs != others.model.inputs).any()


@pytest.mark.parametrize(
    ("names", "plain", "drawn"),
    [
        (["translation"], False, ["figure1", "figure2", "figure3"]),
        (["mnist-10"], True, ["figure1", "figure2", "figure4"]),
        (["translation", "mnist-10"], True, ["figure1", "figure2", "figure3", "figure4"]),
        ([], False, []),
    ],
)
def test_only_what_there_is_gets_drawn(model, images, names, plain, drawn):
    rows: dict[str, RowPanels] = {name: work.row_panels(name, model, images, seed=0) for name in names}
    beside = (
        work.plain_panels(SparseCoder.from_dictionary(model.dictionary, (28, 28)), images, seed=0) if plain else None
    )
    assert list(work.draw(rows, beside)) == drawn


@pytest.mark.parametrize("torus_dim", [1, 2])
def test_the_picture_of_the_demo_has_every_panel(torus_dim):
    rng = torch.Generator().manual_seed(0)
    model = random_start(64, n_irreps=12, torus_dim=torus_dim, include_zero=True, generator=rng)
    images = torch.nn.functional.normalize(torch.rand(10, 64, generator=rng), dim=1)
    figure = work.demo_figure(model, images, "headline")
    titles = " ".join(axes.get_title(loc="left") for axes in figure.axes)
    assert "dictionary" in titles
    assert "the first 24 columns of W" in titles
    assert titles.count("Traversal") == torus_dim
    assert to_png(figure, dpi=40).startswith(b"\x89PNG")


@pytest.fixture
def order(tmp_path):
    recipe = load_recipe("best").with_values({"learning.n_epochs": 1, "start": "data"})
    row = replace(ROWS["translation"], sparse_coding_epochs=2)
    return Order("translation", row, recipe, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("make", [find_or_learn, find_or_learn_baseline])
def test_found_only_if_all_settings_are_equal(order, images, make):
    path = order.run_directory / "model.safetensors" if make is find_or_learn else order.dictionary_path

    def learns(order, images):
        told = []
        make(order, images, told.append)
        assert not (order.run_directory / "checkpoints").exists()
        return told != [FOUND]

    assert learns(order, images)
    assert path.is_file()
    assert not learns(order, images)
    assert learns(order, RowImages(images.train.flip(0), images.test))  # as many, but others
    assert learns(order, RowImages(images.train[:150], images.test))
    longer = replace(order.row, sparse_coding_epochs=1)
    longer_recipe = order.recipe.with_values({"learning.n_epochs": 2})
    assert learns(order._replace(row=longer, recipe=longer_recipe), images)
    path.write_bytes(path.read_bytes()[:-1])
    assert learns(order._replace(row=longer, recipe=longer_recipe), images)


def test_what_is_found_equals_what_was_made(order, images):
    told = []
    made = find_or_learn(order, images, told.append)
    found = find_or_learn(order, images, told.append)
    assert made.coder.model_.group_basis.equal(found.coder.model_.group_basis)
    assert made.metrics == found.metrics
    dictionary = find_or_learn_baseline(order, images, told.append)
    assert (dictionary.components_ == find_or_learn_baseline(order, images, told.append).components_).all()
    ends = [step for step in told if step.end_of_epoch]
    assert [step.note for step in ends][1:] == [FOUND.note, "epoch 1/2", "epoch 2/2", FOUND.note]
    assert ends[-2].share == 1


def test_an_unfinished_run_is_not_thrown_away(order, images):
    longer = order._replace(recipe=order.recipe.with_values({"learning.n_epochs": 2}))

    def stop(step):
        if step.end_of_epoch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_or_learn(longer, images, stop)
    with pytest.raises(ValueError, match=r"n_epochs = 2, not 1.* another folder to start anew"):
        find_or_learn(order, images, stop)
    told = []
    find_or_learn(longer, images, told.append)
    assert {step.note[:9] for step in told} == {"epoch 2/2"}
