"""Where learning starts."""

import torch
from torch.testing import assert_close

from liesparse import stiefel
from liesparse.data import translations
from liesparse.starts import random_start, start_from_data


def test_random_start_is_seeded_and_fits_the_paper():
    first, again = (random_start(784, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert first.group_basis.equal(again.group_basis)
    assert first.dictionary.equal(again.dictionary)
    assert (first.n_pixels, first.n_components, first.n_irreps, first.torus_dim) == (784, 10, 128, 2)
    assert first.noise_std**2 == 0.1**2
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
