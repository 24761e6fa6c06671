"""The verdict: right about a known group with moving pictures, about still ones, and about noise."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse import LieSparseCoder, training
from liesparse import verdict as room
from liesparse.data import embedded_digits, translations
from liesparse.initialization import known_translation
from liesparse.metrics import Explained, code_cost, compare_evidence, infer
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, log_likelihood
from liesparse.settings import ModelSettings, load_recipe
from liesparse.verdict import (
    LEAST_FIT,
    Verdict,
    alignments,
    ground_share,
    judge,
    mixed_templates,
    motion_effects,
    noise_share,
    read_verdict,
    share_filled,
    unmoved_templates,
    usual,
)


@pytest.fixture(scope="module")
def model():
    return known_translation(embedded_digits()[:4])


def images_of(max_shift, seed=0, n=400, noise=0.0):
    generator = torch.Generator().manual_seed(seed)
    made = translations(n, max_shift=max_shift, wrap=True, sources=embedded_digits()[:4], generator=generator).images
    noise = noise * torch.nn.functional.normalize(torch.randn(made.shape, generator=generator), dim=1)
    return torch.nn.functional.normalize(made + noise, dim=1)


def judged(model, images):
    return judge(model, images[:100], images[100:], AdaptiveEngine(model.frequencies))


def test_templates_whose_pictures_need_others_too_are_named(model):
    codes = torch.eye(4).repeat(10, 1)
    assert mixed_templates(model, codes, torch.zeros(40, 2)) == ()
    codes[2::4] = torch.tensor((0.5, 0.0, 0.7, 0.5))  # of the third template, with two others
    assert mixed_templates(model, codes, torch.zeros(40, 2)) == (2,)
    assert mixed_templates(model, codes[2::4], torch.zeros(10, 2)) == ()  # where all are sums, that is usual


def test_moving_pictures_have_two_motions(model):
    for noise in (0.0, 1.0):
        verdict = judged(model, images_of(6, noise=noise))
        assert verdict.found
        assert verdict.n_motions == 2
        assert verdict.explained > 0.9
        assert verdict.snr > verdict.plain_snr
        assert str(verdict).startswith("Found two motions:")


def test_a_motion_is_not_found_where_as_many_still_shapes_have_more_evidence(model, monkeypatch):
    images = images_of(6)
    few = {4: images[:100].T.contiguous()}  # each picture by one shape: whoever learns these well needs no motion
    learned = room.plain_dictionary
    monkeypatch.setattr(room, "plain_dictionary", lambda *of, **_: few.get(of[2]) if len(of) > 2 else learned(*of))
    said = judged(model, images)
    assert not said.found
    assert "shapes that do not move" in said.advice


def test_models_are_compared_at_the_sigma_that_the_best_of_them_leaves(model):
    """Against ln P(I|α̂) at that σ, brute force for shapes that do not move: the pose of ours costs as a Gaussian's."""
    images, still = images_of(6), images_of(0, seed=1)[:4].T.contiguous()
    engine = AdaptiveEngine(model.frequencies)
    _, _, codes, _, found = infer(model, images, engine)
    left = (images - found).square().sum(dim=1)
    ours = Explained(codes, left, log_likelihood(model, images, codes, engine), n_axes=2)
    theirs = room.explain_plainly(model, still, images)
    evidence, of_still = compare_evidence(model, (ours, theirs))
    sharper = replace(model, noise_std=math.sqrt(float(left.mean()) / model.group_basis.shape[1]))
    exact = log_likelihood(sharper, images, codes, engine) - code_cost(codes, model.sparsity)
    assert sharper.noise_std < 0.5 * model.noise_std
    assert float((evidence - exact).abs().median()) < 0.5
    by_hand = torch.distributions.Normal(theirs.codes @ still.T, sharper.noise_std).log_prob(images).sum(dim=1)
    assert_close(of_still, by_hand - code_cost(theirs.codes, model.sparsity), rtol=1e-3, atol=0.1)
    # Where the best leaves more than σ says, σ stays: that of noise.
    poor = ours._replace(left=torch.full_like(left, 9.0))
    assert_close(compare_evidence(model, (poor,))[0], ours.log_likelihood - code_cost(codes, model.sparsity))


def test_what_a_large_sigma_hardly_tells_apart_is_told_by_what_is_left(model):
    """Half as much left of a picture as by still shapes, but a pose that costs six nats: at σ = 0.1 that is no gain."""
    codes, constant = torch.eye(4)[:2], 0.5 * 784 * math.log(2 * math.pi * 0.01)
    less, more = torch.full((2,), 0.03), torch.full((2,), 0.06)
    ours = Explained(codes, less, -less / 0.02 - constant - 6, n_axes=2)
    theirs = Explained(codes, more, -more / 0.02 - constant)
    assert float((ours.log_likelihood - theirs.log_likelihood).max()) < -4
    evidence, of_still = compare_evidence(model, (ours, theirs))
    assert float((evidence - of_still).min()) > 50


