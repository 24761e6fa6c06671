"""The explorer in a real browser. Needs Chromium or Chrome on the path, as from `apt install chromium`."""

import base64
import io
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

from liesparse.estimators import LieSparseCoder
from liesparse.model import reconstruct
from liesparse.posterior import pose_natural
from liesparse.posterior.peaks import pose_log_density
from liesparse.run_folder import Run, save_run
from liesparse.starts import random_start
from liesparse.web.world import open_world

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SAME_GREY = 3  # of 255: half precision and rounding

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser: install Chromium (Debian: apt install chromium) to run the explorer's tests"
)
command = [sys.executable, "-m", "liesparse", "explore"]


@pytest.fixture(scope="module")
def world():
    return open_world()


@contextmanager
def serving(*arguments):
    with subprocess.Popen([*command, "--no-open", *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield re.search(r"http://\S+", server.stdout.readline()).group(), server
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)


@pytest.fixture(scope="module")
def address():
    with serving() as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    """Open pages that must not complain, except of what a test expects."""
    contexts, complaints = [], []

    def visit(where, *, expected="", **settings):
        context = browser.new_context(**{"viewport": {"width": 1240, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))

        def hear(message):
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                complaints.append(message.text)

        page.on("console", hear)
        page.goto(where)
        page.wait_for_selector("body[data-ready]")
        settle(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def settle(page):
    """Wait until the page has painted, and has written its link."""
    page.wait_for_timeout(350)


def pixels_of(page, canvas="#image"):
    """Return the grey values of a canvas as the page painted them."""
    address = page.locator(canvas).evaluate("canvas => canvas.toDataURL()")
    content = base64.b64decode(address.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"), dtype=float)[..., 0]


def state_of(page, n_shapes=10):
    """Return codes and pose as the page's address has them."""
    given = parse_qs(urlsplit(page.url).fragment, keep_blank_values=True)
    codes = torch.zeros(1, n_shapes)
    for part in filter(None, given["codes"][0].split(",")):
        place, value = part.split(":")
        codes[0, int(place)] = float(value)
    return codes, torch.tensor([[float(angle) for angle in given["pose"][0].split(",")]])


def expected_pixels(world, codes, poses):
    """Compute T(s) Φ α in Python and paint it as the page does."""
    peak = world.examples.amax(dim=1).sort().values[len(world.examples) // 2]
    image = reconstruct(world.coder.model_, codes, poses)[0].reshape(world.image_shape)
    return (255 * (image / peak).clamp(0, 1)).numpy()


def assert_shows(page, world):
    settle(page)
    wanted = expected_pixels(world, *state_of(page))
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


def test_the_first_picture_is_what_the_model_makes_of_the_first_image(open_page, address, world):
    page = open_page(address)
    assert_shows(page, world)
    codes, poses = world.coder.infer(world.examples[:1])
    seen_codes, seen_poses = state_of(page)
    torch.testing.assert_close(seen_codes, codes, atol=1e-3, rtol=0)
    torch.testing.assert_close(seen_poses, poses, atol=1e-3, rtol=0)
    assert page.locator("#examples button").count() == len(world.examples)


def test_a_click_on_a_shape_shows_it_alone_and_a_drag_mixes(open_page, address, world):
    page = open_page(address)
    before = pixels_of(page)
    page.click("#codes .shape:nth-child(3) button")
    shown = assert_shows(page, world)
    assert np.abs(shown - before).max() > 50
    codes, _ = state_of(page)
    assert codes[0].nonzero().flatten().tolist() == [2]
    drag(page, "#codes .shape:nth-child(5) button", (0.2, 0.5), (0.7, 0.5))
    assert_shows(page, world)
    codes, _ = state_of(page)
    assert codes[0].nonzero().flatten().tolist() == [2, 4]
    assert 0.4 < float(codes[0, 4]) < 0.8


def test_dragging_the_pad_moves_the_image_round_the_torus(open_page, address, world):
    page = open_page(address)
    before = pixels_of(page)
    drag(page, "#pad", (0.5, 0.5), (0.6, 0.4))
    assert np.abs(assert_shows(page, world) - before).max() > 50
    _, poses = state_of(page)
    torch.testing.assert_close(poses, torch.tensor([[0.1, 0.1]]) * 2 * torch.pi, atol=0.05, rtol=0)
    drag(page, "#pad", (0.9, 0.5), (1.1, 0.5))  # out on the right, in on the left
    assert_shows(page, world)
    _, poses = state_of(page)
    torch.testing.assert_close(poses[0, 0], torch.tensor(-0.4 * 2 * torch.pi), atol=0.05, rtol=0)


def test_the_heat_map_is_the_posterior(open_page, address, world):
    page = open_page(address)
    heat = pixels_of(page, "#pad canvas:first-child")  # light theme: dark is likely, and red falls with it
    codes, _ = state_of(page)
    model = world.coder.model_
    natural = pose_natural(model, world.examples[:1], codes)
    n = len(heat)
    axis = 2 * torch.pi * (torch.arange(n) / n - 0.5)
    poses = torch.cartesian_prod(axis, axis)
    values = pose_log_density(natural.expand(len(poses), -1, -1), model.frequencies, poses).reshape(n, n)
    shares = (1 + (values - values.max()) / 40).clamp(min=0).numpy()
    rows = (n - np.arange(n)) % n  # the second axis points up
    likely = np.zeros((n, n))
    likely[rows] = shares.T
    assert (heat[likely > 0.9] < 60).all()
    assert (heat[likely == 0] > 240).all()
    assert np.corrcoef(heat.ravel(), likely.ravel())[0, 1] < -0.9


def test_all_works_by_keyboard(open_page, address, world):
    page = open_page(address)
    _, before = state_of(page)
    page.locator("#pad").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    assert_shows(page, world)
    _, after = state_of(page)
    torch.testing.assert_close(after - before, torch.tensor([[0.2, 0.25]]), atol=2e-3, rtol=0)
    page.locator("#codes .shape:nth-child(2) input").focus()
    page.keyboard.press("End")
    assert_shows(page, world)
    assert float(state_of(page)[0][0, 1]) == pytest.approx(1.2)
    page.locator("#codes .shape:nth-child(4) button").focus()
    page.keyboard.press("Enter")
    settle(page)
    assert state_of(page)[0][0].nonzero().flatten().tolist() == [3]
    page.click("#clear")
    page.locator("#sketch").focus()
    page.keyboard.press(" ")
    page.locator("#numbers dt >> nth=2").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "clear"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    nameless = """() => [...document.querySelectorAll('button, input, [tabindex]')].filter(element =>
        !(element.getAttribute('aria-label') || element.textContent.trim() || element.labels?.length)).length"""
    assert page.evaluate(nameless) == 0


def strokes_of(template):
    """Return short strokes that trace the bright pixels of a shape."""
    shape = template.reshape(28, 28)
    places = (shape > 0.55 * shape.max()).nonzero().tolist()
    return [((column + 0.5) / 28, (row + 0.5) / 28) for row, column in places]


@pytest.mark.parametrize("shape", [1, 4, 9])
def test_a_drawn_digit_gets_its_template_first(open_page, address, world, shape):
    page = open_page(address)
    page.click("#clear")
    box = page.locator("#sketch").bounding_box()
    before = page.locator("#numbers dt").count()
    for x, y in strokes_of(world.coder.model_.dictionary[:, shape]):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.down()
        page.mouse.up()
    page.wait_for_timeout(600)
    assert page.locator("#numbers dt").count() > before
    codes, _ = state_of(page)
    assert int(codes[0].argmax()) == shape
    assert page.locator("#sides").is_visible()
    assert page.locator("#modes li").count() >= 1


def picture_bytes(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


DROP = """([name, bytes]) => { const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name));
    document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true})); }"""


def test_a_bad_file_gets_a_message_and_a_good_one_is_read(open_page, address, world):
    page = open_page(address, expected="422")
    before = state_of(page)
    page.evaluate(DROP, ["letter.txt", list(b"Dear model, I am no picture.")])
    page.wait_for_selector("#message:not([hidden])")
    assert "a picture (PNG, JPEG" in page.text_content("#message")
    assert "Choose another file." in page.text_content("#message")
    assert state_of(page)[0].equal(before[0])
    template = world.coder.model_.dictionary[:, 8].reshape(28, 28)
    on_white = 255 * (1 - (template / template.max()).clamp(0, 1)).numpy()
    large = picture_bytes(np.kron(on_white, np.ones((5, 5))))
    page.set_input_files("#file", {"name": "eight.png", "mimeType": "image/png", "buffer": large})
    page.locator("#message", has_text="inverted").wait_for()
    assert_shows(page, world)
    assert int(state_of(page)[0][0].argmax()) == 8


def test_the_last_wish_wins(open_page, address, world):
    page = open_page(address)
    page.route("**/api/*", lambda route: (page.wait_for_timeout(400), route.continue_()))
    page.click("#clear")
    drag(page, "#sketch", (0.4, 0.3), (0.6, 0.6))
    page.click("#examples button:nth-child(6)")
    page.wait_for_timeout(1500)
    codes, poses = world.coder.infer(world.examples[5:6])
    torch.testing.assert_close(state_of(page)[0], codes, atol=1e-3, rtol=0)
    torch.testing.assert_close(state_of(page)[1], poses, atol=1e-3, rtol=0)


def test_a_photo_of_a_phone_is_shrunk_before_it_is_sent(open_page, address, world):
    template = world.coder.model_.dictionary[:, 4].reshape(28, 28)
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


def test_a_link_brings_the_same_view(open_page, address, world):
    link = "#codes=3:0.9,7:0.25&pose=0.7,-2.9&image=2"
    page = open_page(address + link)
    assert_shows(page, world)
    codes, poses = state_of(page)
    assert codes[0, 3] == pytest.approx(0.9)
    assert poses[0].tolist() == pytest.approx([0.7, -2.9])
    assert page.locator("#examples button").nth(2).get_attribute("aria-pressed") == "true"
    page.evaluate("location.hash = '#codes=4:0.9&pose=0,0'")  # no image: the input goes
    settle(page)
    assert "image" not in page.url
    assert page.locator("#examples [aria-pressed=true]").count() == 0
    page.evaluate("location.hash = '#image=3'")
    settle(page)
    assert "image=3" in page.url
    assert_shows(page, world)
    page.fill("#pose-values input >> nth=0", "7")
    page.keyboard.press("Tab")
    settle(page)
    assert page.input_value("#pose-values input >> nth=0") == "0.72"  # 7 - 2π
    open_page(address + "#codes=99:1,x:y,-1:2&pose=nonsense&image=-7")  # no complaint


def test_walks_play_and_are_saved(open_page, address, world):
    page = open_page(address + "#codes=3:0.9&pose=0.2,0.3")
    page.click("[data-kind='1']")
    page.wait_for_timeout(400)
    page.click("[data-kind='1']")  # pause
    assert_shows(page, world)
    _, poses = state_of(page)
    assert float(poses[0, 0]) == pytest.approx(0.2)
    assert float(poses[0, 1]) != pytest.approx(0.3, abs=0.01)
    with page.expect_download() as waiting:
        page.click("#save-gif")
    with Image.open(waiting.value.path()) as movie:
        assert (movie.n_frames, movie.size) == (48, (224, 224))
        first = np.asarray(movie.convert("L").resize((28, 28), Image.Resampling.NEAREST), dtype=float)
        movie.seek(24)
        middle = np.asarray(movie.convert("L").resize((28, 28), Image.Resampling.NEAREST), dtype=float)
    codes, poses = state_of(page)
    half_round = poses + torch.tensor([[0.0, torch.pi]])
    assert np.abs(first - expected_pixels(world, codes, poses)).max() < 5  # 64 greys
    assert np.abs(middle - expected_pixels(world, codes, half_round)).max() < 5
    page.click("#examples button:nth-child(4)")
    page.click("#set-a")
    page.click("#examples button:nth-child(9)")
    page.click("#set-b")
    page.click("[data-kind='line']")
    page.wait_for_timeout(300)
    with page.expect_download() as waiting:
        page.click("#save-png")
    with Image.open(waiting.value.path()) as strip:
        frames = np.asarray(strip.convert("L"), dtype=float)
    side = frames.shape[0]
    ends = [frames[2::4, start : start + side : 4] for start in (2, frames.shape[1] - side + 2)]
    for end, place in zip(ends, (3, 8), strict=True):
        codes, poses = world.coder.infer(world.examples[place : place + 1])
        assert np.abs(end - expected_pixels(world, codes, poses)).max() <= SAME_GREY


def test_planes_turn_with_the_pose(open_page, address):
    page = open_page(address)
    clock = ".plane:nth-child(2) canvas.clock"
    before, still = pixels_of(page, clock), pixels_of(page, ".plane:first-child canvas.clock")
    drag(page, "#pad", (0.2, 0.5), (0.35, 0.5))
    settle(page)
    assert np.abs(pixels_of(page, clock) - before).max() > 0
    assert np.array_equal(pixels_of(page, ".plane:first-child canvas.clock"), still)  # ω = 0 never turns
    page.click("#all-planes")
    assert page.locator(".plane").count() == 128
    page.click("#sort-planes")
    energies = [float(text.split()[0]) for text in page.locator(".plane p span:last-child").all_text_contents()]
    assert energies == sorted(energies, reverse=True)
    page.click("#codes .shape:nth-child(8) button")
    settle(page)
    others = [float(text.split()[0]) for text in page.locator(".plane p span:last-child").all_text_contents()]
    assert others != energies
    assert others == sorted(others, reverse=True)
    for _ in range(3):  # cards that come and go
        page.click("#all-planes")
        settle(page)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1240), ("dark", 1240), ("light", 390), ("dark", 390)])
def test_light_dark_and_phone(open_page, address, scheme, width):
    phone = width < 600
    page = open_page(address, color_scheme=scheme, viewport={"width": width, "height": 844}, has_touch=phone)
    shot = np.asarray(Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("L"), dtype=float)
    assert shot.shape[1] == width  # nothing sticks out
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert (np.median(shot) > 200) == (scheme == "light")
    if phone:
        before = pixels_of(page)
        page.locator("#pad").tap(position={"x": 60, "y": 200})
        settle(page)
        assert np.abs(pixels_of(page) - before).max() > 50


def test_the_exported_page_opens_from_disk(open_page, world, tmp_path):
    target = tmp_path / "explorer.html"
    subprocess.run([*command, "--export", str(target)], check=True, capture_output=True)
    assert target.stat().st_size < 800_000
    page = open_page(target.as_uri())
    assert_shows(page, world)
    page.click("#examples button:nth-child(6)")
    drag(page, "#pad", (0.3, 0.3), (0.4, 0.6))
    assert_shows(page, world)
    assert page.locator("#erase").is_hidden()
    assert "liesparse explore" in page.text_content("#input-help")
    page.evaluate(DROP, ["digit.png", [1, 2, 3]])
    assert "liesparse explore" in page.text_content("#message")


def test_a_server_that_is_gone_is_told(open_page):
    with serving() as (where, server):
        page = open_page(where, expected="ERR_CONNECTION_REFUSED")
        server.send_signal(signal.SIGINT)
        server.wait(20)
        page.click("#clear")
        drag(page, "#sketch", (0.4, 0.3), (0.6, 0.6))
        page.wait_for_selector("#message:not([hidden])")
        assert "does not answer" in page.text_content("#message")
        assert page.locator("#numbers dt").count() == 1  # no results of another drawing


@pytest.mark.parametrize("n_axes", [1, 3])
def test_other_tori_have_a_dial_for_each_axis(open_page, tmp_path, n_axes):
    generator = torch.Generator().manual_seed(0)
    model = random_start(30, n_components=3, n_irreps=9, torus_dim=n_axes, generator=generator)
    coder = LieSparseCoder.from_model(model, (5, 6))
    save_run(Run(tmp_path / "run", coder, None, {}, {}))
    target = tmp_path / "page.html"
    subprocess.run([*command, str(tmp_path / "run"), "--export", str(target)], check=True, capture_output=True)
    page = open_page(target.as_uri())
    assert page.locator(".dial").count() == n_axes
    assert pixels_of(page).shape == (5, 6)
    before = pixels_of(page)
    drag(page, ".dial >> nth=-1", (0.9, 0.5), (0.5, 0.1))
    settle(page)
    _, poses = state_of(page, 3)
    wanted = torch.zeros(n_axes)
    wanted[-1] = torch.pi / 2
    torch.testing.assert_close(poses[0], wanted, atol=0.05, rtol=0)
    assert np.abs(pixels_of(page) - before).max() > 5
    assert page.locator("#sides").is_hidden()
