"""The compiled kernels against torch's sums, each that this processor can run, and how one is chosen."""

import ctypes
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from liesparse.inference import infer_codes
from liesparse.lattice import half_lattice
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, GridEngine, ReferenceEngine, SamplingEngine, kernels, pose_natural
from liesparse.posterior.kernels import runnable

F64 = torch.float64
KERNELS = runnable()  # a kernel that this processor can run but that is not installed is a failure, not a skip
each_kernel = pytest.mark.parametrize("kernel", KERNELS)


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
    yield "circle", half_lattice(1, 60, multiplicity=3, include_zero=True)
    yield "circle both ways", torch.tensor([[-3], [2], [2], [0], [-2], [7]])
    yield "wide", torch.tensor([[0, 17], [1, -8], [2, 9], [-1, 16], [0, 1]])  # ends inside and at a vector's end


CASES = list(lattices())
each_lattice = pytest.mark.parametrize("frequencies", [case[1] for case in CASES], ids=[case[0] for case in CASES])


@each_kernel
@each_lattice
@pytest.mark.parametrize("scale", [0.0, 0.03, 0.3, 1.0, 5.0])
def test_moments_are_right(kernel, frequencies, scale):
    engine = AdaptiveEngine(frequencies, kernel=kernel)
    assert engine.kernel == kernel
    rng = torch.Generator().manual_seed(1)
    natural = scale * torch.randn(12, len(frequencies), 2, generator=rng, dtype=F64)
    truth = GridEngine(frequencies, 300 if frequencies.shape[1] == 2 else 3000, dtype=F64).moments(natural)
    found = engine.moments(natural.float())
    error = (found.rotation - truth.rotation).flatten(1).norm(dim=1)
    assert float((error / truth.rotation.flatten(1).norm(dim=1).clamp(min=1e-3)).max()) < 1e-3
    assert_close(found.log_partition.double(), truth.log_partition, atol=2e-3, rtol=1e-4)


@each_kernel
@each_lattice
@pytest.mark.parametrize("n_grid", [2, 6, 8, 50, 52, 100])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0])
def test_the_grid_is_the_same_sum(kernel, frequencies, n_grid, scale):
    """Even sizes that are a multiple of 4 and ones that are not: their mirror images differ."""
    engine = GridEngine(frequencies, n_grid, kernel=kernel)
    natural = scale * torch.randn(7, len(frequencies), 2, generator=torch.Generator().manual_seed(4), dtype=F64)
    truth = ReferenceEngine(frequencies, n_grid, dtype=F64).moments(natural)
    found = engine.moments(natural.float())
    error = (found.rotation - truth.rotation).norm()
    assert float(error) < 1e-5 * max(float(truth.rotation.norm()), 0.1)
    assert_close(found.log_partition.double(), truth.log_partition, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("n_grid", "dtype", "torus_dim"), [(51, torch.float32, 2), (50, F64, 2), (20, torch.float32, 3)]
)
def test_torch_does_odd_grids_doubles_and_other_dimensions(n_grid, dtype, torus_dim):
    assert GridEngine(half_lattice(torus_dim, 5), n_grid, dtype=dtype).kernel == "torch"


