"""Ready for any device: a dry run on ``meta`` stays there, nothing is read on the way, and no dtype changes."""

from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from liesparse import em, stiefel
from liesparse.baselines import infer_sparse_codes
from liesparse.devices import read_numbers
from liesparse.inference import expect_pose, infer_codes, map_poses, parameter_gradients
from liesparse.initialization import leading_subspace, random_start, start_from_data
from liesparse.lattice import half_lattice
from liesparse.learning import advance, learn
from liesparse.model import draw_codes, generate, reconstruct
from liesparse.posterior import (
    AdaptiveEngine,
    GridEngine,
    ReferenceEngine,
    engine_names,
    log_likelihood,
    make_engine,
    pose_natural,
)
from liesparse.reseed import pose_overlaps
from liesparse.settings import Settings
from liesparse.state import State

META = torch.device("meta")
SETTINGS = Settings(n_grid=12, n_code_steps=3)
BATCH, PIXELS, SHAPES, COLUMNS = 4, 14, 3, 10


class Watch(TorchDispatchMode):
    """Notes the tensors that operations take and make: where they are, and of which type."""

    def __init__(self):
        super().__init__()
        self.tensors, self.copied = [], []

    def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
        result = function(*arguments, **(kwargs or {}))
        taken = [leaf for leaf in tree_leaves((arguments, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if function.overloadpacket.__name__ == "_to_copy" and taken[0].device != made[0].device:
            self.copied += taken
            taken = []
        if function.overloadpacket.__name__ == "equal":  # of frequencies, which stay on the CPU
            assert all(tensor.dtype == torch.int64 for tensor in taken)
            taken = []
        self.tensors += taken + made
        return result

    @property
    def places(self):
        return {tensor.device.type for tensor in self.tensors}


def step(parameters, images, settings, engine):
    state = State.begin(parameters, torch.Generator())
    state, codes = advance(state, images, settings, engine, n_steps=10)
    return advance(state, images, settings, engine, n_steps=10)[0], codes


def settings_of(method, metric="canonical"):
    return replace(SETTINGS, method=method, metric=metric, batches_per_update=1, first_memory=1.0)


@pytest.fixture
def there(make_model):
    """Return a model, images and codes without values; the model's frequencies have theirs."""
    model = make_model(prior=True).to(META)
    return model, torch.empty(BATCH, PIXELS, dtype=model.dtype, device=META), model.dictionary.new_ones(BATCH, SHAPES)


def test_a_model_moves_and_its_frequencies_stay(there):
    model = there[0]
    assert {model.group_basis.device, model.dictionary.device, model.pose_prior.device, model.device} == {META}
    assert model.frequencies.is_cpu


@pytest.mark.parametrize("update", ["subgradient", "proximal"])
@pytest.mark.parametrize("gradient", ["approximate", "exact"])
def test_codes_are_found_where_the_images_are(there, update, gradient):
    model, images, start = there
    engine = GridEngine(model.frequencies, 12, dtype=model.dtype, device=META)
    with Watch() as seen:
        codes = infer_codes(model, images, engine, n_code_steps=3, start=start, update=update, gradient=gradient)
    assert (codes.device, codes.shape) == (META, (BATCH, SHAPES))
    assert seen.places == {"meta"}
    assert not seen.copied


def test_moments_densities_and_poses_are_found_where_the_images_are(there):
    model, images, codes = there
    engine = GridEngine(model.frequencies, 12, dtype=model.dtype, device=META)
    with Watch() as seen:
        natural = pose_natural(model, images, codes)
        found = engine.moments(natural)
        values = engine.values(natural)
        likelihood = log_likelihood(model, images, codes, engine)
    assert seen.places == {"meta"}
    assert not seen.copied
    assert (found.rotation.device, found.rotation.shape) == (META, natural.shape)
    assert (found.log_partition.device, found.log_partition.shape) == (META, (BATCH,))
    assert (values.shape, likelihood.shape) == ((BATCH, 12 * 12), (BATCH,))


def test_poses_take_only_the_frequencies_and_the_grid_along(there):
    """Both are a few kilobytes and are made on the CPU; nothing comes back."""
    model, images, codes = there
    engine = GridEngine(model.frequencies, 12, dtype=model.dtype, device=META)
    with Watch() as seen:
        map_poses(model, images, codes, engine)
        poses = map_poses(model, images, codes, engine)
        images = reconstruct(model, codes, poses)
    assert [tuple(tensor.shape) for tensor in seen.copied].count((144, 2)) == 1
    assert {tuple(tensor.shape) for tensor in seen.copied} == {tuple(model.frequencies.shape), (144, 2)}
    assert all(tensor.is_cpu for tensor in seen.copied)
    assert (poses.device, poses.shape, images.device, images.shape) == (META, (BATCH, 2), META, (BATCH, PIXELS))
    assert ReferenceEngine(model.frequencies, 5, dtype=model.dtype, device=META).modes(
        pose_natural(model, images, codes), 2
    ).poses.shape == (BATCH, 2, 2)


def test_the_adaptive_engine_looks_and_sums_where_the_images_are(there):
    """Its levels decide which sums are taken, so a whole call needs values; the parts up to there do not."""
    model, images, codes = there
    engine = AdaptiveEngine(model.frequencies, dtype=model.dtype, device=META)
    folded = engine._box.fold(pose_natural(model, images, codes))
    with Watch() as seen:
        need = engine._look(folded)
        log_partition, rotation = engine._sum_way(folded, need, 0)
    assert seen.places == {"meta"}
    assert not seen.copied
    assert (log_partition.shape, rotation.shape, need.way.shape) == ((BATCH,), folded.shape, (BATCH,))
    assert engine._grid(20).evaluate(folded).shape == (BATCH, 400)
    assert engine._cell(3).evaluate(folded).device == META


def test_gradients_averages_and_maxima_stay_where_the_images_are(there):
    model, images, codes = there
    engine = GridEngine(model.frequencies, 12, dtype=model.dtype, device=META)
    with Watch() as seen:
        expectation = expect_pose(model, images, codes, engine)
        for gradient in ("approximate", "exact"):
            uphill = parameter_gradients(model, codes, expectation, gradient)
            assert uphill.dictionary.shape == (PIXELS, SHAPES)
            assert uphill.group_basis.shape == (PIXELS, COLUMNS)
        averages = em.average(em.Averages.zero(model), codes, expectation, 0.3)
        found = em.maximize(model, averages)
    assert seen.places == {"meta"}
    assert not seen.copied
    assert [average.shape for average in averages] == [(PIXELS, COLUMNS), (COLUMNS, SHAPES), (SHAPES, SHAPES)]
    assert (found.group_basis.shape, found.dictionary.shape) == ((PIXELS, COLUMNS), (PIXELS, SHAPES))


@pytest.mark.parametrize("metric", stiefel.METRICS)
def test_steps_on_the_manifold_stay_where_it_is(there, metric):
    point = there[0].group_basis
    with Watch() as seen:
        new, state = stiefel.adam_step(
            point, torch.ones_like(point), stiefel.AdamState.zero(point), rate=0.1, metric=metric
        )
        stiefel.orthonormalize(point)
    assert seen.places == {"meta"}
    assert not seen.copied
    assert new.shape == state.momentum.shape == point.shape


@pytest.mark.parametrize(
    ("method", "metric"), [("em", "canonical"), ("gradient", "canonical"), ("gradient", "euclidean")]
)
def test_a_whole_training_step_stays_where_the_images_are(there, method, metric):
    model, images, _ = there
    engine = GridEngine(model.frequencies, 12, dtype=model.dtype, device=META)
    with Watch() as seen:
        state, codes = step(model, images, settings_of(method, metric), engine)
    assert seen.places == {"meta"}
    assert not seen.copied
    tensors = [leaf for leaf in tree_leaves((state.adam, state.averages, codes)) if isinstance(leaf, torch.Tensor)]
    assert {tensor.device for tensor in tensors} == {state.parameters.device} == {META}
    assert state.random.is_cpu
    assert state.to(META).last_good.device == META


@pytest.mark.slow
@pytest.mark.parametrize("name", engine_names())
@pytest.mark.parametrize("method", ["em", "gradient"])
def test_double_precision_stays_double(make_model, draw, name, method):
    model = make_model(prior=True)
    images, codes, _ = draw(model)
    with Watch() as seen:
        engine = make_engine(name, model.frequencies, 12, dtype=model.dtype)
        state, _ = step(model, images, settings_of(method), engine)
        map_poses(model, images, codes, engine)
        pose_overlaps(model, engine)
        log_likelihood(model, images, codes, engine)
        rng = torch.Generator().manual_seed(0)
        drawn = draw_codes(model, BATCH, generator=rng)
        generate(model, drawn, torch.zeros(BATCH, 2, dtype=torch.float64), generator=rng)
        start_from_data(state.parameters, images, generator=rng)
    types = {tensor.dtype for tensor in seen.tensors if tensor.is_floating_point() or tensor.is_complex()}
    assert types == {torch.float64, torch.complex128}
    assert state.parameters.dtype == torch.float64


class Factories(TorchFunctionMode):
    """Notes tensors that are made from nothing without a word on where: elsewhere they would be on the CPU."""

    MAKERS = ("arange", "empty", "eye", "full", "linspace", "ones", "tensor", "triu_indices", "zeros", "new_tensor")

    def __init__(self):
        super().__init__()
        self.found, self.n_calls = [], 0

    def __torch_function__(self, function, types, arguments=(), kwargs=None):
        name = getattr(function, "__name__", "")
        self.n_calls += 1
        if name in self.MAKERS and (kwargs or {}).get("device") is None:
            self.found.append(name)
        return function(*arguments, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_adaptive_engine_makes_no_tensor_on_the_cpu(n):
    """What a dry run cannot reach: sums that values choose, of posteriors from flat to sharp."""
    rng = torch.Generator().manual_seed(0)
    engine = AdaptiveEngine(half_lattice(n, 6), dtype=torch.float64)
    for axis in (4, 6, 8, 10, 12, 20):  # tables are made once, on the CPU, and moved
        engine._grid(axis), engine._cell(axis)
    for scale in (0.01, 1, 10, 1000):
        natural = scale * torch.randn(9, 6, 2, generator=rng, dtype=torch.float64)
        engine.moments(natural)
        with Factories() as seen:
            engine.moments(natural)
        assert seen.n_calls > 20
        assert not seen.found


def test_learning_with_reseeding_makes_no_tensor_on_the_cpu(make_model, draw):
    model = make_model(sparsity=0.1)
    images = draw(model, batch=12)[0]
    copies = replace(model, dictionary=model.dictionary[:, [0, 0, 2]].contiguous())
    engine = GridEngine(model.frequencies, 12, dtype=model.dtype)
    assert engine.points.shape == (144, 2)  # made once
    state = State.begin(copies, torch.Generator())
    settings = replace(settings_of("em"), reseed_overlap=0.9, code_start=0.1)
    with Factories() as seen:
        state, _ = advance(state, images, settings, engine, n_steps=4, end_of_epoch=True)
    assert state.epoch == 1
    assert not state.parameters.dictionary[:, 1].equal(state.parameters.dictionary[:, 0])
    assert not seen.found


def test_plain_sparse_coding_stays_where_the_images_are(there):
    model, images, _ = there
    with Watch() as seen:
        codes = infer_sparse_codes(model.dictionary, images, noise_std=0.1, sparsity=1.0, n_code_steps=3)
    assert seen.places == {"meta"}
    assert not seen.copied
    assert codes.shape == (BATCH, SHAPES)


def test_an_engine_elsewhere_is_refused(there):
    model, images, _ = there
    with pytest.raises(ValueError, match="engine: expected device meta, as the model has, got cpu"):
        infer_codes(model, images, GridEngine(model.frequencies, 12, dtype=model.dtype))


def test_a_subspace_is_found_where_the_images_are():
    images = torch.empty(40, 2000, device=META)
    assert leading_subspace(images, 10).device == META


def test_numbers_of_a_dry_run_read_as_ones():
    assert read_numbers(torch.tensor([1.5, -2.0])) == [1.5, -2.0]
    assert read_numbers(torch.empty(2, device=META)) == [1.0, 1.0]


@pytest.mark.parametrize("method", ["em", "gradient"])
def test_a_callers_autocast_changes_nothing(method):
    rng = torch.Generator().manual_seed(0)
    images = torch.nn.functional.normalize(torch.rand(12, 30, generator=rng), dim=1)
    model = start_from_data(
        random_start(30, n_components=3, n_irreps=5, sparsity=1.0, generator=rng), images, generator=rng
    )
    settings = replace(settings_of(method), n_epochs=2, n_grid=13)  # odd: not the compiled code

    def run():
        learned = learn(model, images, settings, generator=torch.Generator().manual_seed(0))
        engine = GridEngine(model.frequencies, 13)
        codes = infer_codes(learned, images, engine)
        return learned.group_basis, learned.dictionary, codes, map_poses(learned, images, codes, engine)

    plain = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (model.group_basis @ model.group_basis.T).dtype == torch.bfloat16
        found = run()
    assert all(a.equal(b) for a, b in zip(found, plain, strict=True))
