"""The layers against the model's own formulas, finite differences and every kind of optimizer, in float64."""

import copy
import math
import subprocess
import sys

import jaxtyping
import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from liesparse import stiefel, torus
from liesparse.model import apply_transform
from liesparse.nn import TorusAction, TorusPose
from liesparse.posterior import Evidence, TorusPosterior

F64 = torch.float64


def make_layer(rng, n_pixels=9, torus_dim=2, n_irreps=4, **options):
    layer = TorusAction(n_pixels, torus_dim, n_irreps, dtype=F64, generator=rng, **options)
    with torch.no_grad():  # a V that is not orthonormal, so that the polar factor has work to do
        layer.free_basis.add_(0.3 * torch.randn(layer.free_basis.shape, generator=rng, dtype=F64))
    return layer


def draw_inputs(rng, layer, batch=5, dtype=F64):
    images = torch.randn(batch, layer.n_pixels, generator=rng, dtype=dtype)
    poses = 6 * torch.rand(batch, layer.torus_dim, generator=rng, dtype=dtype) - 3
    return images, poses


def with_basis(layer, basis):
    return lambda *inputs: torch.func.functional_call(layer, {"free_basis": basis}, inputs)


@pytest.mark.parametrize("keep_rest", [False, True])
def test_layer_is_the_matrix_of_the_paper(rng, rotation_matrix, keep_rest):
    layer = make_layer(rng, keep_rest=keep_rest)
    images, poses = draw_inputs(rng, layer)
    basis = stiefel.polar(layer.free_basis.detach())
    rest = torch.eye(9, dtype=F64) - basis @ basis.T if keep_rest else torch.zeros(9, 9, dtype=F64)
    for image, pose, moved in zip(images, poses, layer(images, poses), strict=True):
        matrix = basis @ rotation_matrix(layer.frequencies, pose) @ basis.T + rest
        assert_close(moved.detach(), matrix @ image)


def test_layer_from_a_learned_model(make_model, draw):
    model = make_model(multiplicity=2)
    images, _, poses = draw(model)
    state = torch.get_rng_state()
    layer = TorusAction.from_parameters(model)
    assert torch.get_rng_state().equal(state)
    assert_close(layer(images, poses).detach(), apply_transform(model, images, poses))
    assert_close(layer.group_basis.detach(), model.group_basis)
    assert layer.frequencies.equal(model.frequencies)
    layer.free_basis.detach().zero_()  # the model keeps its own
    assert model.group_basis.any()


@pytest.mark.parametrize("keep_rest", [False, True])
def test_group_law(rng, keep_rest):
    layer = make_layer(rng, keep_rest=keep_rest)
    images, s = draw_inputs(rng, layer)
    t = s.flip(0)
    assert_close(layer(layer(images, t), s), layer(images, s + t))
    assert_close(layer(images, s + 2 * math.pi), layer(images, s))
    if keep_rest:
        assert_close(layer(images, torch.zeros_like(s)), images)


def test_gradients_of_the_action(rng):
    layer = make_layer(rng, n_pixels=6, n_irreps=2)
    images, poses = (part.requires_grad_() for part in draw_inputs(rng, layer, batch=3))
    free = layer.free_basis.detach().clone().requires_grad_()
    assert gradcheck(lambda free, images, poses: with_basis(layer, free)(images, poses), (free, images, poses))


def test_gradient_where_all_singular_values_are_equal(rng):
    # the derivatives that torch has for an SVD or eigh are infinite here
    layer = TorusAction(6, 1, 2, dtype=F64, generator=rng)
    images, poses = draw_inputs(rng, layer, batch=3)
    free = layer.free_basis.detach().clone().requires_grad_()
    assert gradcheck(lambda free: with_basis(layer, free)(images, poses), free)


OPTIMIZERS = {
    "SGD": {"lr": 3.0, "momentum": 0.9},
    "Adam": {"lr": 0.1},
    "AdamW": {"lr": 0.1, "weight_decay": 0.5},
    "LBFGS": {"lr": 1.0, "max_iter": 4},
}


