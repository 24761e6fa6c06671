"""Every bad input is a ValueError that names the argument, what was expected, what came, and the fix."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from liesparse import stiefel
from liesparse.baselines import SparseCodingSettings, infer_sparse_codes
from liesparse.inference import infer_codes, map_poses
from liesparse.initialization import random_start, start_from_data
from liesparse.lattice import half_lattice
from liesparse.learning import LearningError, learn
from liesparse.metrics import evaluate
from liesparse.model import (
    Parameters,
    PosePrior,
    apply_transform,
    log_prior_poses,
    reconstruct,
    uniform_prior,
)
from liesparse.posterior import GridEngine, log_likelihood
from liesparse.settings import Settings

pytestmark = pytest.mark.usefixtures("without_type_checker")


@pytest.fixture
def model(make_model):
    return make_model(0)


@pytest.fixture
def images(model):
    return torch.nn.functional.normalize(torch.ones(3, model.n_pixels, dtype=torch.float64), dim=1)


def engine_of(model):
    return GridEngine(model.frequencies, 8, dtype=torch.float64)


NAN = float("nan")

SETTINGS = [
    ({"n_epochs": 0}, "n_epochs: expected a whole number >= 1, got int 0"),
    ({"batch_size": 2.5}, "batch_size: expected a whole number >= 1, got float 2.5"),
    ({"n_grid": 1}, "n_grid: expected a whole number >= 2"),
    ({"n_code_steps": True}, "n_code_steps: expected a whole number"),
    ({"n_code_steps": 10**9}, "n_code_steps: expected a whole number <= 10,000, got 1,000,000,000"),
    ({"n_grid": 10**6}, "n_grid: expected a whole number <= 10,000"),
    ({"group_rate": -0.1}, "group_rate: expected a finite number >= 0, got float -0.1"),
    ({"dictionary_rate": NAN}, "dictionary_rate: expected a finite number"),
    ({"code_start": float("inf")}, "code_start: expected a finite number"),
    ({"gradient": "none"}, "gradient: expected 'approximate' or 'exact', got 'none'"),
    ({"lattice": "round"}, "lattice: expected 'paper' or 'fitted'"),
    ({"metric": "flat"}, "metric: expected 'canonical' or 'euclidean'"),
    ({"code_update": "newton"}, "code_update: expected 'subgradient' or 'proximal'"),
]


@pytest.mark.parametrize(("change", "message"), SETTINGS)
def test_settings(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**change)


@pytest.mark.parametrize("name", ["noise_std", "sparsity", "n_epochs", "history", "dictionary_rate", "damping"])
def test_sparse_coding_settings(name):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        SparseCodingSettings(**{name: -1})


PARAMETERS = [
    (lambda _: {"noise_std": 0.0}, "noise_std: expected a finite number >= 1e-06 and <= 1e.06, got float 0.0"),
    (lambda _: {"noise_std": 1e-30}, "noise_std: expected a finite number >= 1e-06"),
    (lambda _: {"noise_std": 1e300}, "noise_std: expected a finite number >= 1e-06"),
    (lambda _: {"sparsity": 1e300}, "sparsity: expected a finite number >= 0 and <= 1e.09"),
    (lambda _: {"sparsity": -1.0}, "sparsity: expected a finite number >= 0 .*, got float -1.0"),
    (lambda _: {"sparsity": NAN}, "sparsity: expected a finite number"),
    (lambda m: {"frequencies": m.frequencies.double() + 0.5}, r"frequencies: expected integers .* got a torch.float64"),
    (lambda m: {"frequencies": m.frequencies[:, 0]}, "frequencies: expected an int64 tensor of shape"),
    (
        lambda m: {"dictionary": m.dictionary.T},
        r"dictionary: expected .* of shape \(n_pixels = 14, n_components\), got .* \(3, 14\)",
    ),
    (
        lambda m: {"group_basis": m.group_basis[:, :-2]},
        r"group_basis: expected .* 2 \* n_irreps = 10\), got .* \(14, 8\)",
    ),
    (
        lambda m: {"pose_prior": m.pose_prior[1:]},
        r"pose_prior: expected .* \(n_irreps = 5, columns = 2\), got .* \(4, 2\)",
    ),
    (lambda m: {"dictionary": m.dictionary[:, :0]}, "n_components: expected a whole number >= 1, got int 0"),
    (lambda m: {"dictionary": m.dictionary.numpy()}, "dictionary: expected a torch.float64 tensor .*, got a ndarray"),
    (
        lambda m: {"pose_prior": m.pose_prior.float()},
        "pose_prior: expected a torch.float64 tensor .*, got a torch.float32",
    ),
    (lambda m: {"group_basis": m.group_basis[1:]}, r"dictionary: expected .* \(n_pixels = 13, n_components\)"),
    (
        lambda m: {"group_basis": m.group_basis[:8]},
        "n_irreps: expected 2 \\* n_irreps <= n_pixels = 8, got n_irreps = 5",
    ),
]


@pytest.mark.parametrize(("change", "message"), PARAMETERS)
def test_parameters(model, change, message):
    with pytest.raises(ValueError, match=message):
        replace(model, **change(model))


def test_values_of_parameters(model):
    with pytest.raises(
        ValueError, match=r"group_basis: expected orthonormal columns .* Call liesparse.stiefel.orthonormalize"
    ):
        replace(model, group_basis=1.1 * model.group_basis).validate()
    with pytest.raises(ValueError, match="dictionary: expected finite numbers, got 42 NaN or infinite entries"):
        replace(model, dictionary=model.dictionary * NAN).validate()
    with pytest.raises(ValueError, match="dictionary columns: expected rows of L2 norm 1"):
        replace(model, dictionary=9 * model.dictionary).validate()
    with pytest.raises(ValueError, match="frequencies: expected a finite number <= 64, got float"):
        replace(model, frequencies=2000 * model.frequencies).validate()
    fast = model.frequencies.clone()
    fast[0, 1] = 127  # one sum over a pose that turns so fast takes seconds
    with pytest.raises(ValueError, match=r"frequencies: expected a finite number <= 64, got float 127.0"):
        replace(model, frequencies=fast).validate()
    with pytest.raises(ValueError, match=r"pose_prior: expected a finite number <= 1e.09, got float 1e.30"):
        replace(model, pose_prior=torch.full_like(model.pose_prior, 1e30)).validate()


IMAGES = [
    (
        lambda x: x[:, 1:],
        r"images: expected a .* tensor of shape \(batch, n_pixels = 14\), got .* \(3, 13\)",
    ),
    (lambda x: x[0], "images: expected a .* tensor of shape"),
    (lambda x: x.long(), "images: .* Convert it with"),
    (lambda x: x.numpy(), "images: .* Convert it with torch.as_tensor"),
    (lambda x: x * NAN, "images: expected finite numbers, got 42 NaN or infinite entries"),
    (lambda x: x[:0], "images: expected at least one image, got none"),
    (lambda x: x * 0, r"images: expected images that are not blank, got 3 blank image\(s\), the first at row 0"),
]


@pytest.mark.parametrize(("spoil", "message"), IMAGES)
def test_images(model, images, spoil, message):
    rng = torch.Generator()
    with pytest.raises(ValueError, match=message):
        infer_codes(model, spoil(images), engine_of(model))
    with pytest.raises(ValueError, match=message):
        learn(model, spoil(images), Settings(n_epochs=1), generator=rng)
    with pytest.raises(ValueError, match=message):
        start_from_data(model, spoil(images), generator=rng)
    with pytest.raises(ValueError, match=message):
        infer_sparse_codes(model.dictionary, spoil(images), noise_std=0.1, sparsity=1.0)


def test_images_of_another_type(model, images):
    single = images.float()
    message = r"images: expected a torch.float64 tensor .* got a torch.float32 .* Convert it with .to\(torch.float64\)"
    codes, poses = torch.ones(3, 3, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    for call in (
        lambda: infer_codes(model, single, engine_of(model)),
        lambda: learn(model, single, Settings(n_epochs=1), generator=torch.Generator()),
        lambda: start_from_data(model, single, generator=torch.Generator()),
        lambda: map_poses(model, single, codes, engine_of(model)),
        lambda: log_likelihood(model, single, codes, engine_of(model)),
        lambda: evaluate(model, single, engine_of(model)),
        lambda: apply_transform(model, single, poses),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_codes_and_poses_that_do_not_fit(model, images):
    codes, poses = torch.ones(3, 3, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"codes: expected .* n_components = 3"):
        reconstruct(model, codes[:, 1:], poses)
    with pytest.raises(ValueError, match=r"poses: expected .* \(batch = 3, torus_dim = 2\)"):
        reconstruct(model, codes, poses[1:])
    with pytest.raises(ValueError, match=r"poses: .* Convert it with torch.as_tensor"):
        apply_transform(model, images, [[0.0, 0.0]])
    with pytest.raises(ValueError, match="start: expected codes >= 0, got a minimum of -1"):
        infer_codes(model, images, engine_of(model), start=-codes)
    with pytest.raises(ValueError, match="start: expected finite numbers"):
        infer_codes(model, images, engine_of(model), start=codes * NAN)
    with pytest.raises(ValueError, match="images: expected finite numbers"):
        map_poses(model, images * NAN, codes, engine_of(model))


def test_engine_of_another_model(model, images):
    other = GridEngine(half_lattice(2, 4), 8, dtype=torch.float64)
    single = GridEngine(model.frequencies, 8)
    with pytest.raises(ValueError, match="engine: expected the model's own frequencies"):
        infer_codes(model, images, other)
    with pytest.raises(ValueError, match=r"engine: expected dtype .*float64, as the model has, got .*float32"):
        infer_codes(model, images, single)


def test_rates_that_destroy_the_model(model, images):
    with pytest.raises(LearningError, match="no longer finite"):
        learn(model, images, Settings(n_epochs=1, group_rate=1e300, n_grid=8), generator=torch.Generator())


def test_learning_wants_unit_norm(model, images):
    with pytest.raises(ValueError, match=r"images: expected rows of L2 norm 1, .* Call liesparse.unit_norm"):
        learn(model, 255 * images, Settings(n_epochs=1), generator=torch.Generator())


def test_inference_options(model, images):
    with pytest.raises(ValueError, match="update: expected 'subgradient' or 'proximal', got 'other'"):
        infer_codes(model, images, engine_of(model), update="other")
    with pytest.raises(ValueError, match="start: expected a finite number >= 0"):
        infer_codes(model, images, engine_of(model), start=-1.0)
    with pytest.raises(ValueError, match="n_code_steps: expected a whole number >= 1"):
        infer_codes(model, images, engine_of(model), n_code_steps=0)


def test_starts():
    rng = torch.Generator()
    with pytest.raises(
        ValueError, match=r"n_irreps: expected 2 \* n_irreps <= n_pixels = 64, got n_irreps = 128. Use n_irreps <= 32"
    ):
        random_start(64, generator=rng)
    assert random_start(81, n_irreps=40, generator=rng).n_pixels == 81  # odd sizes are fine
    with pytest.raises(ValueError, match="n_components: expected a whole number >= 1"):
        random_start(64, n_irreps=4, n_components=0, generator=rng)
    with pytest.raises(ValueError, match="torus_dim: expected"):
        half_lattice(0, 4)
    with pytest.raises(ValueError, match="multiplicity: expected less than n_irreps = 4, got 4"):
        random_start(64, n_irreps=4, multiplicity=4, include_zero=True, generator=rng)
    start = random_start(64, n_irreps=4, generator=rng)
    with pytest.raises(ValueError, match="images: expected at least 10 images, got 2"):
        start_from_data(start, torch.ones(2, 64), generator=rng)


def test_priors(model):
    with pytest.raises(ValueError, match="concentrations: expected a finite number >= 0"):
        PosePrior(((1, 0),), (-1.0,), (0.0,))
    informed = replace(model, pose_prior=model.pose_prior + 1)
    with pytest.raises(ValueError, match="prior_log_partition: expected ln Z"):
        log_prior_poses(informed, torch.zeros(1, 2, dtype=torch.float64))


def test_engine():
    with pytest.raises(ValueError, match="n_grid: expected a whole number >= 2, got int 0"):
        GridEngine(half_lattice(2, 3), 0)
    with pytest.raises(ValueError, match="frequencies: expected integers"):
        GridEngine(torch.rand(3, 2), 8)


def test_numpy_numbers_are_numbers():
    settings = Settings(n_epochs=np.int64(3), group_rate=np.float32(0.5))
    assert settings.n_epochs == 3


def test_valid_values_pass():
    rng = torch.Generator().manual_seed(0)
    good = Parameters(
        group_basis=stiefel.random_point(8, 4, generator=rng),
        dictionary=torch.eye(8, 3),
        frequencies=half_lattice(2, 2),
        noise_std=1,
        sparsity=0,
        pose_prior=uniform_prior(2),
    )
    assert good.validate() is good
