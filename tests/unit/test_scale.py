"""The benchmarks of scale count and measure what they say; their times are never judged here."""

import json
import math
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils.benchmark import set_torch_threads
from torch.utils.flop_counter import FlopCounterMode

import processes
import scale
from liesparse.data import open_shards
from liesparse.lattice import half_lattice
from liesparse.reproduce.bench import alternate


def count_by_formulas(d, n_irreps, k, b, n):
    """Return the operations of a step of EM by what they are for; an M-step in every second step counts half."""
    m, n_steps = 2 * n_irreps, 20
    frequencies = half_lattice(2, n_irreps, include_zero=True)
    first, last = (int(size) for size in frequencies.amax(dim=0) - frequencies.amin(dim=0) + 1)
    evaluate = 2 * (4 * first * last * n + 2 * first * n * n)  # last axis, then the first
    posterior = (n_steps + 1) * b * 2 * evaluate  # there and back, in each step of FISTA and at the end
    cells = 2 * first * last  # of the box around the frequencies, in which FISTA sees the planes
    codes = 2 * k * m * k + n_steps * 2 * 2 * b * k * cells + 2 * m * b * k + 2 * k * b * k
    root = 2 * m * m * m  # of the Gram matrix in the polar factor
    projections = 2 * (b + k) * d * m + 2 * b * k * d + 2 * 2 * b * d * m  # WᵀI, WᵀΦ; Φα, WᵀΦα, WᵀI
    average = 2 * d * b * m  # I (R̄u)ᵀ
    maximize = 2 * 2 * d * m * m + 2 * m * d * k + 2 * d * m * k  # there and back in the polar factor, WᵀΦ, WA
    return projections + average + maximize / 2 + posterior + codes + root / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_pixels", "n_irreps", "k", "batch", "n_grid"),
    [(784, 128, 10, 100, 50), (196, 98, 10, 30, 20), (300, 20, 40, 7, 13)],
)
def test_formulas_and_torchs_counter_agree(n_pixels, n_irreps, k, batch, n_grid, monkeypatch):
    monkeypatch.setattr(scale, "N_COMPONENTS", k)
    counted = scale.count_operations(n_pixels, n_irreps, batch=batch, n_grid=n_grid)
    assert counted == count_by_formulas(n_pixels, n_irreps, k, batch, n_grid)


def test_a_dry_run_does_what_a_real_one_does():
    problem = scale.own_images(2, n_pixels=300, n_irreps=20)
    settings = replace(scale.learning_settings(), posterior="grid", n_grid=13)  # odd: not the compiled code
    with FlopCounterMode(display=False) as counter:
        scale.two_steps(problem, settings)()
    assert counter.get_total_flops() / 2 == scale.count_operations(300, 20, n_grid=13)


def test_all_sizes_get_the_same_problem():
    small, large = (scale.own_images(2, n_pixels=n, n_irreps=20, n_images=5) for n in (100, 300))
    planes = [problem.parameters.group_basis.T @ problem.parameters.dictionary for problem in (small, large)]
    assert_close(*planes, atol=1e-5, rtol=0)
    assert_close(large.images.norm(dim=1), torch.ones(5))
    inside = [problem.images @ problem.parameters.group_basis for problem in (small, large)]
    assert torch.nn.functional.cosine_similarity(*inside).min() > 0.9


def test_a_step_of_two_has_one_m_step():
    problem = scale.own_images(2, n_pixels=100, n_irreps=20, n_images=5)
    state = scale.two_steps(problem, scale.learning_settings())()
    assert state.step == 102
    assert not state.parameters.group_basis.equal(problem.parameters.group_basis)


@pytest.mark.slow
def test_no_matrix_of_pixels_by_pixels_at_64_by_64():
    found = processes.call(scale.measure_memory, 64 * 64)
    if math.isnan(found["start_mb"]):
        pytest.skip("peak memory is only known on Linux")
    assert 4 < found["learning_mb"] < 115  # usually 75 to 93, of 4.2 for W; a D × D matrix of floats would add 67
    assert 4 < found["start_mb"] < 85


