"""Inference of codes and poses against finite differences and literal matrices [Chau20, app. C and D]."""

import math

import pytest
import torch
from torch.testing import assert_close

from liesparse import torus
from liesparse.inference import (
    CODE_UPDATES,
    GRADIENTS,
    code_gradient,
    code_step_size,
    expect_pose,
    infer_codes,
    map_poses,
)
from liesparse.lattice import half_lattice
from liesparse.model import reconstruct
from liesparse.posterior import (
    Evidence,
    GridEngine,
    ReferenceEngine,
    log_likelihood,
    pose_log_density,
    pose_natural,
    refine_poses,
)

F64 = torch.float64


@pytest.fixture(scope="session")
def mean_transform(rotation_matrix):
    """Return T̄ for each image as a dense matrix, by summing T(s) over the grid."""

    def build(model, images, codes, engine):
        probabilities = torch.softmax(engine.values(pose_natural(model, images, codes)), dim=1)
        matrices = [
            model.group_basis @ rotation_matrix(model.frequencies, p) @ model.group_basis.T for p in engine.points
        ]
        return torch.einsum("bp,pij->bij", probabilities, torch.stack(matrices))

    return build


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("engine_class", [ReferenceEngine, GridEngine])
def test_exact_code_gradient_is_the_derivative(make_model, draw, engine_class, prior):
    model = make_model(1, prior=prior)
    images, codes, _ = draw(model)
    engine = engine_class(model.frequencies, 30, dtype=F64)

    def objective(codes):
        return log_likelihood(model, images, codes, engine) - model.sparsity * codes.abs().sum(dim=1)

    found = code_gradient(model, codes, expect_pose(model, images, codes, engine), "exact")
    h = 1e-5
    for k in range(model.n_components):
        shift = torch.zeros_like(codes)
        shift[:, k] = h
        numeric = (objective(codes + shift) - objective(codes - shift)) / (2 * h)
        assert_close(found[:, k], numeric, rtol=1e-7, atol=1e-7)


def test_approximate_code_gradient_is_its_matrix_form(make_model, draw, mean_transform):
    model = make_model(2)
    images, codes, _ = draw(model)
    engine = ReferenceEngine(model.frequencies, 8, dtype=F64)
    found = code_gradient(model, codes, expect_pose(model, images, codes, engine), "approximate")
    for row, T in enumerate(mean_transform(model, images, codes, engine)):
        error = images[row] - T @ model.dictionary @ codes[row]
        expected = model.dictionary.T @ T.T @ error / model.noise_std**2 - model.sparsity * codes[row].sign()
        assert_close(found[row], expected)


@pytest.mark.parametrize("update", CODE_UPDATES)
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("engine_class", [ReferenceEngine, GridEngine])
def test_inference_is_literal_fista_on_the_pixels(make_model, draw, mean_transform, engine_class, gradient, update):
    model = make_model(3, n_irreps=4, multiplicity=2, prior=True)
    images, _, _ = draw(model)
    engine = engine_class(model.frequencies, 7, dtype=F64)
    Phi, W, variance = model.dictionary, model.group_basis, model.noise_std**2
    lipschitz = 1.5 * torch.linalg.matrix_norm(Phi.T @ W @ W.T @ Phi, 2) / variance
    x = y = torch.full((len(images), model.n_components), 0.01, dtype=F64)
    t = 1.0
    for _ in range(6):
        T = mean_transform(model, images, y, engine)
        explained = torch.einsum("bij,jk,bk->bi", T, Phi, y)
        back = torch.einsum("bji,bj->bi", T, images - explained)  # T̄ᵀ(I - T̄Φα)
        if gradient == "exact":
            back = torch.einsum("bji,bj->bi", T, images) - y @ Phi.T @ W @ W.T  # T̄ᵀI - WWᵀΦα
        step = (y + back @ Phi / variance / lipschitz) - model.sparsity / lipschitz * (
            y.sign() if update == "subgradient" else 1
        )
        previous, x = x, step.clamp(min=0)
        t, t_old = (1 + math.sqrt(1 + 4 * t**2)) / 2, t
        y = x + (t_old - 1) / t * (x - previous)
    found = infer_codes(model, images, engine, n_code_steps=6, update=update, gradient=gradient)
    assert_close(found, x)


def test_step_size_uses_the_spectral_norm(make_model):
    model = make_model(4)
    planes = model.to_planes(model.dictionary.T).flatten(1)
    norm = torch.linalg.svdvals(model.group_basis.T @ model.dictionary)[0] ** 2
    assert code_step_size(planes, 0.3) == pytest.approx(0.09 / (1.5 * float(norm)))


@pytest.mark.slow
def test_proximal_steps_converge_to_a_maximum(make_model, draw):
    model = make_model(5, sparsity=2.0)
    images, _, _ = draw(model)
    engine = GridEngine(model.frequencies, 30, dtype=F64)
    codes = infer_codes(model, images, engine, n_code_steps=3000, start=0.5, update="proximal", gradient="exact")
    expectation = expect_pose(model, images, codes, engine)
    slope = code_gradient(model, codes, expectation, "exact")
    assert (codes >= 0).all()
    assert (codes == 0).any()
    assert_close(slope[codes > 0], torch.zeros_like(slope[codes > 0]), atol=1e-6, rtol=0)
    assert (slope[codes == 0] <= model.sparsity + 1e-6).all()  # sign(0) = 0 leaves λ out there


