"""The compiled code against torch's, and what happens where it cannot be built."""

import shutil
import stat
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse.inference import infer_codes
from liesparse.lattice import half_lattice
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, GridEngine, ReferenceEngine
from liesparse.posterior import native as native_module

F64 = torch.float64
# Where there is a compiler the kernel must build: a kernel that does not is a failure, not a skip.
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("gcc", "cc"))), reason="no C compiler here")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Forget the library that is loaded, and build in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LIESPARSE_NATIVE", raising=False)
    native_module.load_library.cache_clear()
    yield tmp_path / "liesparse"
    native_module.load_library.cache_clear()


@pytest.fixture
def torch_only(monkeypatch):
    monkeypatch.setenv("LIESPARSE_NATIVE", "0")
    native_module.load_library.cache_clear()
    yield
    native_module.load_library.cache_clear()


def single(model):
    """Return the model in float32."""
    fields = ("group_basis", "dictionary", "pose_prior")
    return replace(model, **{name: getattr(model, name).float() for name in fields})


def lattices():
    yield "paper", half_lattice(2, 128)
    yield "mnist", half_lattice(2, 128, multiplicity=2)
    yield "with zero", half_lattice(2, 30, include_zero=True)
    yield "tiny", half_lattice(2, 1)
    yield "any integers", torch.tensor([[-3, 2], [0, -1], [5, 5], [5, 5], [0, 0]])


CASES = list(lattices())


