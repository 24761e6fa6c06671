"""The explorer looks at what one draws, drops or picks, in a real browser."""

import signal

import numpy as np
import pytest
import torch

from e2e.explorer.browsing import DROP, assert_shows, drag, picture_bytes, pixels_of, serving, settle, state_of
from shell import run


def strokes_of(template):
    """Return short strokes that trace the bright pixels of a shape."""
    shape = template.reshape(28, 28)
    places = (shape > 0.55 * shape.max()).nonzero().tolist()
    return [((column + 0.5) / 28, (row + 0.5) / 28) for row, column in places]


@pytest.mark.parametrize("shape", [4])
def test_a_drawn_digit_gets_its_template_first(open_page, address, session, shape):
    page = open_page(address)
    page.click("#clear")
    box = page.locator("#sketch").bounding_box()
    before = page.locator("#numbers dt").count()
    for x, y in strokes_of(session.coder.model_.dictionary[:, shape]):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.down()
        page.mouse.up()
    for _ in range(60):  # a busy machine answers the last stroke late
        page.wait_for_timeout(250)
        codes, _ = state_of(page)
        if int(codes[0].argmax()) == shape and page.locator("#numbers dt").count() > before:
            break
    assert page.locator("#numbers dt").count() > before
    assert int(codes[0].argmax()) == shape
    assert page.locator("#sides").is_visible()
    assert page.locator("#modes li").count() >= 1


def test_a_bad_file_gets_a_message_and_a_good_one_is_read(open_page, address, session):
    page = open_page(address, expected="422")
    before = state_of(page)
    page.evaluate(DROP, ["letter.txt", list(b"Dear model, I am no picture.")])
    page.wait_for_selector("#message:not([hidden])")
    assert "a picture (PNG, JPEG" in page.text_content("#message")
    assert "Choose another file." in page.text_content("#message")
    assert state_of(page)[0].equal(before[0])
    template = session.coder.model_.dictionary[:, 8].reshape(28, 28)
    on_white = 255 * (1 - (template / template.max()).clamp(0, 1)).numpy()
    large = picture_bytes(np.kron(on_white, np.ones((5, 5))))
    page.set_input_files("#file", {"name": "eight.png", "mimeType": "image/png", "buffer": large})
    page.locator("#message", has_text="inverted").wait_for()
    assert_shows(page, session)
    assert int(state_of(page)[0][0].argmax()) == 8


def test_the_last_input_wins(open_page, address, session):
    page = open_page(address)
    page.route("**/api/*", lambda route: (page.wait_for_timeout(400), route.continue_()))
    page.click("#clear")
    drag(page, "#sketch", (0.4, 0.3), (0.6, 0.6))
    page.click("#examples button:nth-child(6)")
    page.wait_for_timeout(1500)
    codes, poses = session.coder.infer(session.examples[5:6])
    torch.testing.assert_close(state_of(page)[0], codes, atol=1e-3, rtol=0)
    torch.testing.assert_close(state_of(page)[1], poses, atol=1e-3, rtol=0)


def test_a_photo_of_a_phone_is_shrunk_before_it_is_sent(open_page, address, session):
    template = session.coder.model_.dictionary[:, 4].reshape(28, 28)
    large = np.kron((255 * (template / template.max()).clamp(0, 1)).numpy(), np.ones((100, 100)))
    noisy = (large + np.random.default_rng(0).uniform(0, 40, large.shape)).clip(0, 255)
    content = picture_bytes(noisy)
    assert len(content) > 4 * 2**20
    page = open_page(address)
    page.set_input_files("#file", {"name": "photo.png", "mimeType": "image/png", "buffer": content})
    page.locator("#message", has_text="brought to 28 × 28").wait_for()
    settle(page)
    assert int(state_of(page)[0][0].argmax()) == 4


def test_nothing_moves_under_the_pen(open_page, address):
    page = open_page(address, expected="422")
    before = page.locator("#sketch").bounding_box()
    page.evaluate(DROP, ["letter.txt", list(b"no picture")])
    page.wait_for_selector("#message:not([hidden])")
    assert page.locator("#sketch").bounding_box() == before
    assert page.locator("#message").bounding_box()["y"] >= 0


def test_the_eraser_leaves_nothing_and_clear_puts_it_away(open_page, address):
    page = open_page(address)
    page.click("#clear")
    drag(page, "#sketch", (0.4, 0.5), (0.6, 0.5))
    page.locator("#numbers dt >> nth=2").wait_for()
    page.click("#erase")
    for height in (0.42, 0.46, 0.5, 0.54, 0.58):
        drag(page, "#sketch", (0.3, height), (0.7, height))
    page.wait_for_timeout(600)
    assert page.locator("#numbers dt").count() == 1  # no input, no results
    page.click("#clear")
    assert page.locator("#erase").get_attribute("aria-pressed") == "false"


def test_other_fingers_and_buttons_are_ignored(open_page, address):
    page = open_page(address)
    page.click("#clear")
    box = page.locator("#sketch").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    second = """canvas => { const box = canvas.getBoundingClientRect();
        const at = {pointerId: 77, clientX: box.right - 5, clientY: box.bottom - 5, bubbles: true};
        canvas.dispatchEvent(new PointerEvent('pointermove', at)); }"""
    page.locator("#sketch").evaluate(second)
    page.mouse.up()
    settle(page)
    assert pixels_of(page, "#sketch")[18:, 18:].max() == 0
    page.click("#codes .shape:nth-child(3) button")
    shape = page.locator("#codes .shape:nth-child(5) button").bounding_box()
    page.mouse.move(shape["x"] + 20, shape["y"] + 20)
    page.mouse.down(button="right")
    page.mouse.move(shape["x"] + 70, shape["y"] + 20)
    page.mouse.up(button="right")
    settle(page)
    assert state_of(page)[0][0].nonzero().flatten().tolist() == [2]


def test_the_exported_page_opens_from_disk(open_page, session, tmp_path):
    target = tmp_path / "explorer.html"
    assert run("explore", "--export", target).returncode == 0
    assert target.stat().st_size < 800_000
    page = open_page(target.as_uri())
    assert_shows(page, session)
    page.click("#examples button:nth-child(6)")
    drag(page, "#pad", (0.3, 0.3), (0.4, 0.6))
    assert_shows(page, session)
    assert page.locator("#erase").is_hidden()
    assert "liesparse explore" in page.text_content("#input-help")
    page.evaluate(DROP, ["digit.png", [1, 2, 3]])
    assert "liesparse explore" in page.text_content("#message")


def test_a_stopped_server_is_reported(open_page):
    with serving() as (where, server):
        page = open_page(where, expected="ERR_CONNECTION_REFUSED")
        server.send_signal(signal.SIGINT)
        server.wait(20)
        page.click("#clear")
        drag(page, "#sketch", (0.4, 0.3), (0.6, 0.6))
        page.wait_for_selector("#message:not([hidden])")
        assert "does not answer" in page.text_content("#message")
        assert page.locator("#numbers dt").count() == 1  # no results of another drawing
