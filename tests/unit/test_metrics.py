"""Signal-to-noise ratio and active codes."""

import math

import pytest
import torch
from torch.testing import assert_close

from liesparse import metrics
from liesparse.data import embedded_digits, translations
from liesparse.inference import infer_codes, map_poses
from liesparse.initialization import known_translation, random_start
from liesparse.metrics import (
    Inferred,
    active_codes,
    compute_metric,
    d_lsbd,
    equivariance_error,
    evaluate,
    examine,
    invariance_error,
    metric_names,
    register_metric,
    snr,
    success_over_seeds,
    templates_alive,
    torus_match,
)
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, GridEngine


def test_snr_is_linear_and_per_image():
    images = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    rough = torch.tensor([[3.0, 3.0], [0.5, 0.0]])
    assert snr(images, rough).tolist() == [25.0, 4.0]


def test_a_reconstruction_short_by_a_tenth_has_snr_a_hundred():
    image = torch.tensor([[0.6, 0.8]])
    assert float(snr(image, 0.9 * image)) == pytest.approx(100, rel=1e-5)


def test_ripples_are_not_active():
    assert active_codes(torch.tensor([[0.9, 0.03, 0.0], [0.5, 0.5, 0.06]])) == 2.0


def test_evaluation_is_the_mean_over_all_images_whatever_the_batch(make_model, draw):
    model = make_model(1, noise_std=0.1)
    images, _, _ = draw(model, batch=7)
    engine = GridEngine(model.frequencies, 20, dtype=torch.float64)
    codes = infer_codes(model, images, engine)
    poses = map_poses(model, images, codes, engine)
    expected = snr(images, reconstruct(model, codes, poses)).mean()
    for batch_size in (2, 7):
        found = evaluate(model, images, engine, batch_size=batch_size)
        assert_close(found.snr, float(expected), rtol=1e-9, atol=0)
        assert found.active_codes == pytest.approx(active_codes(codes))
    assert evaluate(model, images, engine, refine=False).snr <= found.snr + 1e-9


def test_health_of_a_model_with_one_clear_pose(rng):
    data = translations(40, generator=rng)
    model = known_translation(embedded_digits())
    found = examine(model, data.images, AdaptiveEngine(model.frequencies))
    assert found.templates_alive == 10
    assert found.orthonormality_error < 1e-5
    assert 0.03 < found.posterior_width < 0.1  # about 0.045 rad on this data
    assert found.multimodal_share < 0.1
    assert found.snr > 25


def test_health_of_a_model_that_knows_nothing(rng):
    model = random_start(784, generator=rng)
    found = examine(model, translations(20, generator=rng).images, AdaptiveEngine(model.frequencies))
    assert found.posterior_width > 0.5
    assert found.snr < 2


def test_the_exact_maximum_has_a_higher_objective_and_smaller_codes(rng):
    """Which α̂ a table uses matters: the paper's 20 steps stop above the maximum's codes."""
    images = translations(60, generator=rng).images
    model = known_translation(embedded_digits())
    engine = AdaptiveEngine(model.frequencies)
    assert evaluate(model, images, engine).snr > evaluate(model, images, engine, exact_map=True).snr + 3


def test_a_template_is_alive_if_one_image_in_a_thousand_uses_it():
    codes = torch.zeros(2000, 3)
    codes[:2, 0] = 0.3
    codes[:1, 1] = 0.3
    assert templates_alive(codes) == 1


@pytest.fixture
def largest_code(monkeypatch):
    monkeypatch.setattr(metrics, "_METRICS", dict(metrics._METRICS))

    @register_metric("largest_code")
    def largest_code(inferred):
        return float(inferred.codes.max())

    return largest_code


def look_at(model, images):
    engine = GridEngine(model.frequencies, 20, dtype=torch.float64)
    codes = infer_codes(model, images, engine)
    poses = map_poses(model, images, codes, engine)
    return engine, Inferred(model, images, codes, poses, reconstruct(model, codes, poses))