def test_perfectly_explained_image_has_the_shrunk_code(make_model):
    """A 1-sparse unit image has α = 1 - λσ², so shrinkage alone caps the SNR."""
    model = make_model(6, n_pixels=60, n_irreps=30, noise_std=0.1, sparsity=10.0)
    engine = GridEngine(model.frequencies, 60, dtype=F64)
    truth = torch.eye(3, dtype=F64)
    poses = torch.tensor([[0.4, 1.0], [2.0, 5.0], [6.0, 3.0]], dtype=F64)
    images = torch.nn.functional.normalize(reconstruct(model, truth, poses), dim=1)
    codes = infer_codes(model, images, engine, n_code_steps=200, start=0.5, update="proximal", gradient="exact")
    assert_close(codes.diagonal(), torch.full((3,), 0.9, dtype=F64), atol=0.02, rtol=0)
    found = map_poses(model, images, codes, engine)
    assert_close(torus.wrap(found - poses), torch.zeros_like(poses), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("torus_dim", "n_grid", "n_fine"), [(1, 50, 3000), (2, 50, 300), (3, 30, 70)])
def test_map_pose_beats_a_finer_grid(make_model, draw, torus_dim, n_grid, n_fine):
    model = make_model(torus_dim, torus_dim=torus_dim, n_irreps=6, noise_std=0.05)
    images, codes, _ = draw(model, batch=20)
    coarse = GridEngine(model.frequencies, n_grid, dtype=F64)
    fine = GridEngine(model.frequencies, n_fine, dtype=F64)
    natural = pose_natural(model, images, codes)
    poses = map_poses(model, images, codes, coarse)
    value = pose_log_density(natural, model.frequencies, poses)
    assert (value >= coarse.values(natural).amax(dim=1)).all()
    assert (value >= fine.values(natural).amax(dim=1) - 1e-9).all()
    for direction in 1e-5 * torch.eye(torus_dim, dtype=F64):
        ahead, behind = (pose_log_density(natural, model.frequencies, poses + sign * direction) for sign in (1, -1))
        assert_close(ahead, behind, atol=1e-5, rtol=0)  # a stationary point


def test_modes_are_the_highest_peaks():
    """cos(3s) + 0.1 cos(s) has peaks at 0 and near ±2π/3, the first one higher."""
    natural = torch.zeros(1, 3, 2, dtype=F64)
    natural[0, 2, 0], natural[0, 0, 0] = 1.0, 0.1
    engine = GridEngine(half_lattice(1, 3), 90, dtype=F64)
    modes = engine.coarse_modes(natural, 3)[0, :, 0]
    assert float(modes[0]) == 0
    assert_close(modes[1:].sort().values, torch.tensor([2.094, 4.189], dtype=F64), atol=0.08, rtol=0)
    refined = engine.modes(natural, 3)
    assert_close(refined.poses[0, 1:, 0].sort().values, torch.tensor([2.0848, 4.1984], dtype=F64), atol=1e-3, rtol=0)
    assert_close(refined.log_density[0, 0], torch.tensor(1.1, dtype=F64))


def test_the_higher_of_two_peaks_wins_even_if_the_grid_prefers_the_lower(make_model, monkeypatch):
    """Two narrow peaks: the lower one on a grid point, the higher one between two."""
    model = make_model(0, torus_dim=1, n_irreps=6)
    engine = GridEngine(model.frequencies, 14, dtype=F64)
    lower, higher = engine.points[3, 0], engine.points[10, 0] + 0.5 * 2 * math.pi / 14
    omega = model.frequencies.double()[:, 0]
    natural = torus.features(omega * lower) + 1.02 * torus.features(omega * higher)
    monkeypatch.setattr(Evidence, "natural", 30 * natural[None])
    images, codes = torch.ones(1, 14, dtype=F64), torch.ones(1, 3, dtype=F64)
    grid_point = map_poses(model, images, codes, engine, refine=False)
    assert_close(grid_point[0, 0], torus.wrap(lower), atol=1e-9, rtol=0)
    assert_close(map_poses(model, images, codes, engine)[0, 0], torus.wrap(higher), atol=0.05, rtol=0)


def test_overshooting_steps_are_damped():
    """cos(s) from far away: a full Newton step overshoots, shorter ones arrive."""
    natural = torch.tensor([[[50.0, 0.0], [0.0, 0.0], [9.0, 0.0]]], dtype=F64)
    start = torch.tensor([[1.62]], dtype=F64)
    arrived = refine_poses(natural, half_lattice(1, 3), start, n_steps=30)
    slope = -(50 * arrived.sin() + 27 * (3 * arrived).sin())
    assert abs(float(slope)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_refinement_from_anywhere_is_never_worse(dtype):
    frequencies = half_lattice(2, 8)
    rng = torch.Generator().manual_seed(0)
    natural = (
        torch.randn(200, 8, 2, generator=rng, dtype=dtype) * torch.logspace(-3, 3, 200, dtype=dtype)[:, None, None]
    )
    start = 6 * torch.rand(200, 2, generator=rng, dtype=dtype)
    natural[0] = 0  # flat: nothing to climb, nothing may break
    refined = refine_poses(natural, frequencies, start)
    assert torch.isfinite(refined).all()
    assert (pose_log_density(natural, frequencies, refined) >= pose_log_density(natural, frequencies, start)).all()


def test_unrefined_pose_is_the_best_grid_point(make_model, draw):
    model = make_model(7)
    images, codes, _ = draw(model)
    engine = GridEngine(model.frequencies, 10, dtype=F64)
    natural = pose_natural(model, images, codes)
    best = engine.points[engine.values(natural).argmax(dim=1)]
    assert_close(map_poses(model, images, codes, engine, refine=False), torus.wrap(best))
