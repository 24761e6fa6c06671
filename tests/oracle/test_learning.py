"""Gradients of Φ and W against autograd and literal matrices; Algorithm 1 as a whole [Chau20, app. C]."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch.testing import assert_close

from liesparse import learning, stiefel, torus
from liesparse.inference import GRADIENTS, expect_pose, parameter_gradients
from liesparse.learning import LearningError, learn, resume, update
from liesparse.model import compose, log_likelihood_given_pose, log_prior_poses, unit_columns
from liesparse.posterior import GridEngine, ReferenceEngine, log_likelihood, pose_natural
from liesparse.settings import Method, Settings
from liesparse.state import ShuffledArrays, State

F64 = torch.float64


def autograd(model, images, codes, engine, name):
    """Differentiate the mean dense log-likelihood by W or Φ, without the unit-norm and orthonormality constraints."""
    leaf = getattr(model, name).clone().requires_grad_()
    log_likelihood(replace(model, **{name: leaf}), images, codes, engine).mean().backward()
    return leaf.grad


def exact_second_moment(model, images, codes, engine):
    """S = E[R(s) u uᵀ R(s)ᵀ] averaged over the batch, by dense quadrature: the paper's difficult term."""
    probabilities = torch.softmax(engine.values(pose_natural(model, images, codes)), dim=1)
    angles = torus.phases(model.frequencies, engine.points.to(images))
    total = images.new_zeros(2 * model.n_irreps, 2 * model.n_irreps)
    for weights, planes in zip(probabilities, model.to_planes(compose(model, codes)), strict=True):
        turned = torus.rotate(planes.expand(len(angles), -1, -1), angles).flatten(1)
        total += turned.T @ (weights[:, None] * turned)
    return total / len(images)


def approximate_second_moment(expectation):
    """R̄u (R̄u)ᵀ averaged over the batch: S with T(s) and ε taken as independent."""
    moved = expectation.moved.flatten(1)
    return moved.T @ moved / len(moved)


def euclidean_gradient(model, codes, expectation, gradient, second_moment):
    """∇_W in full: also the part - W S / σ², which is normal to the manifold and which learning has no use for."""
    short = parameter_gradients(model, codes, expectation, gradient).group_basis
    return short - model.group_basis @ second_moment / model.noise_std**2