@pytest.mark.parametrize("n_pixels", [12, 20])  # a square W, and a tall one
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_orthonormal_after_every_step_of_any_optimizer(rng, name, n_pixels):
    layer = TorusAction(n_pixels, 1, 6, generator=rng)
    target = TorusAction(n_pixels, 1, 6, generator=rng)
    optimizer = getattr(torch.optim, name)(layer.parameters(), **OPTIMIZERS[name])
    losses = []
    for _ in range(50):
        images, poses = draw_inputs(rng, layer, batch=16, dtype=torch.float32)
        wanted = target(images, poses).detach()

        def loss(images=images, poses=poses, wanted=wanted):
            optimizer.zero_grad()
            value = (layer(images, poses) - wanted).square().mean()
            value.backward()
            return value

        losses.append(float(optimizer.step(loss).detach()))
        assert stiefel.orthonormality_error(layer.group_basis.detach()) < 2e-6
    assert min(losses[25:]) < 0.9 * losses[0]


def test_orthonormal_for_a_badly_conditioned_parameter(rng):
    layer = TorusAction(20, 1, 8, generator=rng)
    with torch.no_grad():
        layer.free_basis.mul_(torch.logspace(0, -2.5, 16))
    assert stiefel.orthonormality_error(layer.group_basis.detach()) < 2e-6


def test_a_singular_parameter_gives_finite_gradients(rng):
    layer = TorusAction(6, 1, 2, generator=rng)
    with torch.no_grad():
        layer.free_basis[:, 0] = 0
    layer(*draw_inputs(rng, layer, dtype=torch.float32)).sum().backward()
    assert layer.free_basis.grad.isfinite().all()


def test_state_dict_copies_and_types(rng):
    layer = make_layer(rng)
    images, poses = draw_inputs(rng, layer)
    moved = layer(images, poses)
    other = make_layer(rng)
    assert not torch.allclose(other(images, poses), moved)
    other.load_state_dict(layer.state_dict())
    assert other(images, poses).equal(moved)
    twin = copy.deepcopy(layer)
    assert twin(images, poses).equal(moved)
    twin.to(torch.float32)
    assert twin.frequencies.dtype == torch.int64
    assert_close(twin(images.float(), poses.float()).double(), moved, rtol=0, atol=1e-5)
    assert "n_irreps=4" in repr(layer)


def test_pose_shares_the_action(rng):
    pose = TorusPose(make_layer(rng))
    both = torch.nn.ModuleDict({"action": pose.action, "pose": pose})
    assert len(list(both.parameters())) == 1
    twin = copy.deepcopy(both)
    assert twin["pose"].action is twin["action"]
    assert twin["action"] is not pose.action