def test_many_templates_in_a_picture_are_told(model):
    said = judged(model, images_of(6))
    assert 1 <= said.n_codes < 1.2
    assert "templates in a picture" not in str(said)
    assert "2.1 templates in a picture" in str(said._replace(n_codes=2.1, usual_share=0.8))
    assert "templates in a picture" not in str(said._replace(n_codes=2.1))  # one of them is nearly all of it


def test_templates_that_were_never_seen_moving_are_named(model):
    """Strangers in one place get a template like any shape; so does a picture that is there once."""
    generator = torch.Generator().manual_seed(0)
    codes, poses = torch.eye(4)[[0, 1] * 40 + [2] * 15 + [3]], 3 * torch.rand(96, 2, generator=generator)
    poses[80:95] = poses[80] + 0.02 * torch.randn(15, 2, generator=generator)
    assert unmoved_templates(model, codes, poses) == (2, 3)
    assert unmoved_templates(model, codes[:80], poses[:80]) == ()  # of a template without pictures nothing is known
    made = reconstruct(model, codes, poses)[torch.randperm(96, generator=generator)]
    images = torch.nn.functional.normalize(made + 0.002 * torch.randn(made.shape, generator=generator), dim=1)
    engine = AdaptiveEngine(model.frequencies)
    said = judge(model, images[:30], images, engine)
    assert said.found
    assert said.unmoved == (2, 3)
    assert judge(model, images[:30], images, engine, given=True).unmoved == ()  # all shapes move as was given


