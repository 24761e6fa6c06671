"""Models of two groups: pictures, learning, files, layers and reports."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from liesparse import LieSparseCoder, groups
from liesparse.checkpoint import list_checkpoints
from liesparse.data import LoadedData, embedded_digits, translations_rotations
from liesparse.inference import infer_codes
from liesparse.learning import learn
from liesparse.metrics import examine
from liesparse.model import (
    Parameters,
    apply_transform,
    uniform_prior,
)
from liesparse.nn import TorusAction
from liesparse.posterior import (
    engine_of,
    log_likelihood,
)
from liesparse.report import write_report
from liesparse.reseed import pose_overlaps
from liesparse.run_directory import Run
from liesparse.settings import Settings
from liesparse.training import CheckpointPolicy, train
from oracle.composing import F64, WholeEngine, draw, make_composition


def test_few_points_give_what_all_points_give(rng):
    """At the size of pictures: what is left out carries no mass, and FISTA finds the same codes."""
    images = translations_rotations(30, max_shift=3, max_degrees=180, generator=rng).images
    parts = groups.Translations(28, 28), groups.Rotations(28, 28)
    bases = [part.make_basis(images, 60) for part in parts]
    digits = torch.nn.functional.normalize(embedded_digits().flatten(1), dim=1)
    model = Parameters(bases[1].group_basis, digits.T, bases[1].frequencies, 0.1, 10.0, uniform_prior(60))
    model = replace(model, outer=bases[0])
    quick = engine_of(model)
    slow = WholeEngine(quick.outer, model.frequencies)
    codes = infer_codes(model, images, quick)
    likelihoods = [log_likelihood(model, images, codes, engine) for engine in (quick, slow)]
    assert_close(*likelihoods, atol=0.1, rtol=0)
    objectives = [log_likelihood(model, images, each, slow) for each in (codes, infer_codes(model, images, slow))]
    assert float((objectives[1] - objectives[0]).median()) < 0.1
    assert float((codes.argmax(dim=1) == infer_codes(model, images, slow).argmax(dim=1)).float().mean()) >= 0.9


def test_one_shape_in_two_poses_overlaps_with_itself(rng):
    images = translations_rotations(200, max_shift=3, max_degrees=60, generator=rng).images
    bases = [part(28, 28).make_basis(images, 100) for part in (groups.Translations, groups.Rotations)]
    shapes = translations_rotations(
        2, max_shift=3, max_degrees=60, sources=embedded_digits()[2:3], generator=rng
    ).images
    other = torch.nn.functional.normalize(embedded_digits()[7].flatten()[None], dim=1)
    dictionary = torch.cat((shapes, other)).T.contiguous()
    model = Parameters(bases[1].group_basis, dictionary, bases[1].frequencies, 0.1, 10.0, uniform_prior(100))
    model = replace(model, outer=bases[0])
    overlaps = pose_overlaps(model, engine_of(model))
    assert float(overlaps[0, 1]) > 0.9
    assert float(overlaps[0, 2]) < 0.85


def test_two_layers_one_after_the_other_move_as_both_groups_do(rng):
    model = make_composition(rng, outer_dim=2)
    images, _, poses = draw(model, rng)
    inner, outer = TorusAction.from_parameters(model), TorusAction.from_parameters(model, outer=True)
    assert_close(outer(inner(images, poses[:, 2:]), poses[:, :2]), apply_transform(model, images, poses))
    with pytest.raises(ValueError, match="a model of two groups"):
        TorusAction.from_parameters(replace(model, outer=None), outer=True)


def test_the_report_has_a_section_for_each_coordinate(rng, tmp_path):
    model = make_composition(rng, outer_dim=2, inside=True)
    images, _, _ = draw(model, rng, 5)
    coder = LieSparseCoder.from_model(model, (4, 5))
    data = LoadedData("some", images[:0], images, (4, 5))
    page = write_report(Run(tmp_path, coder, None, {}, {}), data).read_text()
    assert "<h3>pose_3: " in page
    assert (tmp_path / "report" / "axis-3.gif").exists()
    coder.save(tmp_path / "model.safetensors")
    again = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert list(again.poses_in_units(np.zeros((2, 3)))) == [f"pose_{axis} (radians)" for axis in (1, 2, 3)]


def test_parts_are_written_as_a_product():
    shifts, turns = groups.Translations(8, 8), groups.Rotations(8, 8)
    both = shifts @ turns
    assert both.name == "translation@rotation"
    assert [c.name for c in both.coordinates] == ["shift_x", "shift_y", "angle"]
    assert groups.find_group("translation@rotation", (8, 8)) == both
    assert groups.find_group("translation@learned", (8, 8), 1) == shifts @ groups.LearnedTorus(1)
    assert groups.find_group("learned@learned", (8, 8)) == groups.LearnedTorus(2) @ groups.LearnedTorus(1)
    with pytest.raises(ValueError, match="two groups"):
        shifts @ both


def test_learning_with_two_known_groups_and_its_file(rng, tmp_path):
    """Two small shapes, shifted and turned by any angle: sorted, brought to one pose, saved and loaded."""
    sources = torch.nn.functional.avg_pool2d(embedded_digits()[None, [2, 7]], 2)[0]
    data = translations_rotations(240, max_shift=2, max_degrees=180, sources=sources, generator=rng)
    images = data.images.unflatten(1, (14, 14)).numpy()
    coder = LieSparseCoder(2, group="translation@rotation", n_epochs=3, random_state=0).fit(images)
    codes, poses = coder.infer(images)
    sorted_well = (codes.argmax(axis=1) == data.labels.numpy()).mean()
    assert max(sorted_well, 1 - sorted_well) > 0.98
    units = coder.poses_in_units(poses)
    assert list(units) == ["shift_x (pixels)", "shift_y (pixels)", "angle (degrees)"]
    for label in range(2):
        mine = (data.labels == label).numpy()
        away = np.deg2rad(units["angle (degrees)"][mine]) + data.factors[:, 2].numpy()[mine]  # theirs is y towards x
        offset = np.angle(np.exp(1j * away).mean())
        assert np.median(np.abs(np.angle(np.exp(1j * (away - offset))))) < np.deg2rad(4)
    canonical = coder.canonicalize(images)
    winners = codes.argmax(axis=1)
    for k in range(2):
        mean = canonical[winners == k].mean(axis=0)
        apart = ((canonical[winners == k] - mean) ** 2).sum() / (canonical[winners == k] ** 2).sum()
        assert apart < 0.15
    assert str(coder.verdict_).startswith("The pictures move as was given")
    coder.save(tmp_path / "model.safetensors")
    again = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert again.group == "translation@rotation"
    np.testing.assert_array_equal(again.infer(images[:5]).poses, coder.infer(images[:5]).poses)
    moved = again.traverse(images[:2], axis=2, values=[0.0, 0.5])
    assert moved.shape == (2, 2, 14, 14)
    np.testing.assert_allclose(moved[:, 0], again.reconstruct(images[:2]), atol=1e-5)
    np.testing.assert_allclose(
        again.transfer_pose(images[:1], images[:1]),
        again.move(again.canonicalize(images[:1]), again.infer(images[:1]).poses),
        atol=1e-4,
    )
    drawn, found = again.sample(3)
    assert drawn.shape == (3, 14, 14)
    assert found.poses.shape == (3, 3)


def test_a_stopped_run_goes_on_to_the_same_bits(rng, tmp_path):
    model = make_composition(rng, inside=True)
    images = torch.nn.functional.normalize(torch.randn(40, 20, generator=rng, dtype=F64), dim=1)
    settings = Settings(method="em", n_epochs=3, batch_size=10, lattice="paper")
    policy = CheckpointPolicy(tmp_path, every=3, keep=9)
    how = {"monitor_images": images[:5], "checkpoints": policy}
    whole = train(model, images, settings, generator=torch.Generator().manual_seed(3), **how)
    for path in list_checkpoints(tmp_path)[2:]:  # as if it had been stopped there
        path.unlink()
    again = train(model, images, settings, generator=torch.Generator().manual_seed(3), **how)
    for name in ("group_basis", "dictionary"):
        assert getattr(again.parameters, name).equal(getattr(whole.parameters, name))
    assert again.parameters.outer.group_basis.equal(model.outer.group_basis)
    assert again.history == whole.history


def test_the_outer_group_stays_as_it_is_and_the_inner_one_is_learned(rng):
    model = make_composition(rng, n_pixels=20, inside=True).map(
        lambda tensor: tensor.float() if tensor.is_floating_point() else tensor
    )
    images = torch.nn.functional.normalize(torch.randn(40, 20, generator=rng), dim=1)
    settings = Settings(method="em", n_epochs=2, batch_size=10, lattice="paper")
    learned = learn(model, images, settings, generator=rng)
    assert_close(learned.outer.group_basis, model.outer.group_basis, atol=0, rtol=0)
    assert not learned.group_basis.equal(model.group_basis)
    health = examine(learned, images, engine_of(learned))
    assert math.isfinite(health.objective)
    assert math.isfinite(health.posterior_width)