@pytest.mark.slow
def test_the_command_prints_and_writes_all_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scale, "PIXELS", {"16 × 16": 256, "6 × 6": 36, "16 × 16 × 3": 768})
    monkeypatch.setattr(scale, "call", lambda function, n: function(n))
    monkeypatch.setattr(scale, "MEMORY_IMAGES", 20)
    path = tmp_path / "scale.json"
    monkeypatch.setattr(sys, "argv", ["scale.py", "--part", "images", "--json", str(path)])
    scale.main()
    written = json.loads(path.read_text())
    found = written["images"]
    assert [(row["n_pixels"], row["n_irreps"]) for row in found["growth"]] == [(256, 128), (36, 18), (768, 128)]
    assert found["growth"][2]["step_ratio"] == found["growth"][2]["step_ms"] / found["growth"][0]["step_ms"]
    assert found["growth"][0]["pixels_ratio"] == 1
    assert "first_memory" in found["settings"]
    assert json.loads(capsys.readouterr().out) == written


@pytest.mark.parametrize("part", scale.PARTS)
def test_every_part_says_what_it_is_at_before_it_begins(part):
    told = []

    def hear(what):
        told.append(what)
        raise InterruptedError  # that is enough, and saves the measurement

    with pytest.raises(InterruptedError):
        scale.PARTS[part](hear)
    assert len(told) == 1


def test_an_unknown_part_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scale.py", "--part", "engine"])
    with pytest.raises(SystemExit):
        scale.main()
    assert "choose from" in capsys.readouterr().err


# ---- engines


def test_ratios_are_of_the_times_beside_them():
    found = scale.measure_times(repeats=1)
    for name in ("n3", "n4", "n6"):
        assert found[f"time_ratio_{name}"] == found["batch_ms"][name] / found["batch_ms"]["n2"]


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    seen = []
    with set_torch_threads(1):
        times = alternate({"job": lambda: seen.append(torch.get_num_threads())}, repeats=1, clock=time.process_time)
    assert (seen, torch.get_num_threads(), list(times)) == ([1, 1, 1], before, ["job"])


@pytest.mark.slow
def test_errors_are_measured_for_every_sharpness(monkeypatch):
    monkeypatch.setattr(scale, "SMALL", 6)
    monkeypatch.setattr(scale, "N_IRREPS", 6)
    monkeypatch.setattr(scale, "N_BRUTE", {3: dict.fromkeys(scale.SHARPNESS, 24), 4: {"middle": 16, "flat": 8}})
    found = scale.measure_errors(n_images=1)
    for n in (3, 4):
        assert set(found[f"error_n{n}"]) == set(scale.N_BRUTE[n])
        assert set(found[f"effective_sample_size_n{n}"]) == set(scale.SHARPNESS)


# ---- streaming

CODE = """
import json, os, time
own = b"x" * (60 << 20)
pid = os.fork()
if pid == 0:
    mine = b"y" * (40 << 20)
    time.sleep(1.0)
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps({"said": 1}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's accounts are Linux's")
def test_the_peak_counts_children_and_shared_pages_once():
    found = processes.watch([sys.executable, "-c", CODE])
    assert found["said"] == 1
    assert 100 < found["peak_own_memory_mb"] <= found["peak_memory_mb"] < 130
    with pytest.raises(RuntimeError, match="ended with 3"):
        processes.watch([sys.executable, "-c", "raise SystemExit(3)"])


def test_shards_to_measure_with_are_digits_that_move(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SHARD", 300)
    processes.make_shards(tmp_path, 700)
    shards = open_shards(tmp_path)
    assert [file.n_images for file in shards.files] == [300, 300, 100]
    assert shards.image_shape == (28, 28)
    rows = shards.rows(np.arange(700))
    assert len(np.unique(rows.numpy(), axis=0)) == 700
    assert float(rows.mean(dim=0).std()) < float(rows.std(dim=1).mean())  # no place is always bright


@pytest.mark.slow
def test_streaming_is_measured_in_a_process_of_its_own(monkeypatch):
    call = processes.call

    def call_once(function, argument, *, n_processes=1):  # noqa: ARG001, tests/e2e/test_ranks.py has several
        return call(function, argument) if function is processes.train_on else function(argument)

    monkeypatch.setattr(processes, "SIZES", (100,))
    monkeypatch.setattr(processes, "BATCHES", (10,))
    monkeypatch.setattr(processes, "REPEATS", 1)
    monkeypatch.setattr(processes, "call", call_once)
    found = processes.measure_streaming(lambda _: None)
    assert [row["n_images"] for row in found["streaming"]] == [100]
    assert all(row["read_images_per_second"] > 0 for row in found["streaming"])
    row = found["processes"]["batch_10"]
    assert row["speedup"] == row["one_process_ms"] / row["two_processes_ms"]