@needs_compiler
@pytest.mark.parametrize("frequencies", [case[1] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("scale", [0.0, 0.03, 0.3, 1.0, 5.0])
def test_compiled_moments_are_right(frequencies, scale):
    engine = AdaptiveEngine(frequencies)
    assert engine.kernel is not None
    rng = torch.Generator().manual_seed(1)
    natural = scale * torch.randn(12, len(frequencies), 2, generator=rng, dtype=F64)
    truth = GridEngine(frequencies, 300, dtype=F64).moments(natural)
    found = engine.moments(natural.float())
    error = (found.rotation - truth.rotation).flatten(1).norm(dim=1)
    assert float((error / truth.rotation.flatten(1).norm(dim=1).clamp(min=1e-3)).max()) < 1e-3
    assert_close(found.log_partition.double(), truth.log_partition, atol=2e-3, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize("frequencies", [case[1] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("n_grid", [2, 6, 8, 50, 52, 100])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0])
def test_compiled_grid_is_the_same_sum(frequencies, n_grid, scale):
    """Even sizes that are a multiple of 4 and ones that are not: their mirror images differ."""
    engine = GridEngine(frequencies, n_grid)
    assert engine.kernel is not None
    natural = scale * torch.randn(7, len(frequencies), 2, generator=torch.Generator().manual_seed(4), dtype=F64)
    truth = ReferenceEngine(frequencies, n_grid, dtype=F64).moments(natural)
    found = engine.moments(natural.float())
    error = (found.rotation - truth.rotation).norm()
    assert float(error) < 1e-5 * max(float(truth.rotation.norm()), 0.1)
    assert_close(found.log_partition.double(), truth.log_partition, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("n_grid", "dtype", "torus_dim"), [(51, torch.float32, 2), (50, F64, 2), (20, torch.float32, 1)]
)
def test_torch_does_odd_grids_doubles_and_other_dimensions(n_grid, dtype, torus_dim):
    assert GridEngine(half_lattice(torus_dim, 5), n_grid, dtype=dtype).kernel is None


@needs_compiler
@pytest.mark.parametrize("engine_class", [GridEngine, AdaptiveEngine])
@pytest.mark.parametrize("update", ["subgradient", "proximal"])
@pytest.mark.parametrize("gradient", ["approximate", "exact"])
@pytest.mark.parametrize("multiplicity", [1, 2])
@pytest.mark.parametrize("n_images", [1, 4, 6])
def test_compiled_ascent_takes_the_same_steps(engine_class, update, gradient, multiplicity, n_images, make_model, draw):
    """Also with a prior, and with batches that do not fill the last group of four."""
    model = single(
        make_model(n_pixels=40, n_irreps=14, n_components=5, multiplicity=multiplicity, prior=True, noise_std=0.15)
    )
    _, codes, poses = draw(model, n_images)
    images = torch.nn.functional.normalize(reconstruct(model, codes.float(), poses.float()), dim=1)
    engine = GridEngine(model.frequencies, 40) if engine_class is GridEngine else AdaptiveEngine(model.frequencies)
    assert engine.kernel is not None
    options = {"n_code_steps": 12, "start": 0.3, "update": update, "gradient": gradient}
    found = infer_codes(model, images, engine, **options)
    engine.kernel = None
    truth = infer_codes(model, images, engine, **options)
    assert float(truth.max()) > 0.05
    assert_close(found, truth, atol=2e-4, rtol=1e-3)


@needs_compiler
def test_ascent_with_too_sharp_a_posterior_goes_to_torch(make_model, draw):
    model = single(make_model(noise_std=1e-4))
    images = draw(model, 3)[0].float()
    engine = AdaptiveEngine(model.frequencies)
    found = infer_codes(model, images, engine, n_code_steps=3, start=0.5)
    engine.kernel = None
    assert_close(found, infer_codes(model, images, engine, n_code_steps=3, start=0.5))


@pytest.mark.usefixtures("torch_only")
def test_torch_does_it_where_compiled_code_is_switched_off():
    frequencies = half_lattice(2, 128)
    engine = AdaptiveEngine(frequencies)
    assert engine.kernel is None
    natural = torch.randn(8, 128, 2, generator=torch.Generator().manual_seed(2))
    truth = GridEngine(frequencies, 300, dtype=F64).moments(natural.double())
    assert_close(engine.moments(natural).rotation.double(), truth.rotation, atol=1e-3, rtol=0)


@needs_compiler
def test_too_sharp_for_the_finest_level_goes_to_torch():
    frequencies = half_lattice(2, 128)
    engine = AdaptiveEngine(frequencies)
    assert engine.kernel is not None
    natural = 3000 * torch.randn(2, 128, 2, generator=torch.Generator().manual_seed(3))
    assert engine.kernel.moments(natural) is None
    rotation = engine.moments(natural).rotation
    assert_close(rotation.norm(dim=-1), torch.ones(2, 128), atol=0.05, rtol=0)  # nearly one pose


@needs_compiler
def test_it_is_built_once_and_kept(fresh):
    assert native_module.load_library() is not None
    (library,) = fresh.iterdir()
    built = library.stat().st_mtime_ns
    native_module.load_library.cache_clear()
    assert native_module.load_library() is not None
    assert library.stat().st_mtime_ns == built


@pytest.mark.usefixtures("fresh")
def test_no_compiler_is_no_error(monkeypatch):
    monkeypatch.setattr(native_module.shutil, "which", lambda _: None)
    assert native_module.load_library() is None
    assert AdaptiveEngine(half_lattice(2, 4)).kernel is None


def test_a_failing_compiler_is_no_error_and_leaves_nothing(fresh, monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(native_module.shutil, "which", lambda _: str(broken))
    assert native_module.load_library() is None
    assert list(fresh.iterdir()) == []


@pytest.mark.usefixtures("fresh")
def test_building_does_not_change_how_the_process_rounds():
    """Fast-math start-up code would flush denormals everywhere."""
    native_module.load_library()
    assert float(torch.tensor(1e-40) * 1.0) > 0


@needs_compiler
def test_planes_of_another_model_are_refused():
    """The compiled code must never read beyond what it was given."""
    engine = GridEngine(half_lattice(2, 12), 20)
    with pytest.raises(ValueError, match=r"planes: expected float32 of shape \(batch, 12, 2\)"):
        engine.moments(torch.zeros(3, 5, 2))
    with pytest.raises(ValueError, match="planes: expected float32"):
        engine.moments(torch.zeros(3, 12, 2, dtype=F64))


@needs_compiler
def test_frequencies_that_alias_on_the_grid():
    """ω = 4 on a grid of 4 is a constant, so the largest value of the sum may be far below zero."""
    frequencies = torch.tensor([[4, 0], [1, 0]])
    natural = torch.tensor([[[-200.0, 0.0], [3.0, 0.0]]])
    found = GridEngine(frequencies, 4).moments(natural)
    truth = ReferenceEngine(frequencies, 4, dtype=F64).moments(natural.double())
    assert_close(found.rotation.double(), truth.rotation, atol=1e-5, rtol=0)
    assert_close(found.log_partition.double(), truth.log_partition, atol=1e-3, rtol=0)


@needs_compiler
def test_numbers_that_are_not_finite_do_not_look_fine():
    natural = torch.full((2, 12, 2), torch.nan)
    assert not GridEngine(half_lattice(2, 12), 20).moments(natural).rotation.isfinite().any()
