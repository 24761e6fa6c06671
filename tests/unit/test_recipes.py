"""Recipes: both files load, the paper's is the paper's, every value can be changed, and errors say what to do."""

import pytest

from liesparse.settings import RECIPES, Recipe, Settings, load_recipe, parse_values, setting_names


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads(name):
    assert isinstance(load_recipe(name), Recipe)


def test_the_papers_recipe_is_the_papers():  # app. E and table 1
    recipe = load_recipe("paper")
    assert recipe.start == "random"
    assert recipe.learning == Settings()  # whose defaults the paper states
    learning = recipe.learning
    assert (learning.n_epochs, learning.batch_size, learning.n_grid, learning.n_code_steps) == (20, 100, 50, 20)
    assert (learning.dictionary_rate, learning.group_rate, learning.code_start) == (0.05, 0.3, 0.01)
    assert (learning.gradient, learning.code_update, learning.lattice) == ("approximate", "subgradient", "paper")
    assert (learning.method, learning.metric, learning.posterior) == ("gradient", "canonical", "grid")
    assert (recipe.evaluation.posterior, recipe.evaluation.n_grid, recipe.evaluation.refine) == ("grid", 100, False)


def test_best_is_the_default():
    assert load_recipe() == load_recipe("best")
    assert load_recipe().learning.method == "em"


def test_every_value_can_be_changed():
    recipe = load_recipe("paper")
    for name in setting_names():
        part, _, key = name.rpartition(".")
        same = getattr(getattr(recipe, part) if part else recipe, key)
        assert recipe.with_values({name: same}) == recipe
    changed = recipe.with_values(parse_values(["learning.first_memory=25.0", "start=data", "evaluation.refine=true"]))
    assert (changed.learning.first_memory, changed.start, changed.evaluation.refine) == (25.0, "data", True)
    assert recipe.start == "random"


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('start = "random"\n[learning]\nn_epochs = 3\n')
    assert load_recipe(path).learning.n_epochs == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[learning]\nepochs = 3\n", "setting: expected one of start, .*learning.n_epochs.*got 'learning.epochs'"),
        ("[learning]\nn_epochs = 0\n", "n_epochs: expected a whole number >= 1"),
        ("start = \n", "recipe: expected a TOML file"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_recipe(path)


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize("name", ["include_zero", "learning.learn_group", "evaluation.refine"])
def test_a_word_is_no_yes_or_no(name):
    with pytest.raises(ValueError, match=r"expected true or false, got 'no'\. Write it without quotes"):
        load_recipe("best").with_values(parse_values([f"{name}=no"]))


def test_unknown_names():
    with pytest.raises(ValueError, match=r"recipe: expected 'best', 'paper' or the path of a .toml file, got 'other'"):
        load_recipe("other")
    with pytest.raises(ValueError, match="setting: expected key=value"):
        parse_values(["learning.first_memory"])


@pytest.mark.usefixtures("without_type_checker")
@pytest.mark.parametrize("name", [0.5, None, ["best"], {}])
def test_a_name_that_is_no_text_is_refused(name):
    with pytest.raises(ValueError, match="recipe: expected 'best', 'paper' or the path of"):
        load_recipe(name)
