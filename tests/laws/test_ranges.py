"""Whatever a user may set and whatever the images are: numbers stay finite and right, or there is a clear error."""

import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liesparse import stiefel
from liesparse._checks import orthonormality_error
from liesparse.baselines import infer_sparse_codes
from liesparse.inference import infer_codes, map_poses
from liesparse.lattice import half_lattice
from liesparse.learning import LearningError, advance
from liesparse.model import Parameters, uniform_prior
from liesparse.posterior import ReferenceEngine, engine_of, log_likelihood, pose_natural
from liesparse.settings import Settings
from liesparse.state import State

KINDS = ("noise", "one bright pixel", "constant", "duplicates", "nearly blank", "negative")
EXPLORING = os.environ.get("HYPOTHESIS_PROFILE") == "explore"


worlds = st.fixed_dictionaries(
    {
        "side": st.integers(2, 8),
        "torus_dim": st.integers(1, 6),
        "share": st.sampled_from((0.0, 0.5, 1.0)),  # of the planes that fit into the images
        "n_components": st.sampled_from((1, 2, 10, 100, 500)),
        "noise_std": st.floats(-3, 1).map(lambda power: 10**power),
        "sparsity": st.sampled_from((0.0, 1e-3, 1.0, 10.0, 1e3)),
        "kind": st.sampled_from(KINDS),
        "n_images": st.integers(1, 6),
        "seed": st.integers(0, 2**31),
    }
)


def make(side, torus_dim, share, n_components, noise_std, sparsity, kind, n_images, seed):
    """Return a model of any size within what can be set, images for it, and what else is random."""
    n_pixels, rng = side * side, torch.Generator().manual_seed(seed)
    n_irreps = max(1, int(share * n_pixels / 2))
    model = make_model(n_pixels, n_irreps, torus_dim, n_components, noise_std, sparsity, rng)
    return model, make_images(kind, n_pixels, n_images, rng)


def make_model(n_pixels, n_irreps, torus_dim, n_components, noise_std, sparsity, rng):
    return Parameters(
        group_basis=stiefel.random_point(n_pixels, 2 * n_irreps, generator=rng),
        dictionary=torch.nn.functional.normalize(torch.randn(n_pixels, n_components, generator=rng), dim=0),
        frequencies=half_lattice(torus_dim, n_irreps),
        noise_std=noise_std,
        sparsity=sparsity,
        pose_prior=uniform_prior(n_irreps),
    )


def make_images(kind, n_pixels, n_images, rng):
    images = torch.randn(n_images, n_pixels, generator=rng)
    if kind == "one bright pixel":
        images = torch.eye(n_pixels)[torch.randint(n_pixels, (n_images,), generator=rng)]
    elif kind == "constant":
        images = torch.ones(n_images, n_pixels)
    elif kind == "duplicates":
        images = images[:1].expand(n_images, -1)
    elif kind == "nearly blank":
        images = 1e-6 * images.abs()
    elif kind == "negative":
        images = -images.abs()
    return torch.nn.functional.normalize(images, dim=1)


@settings(max_examples=500 if EXPLORING else 25)
@given(world=worlds)
def test_inference_stays_finite(world):
    model, images = make(**world)
    engine = engine_of(model)
    codes = infer_codes(model, images, engine)
    assert bool((codes >= 0).all())
    assert math.isfinite(float(codes.sum()))
    assert math.isfinite(float(map_poses(model, images, codes, engine).abs().sum()))
    assert math.isfinite(float(log_likelihood(model, images, codes, engine).sum()))
    plain = infer_sparse_codes(model.dictionary, images, noise_std=model.noise_std, sparsity=model.sparsity)
    assert math.isfinite(float(plain.sum()))


@settings(max_examples=500 if EXPLORING else 20)
@given(world=worlds)
def test_moments_are_those_of_brute_force(world):
    """Wherever brute force can tell: on up to two axes, and not too sharp for its grid."""
    model, images = make(**world)
    codes = torch.full((len(images), model.n_components), 1 / model.n_components)
    natural = pose_natural(model, images, codes)
    found = engine_of(model).moments(natural)
    assert math.isfinite(float(found.log_partition.sum() + found.rotation.sum()))
    assert float(found.rotation.abs().max()) < 1.05
    sharpness = float((natural.norm(dim=2) * model.frequencies.double().norm(dim=1)).sum(dim=1).max())
    if model.torus_dim > 2 or sharpness > 200:
        return
    truth = ReferenceEngine(model.frequencies, 256, dtype=torch.float64).moments(natural.double())
    assert float((found.rotation - truth.rotation).abs().max()) < 2e-3
    off = (found.log_partition - truth.log_partition).abs() / truth.log_partition.abs().clamp(min=1)
    assert float(off.max()) < 2e-3


@settings(max_examples=200 if EXPLORING else 12)
@given(world=worlds, method=st.sampled_from(("em", "gradient")))
def test_learning_stays_orthonormal_or_says_what_is_wrong(world, method):
    model, images = make(**world)
    state, engine = State.begin(model, torch.Generator().manual_seed(0)), engine_of(model)
    try:
        for _ in range(3):
            state, _ = advance(state, images, Settings(method=method, first_memory=1.0), engine)
    except (LearningError, ValueError):
        return
    assert orthonormality_error(state.parameters.group_basis) < 1e-4
    assert math.isfinite(float(state.parameters.dictionary.sum()))


def test_many_identical_images():
    """Their number changes nothing: 10⁵ of them have the codes that one has."""
    rng = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.rand(1, 16, generator=rng), dim=1)
    model = make_model(16, 4, 2, 3, 0.1, 1.0, rng)
    engine = engine_of(model)
    one, many = (infer_codes(model, images.expand(n, -1).contiguous(), engine, n_code_steps=3) for n in (1, 100_000))
    torch.testing.assert_close(many, one.expand_as(many), atol=1e-5, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("method", ["em", "canonical", "euclidean"])
def test_a_hundred_thousand_steps_keep_w_orthonormal(method):
    rng = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.rand(200, 16, generator=rng), dim=1)
    model = make_model(16, 4, 2, 3, 0.3, 1.0, rng)
    how = {"method": "em"} if method == "em" else {"method": "gradient", "metric": method}
    settings, state, engine = Settings(n_code_steps=2, n_grid=16, **how), State.begin(model, rng), engine_of(model)
    with torch.no_grad():
        for step in range(100_000):
            begin = 10 * step % len(images)
            state, _ = advance(state, images[begin : begin + 10], settings, engine)
            if step % 1000 == 999:
                assert orthonormality_error(state.parameters.group_basis) < 1e-5, step
