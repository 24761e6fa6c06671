"""What the explorer's tests do in a browser, and how they read what it shows."""

import base64
import io
import re
import shutil
import signal
from contextlib import contextmanager
from urllib.parse import parse_qs

import numpy as np
import torch
from PIL import Image

from liesparse.model import reconstruct
from shell import Forked, call_main

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SAME_GREY = 3  # of 255: half precision and rounding

# Three frames (the input is told, a paint is scheduled, it paints), then a timer that runs after the link's, of 200 ms.
SETTLED = """() => new Promise(done => {
    const frame = left => left ? requestAnimationFrame(() => frame(left - 1)) : setTimeout(done, 250);
    frame(3); })"""


@contextmanager
def serving(*arguments):
    with Forked(call_main, "explore", "--no-open", *arguments, apart=True) as server:
        try:
            yield re.search(r"http://\S+", server.stdout.readline()).group(), server
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)


def settle(page):
    """Wait until the page has painted what was asked for, and has written its link, by the page's own clock."""
    page.evaluate(SETTLED)


def pixels_of(page, canvas="#image"):
    """Return the grey values of a canvas as the page painted them."""
    address = page.locator(canvas).evaluate("canvas => canvas.toDataURL()")
    content = base64.b64decode(address.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"), dtype=float)[..., 0]


def state_of(page, n_shapes=10):
    """Return codes and pose as the page's address has them."""
    given = parse_qs(page.evaluate("location.hash").removeprefix("#"), keep_blank_values=True)
    codes = torch.zeros(1, n_shapes)
    for part in filter(None, given["codes"][0].split(",")):
        place, value = part.split(":")
        codes[0, int(place)] = float(value)
    return codes, torch.tensor([[float(angle) for angle in given["pose"][0].split(",")]])


def expected_pixels(session, codes, poses):
    """Compute T(s) Φ α in Python and paint it as the page does."""
    peak = session.examples.amax(dim=1).sort().values[len(session.examples) // 2]
    image = reconstruct(session.coder.model_, codes, poses)[0].reshape(session.coder.image_shape_)
    return (255 * (image / peak).clamp(0, 1)).numpy()


def assert_shows(page, session):
    settle(page)
    wanted = expected_pixels(session, *state_of(page))
    assert np.abs(pixels_of(page) - wanted).max() <= SAME_GREY
    return wanted


def drag(page, element, *places):
    box = page.locator(element).bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places]
    page.mouse.move(*at[0])
    page.mouse.down()
    for x, y in at:
        page.mouse.move(x, y, steps=3)
    page.mouse.up()


def picture_bytes(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


DROP = """([name, bytes]) => { const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name));
    document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true})); }"""
