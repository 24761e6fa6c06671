"""The page as one file: only its own script runs, whatever the texts, and the model in it is the model."""

import base64
import gzip
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from liesparse.web.session import make_document, pack_arrays, picture_layout, serialize_session


class Reader(HTMLParser):
    """Collect elements with their text, as a browser separates them."""

    def __init__(self, content):
        super().__init__()
        self.found, self._open = [], None
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])
        self._open = self.found[-1] if tag in ("script", "style", "title") else self._open

    def handle_endtag(self, tag):
        self._open = None if tag in ("script", "style", "title") else self._open

    def handle_data(self, data):
        if self._open is not None:
            self._open[2] += data

    def all(self, tag):
        return [(attrs, text) for name, attrs, text in self.found if name == tag]


def digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HOSTILE = [
    "</script><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    "<!--<script>",
    "{{script}} {{session}} {{policy}} {{title}}",
    "\\u003c \\1 \\g<0> &lt; \"'",
    "\u2028 line",
]


@pytest.mark.parametrize("title", ["tiny", *HOSTILE])
@pytest.mark.parametrize("live", [True, False])
def test_only_the_pages_own_script_and_style_may_run(tiny, title, live):
    document = make_document(tiny(title=title), live=live)
    page = Reader(document.content)
    (data_attrs, data), (attrs, script) = page.all("script")
    ((_, style),) = page.all("style")
    assert data_attrs["type"] == "application/json"
    assert attrs == {}
    assert f"script-src {digest(script)};" in document.policy
    assert f"style-src {digest(style)};" in document.policy
    assert json.loads(data)["title"] == title
    assert page.all("title")[0][1] == f"{title} · liesparse"
    policies = [attrs["content"] for attrs, _ in page.all("meta") if "http-equiv" in attrs]
    assert policies == [document.policy]
    assert ("connect-src 'self';" if live else "connect-src 'none';") in document.policy
    assert "default-src 'none'" in document.policy
    assert "unsafe" not in document.policy
    assert not page.all("img")


def test_no_markup_has_a_handler_or_a_style_that_the_policy_would_block(tiny):
    for tag, attrs, _ in Reader(make_document(tiny(), live=True).content).found:
        assert not [name for name in attrs if name.startswith("on") or name == "style"], tag


def test_the_page_needs_nothing_from_elsewhere(tiny):
    content = make_document(tiny(), live=False).content
    page = Reader(content)
    for _, attrs, _ in page.found:
        for name in ("src", "href"):
            assert attrs.get(name, "data:").startswith(("data:", "#"))
    addresses = set(re.findall(r"https?://[\w./-]+", html.unescape(content)))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(\s*['\"]?(?!data:)[\w/]", page.all("style")[0][1])


def test_a_page_for_export_is_small_and_whole(demo):
    content = make_document(demo, live=False).content
    assert len(content.encode()) < 800_000
    assert "{{" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", content, flags=re.DOTALL)


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


def test_a_session_without_images_or_baseline_is_packed(tiny):
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
