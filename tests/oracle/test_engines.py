"""The contract of an engine: whoever is registered integrates, finds modes and climbs on the codes as all others do."""

import math

import pytest
import torch
from torch.testing import assert_close

from liesparse import torus
from liesparse.inference import infer_codes
from liesparse.lattice import half_lattice
from liesparse.model import reconstruct
from liesparse.posterior import (
    _FACTORIES,
    Ascent,
    ReferenceEngine,
    engine_names,
    make_engine,
    pose_log_density,
    register_engine,
)
from liesparse.settings import Settings

F64 = torch.float64
N_GRID = {1: 120, 2: 120, 3: 48}  # fine enough for the posteriors below
NAMES = [name for name in engine_names() if name != "auto"]
TOLERANCE = {"sampling": 2e-2}  # of R̄, and half of that of ln Z, for an engine that is rough on purpose; others 1e-3


@pytest.fixture(autouse=True)
def reference():
    """The oracle is an engine like others."""
    register_engine("reference", ReferenceEngine)
    yield
    _FACTORIES.pop("reference")


@pytest.fixture(params=[1, 2, 3])
def posteriors(request):
    """From flat to fairly sharp, one mode and several."""
    frequencies = half_lattice(request.param, 8, include_zero=True)
    rng = torch.Generator().manual_seed(request.param)
    natural = torch.randn(7, 8, 2, generator=rng, dtype=F64) * torch.linspace(0, 3, 7, dtype=F64)[:, None, None]
    return frequencies, natural


def engine_of(name, frequencies, dtype=F64):
    return make_engine(name, frequencies, N_GRID[frequencies.shape[1]], dtype=dtype)


each_engine = pytest.mark.parametrize("name", [*NAMES, "reference"])
each_type = pytest.mark.parametrize("dtype", [F64, torch.float32])


@each_engine
@each_type
def test_moments_are_integrals(name, dtype, posteriors):
    frequencies, natural = posteriors
    truth = ReferenceEngine(frequencies, N_GRID[frequencies.shape[1]], dtype=F64).moments(natural)
    found = engine_of(name, frequencies, dtype).moments(natural.to(dtype))
    tolerance = TOLERANCE.get(name, 1e-3)
    assert found.log_partition.dtype == found.rotation.dtype == dtype
    assert_close(found.rotation.double(), truth.rotation, atol=tolerance, rtol=0)
    assert_close(found.log_partition.double(), truth.log_partition, atol=2 * tolerance, rtol=0)


@each_engine
def test_nodes_stand_for_the_integral(name, posteriors):
    frequencies, natural = posteriors
    engine = engine_of(name, frequencies)
    poses, log_weights = engine.nodes(natural)
    tolerance = 5e-2 if name == "adaptive" and frequencies.shape[1] == 3 else 1e-2  # a fine cube would be too large
    assert_close(log_weights.logsumexp(dim=1), engine.log_partition(natural), atol=tolerance, rtol=0)
    features = torus.features(torus.phases(frequencies, poses)).expand(len(natural), -1, -1, -1)
    mean = torch.einsum("bp,bplk->blk", log_weights.softmax(dim=1), features)
    assert_close(mean, engine.moments(natural).rotation, atol=tolerance, rtol=0)


@each_engine
def test_densities_are_normalized(name, posteriors):
    frequencies, natural = posteriors
    engine = engine_of(name, frequencies)
    poses = 6 * torch.rand(7, 5, frequencies.shape[1], generator=torch.Generator().manual_seed(0), dtype=F64)
    found = engine.log_density(natural, poses)
    truth = ReferenceEngine(frequencies, N_GRID[frequencies.shape[1]], dtype=F64).log_density(natural, poses)
    assert_close(found, truth, atol=2 * TOLERANCE.get(name, 1e-3), rtol=0)
    assert_close(found[0], torch.full_like(found[0], -frequencies.shape[1] * math.log(2 * math.pi)))  # η = 0 is uniform


