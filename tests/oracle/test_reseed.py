"""Wasted shapes: found by brute force over all poses, and put to use."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse import learning
from liesparse.em import Averages
from liesparse.inference import infer_codes
from liesparse.learning import learn
from liesparse.model import apply_transform, reconstruct
from liesparse.posterior import AdaptiveEngine
from liesparse.reseed import pose_overlaps, reseed, wasted_shapes
from liesparse.settings import Settings
from liesparse.torus import grid_points

F64 = torch.float64


def test_overlaps_are_the_best_over_all_poses(make_model):
    model = make_model(2, n_components=4)
    points = grid_points(120, 2)
    inside = torch.nn.functional.normalize(
        apply_transform(model, model.dictionary.T, torch.zeros(4, 2, dtype=F64)), dim=1
    )
    expected = torch.ones(4, 4, dtype=F64)
    for i in range(4):
        moved = apply_transform(model, inside[i].expand(len(points), -1), points)
        expected[i] = (inside @ moved.T).amax(dim=1)
    found = pose_overlaps(model, AdaptiveEngine(model.frequencies, dtype=F64))
    assert_close(found, expected, rtol=0, atol=3e-3)
    assert (found >= expected - 1e-9).all()


def test_a_shape_in_another_pose_is_the_same_shape(make_model):
    model = make_model(2, n_components=3)
    pose = torch.tensor([[0.7, -1.9]], dtype=F64)
    twin = torch.nn.functional.normalize(apply_transform(model, model.dictionary.T[:1], pose), dim=1)
    model = replace(model, dictionary=torch.cat((model.dictionary[:, :2], twin.T), dim=1))
    overlaps = pose_overlaps(model, AdaptiveEngine(model.frequencies, dtype=F64))
    assert_close(overlaps[0, 2], torch.tensor(1.0, dtype=F64), rtol=0, atol=1e-6)
    assert overlaps[0, 1] < 0.95
    assert wasted_shapes(overlaps, torch.tensor([1.0, 0.5, 0.9]), 0.95) == [2]  # the one that is used less
    assert wasted_shapes(overlaps, torch.tensor([0.8, 0.5, 0.9]), 0.95) == [0]
    assert wasted_shapes(overlaps, torch.tensor([0.8, 0.0, 0.9]), 0.95) == [0, 1]  # and the one that nobody uses
    assert wasted_shapes(torch.eye(3), torch.ones(3), 0.95) == []


def test_wasted_shapes_become_the_worst_explained_images(make_model, rng):
    model = make_model(2, n_components=3, n_pixels=60, n_irreps=24, noise_std=0.1, sparsity=5.0)
    model = replace(model, dictionary=model.dictionary[:, [0, 1, 0]])
    poses = 6 * torch.rand(20, 2, generator=rng, dtype=F64)
    images = torch.nn.functional.normalize(reconstruct(model, torch.eye(3, dtype=F64)[[0, 1] * 10], poses), dim=1)
    images[13] = torch.nn.functional.normalize(torch.randn(60, generator=rng, dtype=F64), dim=0)
    engine = AdaptiveEngine(model.frequencies, dtype=F64)
    codes = infer_codes(model, images, engine, n_code_steps=40)
    changed, wasted = reseed(model, images, codes, engine, 0.95)
    assert len(wasted) == 1
    assert wasted[0] in (0, 2)
    new = replace(model, dictionary=torch.stack((changed.dictionary[:, wasted[0]], images[13]), dim=1))
    assert_close(pose_overlaps(new, engine)[0, 1], torch.tensor(1.0, dtype=F64), atol=1e-6, rtol=0)  # in another pose
    onto = model.dictionary[:, [k for k in range(3) if k not in wasted]].sum(dim=1)
    own = torch.nn.functional.normalize(
        apply_transform(model, images[13].expand(14400, -1), grid_points(120, 2)), dim=1
    )
    assert float(onto @ changed.dictionary[:, wasted[0]]) >= float((own @ onto).max()) - 1e-6
    kept = [k for k in range(3) if k not in wasted]
    assert changed.dictionary[:, kept].equal(model.dictionary[:, kept])
    same, none = reseed(changed, images, torch.ones_like(codes), engine, 1.0)
    assert none == []
    assert same is changed


def test_a_new_shape_has_no_past(rng):
    averages = Averages(
        torch.randn(14, 10, generator=rng), torch.randn(10, 3, generator=rng), torch.rand(3, 3, generator=rng) + 1
    )
    rest = averages.without([1])
    assert rest.moved.equal(averages.moved)  # W is shared by all shapes
    assert not rest.returned[:, 1].any()
    assert not rest.gram[1].any()
    assert not rest.gram[:, 1].any()
    kept = [0, 2]
    assert rest.returned[:, kept].equal(averages.returned[:, kept])
    assert rest.gram[kept][:, kept].equal(averages.gram[kept][:, kept])


@pytest.mark.slow
def test_learning_reseeds_during_the_first_three_quarters(make_model, rng, monkeypatch):
    truth = make_model(3, n_components=3, n_pixels=60, n_irreps=24, noise_std=0.1, sparsity=5.0)
    codes = torch.eye(3, dtype=F64)[torch.arange(300) % 3]
    images = reconstruct(truth, codes, 6 * torch.rand(300, 2, generator=rng, dtype=F64))
    images = torch.nn.functional.normalize(images, dim=1)
    start = replace(truth, dictionary=truth.dictionary[:, [0, 1, 0]])
    seen = []

    def spy(parameters, *rest):
        changed, wasted = reseed(parameters, *rest)
        seen.append(wasted)
        return changed, wasted

    monkeypatch.setattr(learning, "reseed", spy)
    settings = Settings(
        n_epochs=4, batch_size=30, posterior="adaptive", method="em", first_memory=10.0, last_memory=10.0
    )
    learned = learn(start, images, replace(settings, reseed_overlap=0.8), generator=torch.Generator().manual_seed(1))
    assert len(seen) == 15  # every twentieth of the training
    assert float(pose_overlaps(learned, AdaptiveEngine(truth.frequencies, dtype=F64)).triu(diagonal=1).max()) < 0.8
    learn(start, images, settings, generator=torch.Generator().manual_seed(1))
    assert len(seen) == 15  # by default, never
