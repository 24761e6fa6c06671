"""The battery: its images, what counts as solved, and its table."""

from dataclasses import replace

import pytest
import torch

from liesparse.data import embedded_digits, translations
from liesparse.initialization import known_translation, random_start, start_from_data
from liesparse.reproduce import battery
from liesparse.reproduce.battery import (
    EVERY,
    GROUPS,
    KNOWN,
    PROBLEMS,
    compare_with_truth,
    drawn_shapes,
    groups_table,
    letters,
    plan,
    run_cell,
    table,
)
from liesparse.settings import load_recipe


@pytest.mark.parametrize("name", [*PROBLEMS, *KNOWN, *GROUPS])
def test_every_problem_has_unit_images_with_labels_and_factors(name):
    problem = EVERY[name]
    made = problem.make(60, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made.images.norm(dim=1), torch.ones(60))
    assert set(made.labels.tolist()) == set(range(problem.n_shapes))
    assert made.factors.shape == (60, len(made.factor_names))
    n_axes = problem.torus_dim if problem.group is None else len(problem.group.coordinates)
    assert len(made.factor_names) == n_axes
    assert made.images.equal(problem.make(60, generator=torch.Generator().manual_seed(0)).images)


def test_drawn_shapes_and_letters_are_all_different():
    for shapes in (drawn_shapes(), letters()):
        rows = torch.nn.functional.normalize(shapes.flatten(1), dim=1)
        assert float((rows @ rows.T).fill_diagonal_(0).max()) < 0.97
        assert float(shapes[:, 0].max()) == 0  # with an empty border


def test_the_true_model_is_solved_and_a_start_is_not():
    problem, recipe = PROBLEMS["translation-wrapped"], load_recipe("best")
    test = problem.make(600, generator=torch.Generator().manual_seed(1))
    truth = known_translation(embedded_digits())
    found = compare_with_truth(truth, test, recipe, problem)
    assert found["solved"]
    assert found["missing"] == 0
    assert min(found["R"]) > 0.999
    assert found["purity"] > 0.99
    start = random_start(784, include_zero=True, generator=torch.Generator().manual_seed(2))
    start = start_from_data(start, test.images, generator=torch.Generator().manual_seed(3))
    assert not compare_with_truth(start, test, recipe, problem)["solved"]


def test_a_shape_without_a_template_is_missing():
    problem, recipe = PROBLEMS["translation"], load_recipe("best")
    digits = embedded_digits()
    digits[3] = digits[4]
    test = translations(600, max_shift=5, generator=torch.Generator().manual_seed(1))
    found = compare_with_truth(known_translation(digits), test, recipe, problem)
    assert found["missing"] == 1
    assert not found["solved"]


def test_a_cell_is_learned_and_counted_in_the_table(monkeypatch):
    monkeypatch.setitem(battery.EVERY, "signals", replace(PROBLEMS["signals"], n_images=600))
    monkeypatch.setattr(battery, "N_TEST", 300)
    recipe = load_recipe("best").with_values({"learning.n_epochs": 1, "n_init": 2, "start": "data"})
    cell = run_cell("signals", True, 7, recipe)
    assert (cell["problem"], cell["n_components"], cell["seed"], cell["starts"]) == ("signals", 6, 7, 2)
    keys = "solved snr R worst_R purity missing seconds found explained effects plain_snr matched verdict"
    assert set(cell) == {"problem", "n_components", "seed", "starts", "angle_error", "shift_error", *keys.split()}
    solved = {"problem": "signals", "n_components": 3, "solved": True, "snr": 40.0}
    head, lines = table([cell, solved, solved | {"solved": False, "snr": 2.0}], ["signals"])
    assert len(head) == 3
    assert lines[0][:2] == ["signals", "1 of 2 (2.0)"]
    assert lines[1][1] == "1 of 2"


def test_groups_are_compared_by_angles_shifts_and_the_worst_seed():
    assert plan(["translation", "noise", "any-angle"], [4]) == [
        ("translation", False, 4),
        ("translation", True, 4),
        ("noise", False, 4),
        ("any-angle", False, 4),
    ]
    first = {"problem": "any-angle", "snr": 40.0, "R": (1.0,), "purity": 0.99, "matched": 0.98, "seconds": 1.0}
    first |= {"angle_error": 1.5, "shift_error": 0.2}
    other = first | {"snr": 30.0, "angle_error": 2.5, "seconds": 7.4}
    shifted = first | {"problem": "known-500", "R": (0.99, 0.98), "angle_error": None, "shift_error": None}
    _, lines = groups_table([shifted, other, first])
    assert lines == [
        ["any-angle", "2", "purity 0.98, angle 3°", "30.0", "", "0.990", "0.980", "2.50", "0.20", "7"],
        ["known-500", "1", "all ten, SNR 30", "40.0", "0.980", "0.990", "0.980", "", "", "1"],
    ]