@each_kernel
@pytest.mark.parametrize("engine_class", [GridEngine, AdaptiveEngine])
@pytest.mark.parametrize("update", ["subgradient", "proximal"])
@pytest.mark.parametrize("gradient", ["approximate", "exact"])
@pytest.mark.parametrize(("torus_dim", "multiplicity"), [(2, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("n_images", [1, 6])
def test_the_ascent_takes_the_same_steps(
    kernel, engine_class, update, gradient, torus_dim, multiplicity, n_images, make_model, draw
):
    """Also with a prior, and with batches that do not fill the last group of four."""
    sizes = {"n_pixels": 40, "n_irreps": 14, "n_components": 5, "torus_dim": torus_dim, "multiplicity": multiplicity}
    model = single(make_model(**sizes, prior=True, noise_std=0.15))
    _, codes, poses = draw(model, n_images)
    images = torch.nn.functional.normalize(reconstruct(model, codes.float(), poses.float()), dim=1)
    grid = {"n_grid": 40} if engine_class is GridEngine else {}
    options = {"n_code_steps": 12, "start": 0.3, "update": update, "gradient": gradient}
    found, truth = (
        infer_codes(model, images, engine_class(model.frequencies, **grid, kernel=name), **options)
        for name in (kernel, "torch")
    )
    assert float(truth.max()) > 0.05
    assert_close(found, truth, atol=2e-4, rtol=1e-3)


@each_kernel
def test_one_image_that_is_too_sharp_is_done_again_alone(kernel):
    """Its companions keep the bits that they have without it."""
    frequencies = half_lattice(2, 128)
    engine = AdaptiveEngine(frequencies, kernel=kernel)
    natural = torch.randn(5, 128, 2, generator=torch.Generator().manual_seed(3))
    natural[2] *= 3000
    assert engine._kernel.moments(natural)[2].tolist() == [False, False, True, False, False]
    found = engine.moments(natural)
    others = [0, 1, 3, 4]
    alone = engine.moments(natural[others])
    assert found.rotation[others].equal(alone.rotation)
    assert found.log_partition[others].equal(alone.log_partition)
    assert_close(found.rotation[2].norm(dim=-1), torch.ones(128), atol=0.05, rtol=0)  # nearly one pose


@each_kernel
def test_one_image_whose_ascent_is_too_sharp_is_done_again_alone(kernel, make_model, draw):
    model = single(make_model(noise_std=2e-3))
    images = draw(model, 6)[0].float()
    images[[0, 2, 3, 4, 5]] *= 1e-4  # faint images have broad posteriors
    engine = AdaptiveEngine(model.frequencies, kernel=kernel)
    options = {"n_code_steps": 3, "start": 0.5}
    found = infer_codes(model, images, engine, **options)
    others = [0, 2, 3, 4, 5]
    assert_close(found, infer_codes(model, images, AdaptiveEngine(model.frequencies, kernel="torch"), **options))
    assert_close(found[others], infer_codes(model, images[others], engine, **options))  # other sizes, other roundings


@each_kernel
@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("whose", ["torch's", "Python's"])
def test_threads_change_no_bit(kernel, n_threads, whose, monkeypatch):
    if whose == "Python's":
        monkeypatch.setattr(kernels, "_torch_runtime", lambda: None)
    frequencies = half_lattice(2, 40)
    natural = torch.randn(33, 40, 2, generator=torch.Generator().manual_seed(0))
    engine = AdaptiveEngine(frequencies, kernel=kernel)
    expected = engine.moments(natural)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(n_threads)
        assert engine.moments(natural).rotation.equal(expected.rotation)
    finally:
        torch.set_num_threads(before)


@each_kernel
def test_no_image_is_no_error(kernel):
    for engine in (
        AdaptiveEngine(half_lattice(2, 40), kernel=kernel),
        SamplingEngine(half_lattice(3, 40), kernel=kernel),
    ):
        assert engine.moments(torch.zeros(0, 40, 2)).rotation.shape == (0, 40, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_threads_of_its_own():
    """Threads do not come along into a forked process; waiting for them would hang it."""
    code = f"""
import os, torch
torch.set_num_threads(3)
from liesparse.lattice import half_lattice
from liesparse.posterior import GridEngine
engine, natural = GridEngine(half_lattice(2, 40), 50, kernel={KERNELS[0]!r}), torch.ones(60, 40, 2)
engine.moments(natural)
child = os.fork()
if child == 0:
    engine._kernel.moments(natural)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torch_does_it_where_it_is_chosen(monkeypatch):
    monkeypatch.setenv("LIESPARSE_KERNEL", "torch")
    frequencies = half_lattice(2, 128)
    engine = AdaptiveEngine(frequencies)
    assert engine.kernel == SamplingEngine(half_lattice(3, 9)).kernel == "torch"
    natural = torch.randn(8, 128, 2, generator=torch.Generator().manual_seed(2))
    truth = GridEngine(frequencies, 300, dtype=F64).moments(natural.double())
    assert_close(engine.moments(natural).rotation.double(), truth.rotation, atol=1e-3, rtol=0)


@each_kernel
def test_the_environment_chooses_a_kernel(kernel, monkeypatch):
    monkeypatch.setenv("LIESPARSE_KERNEL", kernel)
    assert GridEngine(half_lattice(2, 4), 6).kernel == kernel
    assert kernels.choose().reason == "chosen by LIESPARSE_KERNEL"
    assert kernels.choose(kernel).reason == "chosen by name"


def test_a_kernel_that_cannot_run_here_is_refused(monkeypatch):
    """It would end the process with an illegal instruction."""
    monkeypatch.setattr(kernels, "runnable", lambda: ("baseline",))
    monkeypatch.setenv("LIESPARSE_KERNEL", "avx512")
    with pytest.raises(ValueError, match="LIESPARSE_KERNEL: expected one of baseline, torch on this processor"):
        GridEngine(half_lattice(2, 4), 6)
    with pytest.raises(ValueError, match="kernel: expected one of baseline, torch"):
        GridEngine(half_lattice(2, 4), 6, kernel="fast")


@pytest.mark.parametrize(
    ("machine", "ability", "expected"),
    [
        ("x86_64", "AVX512", ("avx512", "avx2", "baseline")),
        ("AMD64", "AVX2", ("avx2", "baseline")),
        ("x86_64", "DEFAULT", ("baseline",)),
        ("arm64", "DEFAULT", ("neon",)),
        ("aarch64", "SVE256", ("neon",)),
        ("riscv64", "DEFAULT", ()),
    ],
)
def test_the_processor_decides_what_can_run(monkeypatch, machine, ability, expected):
    monkeypatch.setattr(kernels.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: ability)
    assert runnable() == expected


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Look for libraries in an empty folder."""
    monkeypatch.delenv("LIESPARSE_KERNEL", raising=False)
    monkeypatch.setattr(kernels, "FOLDER", tmp_path)
    kernels.load.cache_clear()
    yield tmp_path
    kernels.load.cache_clear()


@pytest.mark.usefixtures("elsewhere")
def test_a_package_without_kernels_uses_torch():
    choice = kernels.choose()
    assert choice.library is None
    assert "no " in choice.reason
    assert GridEngine(half_lattice(2, 4), 6).kernel == "torch"


def test_a_damaged_library_is_a_warning_and_torch(elsewhere, caplog):
    name = f"{KERNELS[0]}.{kernels.SUFFIXES.get(kernels.platform.system(), 'so')}"
    (elsewhere / name).write_bytes(b"not a library")
    assert kernels.load(KERNELS[0]) is None
    assert "cannot be loaded" in caplog.text


@pytest.mark.parametrize("what", ["interface", "struct"])
def test_a_library_of_another_version_is_a_warning_and_torch(monkeypatch, caplog, what):
    class Longer(ctypes.Structure):
        _fields_ = (*kernels.Level._fields_, ("more", ctypes.c_double))

    if what == "interface":
        monkeypatch.setattr(kernels, "INTERFACE", kernels.INTERFACE + 1)
    else:
        monkeypatch.setattr(kernels, "STRUCTS", (Longer, *kernels.STRUCTS[1:]))
    kernels.load.cache_clear()
    try:
        assert kernels.load(KERNELS[0]) is None
        assert "another version" in caplog.text
    finally:
        kernels.load.cache_clear()


def test_loading_does_not_change_how_the_process_rounds():
    """Fast-math start-up code would flush denormals everywhere."""
    for kernel in KERNELS:
        assert kernels.load(kernel) is not None
    assert float(torch.tensor(1e-40) * 1.0) > 0


@each_kernel
def test_planes_of_another_model_are_refused(kernel):
    """The compiled code must never read beyond what it was given."""
    engine = GridEngine(half_lattice(2, 12), 20, kernel=kernel)
    with pytest.raises(ValueError, match=r"planes: expected float32 of shape \(batch, 12, 2\)"):
        engine.moments(torch.zeros(3, 5, 2))
    with pytest.raises(ValueError, match="planes: expected float32"):
        engine.moments(torch.zeros(3, 12, 2, dtype=F64))
    with pytest.raises(ValueError, match=r"natural: expected float32 of shape \(batch, 12, 2\)"):
        SamplingEngine(half_lattice(3, 12), kernel=kernel).moments(torch.zeros(3, 12, 2, dtype=F64))


@each_kernel
def test_frequencies_that_alias_on_the_grid(kernel):
    """ω = 4 on a grid of 4 is a constant, so the largest value of the sum may be far below zero."""
    frequencies = torch.tensor([[4, 0], [1, 0]])
    natural = torch.tensor([[[-200.0, 0.0], [3.0, 0.0]]])
    found = GridEngine(frequencies, 4, kernel=kernel).moments(natural)
    truth = ReferenceEngine(frequencies, 4, dtype=F64).moments(natural.double())
    assert_close(found.rotation.double(), truth.rotation, atol=1e-5, rtol=0)
    assert_close(found.log_partition.double(), truth.log_partition, atol=1e-3, rtol=0)


@each_kernel
def test_numbers_that_are_not_finite_do_not_look_fine(kernel):
    natural = torch.full((2, 12, 2), torch.nan)
    assert not GridEngine(half_lattice(2, 12), 20, kernel=kernel).moments(natural).rotation.isfinite().any()


@each_kernel
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0, 30_000.0])
def test_a_posterior_with_all_its_mass_in_valleys_is_finite(kernel, scale):
    """Negative η: the coarse grid misjudges the curvature; if it leaves no cell to look at, all are looked at."""
    frequencies = half_lattice(2, 30)
    natural = -scale * torch.rand(20, 30, 2, generator=torch.Generator().manual_seed(0))
    found = AdaptiveEngine(frequencies, kernel=kernel).moments(natural)
    assert found.rotation.isfinite().all()
    assert found.log_partition.isfinite().all()
    assert float(found.rotation.norm(dim=-1).max()) < 1 + 1e-4


def test_poses_of_a_model_are_the_same_with_every_kernel(make_model, draw):
    model = single(make_model(noise_std=0.1))
    images, codes, _ = draw(model)
    natural = pose_natural(model, images.float(), codes.float())
    poses = [AdaptiveEngine(model.frequencies, kernel=name).modes(natural).poses for name in (*KERNELS, "torch")]
    for other in poses[1:]:
        assert_close(other, poses[0], atol=1e-4, rtol=0)
