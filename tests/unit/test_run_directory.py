"""What is measured of a finished run, beside what the tests of the metrics know."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from liesparse import LieSparseCoder, SparseCoder, snr
from liesparse.cli.common import console, set_console
from liesparse.cli.train import print_metrics
from liesparse.inference import infer_codes
from liesparse.initialization import random_start
from liesparse.model import reconstruct
from liesparse.posterior import SamplingEngine, pose_natural
from liesparse.run_directory import Run, load_run, measure, save_run


def make_run(torus_dim, repeats=1, noise_std=0.1):
    """A model whose density repeats itself along each axis, and images of its own."""
    rng = torch.Generator().manual_seed(0)
    model = random_start(
        30, n_components=3, n_irreps=8, torus_dim=torus_dim, noise_std=noise_std, sparsity=1.0, generator=rng
    )
    model = replace(model, frequencies=repeats * model.frequencies)
    codes, poses = torch.rand(6, 3, generator=rng), 6 * torch.rand(6, torus_dim, generator=rng)
    return model, torch.nn.functional.normalize(reconstruct(model, codes, poses), dim=1)


def printed(metrics):
    set_console()
    with console.capture() as said:
        print_metrics(metrics)
    return said.get()


# 125 equal modes are too many, and rounding decides which of them get a cloud.
@pytest.mark.parametrize(("repeats", "trusted", "tolerance"), [(1, True, 0.02), (5, False, 0.5)])
def test_the_least_effective_sample_size_is_that_of_the_weights(repeats, trusted, tolerance):
    model, images = make_run(3, repeats)
    metrics = measure(LieSparseCoder.from_model(model), None, images)
    engine = SamplingEngine(model.frequencies)
    natural = pose_natural(model, images, infer_codes(model, images, engine))
    weights = torch.softmax(
        SamplingEngine(model.frequencies, dtype=torch.float64).nodes(natural.double()).log_weights, dim=1
    )
    least = metrics["least_effective_sample_size"]
    assert least == pytest.approx(float((1 / weights.square().sum(dim=1)).min()), rel=tolerance)
    assert (least >= 50) == trusted
    warning = f"Do not trust the integrals over the pose: the least effective sample size is {least:.0f}, below 50."
    assert (warning in printed(metrics)) != trusted


@pytest.mark.slow
def test_what_the_warning_advises_helps():
    sharp, flat = (
        measure(LieSparseCoder.from_model(model), None, images)["least_effective_sample_size"]
        for model, images in (make_run(3, 5, noise_std) for noise_std in (0.1, 0.5))
    )
    assert sharp < 50 < flat
    model, images = make_run(2, 5)
    metrics = measure(LieSparseCoder.from_model(model), None, images)
    assert "least_effective_sample_size" not in metrics
    assert "Do not trust" not in printed(metrics)


@pytest.fixture
def coder():
    model, images = make_run(2)
    coder = LieSparseCoder.from_model(model)
    coder.pose_ranges_ = coder.pose_ranges(images)
    return coder


def test_a_run_that_cannot_be_saved_leaves_the_earlier_one(coder, tmp_path, monkeypatch):
    baseline = SparseCoder.from_dictionary(coder.model_.dictionary, (30,))
    save_run(Run(tmp_path, coder, baseline, {"data": "first"}, {}))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LieSparseCoder, "save", full)
    with pytest.raises(OSError, match="No space"):
        save_run(Run(tmp_path, coder, baseline, {"data": "second"}, {}))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_without_a_baseline_does_not_keep_the_earlier_one(coder, tmp_path):
    baseline = SparseCoder.from_dictionary(coder.model_.dictionary, (30,))
    save_run(Run(tmp_path, coder, baseline, {}, {}, baseline))
    assert load_run(tmp_path).large_baseline is not None
    save_run(Run(tmp_path, coder, None, {}, {}))
    assert load_run(tmp_path).baseline is None
    assert load_run(tmp_path).large_baseline is None


def test_a_run_knows_where_its_poses_lie_and_has_a_card(coder, tmp_path):
    save_run(Run(tmp_path, coder, None, {"data": "bars", "seed": 3}, {"lsc_snr_exact_map": 12.345}))
    assert (load_run(tmp_path).coder.pose_ranges_ == coder.pose_ranges_).all()
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: liesparse\n")
    for part in ("**Data**: bars", "12.35", '"seed": 3', 'LieSparseCoder.load("model.safetensors")', "torus of 2 axes"):
        assert part in card


def test_the_comparison_is_by_codes_of_one_kind(coder):
    _, images = make_run(2)
    baseline = SparseCoder.from_dictionary(coder.model_.dictionary, (30,), sparsity=1.0)
    metrics = measure(coder, baseline, images, large_baseline=baseline)
    found = snr(images, coder.reconstruct(images)).mean()
    assert metrics["lsc_snr_exact_map"] == pytest.approx(float(found), rel=1e-4)
    codes = coder.transform(images)
    paid = codes.sum(dim=1) + (codes > 0.05).sum(dim=1) * np.log(3)  # λ = 1, K = 3
    left, still_left = (1 / snr(images, one.reconstruct(images)) for one in (coder, baseline))
    sharper = min(0.01, float(min(left.mean(), still_left.mean())) / 16) ** 0.5  # what is left in a column of W
    exact = coder.score_samples(images) + left / 2 * (100 - sharper**-2) + (30 - 2) * np.log(0.1 / sharper)
    assert metrics["lsc_evidence"] == pytest.approx(float((exact - paid).mean()), rel=1e-3)
    assert metrics["large_baseline_evidence"] == metrics["sparse_coding_evidence"]
    said = printed(metrics)
    assert "with as many free numbers, 3 templates" in said
    assert f"the SNR of the table would be {metrics['lsc_snr']:.2f}" in said


def test_a_recipe_in_a_file_is_kept_in_the_model(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('start = "data"\n[learning]\nn_epochs = 1\nn_code_steps = 7\n')
    images = make_run(2)[1].repeat(20, 1)
    coder = LieSparseCoder(3, n_irreps=8, recipe=recipe, random_state=0).fit(images)
    coder.save(tmp_path / "model.safetensors")
    before = coder.transform(images)
    recipe.unlink()
    again = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert again.effective_recipe().learning.n_code_steps == 7
    assert again.transform(images).equal(before)
    again.set_params(recipe="best")
    assert again.effective_recipe().learning.n_code_steps != 7


def test_it_is_said_where_shapes_that_do_not_move_do_better(coder):
    _, images = make_run(2)
    metrics = measure(coder, SparseCoder.from_dictionary(coder.model_.dictionary, (30,), sparsity=1.0), images)
    said = "By evidence, shapes that do not move explain these images better."
    assert (said in printed(metrics)) == (metrics["lsc_evidence"] < metrics["sparse_coding_evidence"])
    more = metrics | {"sparse_coding_evidence": metrics["lsc_evidence"] + 1}
    assert said in printed(more)
    assert "a close call" not in printed(more)
    assert "a close call" in printed(more | {"verdict_found": True})
    assert said not in printed(metrics | {"sparse_coding_evidence": metrics["lsc_evidence"] - 1})