@pytest.mark.parametrize("prior", [False, True])
def test_exact_dictionary_gradient_is_autograd(make_model, draw, prior):
    model = make_model(1, prior=prior)
    images, codes, _ = draw(model)
    engine = ReferenceEngine(model.frequencies, 24, dtype=F64)
    found = parameter_gradients(model, codes, expect_pose(model, images, codes, engine), "exact").dictionary
    assert_close(found, autograd(model, images, codes, engine, "dictionary"), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("prior", [False, True])
def test_exact_group_basis_gradient_is_autograd(make_model, draw, prior):
    """ln P(I|α) with ‖T(s)Φα‖² written as ‖WᵀΦα‖² holds only for orthonormal W, so it is differentiated in full."""
    model = make_model(2, prior=prior)
    images, codes, _ = draw(model)
    engine = ReferenceEngine(model.frequencies, 24, dtype=F64)
    probabilities = torch.softmax(engine.values(pose_natural(model, images, codes)), dim=1)
    W = model.group_basis.clone().requires_grad_()
    moved = replace(model, group_basis=W)
    total = torch.zeros((), dtype=F64)
    for column, pose in enumerate(engine.points):
        values = log_likelihood_given_pose(moved, images, codes, pose.expand(len(images), -1))
        total = total + (probabilities[:, column] * values).mean()  # E_s[ln P(I|s,α)] at the fixed posterior: eq. 4
    total.backward()
    expectation = expect_pose(model, images, codes, engine)
    second = exact_second_moment(model, images, codes, engine)
    found = euclidean_gradient(model, codes, expectation, "exact", second)
    assert_close(found, W.grad, rtol=1e-8, atol=1e-10)


def dense_log_likelihood(model, images, codes, engine):
    """ln ∫ P(I|s,α) P(s) ds on the grid, from the Gaussian density itself: true for any W."""
    prior = float(engine.log_partition(model.pose_prior[None]))
    columns = [
        log_likelihood_given_pose(model, images, codes, pose.expand(len(images), -1))
        + log_prior_poses(model, pose[None], prior)
        for pose in engine.points
    ]
    return torch.logsumexp(torch.stack(columns, dim=1), dim=1) + engine.log_cell


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("name", ["group_basis", "dictionary"])
def test_expected_gradient_is_the_gradient_of_the_marginal(make_model, draw, name, prior):  # eq. 5
    model = make_model(3, prior=prior)
    images, codes, _ = draw(model)
    engine = ReferenceEngine(model.frequencies, 20, dtype=F64)
    leaf = getattr(model, name).clone().requires_grad_()
    dense_log_likelihood(replace(model, **{name: leaf}), images, codes, engine).mean().backward()
    expectation = expect_pose(model, images, codes, engine)
    if name == "dictionary":
        found = parameter_gradients(model, codes, expectation, "exact").dictionary
    else:
        second = exact_second_moment(model, images, codes, engine)
        found = euclidean_gradient(model, codes, expectation, "exact", second)
    assert_close(found, leaf.grad, rtol=1e-8, atol=1e-10)


def test_approximate_gradients_are_their_matrix_forms(make_model, draw, rotation_matrix):
    model = make_model(4)
    images, codes, _ = draw(model)
    engine = ReferenceEngine(model.frequencies, 9, dtype=F64)
    probabilities = torch.softmax(engine.values(pose_natural(model, images, codes)), dim=1)
    W, Phi = model.group_basis, model.dictionary
    for_Phi, for_W = torch.zeros_like(Phi), torch.zeros_like(W)
    for row in range(len(images)):
        T = sum(
            p * W @ rotation_matrix(model.frequencies, s) @ W.T
            for p, s in zip(probabilities[row], engine.points, strict=True)
        )
        shape = Phi @ codes[row]
        error = images[row] - T @ shape
        for_Phi += torch.outer(T.T @ error, codes[row])
        for_W += (torch.outer(error, T @ shape) + torch.outer(shape, T.T @ error)) @ W
    scale = len(images) * model.noise_std**2
    expectation = expect_pose(model, images, codes, engine)
    assert_close(parameter_gradients(model, codes, expectation, "approximate").dictionary, for_Phi / scale)
    second = approximate_second_moment(expectation)
    assert_close(euclidean_gradient(model, codes, expectation, "approximate", second), for_W / scale)


@pytest.mark.parametrize("metric", stiefel.METRICS)
def test_the_difficult_term_is_normal_to_the_manifold(make_model, draw, metric):
    """W E[RuuᵀRᵀ] never reaches the parameters: the exact Riemannian gradient costs no more than the approximate."""
    model = make_model(5)
    images, codes, _ = draw(model)
    engine = GridEngine(model.frequencies, 20, dtype=F64)
    expectation = expect_pose(model, images, codes, engine)
    second = exact_second_moment(model, images, codes, engine)
    full = euclidean_gradient(model, codes, expectation, "exact", second)
    short = parameter_gradients(model, codes, expectation, "exact").group_basis
    assert not torch.allclose(full, short)
    assert_close(stiefel.tangent(model.group_basis, short, metric), stiefel.tangent(model.group_basis, full, metric))


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_one_update_is_the_papers(make_model, draw, gradient):
    model = make_model(6)
    images, codes, _ = draw(model)
    engine = GridEngine(model.frequencies, 20, dtype=F64)
    settings = Settings(dictionary_rate=0.02, group_rate=0.1, gradient=gradient)
    expectation = expect_pose(model, images, codes, engine)
    adam = stiefel.AdamState.zero(model.group_basis)
    uphill = parameter_gradients(model, codes, expectation, gradient)
    found, state = update(model, adam, uphill, settings)
    raw = model.dictionary + 0.02 * uphill.dictionary
    assert_close(found.dictionary, raw / raw.norm(dim=0))
    expected, _ = stiefel.adam_step(model.group_basis, -uphill.group_basis, adam, rate=0.1)
    assert_close(found.group_basis, expected)
    assert state.step == 1


def test_exact_updates_climb_the_objective(make_model, draw):
    model = make_model(7, n_components=2)
    images, codes, _ = draw(model, batch=30)
    engine = GridEngine(model.frequencies, 20, dtype=F64)
    settings = Settings(dictionary_rate=0.01, group_rate=0.01, gradient="exact")
    adam = stiefel.AdamState.zero(model.group_basis)
    before = log_likelihood(model, images, codes, engine).mean()
    moved = model
    for _ in range(10):
        uphill = parameter_gradients(moved, codes, expect_pose(moved, images, codes, engine))
        moved, adam = update(moved, adam, uphill, settings)
    assert float(log_likelihood(moved, images, codes, engine).mean()) > float(before) + 0.1


def test_learning_is_repeatable_and_leaves_its_arguments_alone(make_model, draw):
    model = make_model(8)
    images, _, _ = draw(model, batch=25)
    kept = images.clone(), model.group_basis.clone(), model.dictionary.clone()
    settings = Settings(n_epochs=2, batch_size=10, n_grid=12)
    seen = []
    runs = [
        learn(model, images, settings, generator=torch.Generator().manual_seed(5), callback=seen.append)
        for _ in range(2)
    ]
    assert runs[0].group_basis.equal(runs[1].group_basis)
    assert runs[0].dictionary.equal(runs[1].dictionary)
    assert not runs[0].dictionary.equal(model.dictionary)
    assert images.equal(kept[0])
    assert model.group_basis.equal(kept[1])
    assert model.dictionary.equal(kept[2])
    assert [p.step for p in seen[:6]] == [1, 2, 3, 4, 5, 6]
    assert [p.end_of_epoch for p in seen[:6]] == [False, False, True] * 2
    assert stiefel.orthonormality_error(runs[0].group_basis) < 1e-10


class Recorder:
    """Stands in for one function of learning.py and keeps what it was called with."""

    def __init__(self, monkeypatch, name):
        self.calls, self.original = [], getattr(learning, name)
        monkeypatch.setattr(learning, name, self)

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return self.original(*args, **kwargs)


@pytest.mark.parametrize("posterior", ["grid", "adaptive"])
def test_learning_passes_every_setting_on(make_model, draw, monkeypatch, posterior):
    model = make_model(9, sparsity=0.05, noise_std=0.2)
    images, _, _ = draw(model, batch=20)
    engines, inferences = (Recorder(monkeypatch, name) for name in ("engine_of", "infer_codes"))
    settings = Settings(
        n_epochs=2,
        batch_size=10,
        posterior=posterior,
        n_grid=9,
        n_code_steps=3,
        code_start=0.2,
        code_update="proximal",
        gradient="exact",
    )
    learn(model, images, settings, generator=torch.Generator().manual_seed(1))
    assert engines.calls[0][0][1] == posterior
    assert engines.calls[0][0][2] == 9
    expected = {"n_code_steps": 3, "start": 0.2, "update": "proximal", "gradient": "exact"}
    assert all(call[1] == expected for call in inferences.calls)
    first, second = (torch.cat([call[0][1] for call in inferences.calls[part]]) for part in (slice(0, 2), slice(2, 4)))
    assert not first.equal(images)  # shuffled,
    assert not first.equal(second)  # anew in each epoch,
    assert first.sort(dim=0).values.equal(images.sort(dim=0).values)  # and complete


def test_learning_keeps_no_graph(make_model, draw):
    model = make_model(10)
    images, _, _ = draw(model, batch=10)
    learned = learn(model, images.requires_grad_(), Settings(n_epochs=1, n_grid=8), generator=torch.Generator())
    assert not learned.group_basis.requires_grad


def test_rates_too_large_end_with_the_last_good_model(make_model, draw, monkeypatch):
    model = make_model(11)
    images, _, _ = draw(model, batch=20)
    seen = []

    def break_in_second_epoch(parameters, adam, *_):
        seen.append(parameters)
        broken = parameters.dictionary * (torch.nan if len(seen) > 2 else 1)
        return replace(parameters, dictionary=broken, sparsity=parameters.sparsity), adam

    monkeypatch.setattr(learning, "update", break_in_second_epoch)
    with pytest.raises(LearningError, match=r"epoch 2.*no longer finite.*smaller rates") as caught:
        learn(model, images, Settings(n_epochs=3, batch_size=10, n_grid=8), generator=torch.Generator())
    assert caught.value.last_good.dictionary.isfinite().all()


@pytest.mark.parametrize("method", get_args(Method))
def test_codes_that_are_all_zero_end_with_the_reason(make_model, draw, method):
    model = make_model(12, sparsity=1e6)
    images, _, _ = draw(model, batch=20)
    settings = Settings(n_epochs=3, batch_size=10, n_grid=8, code_update="proximal", method=method)
    with pytest.raises(LearningError, match=r"epoch 1.*every code.*smaller sparsity"):
        learn(model, images, settings, generator=torch.Generator())


def test_helpers():
    columns = unit_columns(torch.tensor([[3.0, 0.0], [4.0, 2.0]]))
    assert_close(columns, torch.tensor([[0.6, 0.0], [0.8, 1.0]]))


def test_every_epoch_has_an_order_of_its_own_and_the_same_seed_the_same_ones(make_model, draw):
    model = make_model(1)
    images = draw(model, batch=12)[0]
    seen = []

    class Spy(ShuffledArrays):
        def epoch(self, generator, **where):
            for batch in super().epoch(generator, **where):
                seen.append(batch)
                yield batch

    settings = Settings(n_epochs=3, batch_size=4, n_grid=8)
    for _ in range(2):
        resume(State.begin(model, torch.Generator().manual_seed(5)), Spy(images, 4), settings)
    first, second, third = (torch.cat(seen[start : start + 3]) for start in (0, 3, 6))
    assert not first.equal(second)
    assert not second.equal(third)
    assert first.sort(dim=0).values.equal(second.sort(dim=0).values)  # every image once
    assert torch.cat(seen[:9]).equal(torch.cat(seen[9:]))