@pytest.mark.parametrize("name", metric_names())
def test_every_metric_keeps_the_contract(name, make_model, draw):
    """A finite number that does not depend on the order of the images, and leaves its argument alone."""
    model = make_model(1, noise_std=0.1)
    _, inferred = look_at(model, draw(model, batch=7)[0])
    kept = [part.clone() for part in inferred[1:]]
    value = compute_metric(name, inferred)
    assert isinstance(value, int | float)
    assert math.isfinite(value)
    order = torch.arange(7).flip(0)
    assert compute_metric(name, Inferred(model, *(part[order] for part in kept))) == pytest.approx(value, rel=1e-9)
    assert all(part.equal(before) for part, before in zip(inferred[1:], kept, strict=True))


def test_a_registered_metric_is_evaluated_beside_the_others(largest_code, make_model, draw):
    model = make_model(1, noise_std=0.1)
    images = draw(model, batch=7)[0]
    engine, inferred = look_at(model, images)
    assert "largest_code" in metric_names()
    found = evaluate(model, images, engine, batch_size=3)
    assert found.registered == {"largest_code": pytest.approx(largest_code(inferred))}


def test_a_metric_that_is_there_already_or_not_at_all(make_model, draw):
    with pytest.raises(ValueError, match="name: expected one that is not taken, got 'snr'"):
        register_metric("snr")
    model = make_model(1)
    with pytest.raises(ValueError, match="metric"):
        compute_metric("nothing", look_at(model, draw(model, batch=2)[0])[1])