@each_engine
@each_type
def test_modes_are_distinct_maxima_in_falling_order(name, dtype, posteriors):
    frequencies, natural = posteriors
    natural = natural[1:]  # a flat one has no mode
    engine = engine_of(name, frequencies, dtype)
    poses, values, curvature = engine.modes(natural.to(dtype), 3)
    assert poses.shape == (6, 3, frequencies.shape[1])
    assert (values[:, :-1] >= values[:, 1:]).all()
    grid = ReferenceEngine(frequencies, N_GRID[frequencies.shape[1]], dtype=F64)
    assert (values[:, 0] >= grid.values(natural).amax(dim=1) - 1e-4).all()
    for place in range(3):
        real = values[:, place].isfinite()
        here = pose_log_density(natural[real], frequencies, poses[real, place].double())
        assert_close(here, values[real, place].double(), atol=1e-3, rtol=0)
        for step in 0.02 * torch.cat((torch.eye(frequencies.shape[1]), -torch.eye(frequencies.shape[1]))).double():
            aside = pose_log_density(natural[real], frequencies, poses[real, place].double() + step)
            assert (aside <= here + 1e-3).all()
        for other in range(place):
            apart = torus.wrap(poses[real, place] - poses[real, other])
            width = torch.einsum("bi,bij,bj->b", apart, curvature[real, other], apart) + apart.square().sum(dim=1)
            assert (width >= 1).all()


@each_engine
def test_coarse_modes_start_with_the_best_point(name, posteriors):
    frequencies, natural = posteriors
    engine = engine_of(name, frequencies)
    coarse = engine.coarse_modes(natural, 3)
    assert coarse.shape[2] == frequencies.shape[1]
    values = torch.stack([pose_log_density(natural, frequencies, place) for place in coarse.unbind(1)])
    assert (values[0] >= values.amax(dim=0) - 1e-9).all()


@each_engine
def test_the_effective_sample_size_counts_draws(name, posteriors):
    frequencies, natural = posteriors
    size = engine_of(name, frequencies).effective_sample_size(natural)
    assert size.shape == (7,)
    assert size.isinf().all() if name != "sampling" else ((size > 50) & (size < 4000)).all()


@each_engine
@each_type
@pytest.mark.parametrize("exact", [True, False])
def test_the_ascent_is_fista(name, dtype, exact, make_model, draw):
    model = make_model(n_pixels=30, n_irreps=8, n_components=4, prior=True, noise_std=0.2)
    _, codes, poses = draw(model, 5)
    images = torch.nn.functional.normalize(reconstruct(model, codes, poses), dim=1)
    engine, grid = engine_of(name, model.frequencies, dtype), engine_of("reference", model.frequencies)
    planes, atoms = model.to_planes(images), model.to_planes(model.dictionary.T)
    step = torch.tensor(0.2**2 / 3, dtype=F64)
    ascent = Ascent(planes, atoms, model.pose_prior, 15, step, 0.7, 0.04, exact, subgradient=True)
    start = torch.full((5, 4), 0.2, dtype=F64)
    truth = ascent.climb(start, lambda natural: grid.moments(natural).rotation)
    narrow = ascent._replace(**{field: getattr(ascent, field).to(dtype) for field in ascent._fields[:3]})
    found = engine.find_codes(start.to(dtype), narrow)
    assert float(truth.max()) > 0.2
    assert_close(found.double(), truth, atol=TOLERANCE.get(name, 1e-3), rtol=0)
    assert not found.is_inference()


def test_an_engine_of_ones_own_is_chosen_by_its_name(make_model, draw):
    class Coarse(ReferenceEngine):
        def __init__(self, frequencies, _, **where):
            super().__init__(frequencies, 4, **where)

    register_engine("only a test's", Coarse)
    with pytest.raises(ValueError, match="name: expected one that is not taken"):
        register_engine("only a test's", Coarse)
    try:
        assert Settings(posterior="only a test's").posterior == "only a test's"
        model = make_model()
        engine = make_engine("only a test's", model.frequencies, dtype=F64)
        assert isinstance(engine, Coarse)
        assert infer_codes(model, draw(model)[0], engine).shape == (4, 3)
    finally:
        _FACTORIES.pop("only a test's")
    with pytest.raises(ValueError, match=r"posterior: expected .* got"):
        make_engine("only a test's", model.frequencies)
