"""The embedded digits and their controlled transformations [Chau20, sec. 5]."""

import math

import pytest
import torch
from torch.testing import assert_close

from liesparse.data import (
    embedded_digits,
    rotations_scalings,
    synthetic,
    translations,
    translations_rotations,
    unit_norm,
    warp,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def dot(row, column, side=28):
    image = torch.zeros(1, side, side)
    image[0, row, column] = 1
    return image


def test_ten_digits_are_embedded():
    found = embedded_digits()
    assert found.shape == (10, 28, 28)
    assert found.min() == 0
    assert found.max() == 1
    assert (found.flatten(1).sum(dim=1) > 20).all()


@pytest.mark.parametrize("make", [translations, rotations_scalings])
def test_sets_are_seeded_and_normalized(make):
    first, again, other = make(50, generator=seeded()), make(50, generator=seeded()), make(50, generator=seeded(1))
    assert first.images.equal(again.images)
    assert not first.images.equal(other.images)
    assert first.images.shape == (50, 784)
    assert_close(first.images.norm(dim=1), torch.ones(50))
    assert first.labels.bincount().tolist() == [5] * 10
    assert first.factors.shape == (50, 2)
    assert len(first.factor_names) == 2


def test_chunks_do_not_change_the_images(monkeypatch):
    whole = translations(50, generator=seeded())
    monkeypatch.setattr(synthetic, "_CHUNK", 7)
    parts = translations(50, generator=seeded())
    assert_close(parts.images, whole.images)
    assert_close(rotations_scalings(50, generator=seeded()).images.norm(dim=1), torch.ones(50))


def test_factors_are_uniform_in_the_stated_range():
    shifts = translations(4000, generator=seeded()).factors
    assert float(shifts.abs().max()) <= 7
    assert float(shifts.abs().max()) > 6.9
    assert abs(float(shifts.mean())) < 0.2
    angles, log_scales = rotations_scalings(4000, generator=seeded()).factors.unbind(1)
    assert math.radians(74) < float(angles.abs().max()) <= math.radians(75)
    scales = log_scales.exp()
    assert 0.5 <= float(scales.min()) < 0.51
    assert 0.99 < float(scales.max()) <= 1.0 + 1e-6
    assert float(scales.mean()) == pytest.approx(0.75, abs=0.01)


def test_shift_moves_right_and_down_and_interpolates():
    found = translations(200, sources=dot(14, 14), generator=seeded())
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    for image, (x, y) in zip(found.images, found.factors, strict=True):
        weights = image / image.sum()
        assert float((weights * columns.flatten()).sum()) == pytest.approx(14 + float(x), abs=1e-3)
        assert float((weights * rows.flatten()).sum()) == pytest.approx(14 + float(y), abs=1e-3)


def test_nothing_enters_from_outside_unless_wrapped():
    sources = embedded_digits()
    wrapped = translations(60, wrap=True, generator=seeded())
    cut = translations(60, generator=seeded())
    assert wrapped.factors.equal(cut.factors)
    assert not torch.allclose(wrapped.images, cut.images)
    # A wrapped image is the periodic shift: check it on the Fourier side, where bilinear weights are known.
    for image, label, (x, y) in zip(wrapped.images, wrapped.labels, wrapped.factors, strict=True):
        whole, part = torch.floor(torch.stack((x, y))), torch.stack((x, y)) - torch.floor(torch.stack((x, y)))
        expected = torch.zeros(28, 28)
        for down in (0, 1):
            for right in (0, 1):
                weight = (part[0] if right else 1 - part[0]) * (part[1] if down else 1 - part[1])
                shifts = (int(whole[1]) + down, int(whole[0]) + right)
                expected += weight * sources[label].roll(shifts, (0, 1))
        assert_close(image, unit_norm(expected.reshape(1, -1))[0], atol=1e-5, rtol=0)


def test_rotation_is_counter_clockwise_and_scaling_shrinks():
    source = torch.zeros(1, 29, 29)
    source[0, 13:16, 19:22] = 1  # a blot six pixels right of the centre (14, 14)
    found = rotations_scalings(300, sources=source, generator=seeded())
    rows, columns = torch.meshgrid(torch.arange(29.0), torch.arange(29.0), indexing="ij")
    for image, (angle, log_scale) in zip(found.images, found.factors, strict=True):
        weights = image / image.sum()
        right = float((weights * columns.flatten()).sum()) - 14
        up = 14 - float((weights * rows.flatten()).sum())
        reach = 6 * math.exp(float(log_scale))
        assert right == pytest.approx(reach * math.cos(float(angle)), abs=0.35)
        assert up == pytest.approx(reach * math.sin(float(angle)), abs=0.35)


def test_scale_one_and_no_rotation_is_the_digit_itself():
    found = rotations_scalings(10, max_degrees=0, scales=(1.0, 1.0), generator=seeded())
    assert_close(found.images, unit_norm(embedded_digits().flatten(1)), atol=1e-5, rtol=0)


def test_blank_images_are_refused():
    images = torch.ones(4, 6)
    images[2] = 0
    with pytest.raises(
        ValueError, match=r"images: expected images that are not blank, got 1 blank image\(s\), the first at row 2"
    ):
        unit_norm(images)
    with pytest.raises(ValueError, match="blank"):
        translations(5, sources=torch.zeros(1, 8, 8), generator=seeded())
    with pytest.raises(ValueError, match="sources: expected shape"):
        translations(5, sources=torch.zeros(0, 8, 8), generator=seeded())
    with pytest.raises(ValueError, match="scales: expected"):
        rotations_scalings(5, scales=(1.0, 0.5), generator=seeded())


def test_a_digit_is_turned_about_its_own_centre_and_then_shifted():
    found = translations_rotations(200, max_shift=4, max_degrees=60, sources=dot(14, 19, 29), generator=seeded())
    down, right = torch.meshgrid(torch.arange(29.0) - 14, torch.arange(29.0) - 14, indexing="ij")
    weights = found.images / found.images.sum(dim=1, keepdim=True)
    places = torch.stack((weights @ right.flatten(), weights @ down.flatten()), dim=1)
    shift_x, shift_y, angle = found.factors.unbind(dim=1)  # the dot is 5 pixels right of the centre
    expected = torch.stack((5 * angle.cos() + shift_x, -5 * angle.sin() + shift_y), dim=1)  # up is counter-clockwise
    assert_close(places, expected, atol=0.3, rtol=0)
    assert found.factor_names == ("shift_x", "shift_y", "rotation")


def test_without_rotation_it_is_translation():
    three = translations_rotations(20, max_shift=3, max_degrees=0, generator=seeded())
    shifted = warp(torch.eye(2).expand(20, 2, 2), three.factors[:, :2], {"none": torch.zeros(20)}).images
    assert_close(three.images, shifted)