def angles(n=400, seed=0):
    return 2 * torch.pi * torch.rand(n, 1, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("slope", [1, -1, 1 / 3, -1 / 4])
def test_a_circle_is_matched_by_a_multiple_of_the_pose(slope):
    truth = angles()
    assert torus_match(truth, (slope * truth + 5) % (2 * torch.pi), 2 * torch.pi) == pytest.approx([1.0])


def test_a_pose_that_turns_twice_as_fast_does_not_tell_the_angle():
    truth = angles()
    assert torus_match(truth, 2 * truth, 2 * torch.pi)[0] < 0.2


def test_two_circles_may_be_swapped_and_mixed_by_integers():
    x, y = angles(seed=1), angles(seed=2)
    shifts = torch.cat((x, y), dim=1) * 28 / (2 * torch.pi)
    poses = torch.cat((-y, x + y), dim=1)  # so x is s₁ + s₂, and y is -s₁
    assert torus_match(shifts, poses, 28.0) == pytest.approx([1.0, 1.0])


def test_factors_that_do_not_come_round_are_matched_by_any_linear_map():
    factors = torch.rand(300, 2, generator=torch.Generator().manual_seed(3))
    slanted = factors @ torch.tensor([[2.0, 0.7], [-1.1, 1.9]]) + torch.tensor([2.9, -0.4])
    wrapped = (slanted + torch.pi) % (2 * torch.pi) - torch.pi  # the cut of the angles runs through the data
    assert torus_match(factors, wrapped) == pytest.approx([1.0, 1.0], abs=1e-6)
    other = torch.rand(300, 2, generator=torch.Generator().manual_seed(4))
    assert max(torus_match(factors, 6 * other)) < 0.3


def test_one_axis_gives_one_factor_only():
    factors = torch.rand(300, 2, generator=torch.Generator().manual_seed(5))
    first, second = torus_match(factors, torch.stack((factors[:, 0], torch.zeros(300)), dim=1))
    assert first == pytest.approx(1.0, abs=1e-6)
    assert second < 0.2


def _torus(n, windings=(1, 1), offsets=0.0):
    """Two circles, each in a plane of its own; ``offsets`` are added to the first angle."""
    angles = torch.meshgrid(*(2 * math.pi * torch.arange(n).double() / n,) * 2, indexing="ij")
    first, second = windings[0] * angles[0] + offsets, windings[1] * angles[1]
    return torch.stack((first.cos(), first.sin(), second.cos(), second.sin()), dim=-1)


def test_d_lsbd_is_0_for_circles_in_planes_however_these_lie(rng):
    circles = _torus(8, (1, -2))
    assert d_lsbd(circles) == pytest.approx(0, abs=1e-9)
    assert d_lsbd(_torus(16, (7, 1))) == pytest.approx(0, abs=1e-9)
    mixed = circles @ torch.randn(4, 9, generator=rng, dtype=torch.float64)
    assert d_lsbd(mixed.numpy() + 3) == pytest.approx(0, abs=1e-9)
    stretched = circles * torch.tensor([1, 0.5, 2, 3.0])  # an ellipse is a circle in other coordinates
    assert d_lsbd(stretched) == pytest.approx(0, abs=1e-9)


def test_d_lsbd_of_cases_done_by_hand():
    alternating = 0.3 * (-1.0) ** torch.arange(8).double()[:, None]  # every other angle is 0.3 ahead, or behind
    assert d_lsbd(_torus(8, offsets=alternating)) == pytest.approx(math.sin(0.3) ** 2, abs=1e-9)
    slanted = torch.meshgrid(*(2 * math.pi * torch.arange(8).double() / 8,) * 2, indexing="ij")
    both = torch.stack(((slanted[0] + slanted[1]).cos(), (slanted[0] + slanted[1]).sin()), dim=-1)
    assert d_lsbd(both) == pytest.approx(2)  # the sum of two angles tells neither
    assert d_lsbd(torch.zeros(8, 8, 3)) == 0  # an encoding of nothing turns as anything does


def test_d_lsbd_is_its_definition_on_any_encodings(rng):
    encodings = torch.randn(4, 6, 3, generator=rng, dtype=torch.float64)
    total = 0.0
    for axis, n in ((0, 4), (1, 6)):
        left = (encodings - encodings.mean(dim=axis, keepdim=True)).reshape(24, 3)
        white = torch.linalg.svd(left, full_matrices=False).U[:, :2] * math.sqrt(24 / 2)
        which = torch.cartesian_prod(torch.arange(4), torch.arange(6))[:, axis]
        variances = []
        for winding in range(-10, 11):
            back = []
            for point, step in zip(white, which, strict=True):
                turn = -winding * 2 * math.pi * float(step) / n
                cos, sin = math.cos(turn), math.sin(turn)
                back.append(torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64) @ point)
            points = torch.stack(back)
            variances.append(float((points - points.mean(dim=0)).square().sum(dim=1).mean()))
        total += min(variances)
    assert d_lsbd(encodings) == pytest.approx(total, abs=1e-9)


def test_equivariance_is_measured_round_the_circle():
    before, moves = [[0.1, 3.0], [0.0, 0.0]], [[0.0, 0.3], [1.0, 0.0]]
    assert equivariance_error(before, [[0.1, 3.3 - 2 * math.pi], [1.0, 0.0]], moves) == pytest.approx(0, abs=1e-12)
    assert equivariance_error(before, [[0.4, 3.7], [1.0, 0.0]], moves) == pytest.approx(0.25)  # (0.5 + 0) / 2


def test_invariance_of_codes():
    codes = [[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]]
    assert invariance_error(codes, codes) == 0
    assert invariance_error(codes[:1], [[0.0, 2.0]]) == 1  # another template
    assert invariance_error(codes[:2], [[0.5, 0.0], [3.0, 4.0]]) == pytest.approx(0.1)  # (0.25 / 1.25 + 0) / 2


def test_success_over_seeds_has_wilsons_interval():
    assert success_over_seeds([True] * 3 + [False]) == pytest.approx((0.75, 0.30064, 0.95441), abs=1e-4)
    assert success_over_seeds([True] * 10) == pytest.approx((1.0, 0.72246, 1.0), abs=1e-4)
