"""Published benchmarks: each piece against a case done by hand, and the command's rows kept and found again."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from liesparse import LieSparseCoder
from liesparse.data import embedded_digits
from liesparse.initialization import known_translation
from liesparse.posterior import engine_of, log_likelihood
from liesparse.reproduce import published, recognition
from liesparse.reproduce.parts import Job, run
from liesparse.reproduce.published import BENCHMARKS, Bar, Benchmark, plan, table


def test_the_alignment_step_is_expectation_maximization_over_all_shifts_and_shapes(rng):
    signals, shapes, noise = torch.randn(7, 6, generator=rng), torch.randn(2, 6, generator=rng), 0.8
    weights = torch.tensor([0.3, 0.7])
    every = torch.stack([torch.stack([shape.roll(shift) for shift in range(6)]) for shape in shapes])
    logs = -(signals[:, None, None] - every).square().sum(dim=3) / (2 * noise**2) + weights.log()[:, None]
    share = logs.flatten(1).softmax(dim=1).unflatten(1, (2, 6))
    back = torch.stack([signals.roll(-shift, dims=1) for shift in range(6)], dim=1)
    expected = torch.einsum("nks,nsd->kd", share, back) / share.sum(dim=(0, 2))[:, None]

    work = published.Alignment(6, noise)
    found, likelihood = work.step(published.Mixture(work.planes(shapes), weights), work.planes(signals))
    torch.testing.assert_close(found.planes.flatten(1) @ work.basis.group_basis.T, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.weights, share.sum(dim=(0, 2)) / 7, atol=1e-6, rtol=1e-4)
    energies = signals.square().sum(dim=1) / (2 * noise**2)
    true = (logs.flatten(1).logsumexp(dim=1) + energies).mean() + math.log(2 * math.pi / 6)  # its grid has cells
    assert likelihood == pytest.approx(float(true), abs=1e-4)


def test_the_relative_error_is_after_the_best_match(rng):
    true = torch.randn(3, 8, generator=rng)
    found = torch.stack([true[2].roll(3), true[0].roll(-1), true[1]])
    assert published.relative_error(found, true) < 1e-3
    off = torch.randn(3, 8, generator=rng)
    each = [
        sum(min(float((off[i].roll(s) - true[k]).square().sum()) for s in range(8)) for k, i in enumerate(order))
        for order in itertools.permutations(range(3))
    ]
    assert published.relative_error(off, true) == pytest.approx(math.sqrt(min(each)) / float(true.norm()), rel=1e-4)


def test_aligned_signals_are_as_good_as_averages_with_all_known():
    [found] = published.measure_alignment(0, 2, ((2, 3),)).values()
    assert found["here"] < 1.3 * found["all known"]  # 1.0 with all known, on average


def test_clusters_are_matched_one_to_one():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    assert recognition.match_clusters(labels, torch.tensor([1, 1, 1, 0, 0, 2]), 3) == pytest.approx(100)
    assert recognition.match_clusters(labels, torch.zeros(6, dtype=torch.int64), 3) == pytest.approx(50)


def test_the_nearest_are_never_an_image_itself():
    likeness = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 3.0], [2.0, 3.0, 9.0]])
    assert recognition.find_nearest(likeness, 1).tolist() == [[2], [2], [1]]
    assert recognition.find_nearest(likeness, 5).shape == (3, 2)  # there are no more


def test_a_graph_is_cut_where_its_ties_are_few():
    groups = [range(6), range(6, 12), range(12, 18)]
    nearest = torch.tensor([[i for i in group if i != one][:4] for group in groups for one in group])
    nearest[0, 0], nearest[11, 0] = 7, 12  # one tie from each group to the next
    truth = torch.arange(18) // 6
    assert recognition.match_clusters(truth, recognition.cut_graph(nearest, 0, 3), 3) == 100


def test_an_image_is_most_like_one_that_the_motion_carries_into_it(rng):
    motion = known_translation(embedded_digits())
    digits = embedded_digits()
    images = torch.nn.functional.normalize(torch.cat((digits, digits.roll((3, -2), dims=(1, 2)))).flatten(1), dim=1)
    near = torch.stack([torch.tensor([j for j in range(20) if j != i]) for i in range(20)])
    likeness = recognition.carry_likeness(motion, images, near[:, torch.randperm(19, generator=rng)])
    assert recognition.find_nearest(likeness, 1).flatten().tolist() == [*range(10, 20), *range(10)]
    torch.testing.assert_close(likeness, likeness.T)
    engine, blank = engine_of(motion), torch.zeros(1, 10)
    still = images - motion.from_planes(motion.to_planes(images))
    both_ways = []
    for one, other in ((0, 13), (13, 0)):
        template = replace(motion, dictionary=images[other][:, None])
        gain = log_likelihood(template, images[[one]], torch.ones(1, 1), engine)
        gain = gain - log_likelihood(motion, images[[one]], blank, engine)
        outside = still[one] @ still[other] - still[other].square().sum() / 2  # of W
        both_ways.append(float(motion.noise_std**2 * gain + outside))
    assert float(likeness[0, 13]) == pytest.approx(max(both_ways), abs=1e-4)


def test_only_near_images_are_tied():
    images = torch.nn.functional.normalize(embedded_digits().flatten(1), dim=1)
    near = recognition.find_nearest(images @ images.T, 2)
    tied = recognition.carry_likeness(known_translation(embedded_digits()), images, near).isfinite()
    expected = torch.zeros(10, 10, dtype=torch.bool).scatter_(1, near, value=True)
    assert tied.equal(expected | expected.T)


def test_shapes_are_matched_at_their_best_shift():
    shapes = torch.zeros(2, 28, 28)
    shapes[0, 10:14, 10:18] = 1
    shapes[1, 10:18, 10:14] = 1
    templates = shapes.flip(0).roll((5, -3), dims=(1, 2)).flatten(1) * 7
    torch.testing.assert_close(recognition.match_shapes(templates, shapes.flatten(1)), torch.ones(2))
    crossed = recognition.match_shapes(shapes[:1].flatten(1), shapes[1:].flatten(1))
    torch.testing.assert_close(crossed, torch.tensor([0.5]))  # 16 of 32 pixels


def test_moved_digits(rng):
    digits = torch.zeros(2, 28, 28)
    digits[:, 12:16, 13:15] = 1
    shifted = recognition.move_digits(digits.flatten(1), "shifted", rng)
    assert shifted.shape == (2, 1600)
    rows, _ = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    heights = (shifted.view(2, 40, 40) * rows).sum(dim=(1, 2)) / shifted.sum(dim=1)
    assert bool(((heights - 19.5).abs() <= 6).all())
    turned = recognition.move_digits(digits.flatten(1), "turned", rng)
    torch.testing.assert_close(turned.norm(dim=1), torch.ones(2))


def test_canonical_features_undo_the_motion():
    coder = LieSparseCoder.from_model(known_translation(embedded_digits()), (28, 28))
    train = torch.nn.functional.normalize(embedded_digits().flatten(1), dim=1).repeat(7, 1)
    test = torch.nn.functional.normalize(embedded_digits().roll((2, 3), dims=(1, 2)).flatten(1), dim=1)
    found = recognition.make_features(coder, train, test, 0)
    assert found["codes"][1].argmax(dim=1).tolist() == list(range(10))
    labels = torch.arange(70) % 10, torch.arange(10)
    assert recognition.classify(found["canonical pixels"], labels, torch.arange(10)) == {"1-NN": 100, "linear": 100}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("alignment", {"runs": 1, "sizes": ((2, 2),)}),
        ("square", {"size": 8, "block": 2, "n_epochs": 1}),
        pytest.param("clusters", {"n_images": 100, "n_epochs": 1}, marks=pytest.mark.slow),
        pytest.param(
            "turned",
            {"n_images": 100, "n_test": 20, "n_labels": (10,), "draws": 1, "n_epochs": 1},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "peers",
            {"n_images": 100, "n_test": 20, "n_irreps": 8, "n_convolved": 10, "n_epochs": 1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_benchmark_runs_and_has_a_table(name, sizes, tmp_path):
    [(job, row)] = run(plan([name], [3], sizes={name: sizes}), tmp_path, lambda _: None)
    assert all(np.isfinite(value) for line in row["found"].values() for value in line.values())
    head, lines = table(name, [(job, row)])
    assert all(len(line) == len(head) for line in lines)
    assert {line[0] for line in lines} >= set(row["found"])


def test_finished_rows_are_kept_unless_the_sizes_change(tmp_path, monkeypatch):
    calls = []

    def measure(seed, size=1):
        calls.append((seed, size))
        return {"a": {"here": float(seed + size)}}

    monkeypatch.setitem(BENCHMARKS, "fake", Benchmark("Fake", "nobody", measure))

    def measured(seeds, **how):
        return [row["found"]["a"]["here"] for _, row in run(plan(["fake"], seeds, **how), tmp_path, lambda _: None)]

    assert measured([0, 1]) == [1, 2]
    assert measured([0, 1]) == [1, 2]
    assert calls == [(0, 1), (1, 1)]
    for damaged in (b"{", b"\xff"):
        (tmp_path / "fake.0.json").write_bytes(damaged)
        measured([0, 1])
    measured([1], sizes={"fake": {"size": 5}})
    assert calls[2:] == [(0, 1), (0, 1), (1, 5)]
    assert json.loads((tmp_path / "fake.1.json").read_text())["found"] == {"a": {"here": 6.0}}


def test_the_table_has_published_figures_medians_and_bars(monkeypatch):
    figures, bars = {"a": {"published": 0.5}, "theirs": {"published": 2.0}}, {"a": Bar("here", 0.4)}
    monkeypatch.setitem(BENCHMARKS, "fake", Benchmark("Fake", "nobody", dict, figures, bars))
    jobs = [Job(("fake",), seed, {}, dict) for seed in range(3)]
    rows = [{"found": {"a": {"here": value}}} for value in (0.3, 0.1, 0.6)]
    assert table("fake", list(zip(jobs, rows, strict=True))) == (
        ["", "published", "here", "bar"],
        [["a", "0.5", "0.3 (0.1 to 0.6)", "≤ 0.4: reached"], ["theirs", "2", "", ""]],
    )
    assert Bar("here", 70, above=True, goal=True).judge(60) == "goal ≥ 70: not reached"


def test_digits_are_those_that_ship_unless_mnist_is_here(tmp_path, monkeypatch):
    monkeypatch.setattr(recognition, "find_files", lambda *_: {})
    assert published.find_digits(None).name == "mnist-mini"
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="no train-images"):
        published.find_digits(tmp_path)