def test_autocast_stays_outside(rng):
    layer = TorusAction(9, 2, 4, generator=rng)
    images, poses = draw_inputs(rng, layer, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside, between = layer(images, poses), TorusPose(layer)(images, images.flip(0))
    assert inside.equal(layer(images, poses))
    assert between.equal(TorusPose(layer)(images, images.flip(0)))


@pytest.mark.parametrize("noise_std", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("torus_dim", [1, 2])
def test_pose_recovers_a_known_motion(rng, torus_dim, noise_std):
    layer = make_layer(rng, n_pixels=24, torus_dim=torus_dim, n_irreps=6)
    images, poses = draw_inputs(rng, layer, batch=20)
    found = TorusPose(layer, noise_std=noise_std)(images, layer(images, poses)).detach()
    assert_close(found, torus.wrap(poses), rtol=0, atol=1e-3)


@pytest.mark.parametrize("torus_dim", [1, 2])
def test_pose_is_the_mean_of_the_posterior(rng, torus_dim):
    layer = make_layer(rng, torus_dim=torus_dim)
    (first, _), (second, _) = draw_inputs(rng, layer), draw_inputs(rng, layer)
    basis = layer.group_basis.detach()
    planes = [(images @ basis).unflatten(1, (-1, 2)) for images in (first, second)]
    flat = torch.zeros(layer.n_irreps, 2, dtype=F64)
    posterior = TorusPosterior(Evidence(*planes, 1.5, flat).natural, layer.frequencies)
    found = TorusPose(layer, noise_std=1.5)(first, second).detach()
    assert_close(torus.wrap(found - posterior.mean), torch.zeros_like(found), rtol=0, atol=1e-3)


@pytest.mark.parametrize("noise_std", [1.5, 0.05])  # as it is, and softened
def test_gradients_of_the_pose(rng, noise_std):
    layer = make_layer(rng, n_pixels=6, n_irreps=3, include_zero=False)
    (first, _), (second, _) = draw_inputs(rng, layer, batch=3), draw_inputs(rng, layer, batch=3)
    pose = TorusPose(layer, noise_std=noise_std)
    free = layer.free_basis.detach().clone().requires_grad_()

    def infer(free, first, second):
        return torch.func.functional_call(pose, {"action.free_basis": free}, (first, second))

    assert gradcheck(infer, (free, first.requires_grad_(), second.requires_grad_()))


def test_no_evidence_no_pose(rng):
    layer = TorusAction(6, 2, 3, generator=rng)
    blank = torch.zeros(2, 6, requires_grad=True)
    found = TorusPose(layer)(blank, torch.zeros(2, 6))
    found.sum().backward()
    assert_close(found, torch.zeros(2, 2), rtol=0, atol=0.05)
    assert blank.grad.isfinite().all()
    assert layer.free_basis.grad.isfinite().all()


@pytest.mark.slow
def test_compiles_into_one_graph():
    # in a process of its own: the suite's type checker around every function is not traceable
    script = """
import torch
from liesparse.nn import TorusAction, TorusPose
torch.manual_seed(0)
layer = TorusAction(12, 2, 5)
pose = TorusPose(layer)
images, poses = torch.randn(4, 12), torch.rand(4, 2)
def run(move, infer):
    layer.zero_grad()
    moved = move(images, poses)
    found = infer(images, moved)
    (moved.square() @ torch.arange(12.0)).sum().add(found.cos().sum()).backward()
    return moved.detach(), found.detach(), layer.free_basis.grad
compile = lambda part: torch.compile(part, backend="aot_eager", fullgraph=True)
torch.testing.assert_close(run(compile(layer), compile(pose)), run(layer, pose))
print("one graph")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "one graph" in done.stdout, done.stderr


@pytest.fixture
def no_shape_checker():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("no_shape_checker")  # the messages are for users, who do not have it
def test_errors_name_their_fix(rng, make_model):
    layer = TorusAction(9, 2, 4, generator=rng)
    images, poses = draw_inputs(rng, layer, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"images: expected a torch.float32 tensor of shape \(batch, n_pixels = 9\)"):
        layer(images[:, :8], poses)
    with pytest.raises(ValueError, match=r"poses: expected .* \(batch = 5, torus_dim = 2\), got .* \(4, 2\)"):
        layer(images, poses[:4])
    with pytest.raises(ValueError, match=r"images: expected a torch.float32 .* Convert it with .to\(torch.float32\)"):
        layer(images.double(), poses.double())
    with pytest.raises(ValueError, match=r"second: expected .* \(batch = 5, n_pixels = 9\), got .* \(3, 9\)"):
        TorusPose(layer)(images, images[:3])
    with pytest.raises(ValueError, match=r"n_irreps: expected 2 \* n_irreps <= n_pixels = 9"):
        TorusAction(9, 2, 5)
    with pytest.raises(ValueError, match=r"dtype: expected torch.float32 or torch.float64, got torch.bfloat16"):
        TorusAction(9, 2, 4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"free_basis: expected float32 or float64, got torch.bfloat16"):
        _ = copy.deepcopy(layer).bfloat16().group_basis
    with pytest.raises(ValueError, match="noise_std: expected a finite number > 0"):
        TorusPose(layer, noise_std=0)
    with pytest.raises(ValueError, match="n_grid: expected a whole number >= 3"):
        TorusPose(layer, n_grid=2)
    crooked = copy.deepcopy(make_model())
    crooked.group_basis.mul_(1.1)
    with pytest.raises(ValueError, match="group_basis: expected orthonormal columns"):
        TorusAction.from_parameters(crooked)
