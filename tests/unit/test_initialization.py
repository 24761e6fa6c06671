"""Where learning starts."""

import pytest
import torch
from torch.testing import assert_close

from liesparse import initialization, stiefel
from liesparse.data import embedded_digits, translations
from liesparse.inference import infer_codes, map_poses
from liesparse.initialization import (
    known_translation,
    leading_subspace,
    random_start,
    start_from_data,
    suggest_noise,
)
from liesparse.model import apply_transform, narrow_prior
from liesparse.posterior import AdaptiveEngine
from liesparse.settings import ModelSettings, load_recipe
from liesparse.start import make_start


def test_random_start_is_seeded_and_fits_the_paper():
    first, again = (random_start(784, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert first.group_basis.equal(again.group_basis)
    assert first.dictionary.equal(again.dictionary)
    assert (first.n_pixels, first.n_components, first.n_irreps, first.torus_dim) == (784, 10, 128, 2)
    assert first.noise_std**2 == pytest.approx(0.01)
    assert first.sparsity == 10
    assert not first.pose_prior.any()
    assert stiefel.orthonormality_error(first.group_basis) < 1e-5
    assert_close(first.dictionary.norm(dim=0), torch.ones(10))
    assert first.frequencies.any(dim=1).all()  # no ω = 0


def test_start_from_data_holds_the_energy_and_takes_images():
    rng = torch.Generator().manual_seed(0)
    images = translations(600, generator=rng).images
    start = start_from_data(random_start(784, generator=rng), images, generator=rng)
    start.validate()
    inside = start.to_planes(images).square().sum() / images.square().sum()
    random_inside = random_start(784, generator=rng).to_planes(images).square().sum() / images.square().sum()
    assert inside > 0.97
    assert random_inside < 0.5
    likeness = images @ start.dictionary
    assert_close(likeness.amax(dim=0), torch.ones(10))


def test_large_images_start_in_nearly_the_best_subspace(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    images = translations(900, generator=rng).images.double()
    exact = leading_subspace(images, 60)
    monkeypatch.setattr(initialization, "EXACT_PIXELS", 0)
    found = leading_subspace(images, 60)
    assert stiefel.orthonormality_error(found) < 1e-9
    best, energy = ((images @ basis).square().sum() / images.square().sum() for basis in (exact, found))
    assert 0.999 * best < energy <= best * (1 + 1e-9)
    few = leading_subspace(images[:20], 60)  # fewer images than directions
    assert stiefel.orthonormality_error(few) < 1e-9
    assert_close((images[:20] @ few).norm(dim=1), torch.ones(20, dtype=torch.float64))


def test_known_translation_shifts_right_and_down_by_whole_turns():
    model = known_translation(embedded_digits().double()).validate()
    image = model.dictionary.T[:1]
    for shift in ((3, 0), (0, -5), (2, 9)):
        pose = 2 * torch.pi * torch.tensor([shift], dtype=torch.float64) / 28
        inside = apply_transform(model, image, torch.zeros_like(pose)).view(28, 28)
        moved = apply_transform(model, image, pose).view(28, 28)
        assert_close(moved, inside.roll((shift[1], shift[0]), (0, 1)), atol=1e-3, rtol=0)


def test_known_translation_finds_the_true_shifts():
    model = known_translation(embedded_digits())
    data = translations(40, wrap=True, generator=torch.Generator().manual_seed(0))
    engine = AdaptiveEngine(model.frequencies)
    codes = infer_codes(model, data.images, engine)
    assert codes.argmax(dim=1).equal(data.labels)
    assert_close(map_poses(model, data.images, codes, engine) * 28 / (2 * torch.pi), data.factors, atol=0.1, rtol=0)


def test_known_translation_wants_frequencies_below_nyquist():
    with pytest.raises(ValueError, match="n_irreps: expected frequencies below 4"):
        known_translation(torch.ones(2, 8, 8), n_irreps=32)


def test_one_axis_starts_with_few_frequencies_only_where_the_lattice_will_be_fitted():
    images = torch.nn.functional.normalize(torch.rand(30, 120, generator=torch.Generator().manual_seed(0)), dim=1)
    prior = narrow_prior(0.5, torus_dim=1)
    for recipe, pose_prior, n_distinct in (("best", "uniform", 30), ("best", prior, 60), ("paper", "uniform", 60)):
        model = ModelSettings(3, torus_dim=1, pose_prior=pose_prior)
        start = make_start(images, model, load_recipe(recipe), generator=torch.Generator().manual_seed(1))
        assert len(start.parameters.frequencies.unique(dim=0)) == n_distinct


def test_noise_lowers_sigma_as_it_lowers_the_picture():
    """White noise of the same norm leaves half of the energy to the picture, so σ² is half of the paper's."""
    clean = translations(10_000, generator=torch.Generator().manual_seed(0)).images
    noise = torch.nn.functional.normalize(torch.randn(clean.shape, generator=torch.Generator().manual_seed(1)), dim=1)
    noisy = torch.nn.functional.normalize(clean + noise, dim=1)
    assert suggest_noise(clean, 256) == pytest.approx(0.1, rel=0.05)
    assert suggest_noise(noisy, 256) == pytest.approx(0.1 * 0.5**0.5, rel=0.1)
    assert suggest_noise(noisy, 784) == 0.1


def test_what_all_images_have_in_common_lowers_sigma_where_it_is_most_of_them(rng):
    """A part c of the energy that is common leaves 1 - c to tell images apart: σ² falls with it from a half on."""
    own = torch.nn.functional.normalize(torch.randn(4000, 63, generator=rng), dim=1)
    for share, sigma in ((0.0, 0.1), (0.3, 0.1), (0.8, 0.1 * 0.4**0.5)):
        together = torch.cat(((1 - share) ** 0.5 * own, torch.full((4000, 1), share**0.5)), dim=1)
        assert suggest_noise(together, 64) == pytest.approx(sigma, rel=0.02)
