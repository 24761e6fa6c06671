"""What is inferred from an image: modes, shares and poses against brute force; runs that lack something."""

import logging
from dataclasses import replace

import pytest
import torch

from liesparse import torus
from liesparse.posterior import pose_log_density, pose_natural
from liesparse.run_directory import Run, save_run
from liesparse.web.session import N_EXAMPLES, infer, normalized, open_session


def two_fold(make_model, tilt):
    """A shape that looks almost the same after half a turn: its plane of frequency 1 holds little."""
    model = make_model(n_pixels=16, n_components=1, n_irreps=2, torus_dim=1, noise_std=0.1, sparsity=1.0)
    planes = model.group_basis.reshape(16, 2, 2)
    shape = planes[:, 0, 0] * tilt + planes[:, 1, 0] * (1 - tilt**2) ** 0.5
    assert model.frequencies.flatten().tolist() == [1, 2]
    return replace(model, dictionary=shape[:, None])


@pytest.mark.parametrize("tilt", [0.0, 0.05, 0.07, 0.3])
def test_shares_are_the_mass_of_a_fine_grid(make_model, tiny, tilt):
    session = tiny(model=two_fold(make_model, tilt))
    model = session.coder.model_
    images = model.dictionary.T
    (view,) = infer(session, images)
    codes = torch.tensor([view.codes], dtype=model.dtype)
    points = torus.grid_axis(20_000)[:, None].double()
    natural = pose_natural(model, images, codes).expand(len(points), -1, -1)
    weights = torch.softmax(pose_log_density(natural, model.frequencies, points), dim=0)
    back = torus.wrap(points - torch.pi).abs()[:, 0] < torch.pi / 2
    expected = sorted((float(weights[~back].sum()), float(weights[back].sum())), reverse=True)
    found = [mode.share for mode in view.modes]
    assert len(found) == (1 if tilt == 0.3 else 2)
    assert found == pytest.approx(expected[: len(found)], abs=0.01)


def test_broad_modes_do_not_share_out_more_than_there_is(make_model, tiny):
    """Noise leaves only the prior 0.1 cos 2s; Gaussians with the bend of its two modes hold 1.4 of its mass."""
    prior = torch.tensor([[0.0, 0.0], [0.1, 0.0]], dtype=torch.float64)
    model = replace(two_fold(make_model, 0.0), noise_std=3.0, pose_prior=prior)
    (view,) = infer(tiny(model=model), model.dictionary.T)
    assert [mode.share for mode in view.modes] == pytest.approx([0.5, 0.5], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("torus_dim", "noise_std"), [(1, 0.05), (1, 3.0), (2, 0.05), (2, 0.4), (2, 3.0), (3, 3.0)])
def test_modes_are_distinct_and_the_first_is_the_estimators(tiny, torus_dim, noise_std):
    session = tiny(torus_dim=torus_dim, noise_std=noise_std, prior=noise_std > 1)
    model, images = session.coder.model_, session.examples
    views, inferred = infer(session, images), session.coder.infer(images)
    natural = pose_natural(model, images, inferred.codes)
    for place, view in enumerate(views):
        assert view.codes == inferred.codes[place].tolist()
        assert 0 <= sum(mode.share for mode in view.modes) <= 1 + 1e-12
        assert view.pose == view.modes[0].pose
        poses = torch.tensor([view.pose, inferred.poses[place].tolist()], dtype=model.dtype)
        assert poses.shape == (2, torus_dim)
        ours, theirs = pose_log_density(natural[place].expand(2, -1, -1), model.frequencies, poses).tolist()
        assert ours >= theirs - 1e-9
        modes = torch.tensor([mode.pose for mode in view.modes])
        apart = torus.wrap(modes[:, None] - modes[None]).norm(dim=-1)
        assert bool((apart[~torch.eye(len(modes), dtype=torch.bool)] > 0.02).all())


def test_the_demo_agrees_with_its_estimator_and_with_itself_alone(demo):
    images = demo.examples[:6]
    views, inferred = infer(demo, images), demo.coder.infer(images)
    for place, view in enumerate(views):
        apart = torus.wrap(torch.tensor(view.pose) - inferred.poses[place])
        assert float(apart.norm()) < 1e-3
        (alone,) = infer(demo, images[place : place + 1])
        assert alone.codes == view.codes
        assert alone.pose == pytest.approx(view.pose, abs=1e-3)
        assert view.sparse_codes is not None
        assert view.pixels == images[place].tolist()
        assert view.modes[0].share == pytest.approx(1, abs=0.1)  # these posteriors are sharp


def test_the_demo_shows_held_out_images_of_norm_one(demo):
    assert demo.examples.shape == (N_EXAMPLES, 784)
    assert demo.examples.norm(dim=1).tolist() == pytest.approx([1] * N_EXAMPLES, abs=1e-5)
    assert demo.coder.image_shape_ == (28, 28)


@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e37])
def test_any_scale_is_brought_to_norm_one(scale):
    pixels = torch.arange(6.0) * scale
    assert normalized(pixels).tolist() == pytest.approx((torch.arange(6.0) / 55**0.5).tolist(), rel=1e-5)


def test_a_blank_image_is_refused():
    with pytest.raises(ValueError, match="something to see, got a blank one"):
        normalized(torch.zeros(6))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "the name of the data, got none"),
        ({"data": "nowhere/images.npy"}, "does not exist"),
        ({"data": "translation:seed=x"}, "seed: expected"),
        ({"data": "translation"}, "as the model was trained on"),
    ],
)
def test_a_run_whose_data_is_gone_can_be_explored(tiny, tmp_path, caplog, settings, complaint):
    save_run(Run(tmp_path / "run", tiny().coder, None, settings, {}))
    with caplog.at_level(logging.WARNING):
        session = open_session(tmp_path / "run")
    assert complaint in caplog.text
    assert session.examples.shape == (0, 16)
    assert session.baseline is None
    (view,) = infer(session, torch.eye(16, dtype=torch.float64)[:1])
    assert view.sparse_codes is None


def test_the_title_does_not_tell_where_things_are(tiny, tmp_path):
    folder = tmp_path / "secret" / "my run"
    save_run(Run(folder, tiny().coder, None, {"data": "/home/somebody/faces/:size=4"}, {}))
    assert open_session(folder).title == "my run: learned from faces"


def test_a_name_that_is_no_text_does_no_harm(tiny, tmp_path):
    folder = tmp_path / "run"
    save_run(Run(folder, tiny().coder, None, {}, {}))
    (folder / "run.json").write_text(r'{"data": "\udcff"}')
    assert open_session(folder).title.encode() == b"run: learned from ?"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a folder with a model\.safetensors"):
        open_session(tmp_path)
