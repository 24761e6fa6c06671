"""The bench measures what it says; its times are never judged here."""

import math

import pytest
import torch
from torch.testing import assert_close

from liesparse import figures
from liesparse.inference import infer_codes
from liesparse.lattice import half_lattice
from liesparse.posterior import GridEngine
from liesparse.posterior.kernels import KERNEL_NAMES, runnable
from liesparse.reproduce import bench

SMALL = bench.Shape(batch=6)


def test_all_three_ways_infer_the_same_codes():
    parameters, images = bench.make_problem(SMALL)
    dense = infer_codes(parameters, images, bench.DenseEngine(parameters.frequencies, 50))
    grid = infer_codes(parameters, images, GridEngine(parameters.frequencies, 50))
    assert_close(grid, dense, atol=1e-4, rtol=0)


def test_speed_is_a_ratio_of_the_times_beside_it():
    [found] = bench.measure_speed(SMALL, repeats=1)
    assert found["grid_speedup"] == found["dense_ms"] / found["grid_ms"]
    assert found["adaptive_time_ratio"] == found["adaptive_ms"] / found["grid_ms"]


def test_errors_show_where_each_grid_ends():
    errors = bench.measure_errors(n_images=10)
    assert max(errors["adaptive_error"].values()) < 1e-3
    assert errors["grid50_error"]["middle"] > 0.02
    assert errors["grid50_error"]["flat"] < 1e-3


@pytest.mark.slow
def test_shares_of_a_step_add_up():
    step = bench.measure_step(SMALL, "paper", repeats=1)
    assert math.isclose(step["inference_share"] + step["gradients_share"] + step["stiefel_share"], 1)
    assert bench.measure_step(SMALL, "best", repeats=1)["batch_ms"] > 0


def test_symmetries_save_most_of_the_products():
    frequencies = half_lattice(2, 128)
    plain, compiled = (
        bench.count_multiply_adds(frequencies, bench.Shape(n_components=0), compiled=c) for c in (False, True)
    )
    assert plain == 2 * (4 * 10 * 18 * 50 + 2 * 10 * 2500)  # p = 0 ... 9, q = -8 ... 9
    assert compiled == 2 * (4 * 10 * 10 * 26 + 2 * 10 * 13 * 50)


@pytest.mark.parametrize("kernel", [*runnable(), "torch"])
def test_limit_counts_the_work(kernel):
    limit = bench.measure_limit(SMALL, kernel, repeats=1)
    assert limit["limit_ms"] > 0
    assert limit["gflops"] > 0.1


def test_every_kernel_is_measured_or_said_not_to_be():
    found = bench.measure_kernels(SMALL, repeats=1)
    assert set(found) == set(KERNEL_NAMES)
    for name, row in found.items():
        if name in (*runnable(), "torch"):
            assert row["grid_over_best"] >= 1
            assert row["limit_fraction"] > 0
        else:
            assert row.startswith("not measured")


def test_memory_is_measured_above_the_data():
    assert 0 <= bench.measure_memory(400) < 500 or math.isnan(bench.measure_memory(400))


def test_growth_covers_every_size(monkeypatch):
    monkeypatch.setattr(bench, "GROWTH", {"batch": [2, 4], "torus_dim": [1, 3], "side": [24]})
    rows = bench.measure_growth(repeats=1)
    assert [(row["size"], row["value"]) for row in rows] == [
        ("batch", 2),
        ("batch", 4),
        ("torus_dim", 1),
        ("torus_dim", 3),
        ("side", 24),
    ]
    png = figures.to_png(figures.growth_figure(rows), dpi=40)
    assert png.startswith(b"\x89PNG")


def test_problems_are_repeatable():
    first, again = (bench.make_problem(bench.Shape(batch=3, multiplicity=2)) for _ in range(2))
    assert first.images.equal(again.images)
    assert torch.equal(first.parameters.group_basis, again.parameters.group_basis)
