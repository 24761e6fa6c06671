"""Small random models in float64, on which every formula can be checked by brute force."""

import os
import signal
from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

import typecheck
from liesparse import stiefel, torus
from liesparse.lattice import half_lattice
from liesparse.model import Parameters, uniform_prior

settings.register_profile(
    "default", deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("random", settings.get_profile("default"), derandomize=False, database=None)
settings.register_profile("explore", settings.get_profile("random"), max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
os.environ.setdefault("MPLBACKEND", "agg")
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # a shell's background job: the commands under test must hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

F64 = torch.float64
MakeModel = Callable[..., Parameters]


@pytest.fixture
def without_type_checker() -> Iterator[None]:
    """Let the package speak first, as users do not have the suite's own type checker."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    def make(
        seed: int = 0,
        *,
        n_pixels: int = 14,
        n_components: int = 3,
        n_irreps: int = 5,
        torus_dim: int = 2,
        multiplicity: int = 1,
        noise_std: float = 0.4,
        sparsity: float = 0.7,
        prior: bool = False,
    ) -> Parameters:
        rng = torch.Generator().manual_seed(seed)
        natural = uniform_prior(n_irreps, dtype=F64)
        if prior:
            concentrations, means = torch.rand(2, n_irreps, generator=rng, dtype=F64)
            natural = concentrations[:, None] * torus.features(6 * means)
        dictionary = torch.randn(n_pixels, n_components, generator=rng, dtype=F64)
        return Parameters(
            group_basis=stiefel.random_point(n_pixels, 2 * n_irreps, generator=rng, dtype=F64),
            dictionary=torch.nn.functional.normalize(dictionary, dim=0),
            frequencies=half_lattice(torus_dim, n_irreps, multiplicity=multiplicity),
            noise_std=noise_std,
            sparsity=sparsity,
            pose_prior=natural,
        )

    return make


@pytest.fixture(scope="session")
def draw() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Draw unit-norm images, positive codes and poses that fit a model."""

    def draw_for(model: Parameters, batch: int = 4, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, model.n_pixels, generator=rng, dtype=F64)
        codes = 0.1 + torch.rand(batch, model.n_components, generator=rng, dtype=F64)
        poses = 6 * torch.rand(batch, model.torus_dim, generator=rng, dtype=F64)
        return torch.nn.functional.normalize(images, dim=1), codes, poses

    return draw_for


@pytest.fixture(scope="session")
def rotation_matrix() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Build R(s) as the matrix that the paper prints."""

    def build(frequencies: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
        blocks = []
        for angle in (frequencies.double() @ pose).tolist():
            cos, sin = torch.tensor(angle, dtype=F64).cos(), torch.tensor(angle, dtype=F64).sin()
            blocks.append(torch.stack((torch.stack((cos, -sin)), torch.stack((sin, cos)))))
        return torch.block_diag(*blocks)

    return build


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20)


def pytest_runtest_setup():
    typecheck.begin()


def pytest_collection_modifyitems(config, items):
    """Whole programs, processes and browsers are slow; what is long runs only where it is asked for."""
    if "long" not in config.option.markexpr:
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker(pytest.mark.slow)
