"""The scikit-learn face: its contract, its inputs, its files."""

import math
import signal

import numpy as np
import pandas
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from liesparse import LieSparseCoder, SparseCoder, narrow_prior, save_model
from liesparse.checkpoint import list_checkpoints
from liesparse.files import read_sealed, write_sealed
from liesparse.training import Interrupted

SETTINGS = {"learning.batch_size": 100, "start": "data"}  # the motion from pairs takes seconds, and is tried elsewhere
SMALL = {"n_components": 3, "n_irreps": 6, "n_epochs": 2, "settings": SETTINGS, "random_state": 0}


@pytest.mark.slow
@parametrize_with_checks([LieSparseCoder(n_epochs=1, settings={"start": "data"}), SparseCoder()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def X():
    return np.random.RandomState(0).uniform(size=(240, 5, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def coder(X):
    return LieSparseCoder(**SMALL).fit(X)


def equal_models(one, other):
    return (one.components_ == other.components_).all() and (one.group_basis_ == other.group_basis_).all()


def test_attributes(coder):
    assert coder.components_.shape == (3, 30)
    assert coder.group_basis_.shape == (30, 12)
    assert coder.frequencies_.shape == (6, 2)
    assert coder.image_shape_ == (5, 6)
    assert coder.n_features_in_ == 30
    assert coder.n_iter_ == 2 * 3
    assert [entry["epoch"] for entry in coder.history_] == [1, 2]
    assert coder.history_[-1]["motion_found"] == coder.verdict_.found
    assert_allclose(np.linalg.norm(coder.components_, axis=1), 1, rtol=1e-5)
    assert list(coder.get_feature_names_out()) == ["liesparsecoder0", "liesparsecoder1", "liesparsecoder2"]


def test_rows_images_and_tensors_are_the_same_images(coder, X):
    rows, tensor = X.reshape(240, -1), torch.from_numpy(X)
    codes = coder.transform(X)
    assert codes.dtype == np.float32
    assert (codes >= 0).all()
    assert (coder.transform(rows) == codes).all()
    assert isinstance(coder.transform(tensor), torch.Tensor)
    assert (coder.transform(tensor).numpy() == codes).all()
    assert coder.reconstruct(X).shape == (240, 5, 6)
    assert coder.reconstruct(rows).shape == (240, 30)
    assert isinstance(coder.reconstruct(tensor), torch.Tensor)
    assert equal_models(LieSparseCoder(**SMALL).fit(rows), coder)
    assert equal_models(LieSparseCoder(**SMALL).fit(tensor), coder)


def test_no_result_depends_on_the_companions_or_on_the_scale(coder, X):
    codes, scores = coder.transform(X), coder.score_samples(X)
    assert (coder.transform(X[70:71]) == codes[70:71]).all()
    assert (coder.score_samples(X[60:70]) == scores[60:70]).all()
    assert (coder.transform(2.0**-90 * X) == codes).all()
    assert (coder.transform(X.astype(np.float64) * 2.0**700) == coder.transform(X.astype(np.float64))).all()
    assert (coder.reconstruct(256 * X) == 256 * coder.reconstruct(X)).all()


def test_score_is_the_mean_log_likelihood(coder, X):
    assert coder.score(X) == pytest.approx(float(coder.score_samples(X).mean()))
    assert coder.score_samples(X).shape == (240,)


def test_inverse_transform(coder, X):
    codes, poses = coder.infer(X)
    norms = np.linalg.norm(X.reshape(240, -1), axis=1)[:, None, None]
    assert_allclose(norms * coder.inverse_transform(codes, poses), coder.reconstruct(X), atol=1e-5)
    at_rest = coder.inverse_transform(codes)
    assert_allclose(at_rest, coder.inverse_transform(codes, np.zeros((240, 2))))
    assert at_rest.shape == (240, 5, 6)


def test_same_seed_same_model_and_another_seed_another(coder, X):
    assert equal_models(clone(coder).fit(X), coder)
    assert not equal_models(clone(coder).set_params(random_state=1).fit(X), coder)


@pytest.mark.slow
def test_in_a_pipeline_a_grid_search_and_a_data_frame(X):
    labels = np.arange(240) % 2
    rows = X.reshape(240, -1)
    pipeline = make_pipeline(LieSparseCoder(**SMALL), KNeighborsClassifier(1)).fit(rows, labels)
    assert pipeline.predict(rows).shape == (240,)
    search = GridSearchCV(LieSparseCoder(**SMALL), {"sparsity": [1.0, 10.0]}, cv=2).fit(rows)
    assert search.best_params_["sparsity"] in (1.0, 10.0)
    frame = LieSparseCoder(**SMALL).set_output(transform="pandas").fit(rows).transform(rows)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["liesparsecoder0", "liesparsecoder1", "liesparsecoder2"]


def test_fit_from_a_data_loader_and_from_an_iterator(X):
    rows = torch.from_numpy(X.reshape(240, -1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=40)
    from_loader = LieSparseCoder(**SMALL).fit(loader)
    assert from_loader.n_iter_ == 2 * 6
    from_iterator = LieSparseCoder(**SMALL).fit(iter(rows.split(40)))
    assert from_iterator.n_iter_ == 6
    from_images = LieSparseCoder(**SMALL).fit(iter([X[:100], X[100:]]))
    assert from_images.image_shape_ == (5, 6)
    with pytest.raises(ValueError, match="n_samples=0"):
        LieSparseCoder(**SMALL).fit(iter([]))
    with pytest.raises(ValueError, match="features"):
        LieSparseCoder(**SMALL).fit(iter([X[:100], X[:100, :4]]))


def test_partial_fit_goes_on(X):
    coder = LieSparseCoder(**SMALL).partial_fit(X[:120])
    assert coder.n_iter_ == 2
    before = coder.components_
    coder.partial_fit(X[120:])
    assert coder.n_iter_ == 4
    assert not (coder.components_ == before).all()
    again = LieSparseCoder(**SMALL).partial_fit(X[:120]).partial_fit(X[120:])
    assert equal_models(again, coder)


def test_warm_start_begins_where_the_last_fit_ended(coder, X):
    warm = clone(coder).set_params(warm_start=True).fit(X)
    seen = []
    first = warm.model_
    warm.set_params(callbacks=[seen.append], n_epochs=1).fit(X)
    assert seen[0].step == 1
    assert warm.model_ is not first
    cold = clone(coder).set_params(n_epochs=1).fit(X)
    assert not equal_models(warm, cold)
    with pytest.raises(ValueError, match="Set warm_start=False"):
        warm.fit(X[:, :4])


def test_callbacks_see_every_batch(X):
    seen = []
    LieSparseCoder(**SMALL, callbacks=[seen.append, lambda _: None]).fit(X)
    assert [progress.step for progress in seen] == [1, 2, 3, 4, 5, 6]
    assert [progress.end_of_epoch for progress in seen] == [False, False, True] * 2


def test_a_stopped_fit_goes_on_from_its_folder(coder, X, tmp_path):
    class StopError(Exception):
        pass

    def stop(progress):
        if progress.step == 5:
            raise StopError

    keeping = LieSparseCoder(**SMALL, checkpoint_dir=tmp_path)
    with pytest.raises(StopError):
        clone(keeping).set_params(callbacks=[stop]).fit(X)
    steps = []
    resumed = clone(keeping).set_params(callbacks=[lambda progress: steps.append(progress.step)]).fit(X)
    assert steps == [4, 5, 6]
    assert equal_models(resumed, coder)
    assert resumed.history_ == coder.history_
    with pytest.raises(ValueError, match=r"sparsity = 10.0, not 5.0"):
        clone(keeping).set_params(sparsity=5.0).fit(X)


def test_ctrl_c_finishes_the_step_and_keeps_what_was_learned(X, tmp_path):
    def press(progress):
        if progress.step == 2:
            signal.raise_signal(signal.SIGINT)

    coder = LieSparseCoder(**SMALL, checkpoint_dir=tmp_path, callbacks=[press])
    with pytest.raises(Interrupted, match=r"Stopped after step 3 of 6; saved in .* Call fit\(X\), .* to go on"):
        coder.fit(X)
    assert coder.n_iter_ == 3
    assert coder.transform(X[:2]).shape == (2, 3)
    assert list_checkpoints(tmp_path)[-1].name == "step-000000003.safetensors"
    with pytest.raises(Interrupted, match="nothing was saved"):
        clone(coder).set_params(checkpoint_dir=None).fit(X)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_blank_images(coder, X):
    spotted = X.copy()
    spotted[[3, 7]] = 0
    with pytest.warns(UserWarning, match=r"X contains 2 blank row\(s\), the first at row 3"):
        LieSparseCoder(**SMALL).fit(spotted)
    assert (coder.transform(spotted)[[3, 7]] == 0).all()
    assert (coder.reconstruct(spotted)[[3, 7]] == 0).all()
    assert (coder.canonicalize(spotted, keep_rest=True)[[3, 7]] == 0).all()
    nothing = -15 * math.log(2 * math.pi * coder.model_.noise_std**2)  # ln P(0 | α = 0)
    assert coder.score_samples(spotted)[3] == pytest.approx(nothing, rel=1e-5)
    assert_allclose(coder.pose_posterior(spotted[3:4]).entropy, 2 * math.log(2 * math.pi))
    with pytest.raises(ValueError, match="Every row of X is blank"):
        LieSparseCoder(**SMALL).fit(0 * X)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_components": 0}, "n_components: expected a whole number >= 1"),
        ({"n_components": 241}, "n_samples=240 should be >= n_components=241"),
        ({"n_irreps": 16}, "n_irreps: expected 2 \\* n_irreps <= n_pixels = 30"),
        ({"noise_std": 0}, "noise_std: expected a finite number >= 1e-06"),
        ({"sparsity": -1}, "sparsity: expected a finite number >= 0"),
        ({"pose_prior": "narrow"}, "pose_prior: expected 'uniform' or a PosePrior"),
        ({"recipe": "worst"}, "recipe: expected 'best', 'paper'"),
        ({"settings": {"learning.rate": 1}}, "setting: expected one of"),
        ({"dtype": "float16"}, "dtype: expected 'float32' or 'float64'"),
        ({"n_epochs": 0}, "n_epochs: expected a whole number >= 1"),
    ],
)
def test_wrong_parameters(X, change, message):
    with pytest.raises(ValueError, match=message):
        LieSparseCoder(**{**SMALL, **change}).fit(X)


def test_wrong_arguments(coder, X):
    with pytest.raises(ValueError, match="X has 24 features, but LieSparseCoder is expecting 30"):
        coder.transform(X[:, :4])
    with pytest.raises(ValueError, match="contains NaN"):
        coder.transform(np.full((2, 30), np.nan))
    with pytest.raises(ValueError, match="axis=2"):
        coder.traverse(X, 2)
    with pytest.raises(ValueError, match="delta has shape"):
        coder.move(X, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="give pairs"):
        coder.interpolate(X[:2], X[:3])
    with pytest.raises(ValueError, match="one source, or as many"):
        coder.transfer_pose(X[:2], X[:3])


def test_float64_and_the_paper_recipe(X):
    coder = LieSparseCoder(**SMALL | {"settings": {"learning.n_grid": 12}}, dtype="float64", recipe="paper").fit(X)
    assert coder.components_.dtype == np.float64
    assert coder.transform(X).dtype == np.float64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_shape": [-5, -6]}, "image_shape: expected a whole number >= 1"),
        ({"image_shape": ["5", "6"]}, "image_shape: expected a whole number >= 1"),
        ({"noise_std": 1e-30}, "noise_std: expected a finite number >= 1e-06"),
        ({"sparsity": 1e300}, "sparsity: expected a finite number >= 0"),
    ],
)
def test_a_file_with_impossible_numbers_is_refused(X, tmp_path, change, message):
    path = tmp_path / "coder.safetensors"
    LieSparseCoder(**SMALL).fit(X).save(path)
    header, tensors = read_sealed(path, "LieSparseCoder")
    write_sealed(path, "LieSparseCoder", header | change, tensors)  # sealed anew: the digest is right
    with pytest.raises(ValueError, match=message):
        LieSparseCoder.load(path)


@pytest.mark.parametrize("prior", ["uniform", narrow_prior(0.5)])
def test_save_and_load(X, tmp_path, prior):
    coder = LieSparseCoder(**SMALL, pose_prior=prior, checkpoint_dir=tmp_path / "run").fit(X)
    path = tmp_path / "coder.safetensors"
    coder.save(path)
    loaded = LieSparseCoder.load(path)
    assert equal_models(loaded, coder)
    assert (loaded.transform(X) == coder.transform(X)).all()
    assert loaded.history_ == coder.history_
    assert loaded.image_shape_ == (5, 6)
    assert loaded.pose_prior == prior
    assert loaded.sparsity == coder.sparsity
    loaded.partial_fit(X)  # and goes on
    baseline = SparseCoder(3, n_epochs=1, random_state=0).fit(X)
    baseline.save(tmp_path / "baseline.safetensors")
    assert (SparseCoder.load(tmp_path / "baseline.safetensors").transform(X) == baseline.transform(X)).all()
    with pytest.raises(ValueError, match="a liesparse LieSparseCoder"):
        SparseCoder.load(path)
    save_model(tmp_path / "model.safetensors", coder.model_)
    with pytest.raises(ValueError, match="a liesparse model"):
        LieSparseCoder.load(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="parameters that JSON can hold"):
        coder.set_params(callbacks=[print]).save(path)


def test_sparse_coder_explains_images(X):
    coder = SparseCoder(8, sparsity=1.0, random_state=0).fit(X)
    assert coder.reconstruct(X).shape == X.shape
    error = np.linalg.norm(coder.reconstruct(X) - X, axis=(1, 2)) / np.linalg.norm(X, axis=(1, 2))
    assert error.mean() < 0.5
    assert_allclose(coder.inverse_transform(coder.transform(X)).shape, X.shape)
    assert coder.score(X) > SparseCoder(8, sparsity=1.0, n_epochs=1, dictionary_rate=0.0, random_state=0).fit(X).score(
        X
    )


def test_partial_fit_goes_on_where_the_lattice_is_fitted(X):
    """The engine follows the frequencies; by then many images were seen."""
    coder = LieSparseCoder(
        3, n_irreps=12, torus_dim=2, multiplicity=4, settings={"start": "data"}, random_state=0
    ).partial_fit(X)
    before = coder.frequencies_
    coder._state = coder._state._replace(step=int(0.1 * 15_000 / 25) - 3)
    coder.partial_fit(X)
    assert not np.array_equal(coder.frequencies_, before)
    assert np.isfinite(coder.partial_fit(X).transform(X)).all()
