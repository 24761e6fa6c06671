"""The bench of scale counts and measures what it says; its times are never judged here."""

import io
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from liesparse.cli.scale import print_part, scale
from liesparse.reproduce.scale import PARTS, images, run_scale
from liesparse.reproduce.scale.operations import Sizes

SIZES = [Sizes(784, 128, 10, 100, 50), Sizes(196, 98, 10, 30, 20), Sizes(300, 20, 40, 7, 13)]


@pytest.mark.parametrize("sizes", SIZES)
def test_formulas_and_torchs_counter_agree(sizes, monkeypatch):
    monkeypatch.setattr(images, "N_COMPONENTS", sizes.n_components)
    found = images.count_operations(sizes)
    assert found["counted"] == found["by_formula"]
    assert found["pixels"] + found["posterior"] + found["codes"] == found["by_formula"]


def test_a_dry_run_does_what_a_real_one_does():
    problem = images.make_problem(300, n_images=100, n_irreps=20)
    settings = replace(images.learning_settings(), posterior="grid", n_grid=13)  # odd: not the compiled code
    with FlopCounterMode(display=False) as counter:
        images.two_steps(problem, settings)()
    assert counter.get_total_flops() / 2 == images.count_operations(Sizes(300, 20, 10, 100, 13))["counted"]


def test_only_what_touches_the_pixels_grows():
    small, large = (images.count_operations(Sizes(n, 20, 10, 9, 12)) for n in (100, 300))
    assert large["pixels"] == 3 * small["pixels"]
    assert (large["posterior"], large["codes"]) == (small["posterior"], small["codes"])


def test_all_sizes_get_the_same_problem():
    small, large = (images.make_problem(n, n_irreps=20, n_images=5) for n in (100, 300))
    planes = [problem.parameters.group_basis.T @ problem.parameters.dictionary for problem in (small, large)]
    assert_close(*planes, atol=1e-5, rtol=0)
    assert_close(large.images.norm(dim=1), torch.ones(5))
    inside = [problem.images @ problem.parameters.group_basis for problem in (small, large)]
    assert torch.nn.functional.cosine_similarity(*inside).min() > 0.9


def test_a_step_of_two_has_one_m_step():
    problem = images.make_problem(100, n_irreps=20, n_images=5)
    state = images.two_steps(problem, images.learning_settings())()
    assert state.step == 102
    assert not state.parameters.group_basis.equal(problem.parameters.group_basis)


def test_no_matrix_of_pixels_by_pixels_at_64_by_64():
    found = images.memory_of_a_process(64 * 64)
    if math.isnan(found["start_mb"]):
        pytest.skip("peak memory is only known on Linux")
    assert 4 < found["learning_mb"] < 85  # W has 4.2, and a D × D matrix of floats would add 67
    assert 4 < found["start_mb"] < 85


def test_the_estimate_is_its_arithmetic():
    found = images.estimate((28, 28), 128, 10.0)
    assert found["steps"] == 1e9 / 6400
    assert found["compute_hours"] == pytest.approx(156_250 * 0.010 / 3600)
    assert found["statistics_mb"] == pytest.approx(4 * (784 * 256 + 256 * 10 + 100) / 1e6)
    assert found["gradients_mb"] == pytest.approx(4 * (784 * 10 + 784 * 256) / 1e6)
    assert found["sent_mb_per_step"] == pytest.approx(2 * 63 / 64 * found["statistics_mb"])
    assert found["mb_per_second"] == pytest.approx(found["sent_mb_per_step"] / 0.010)


def test_the_command_prints_tables_and_writes_json(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(images, "SHAPES", ((16, 16), (16, 16, 3)))
    monkeypatch.setattr(images, "PATCHES", ((6, 6),))
    monkeypatch.setattr(images, "BATCH", 10)
    monkeypatch.setattr(images, "MEMORY_IMAGES", 20)
    path = tmp_path / "scale.json"
    scale(["images"], path)
    found = json.loads(path.read_text())["images"]
    assert [row["n_pixels"] for row in found["growth"]] == [256, 768]
    assert found["growth"][1]["step_ratio"] == found["growth"][1]["step_ms"] / found["growth"][0]["step_ms"]
    assert found["growth"][0]["pixels_ratio"] == 1
    assert found["estimate"][0]["n_irreps"] == 18
    printed = capsys.readouterr().out
    assert "16 × 16 × 3" in printed
    assert "operations counted" in printed
    assert "em_rate" in printed  # of the settings


@pytest.mark.parametrize("part", PARTS)
def test_every_part_says_what_it_is_at_before_it_begins(part):
    told = []

    def hear(what):
        told.append(what)
        if len(told) == 2:
            raise InterruptedError  # that is enough, and saves the measurement

    with pytest.raises(InterruptedError):
        run_scale([part], report=hear)
    assert told[0] == part
    assert told[1].startswith(f"{part}: ")


def test_every_number_of_a_part_is_printed():
    found = {
        "cores": 2,
        "batch_ms": {"n2": 6.25, "n3": 48.5},
        "rivals": {"grid": {"time": 4.75, "error": 0.0125}, "adaptive": {"time": 76.5, "error": 9e-7}},
        "rows": [{"image": "a", "ms": 1.5, "operations": {"counted": 12345}}],
        "nothing": {},
    }
    console = Console(file=io.StringIO(), width=100)
    print_part(console, "engines", found)
    lines = [line.strip("│┃ ").split() for line in console.file.getvalue().splitlines()]
    assert lines[0] == ["engines:", "cores", "2"]
    rows = {tuple(word for word in line if word not in ("│", "┃")) for line in lines}
    assert {("n2", "6.25"), ("n3", "48.5"), ("time", "4.75", "76.5"), ("error", "0.0125", "9e-07")} <= rows
    assert {("grid", "adaptive"), ("ms", "1.5"), ("operations", "counted", "12,345")} <= rows


def test_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match="part: expected 'images' or 'engines' or 'streaming'"):
        run_scale(["engine"])
    command = [sys.executable, "-m", "liesparse", "bench", "scale", "--part", "engine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("part: expected 'images'")