def test_the_usual_spread_over_templates_is_that_of_the_pictures(model):
    alone = judged(model, images_of(6))
    assert alone.usual_share > 0.98
    assert 0.85 < alone.least_share < 0.95
    generator = torch.Generator().manual_seed(0)
    codes = torch.eye(4)[torch.arange(300) % 4] + torch.eye(4)[torch.arange(300) // 4 % 4]
    images = reconstruct(model, codes, torch.rand(300, 2, generator=generator))
    pairs = judged(model, torch.nn.functional.normalize(images, dim=1))
    assert 0.5 < pairs.usual_share < 0.9
    assert pairs.least_share < 0.6
    assert usual(torch.full((50,), 0.95), 0.1, 3.0) == pytest.approx((0.95, 0.85))


def test_pictures_that_move_one_way_leave_an_axis_unused():
    model, generator = known_translation(embedded_digits()), torch.Generator().manual_seed(1)
    poses = torch.stack((6.28 * torch.rand(600, generator=generator), torch.zeros(600)), dim=1)
    images = reconstruct(model, torch.eye(10)[torch.arange(600) % 10], poses)
    verdict = judged(model, torch.nn.functional.normalize(images, dim=1))
    assert verdict.found
    assert verdict.n_motions == 1
    assert "1 axis is unused (--torus-dim 1 may do better)" in str(verdict)


def test_nothing_is_found_where_nothing_moves_or_nothing_is_explained(model):
    still = judged(model, images_of(0, noise=0.1))
    generator = torch.Generator().manual_seed(0)
    noise = judged(model, torch.nn.functional.normalize(torch.randn(400, 784, generator=generator), dim=1))
    assert not still.found
    assert not noise.found
    assert still.n_motions == 0
    assert "do not move" in str(still)
    assert noise.explained < 0.5
    assert "try" in noise.advice
    assert "try" in noise._replace(n_motions=0).advice  # where nothing is explained, nobody knows that nothing moves


def test_the_effect_of_a_motion_is_what_it_changes(model):
    """Along one axis only: half of the squared distance from the picture in the middle, over its energy."""
    codes, poses = torch.eye(4)[[0, 0, 0]], torch.tensor([[-0.7, 0.0], [0.0, 0.0], [0.7, 0.0]])
    pictures = reconstruct(model, codes, poses)
    largest, other = motion_effects(model, codes, poses)
    expected = float((pictures - pictures[1]).square().sum() / (2 * pictures.square().sum()))
    assert largest == pytest.approx(expected, rel=1e-3)
    assert other < 1e-6


def test_poses_that_only_jump_are_no_motion(model):
    """Still pictures of other shapes, which a motion happens to make of one template."""
    generator = torch.Generator().manual_seed(0)
    codes, places = torch.eye(4)[[0] * 60], torch.tensor([[-0.7, 0.0], [0.0, 0.3], [0.7, 0.0]]).repeat(20, 1)
    jumping = places + 0.01 * torch.randn(60, 2, generator=generator)
    assert motion_effects(model, codes, jumping) == (0.0, 0.0)
    moving = torch.rand(60, 2, generator=generator)
    assert min(motion_effects(model, codes, moving)) > 0.02
    assert share_filled(moving[:, 0], torch.zeros(60, dtype=torch.int64)) > 0.6
    assert share_filled(jumping[:, 0], torch.zeros(60, dtype=torch.int64)) < 0.2


def test_words_for_a_motion_that_was_given():
    found = Verdict(True, 2, 2, 0.97, (0.5, 0.4), 30.0, 4.0, given=True)
    assert str(found).startswith("The pictures move as was given:")
    lost = Verdict(False, 2, 2, 0.5, (0.5, 0.4), 2.0, 4.0, given=True)
    assert str(lost).startswith("The given motion does not explain them:")
    assert "--group" in lost.advice
    before = {name: value for name, value in lost._asdict().items() if name not in ("given", "unmoved", "mixed")}
    assert read_verdict(before | {"effects": [0.5, 0.4]}, "x") == lost._replace(given=False)  # files of before


def test_a_light_ground_is_seen_and_told():
    digits = images_of(6)
    inverted = torch.nn.functional.normalize(digits.amax(dim=1, keepdim=True) - digits, dim=1)
    assert ground_share(digits) < 0.3
    assert ground_share(inverted) > 0.8
    lost = Verdict(False, 0, 2, 0.97, (0.0, 0.0), 30.0, 40.0)
    assert "do not move" in lost.advice
    assert "invert=yes" in lost._replace(ground=0.9).advice


def test_the_images_of_the_verdict_are_kept_out_of_learning(monkeypatch):
    seen, images = {}, images_of(6, n=250)
    train = training.train

    def watched(start, learned, *rest, **how):
        seen.update(learned=learned, **how)
        return train(start, learned, *rest, **how)

    monkeypatch.setattr(training, "train", watched)
    recipe = load_recipe("best").with_values({"start": "data", "learning.n_epochs": 1})
    training.learn_model(images, ModelSettings(4), recipe, generator=torch.Generator().manual_seed(0))
    assert (len(seen["learned"]), len(seen["monitor_images"])) == (225, 25)
    both = torch.cat((seen["learned"], seen["monitor_images"]))
    assert both.sort(dim=0).values.equal(images.sort(dim=0).values)


def test_noise_is_told_from_what_the_planes_leave(model):
    images = images_of(6, noise=1.0)
    assert noise_share(model, images) == pytest.approx(0.5, abs=0.08)
    assert noise_share(model, images_of(6)) < 0.1


def test_what_is_usual_is_told_by_most_pictures():
    """Half of a picture where that is usual, nearly all of it where most are explained so well."""
    fits = torch.cat((torch.linspace(0.95, 0.99, 95), torch.full((5,), 0.7)))
    assert usual(fits, 0.1, 6.0)[1] == pytest.approx(0.868, abs=0.005)
    assert usual(torch.linspace(0.3, 1.0, 50), 0.1, 6.0, LEAST_FIT)[1] == LEAST_FIT
    found = Verdict(True, 2, 2, 0.97, (0.5, 0.4), 30.0, 4.0)
    assert "like no template" not in str(found)
    assert "7% of the pictures are like no template" in str(found._replace(strange=0.07))


def test_alignment_is_that_of_the_picture_without_its_noise():
    clean = torch.nn.functional.normalize(torch.rand(3, 400, generator=torch.Generator().manual_seed(0)), dim=1)
    noise = torch.linalg.qr(torch.cat((clean, torch.randn(3, 400))).T).Q.T[3:]  # at right angles to all of them
    seen = math.sqrt(0.2) * clean + math.sqrt(0.8) * noise
    torch.testing.assert_close(alignments(seen, 0.3 * clean, 0.8), torch.ones(3))
    torch.testing.assert_close(alignments(seen, 0.3 * clean, 0.0), torch.full((3,), math.sqrt(0.2)))


def test_a_verdict_is_saved_with_the_model(model, tmp_path):
    verdict = Verdict(True, 2, 2, 0.97, (0.5, 0.4), 30.0, 4.0, 0.1, 2, 2)
    coder = LieSparseCoder.from_model(model, (28, 28), verdict=verdict)
    coder.save(tmp_path / "model.safetensors")
    assert LieSparseCoder.load(tmp_path / "model.safetensors").verdict_ == verdict
    assert "2 of 2 starts agree" in str(verdict)
    assert read_verdict(None, "x") is None
    values = verdict._asdict()
    for wrong in (
        "found",
        {},
        *(values | {key: bad} for key, bad in (("effects", "a"), ("snr", "b"), ("noise", 1.0), ("least_fit", None))),
        *(values | {"effects": [0.5], "unmoved": bad} for bad in (3, [-1], [0.5], ["a"], [10**20])),
        *(values | {"effects": [0.5], "mixed": bad} for bad in (3, [-1], [0.5], ["a"], [10**20])),
    ):
        with pytest.raises(ValueError, match="a saved verdict"):
            read_verdict(wrong, "x")
    assert math.isclose(sum(verdict.effects), 0.9)
