"""The kernels of another processor, run under an emulator, give torch's numbers.

Needs ``qemu-aarch64`` and the C library of that processor (Debian: qemu-user, libc6-arm64-cross).
"""

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from liesparse.inference import code_step_size
from liesparse.lattice import half_lattice
from liesparse.model import reconstruct
from liesparse.posterior import AdaptiveEngine, Ascent, SamplingEngine, kernels
from liesparse.posterior.kernels.sums import GridKernel, SamplingKernel
from liesparse.posterior.sampling import NUMBERS

ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "src/liesparse/posterior/kernels"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
BATCH = 9

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("qemu-aarch64") or not LIBRARIES.exists() or not importlib.util.find_spec("ziglang"),
        reason="no emulator here: apt-get install qemu-user libc6-arm64-cross",
    ),
]


@pytest.fixture(scope="module")
def build():
    specification = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def programs(build, tmp_path_factory):
    """Compile the libraries of the wheel, and the program that calls one."""
    folder = tmp_path_factory.mktemp("aarch64")
    target = build.TARGETS["linux-aarch64"]
    (library,) = build.build(target, KERNELS, folder)
    driver = folder / "driver"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target.triple, "-std=gnu11", "-O1", f"-I{KERNELS}"]
    options = [f"-DLANE={target.kernels['neon'].lane}", "-fno-sanitize=undefined", "-Wno-unused-function"]
    source = Path(__file__).with_name("driver.c")
    subprocess.run([*command, *options, str(source), "-o", str(driver), "-ldl", "-lm"], check=True, timeout=300)
    return library, driver, target.kernels["neon"].lane


def packed(*parts):
    """Return ints, floats, and arrays with their length before them, as bytes."""
    found = b""
    for part in parts:
        if isinstance(part, torch.Tensor):
            flat = part.contiguous().flatten()
            found += bytes(ctypes.c_int32(len(flat)))
            found += flat.numpy().tobytes()
        else:
            found += bytes((ctypes.c_float if isinstance(part, float) else ctypes.c_int32)(part))
    return found


def test_the_arm_library_gives_torchs_numbers(programs, make_model, draw, tmp_path):
    library, driver, lane = programs
    there = kernels.Library("neon", lane, SimpleNamespace())
    model = make_model(n_pixels=60, n_irreps=24, n_components=5, multiplicity=2, prior=True, noise_std=0.15)
    _, codes, poses = draw(model, BATCH)
    images = torch.nn.functional.normalize(reconstruct(model, codes, poses), dim=1)
    natural = torch.randn(BATCH, 24, 2, generator=torch.Generator().manual_seed(0))
    natural *= torch.logspace(-2, 1.5, BATCH)[:, None, None]
    engine = AdaptiveEngine(model.frequencies, kernel="torch")
    refinement = {"least_points": 8.0, "points_per_width": 5.0, "tail": 10.5}
    kernel = GridKernel(there, model.frequencies, [engine._n_coarse, 54, 94, 190, 510, 1022], **refinement)
    plan, (place, squares, *tables) = kernel._plan, kernel._kept
    planes, atoms = model.to_planes(images).float(), model.to_planes(model.dictionary.T).float()
    step = code_step_size(atoms.flatten(1), model.noise_std)
    ascent = Ascent(planes, atoms, model.pose_prior.float(), 12, step, 0.7, 0.15**2, exact=True, subgradient=True)
    start = torch.full((BATCH, 5), 0.3)
    sizes = [getattr(plan, name) for name, _ in plan._fields_[:7]]
    grid = packed(*sizes, place, squares, plan.n_levels)
    for number in range(plan.n_levels):
        grid += packed(plan.levels[number].n, *tables[4 * number : 4 * number + 4])
    grid += packed(plan.least_points, plan.points_per_width, plan.tail)
    grid += packed(5, 12, 1, 1, float(step), 0.7, 0.15**2, atoms, ascent.pose_prior, BATCH, natural, planes, start)

    frequencies = half_lattice(3, 20)
    sampling = SamplingEngine(frequencies, kernel="torch")
    clouds = SamplingKernel(there, frequencies, sampling._even, sampling._cloud, NUMBERS)
    scatter, (parent, turn, omega, pairs, *points) = clouds._plan, clouds._kept
    spread = 6 * torch.randn(BATCH, 20, 2, generator=torch.Generator().manual_seed(1))
    spread *= torch.logspace(-2, 0, BATCH)[:, None, None]
    folded = torch.zeros(BATCH, len(omega), 2).index_add_(1, clouds._cells, spread)
    values = folded.flatten(1) @ clouds._table_transposed
    cloud = packed(
        scatter.n_axes, scatter.n_cells, parent, turn, omega, pairs, scatter.n_even, scatter.n_pairs, *points
    )
    numbers = [getattr(scatter, name) for name in ("spread", "ridge", "tail", "arrived", "low", "high")]
    cloud += packed(scatter.n_climbs, *numbers, BATCH, folded, values)
    (tmp_path / "input").write_bytes(grid + cloud)
    command = ["qemu-aarch64", "-L", str(LIBRARIES), str(driver), str(library)]
    subprocess.run([*command, str(tmp_path / "input"), str(tmp_path / "output")], check=True, timeout=300)
    output = torch.frombuffer(bytearray((tmp_path / "output").read_bytes()), dtype=torch.float32)
    shapes = [(7,), (BATCH, 24, 2), (BATCH,), (BATCH, 5), (BATCH, scatter.n_even), tuple(folded.shape)]
    parts = output.split([torch.Size(shape).numel() for shape in [*shapes, (BATCH,), (BATCH,), (BATCH,)]])
    described, rotation, log_partition, found_codes, weights, total = (
        part.view(shape) for part, shape in zip(parts, shapes, strict=False)
    )
    scale, squares, loud = parts[6], parts[7], parts[8].view(torch.int32)

    sizes = [ctypes.sizeof(struct) for struct in kernels.STRUCTS]
    assert described.view(torch.int32).tolist() == [kernels.INTERFACE, lane, *sizes]
    truth = engine.moments(natural)
    assert_close(rotation, truth.rotation, atol=1e-3, rtol=0)
    assert_close(log_partition, truth.log_partition, atol=2e-3, rtol=1e-4)
    assert_close(found_codes, engine.find_codes(start, ascent), atol=1e-3, rtol=0)
    assert float(found_codes.max()) > 0.1
    rows = loud.nonzero().flatten()
    total[rows] += (weights[rows] @ clouds._table).view(len(rows), -1, 2)
    mass = total[:, 0, 0]
    expected = sampling.moments(spread)
    assert_close(mass.log() + scale, expected.log_partition, atol=2e-2, rtol=0)
    assert_close(total.index_select(1, clouds._cells) / mass[:, None, None], expected.rotation, atol=1e-2, rtol=0)
    assert_close(mass.square() / squares, sampling.effective_sample_size(spread), rtol=0.2, atol=0)
