"""Images of 64 × 64 pixels, and colour images of shape (32, 32, 3), through the estimator and the shell."""

import io

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

import shell
from liesparse import LieSparseCoder, symmetry
from liesparse.data import load_data, load_images
from liesparse.figures import before_and_after, image_bytes, movie_bytes, to_png, walk_figure
from liesparse.run_directory import load_run


def blobs(n, shape, seed=0):
    """Return soft spots, with colours of their own where there are any, in random places of a torus."""
    rng = np.random.RandomState(seed)
    height, width = shape[:2]
    y, x = np.mgrid[:height, :width]
    images = []
    for row, column in rng.rand(n, 2):
        apart = (np.cos(2 * np.pi * (y / height - row)) + np.cos(2 * np.pi * (x / width - column)) - 2) * 8
        spot = np.exp(apart)
        images.append(spot if len(shape) == 2 else spot[..., None] * np.array([1.0, 0.5, 0.1]))
    return np.stack(images)


@pytest.mark.parametrize("shape", [(64, 64), (32, 32, 3)])
def test_an_estimator_takes_and_gives_back_large_images(shape, tmp_path):
    settings = {"learning.batch_size": 50}
    coder = LieSparseCoder(1, n_irreps=20, n_epochs=6, settings=settings, random_state=0).fit(blobs(400, shape))
    assert coder.image_shape_ == shape
    assert coder.group_basis_.shape == (np.prod(shape), 40)
    images = blobs(20, shape, seed=1)
    rebuilt = coder.reconstruct(images)
    assert rebuilt.shape == images.shape
    assert (images**2).sum() > 1.5 * ((images - rebuilt) ** 2).sum()  # 2.0 to 2.6; one shape that does not move: 1.1
    codes, poses = coder.infer(images[:5])
    assert (codes.shape, poses.shape) == ((5, 1), (5, 2))
    assert coder.canonicalize(images[:5]).shape == (5, *shape)
    assert coder.traverse(images[:5], axis=1).shape == (5, 9, *shape)
    assert coder.sample(3)[0].shape == (3, *shape)
    coder.save(tmp_path / "model.safetensors")
    loaded = LieSparseCoder.load(tmp_path / "model.safetensors")
    assert loaded.image_shape_ == shape
    assert np.array_equal(loaded.transform(images[:5]), codes)


def saturation(content):
    """Return how far the pixels of a picture are from grey."""
    with Image.open(io.BytesIO(content)) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(float)
    return (pixels.max(axis=-1) - pixels.min(axis=-1)).max()


def test_colour_images_are_drawn_in_colour():
    images = blobs(6, (16, 16, 3))
    walks = np.stack([images, images])[None]
    assert saturation(to_png(before_and_after(list(images), list(images), np.zeros(6, dtype=bool)), dpi=50)) > 150
    assert saturation(to_png(walk_figure(walks, ["a walk"]), dpi=50)) > 150
    assert saturation(movie_bytes(walks, ".gif")) > 150
    assert saturation(movie_bytes(walks.mean(axis=-1), ".gif")) == 0


def test_motions_of_colour_images_have_the_names_of_grey_ones():
    grey = torch.from_numpy(blobs(4, (20, 24)))
    colours = torch.tensor([1.0, 0.5, 0.1], dtype=grey.dtype)
    found = symmetry.apply_fields(grey[..., None] * colours)
    assert_allclose(found.numpy(), (symmetry.apply_fields(grey)[..., None] * colours).numpy(), atol=1e-12)


def liesparse(*arguments):
    done = shell.run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spots")
    for place, image in enumerate(np.round(255 * blobs(24, (40, 40, 3))).astype(np.uint8)):
        Image.fromarray(image).save(folder / f"{place:02d}.png")
    return folder


def test_a_folder_of_colour_pictures_from_the_shell(pictures, tmp_path):
    run = tmp_path / "run"
    spec = f"{pictures}:size=32,colour=yes"
    settings = ["--components", 2, "--irreps", 20, "--epochs", 2, "--set", "learning.batch_size=10", "--device", "cpu"]
    assert "32 × 32 × 3 pixels" in liesparse("train", spec, "--out", run, *settings)
    coder = load_run(run).coder
    rows = load_images(f"{pictures}:size=32", coder.image_shape_).images  # the model knows of colours
    straight = coder.canonicalize(rows.reshape(-1, *coder.image_shape_)).numpy()
    assert straight.shape == (24, 32, 32, 3)
    assert saturation(image_bytes(straight[0])) > 50
    liesparse("report", run)
    for name in ("templates.png", "axis-1.gif", "planes.png"):
        assert saturation((run / "report" / name).read_bytes()) > 50, name


def test_colour_is_kept_only_where_asked(pictures, tmp_path):
    assert load_data(str(pictures)).image_shape == (40, 40)
    coloured = load_data(str(pictures), colour="yes", crop="yes", size="20x20")
    assert coloured.image_shape == (20, 20, 3)
    assert "greyed" not in coloured.summary()
    images = blobs(8, (32, 32, 3))
    np.save(tmp_path / "spots.npy", images)
    found = load_images(str(tmp_path / "spots.npy"), (32, 32, 3)).images
    expected = images.reshape(8, -1) / np.linalg.norm(images.reshape(8, -1), axis=1, keepdims=True)
    assert_allclose(found.numpy(), expected, atol=1e-6)
    small = load_images(f"{tmp_path}/spots.npy:size=16", (16, 16, 3)).images.reshape(-1, 16, 16, 3)
    np.save(tmp_path / "green.npy", images[..., 1])
    green = load_images(f"{tmp_path}/green.npy:size=16", (16, 16)).images.reshape(-1, 16, 16)
    norms = small[..., 1].flatten(1).norm(dim=1)[:, None, None]
    assert_allclose((small[..., 1] / norms).numpy(), green.numpy(), atol=1e-6)
    inverted = load_data(f"{tmp_path}/spots.npy:colour=yes,invert=yes,n_test=1")
    assert inverted.train.min() >= 0
    np.save(tmp_path / "grey.npy", images[..., 0])
    with pytest.raises(ValueError, match=r"colour: expected shape \(n, height, width, 3\)"):
        load_data(f"{tmp_path}/grey.npy:colour=yes")
    with pytest.raises(ValueError, match="size=16x16,colour=yes"):
        load_images(str(tmp_path / "spots.npy"), (16, 16, 3))
