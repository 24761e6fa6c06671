"""The model as the page takes it, unpacked again."""

import base64
import gzip
import json

import numpy as np
import pytest
import torch

from liesparse.web.serialize import pack_arrays, picture_layout, serialize_session


def unpack(packed):
    """Do what the page does."""
    values = np.frombuffer(gzip.decompress(base64.b64decode(packed["block"])), dtype="<f2").astype(np.float64)
    found, start = {}, 0
    for name, shape in packed["arrays"].items():
        size = int(np.prod(shape))
        found[name] = values[start : start + size].reshape(shape)
        start += size
    assert start == len(values)
    return found


def test_arrays_come_back_in_half_precision():
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(3, 4)).astype(np.float32), "none": np.zeros((0, 4)), "b": rng.normal(size=5)}
    shapes, block = pack_arrays(arrays)
    found = unpack({"arrays": shapes, "block": block})
    for name, array in arrays.items():
        assert np.array_equal(found[name], array.astype(np.float16).astype(np.float64))
    assert pack_arrays(arrays) == (shapes, block)


def test_an_array_that_is_a_view_is_packed_as_it_looks():
    array = np.arange(6.0).reshape(2, 3).T
    shapes, block = pack_arrays({"a": array})
    assert np.array_equal(unpack({"arrays": shapes, "block": block})["a"], array)


def test_the_page_reconstructs_what_the_model_does(demo):
    packed = json.loads(serialize_session(demo, live=True))
    arrays = unpack(packed)
    frequencies = np.array(packed["frequencies"])
    for place, view in enumerate(packed["views"][:5]):
        shape = np.array(view["codes"]) @ arrays["shapes"]
        cos, sin = (f(frequencies @ np.array(view["pose"])) for f in (np.cos, np.sin))
        x, y = (shape @ arrays["basis"]).reshape(-1, 2).T
        turned = np.stack((cos * x - sin * y, sin * x + cos * y), axis=1).ravel()
        expected = demo.coder.reconstruct(demo.examples[place : place + 1])[0].numpy()
        assert np.abs(arrays["basis"] @ turned - expected).max() < 2e-3
        assert np.abs(arrays["images"][place] - demo.examples[place].numpy()).max() < 1e-3


def test_what_is_packed_is_what_was_inferred(demo):
    packed = json.loads(serialize_session(demo, live=False))
    assert packed["live"] is False
    assert packed["noiseStd"] == demo.coder.model_.noise_std
    assert len(packed["views"]) == len(demo.examples)
    assert "pixels" not in packed["views"][0]
    codes = demo.coder.transform(demo.examples[:3])
    assert torch.allclose(torch.tensor([view["codes"] for view in packed["views"][:3]]), codes, atol=1e-5)


def test_a_world_without_images_or_baseline_is_packed(tiny):
    session = tiny()
    packed = json.loads(serialize_session(session._replace(examples=session.examples[:0]), live=True))
    assert packed["views"] == []
    assert "plain" not in packed["arrays"]
    assert packed["arrays"]["images"] == [0, 16]


@pytest.mark.parametrize("shape", [(7,), (4, 5), (4, 5, 1), (4, 5, 3), (1, 4, 5), (3, 4, 5)])
def test_every_pixel_is_found_where_the_layout_says(shape):
    height, width, channels, pixel_stride, channel_stride = picture_layout(shape)
    row = np.arange(np.prod(shape))
    image = row.reshape(shape)
    if len(shape) == 1:
        image = image[None]
    if image.ndim == 2:
        image = image[..., None]
    elif shape[2] not in (1, 3):
        image = np.moveaxis(image, 0, -1)
    assert (height, width, channels) == image.shape
    for i in range(height):
        for j in range(width):
            for c in range(channels):
                assert row[(i * width + j) * pixel_stride + c * channel_stride] == image[i, j, c]


@pytest.mark.parametrize("shape", [(4, 5, 2), (2, 4, 5), (2, 2, 2, 2)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(ValueError, match="a model of grey or colour images"):
        picture_layout(shape)
