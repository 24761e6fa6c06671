"""The explorer shows what the model computes, in a real browser."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from e2e.explorer.browsing import SAME_GREY, assert_shows, drag, expected_pixels, pixels_of, settle, state_of
from liesparse.estimators import LieSparseCoder
from liesparse.groups import Translations
from liesparse.initialization import random_start
from liesparse.model import reconstruct
from liesparse.posterior import pose_log_density, pose_natural
from liesparse.run_directory import Run, save_run
from shell import run

TYPICAL_CODE = 0.9  # of a shape that the page shows alone


def test_the_first_picture_is_what_the_model_makes_of_the_first_image(open_page, address, session):
    page = open_page(address)
    assert_shows(page, session)
    codes, poses = session.coder.infer(session.examples[:1])
    seen_codes, seen_poses = state_of(page)
    torch.testing.assert_close(seen_codes, codes, atol=1e-3, rtol=0)
    torch.testing.assert_close(seen_poses, poses, atol=1e-3, rtol=0)
    assert page.locator("#examples button").count() == len(session.examples)


def test_a_click_on_a_shape_shows_it_alone_and_a_drag_mixes(open_page, address, session):
    page = open_page(address)
    before = pixels_of(page)
    page.click("#codes .shape:nth-child(3) button")
    shown = assert_shows(page, session)
    assert np.abs(shown - before).max() > 50
    codes, _ = state_of(page)
    assert codes[0].nonzero().flatten().tolist() == [2]
    drag(page, "#codes .shape:nth-child(5) button", (0.2, 0.5), (0.7, 0.5))
    assert_shows(page, session)
    codes, _ = state_of(page)
    assert codes[0].nonzero().flatten().tolist() == [2, 4]
    assert 0.4 < float(codes[0, 4]) < 0.8


def test_dragging_the_pad_moves_the_image_round_the_torus(open_page, address, session):
    page = open_page(address)
    before = pixels_of(page)
    drag(page, "#pad", (0.5, 0.5), (0.6, 0.4))
    assert np.abs(assert_shows(page, session) - before).max() > 50
    _, poses = state_of(page)
    torch.testing.assert_close(poses, torch.tensor([[0.1, 0.1]]) * 2 * torch.pi, atol=0.05, rtol=0)
    drag(page, "#pad", (0.9, 0.5), (1.1, 0.5))  # out on the right, in on the left
    assert_shows(page, session)
    _, poses = state_of(page)
    torch.testing.assert_close(poses[0, 0], torch.tensor(-0.4 * 2 * torch.pi), atol=0.05, rtol=0)


def test_the_heat_map_is_the_posterior(open_page, address, session):
    page = open_page(address)
    heat = pixels_of(page, "#pad canvas:first-child")  # light theme: dark is likely, and red falls with it
    codes, _ = state_of(page)
    model = session.coder.model_
    natural = pose_natural(model, session.examples[:1], codes)
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


def test_all_works_by_keyboard(open_page, address, session):
    page = open_page(address)
    _, before = state_of(page)
    page.locator("#pad").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    assert_shows(page, session)
    _, after = state_of(page)
    torch.testing.assert_close(after - before, torch.tensor([[0.2, 0.25]]), atol=2e-3, rtol=0)
    page.locator("#codes .shape:nth-child(2) input").focus()
    page.keyboard.press("End")
    assert_shows(page, session)
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


def test_a_link_brings_the_same_view(open_page, address, session):
    link = "#codes=3:0.9,7:0.25&pose=0.7,-2.9&image=2"
    page = open_page(address + link)
    assert_shows(page, session)
    codes, poses = state_of(page)
    assert codes[0, 3] == pytest.approx(0.9)
    assert poses[0].tolist() == pytest.approx([0.7, -2.9])
    assert page.locator("#examples button").nth(2).get_attribute("aria-pressed") == "true"
    page.evaluate("location.hash = '#codes=4:0.9&pose=0,0'")  # no image: the input goes
    settle(page)
    assert "image" not in page.evaluate("location.hash")
    assert page.locator("#examples [aria-pressed=true]").count() == 0
    page.evaluate("location.hash = '#image=3'")
    settle(page)
    assert "image=3" in page.evaluate("location.hash")
    assert_shows(page, session)
    page.fill("#pose-values input >> nth=0", "7")
    page.keyboard.press("Tab")
    settle(page)
    assert page.input_value("#pose-values input >> nth=0") == "0.72"  # 7 - 2π
    open_page(address + "#codes=99:1,x:y,-1:2&pose=nonsense&image=-7")  # no error


def test_walks_play_and_are_saved(open_page, address, session):
    page = open_page(address + "#codes=3:0.9&pose=0.2,0.3")
    page.click("#whole")  # not only where the data is
    page.click("[data-kind='1']")
    page.wait_for_timeout(400)
    page.click("[data-kind='1']")  # pause
    assert_shows(page, session)
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
    assert np.abs(first - expected_pixels(session, codes, poses)).max() < 5  # 64 greys
    assert np.abs(middle - expected_pixels(session, codes, half_round)).max() < 5
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
        codes, poses = session.coder.infer(session.examples[place : place + 1])
        assert np.abs(end - expected_pixels(session, codes, poses)).max() <= SAME_GREY


def test_planes_turn_with_the_pose(open_page, address):
    page = open_page(address)
    clock = ".plane:nth-child(2) canvas.phase-dial"
    before, still = pixels_of(page, clock), pixels_of(page, ".plane:first-child canvas.phase-dial")
    drag(page, "#pad", (0.2, 0.5), (0.35, 0.5))
    settle(page)
    assert np.abs(pixels_of(page, clock) - before).max() > 0
    assert np.array_equal(pixels_of(page, ".plane:first-child canvas.phase-dial"), still)  # ω = 0 never turns
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


@pytest.mark.parametrize("n_axes", [1, 3])
def test_other_tori_have_a_dial_for_each_axis(open_page, tmp_path, n_axes):
    generator = torch.Generator().manual_seed(0)
    model = random_start(30, n_components=3, n_irreps=9, torus_dim=n_axes, generator=generator)
    coder = LieSparseCoder.from_model(model, (5, 6))
    save_run(Run(tmp_path / "run", coder, None, {}, {}))
    target = tmp_path / "page.html"
    assert run("explore", tmp_path / "run", "--export", target).returncode == 0
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


def test_two_groups_have_a_named_dial_for_each_coordinate(open_page, tmp_path):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(60, 30, generator=generator)
    model = random_start(30, n_components=3, n_irreps=9, torus_dim=1, generator=generator)
    outer = Translations(5, 6).make_basis(images, 12)
    model = replace(model, outer=outer)
    coder = LieSparseCoder.from_model(model, (5, 6), group="translation@fixed")
    save_run(Run(tmp_path / "run", coder, None, {}, {}))
    target = tmp_path / "page.html"
    assert run("explore", tmp_path / "run", "--export", target).returncode == 0
    page = open_page(target.as_uri() + "#codes=1:0.8,2:0.5&pose=0.4,-0.9,1.1")
    assert [page.locator(".dial").nth(place).get_attribute("aria-label") for place in range(3)] == [
        "Pose, shift_x",
        "Pose, shift_y",
        "Pose, pose_3",
    ]
    codes, poses = state_of(page, 3)
    shown = reconstruct(model, codes, poses)[0].reshape(5, 6)
    peak = (TYPICAL_CODE * model.dictionary).amax(dim=0).sort().values[1]  # as without test images
    expected = (255 * (0.5 + 0.5 * shown / peak).clamp(0, 1)).numpy()  # random shapes have both signs
    assert np.abs(pixels_of(page) - expected).max() <= SAME_GREY
    drag(page, ".dial >> nth=2", (0.9, 0.5), (0.5, 0.1))
    settle(page)
    _, poses = state_of(page, 3)
    torch.testing.assert_close(poses[0], torch.tensor([0.4, -0.9, torch.pi / 2]), atol=0.05, rtol=0)


def test_the_pad_zooms_to_where_the_data_is_and_walks_stay_there(open_page, tmp_path):
    generator = torch.Generator().manual_seed(0)
    model = random_start(30, n_components=3, n_irreps=9, torus_dim=2, generator=generator)
    coder = LieSparseCoder.from_model(model, (5, 6))
    coder.pose_ranges_ = np.zeros((3, 2, 3), np.float32) + np.array([1.0, -0.1, 0.1], np.float32)
    save_run(Run(tmp_path / "run", coder, None, {}, {}))
    target = tmp_path / "page.html"
    assert run("explore", tmp_path / "run", "--export", target).returncode == 0
    page = open_page(target.as_uri() + "#codes=1:0.9&pose=1,1")
    assert page.get_attribute("#zoom", "aria-pressed") == "true"  # the data fills a small part of the circle
    drag(page, "#pad", (0.5, 0.5), (1.0, 0.0))
    settle(page)
    torch.testing.assert_close(state_of(page, 3)[1], torch.tensor([[1.12, 1.12]]), atol=0.01, rtol=0)
    page.click('#walks [data-kind="0"]')
    seen = set()
    for _ in range(12):
        page.wait_for_timeout(100)
        seen.add(float(page.locator("#pose-values input").first.input_value()))
    assert len(seen) > 3
    assert 0.899 <= min(seen) <= max(seen) <= 1.101
    page.click("#whole")
    for _ in range(200):  # the page's own rules forbid that the browser evaluates a text again and again
        if abs(float(page.locator("#pose-values input").first.input_value()) - 1) > 0.11:
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail("the walk stays in the zoomed range")
    page.click('#walks [data-kind="0"]')
    page.click("#zoom")
    page.locator("#pad").scroll_into_view_if_needed()
    settle(page)
    drag(page, "#pad", (0.5, 0.5), (0.6, 0.4))
    settle(page)
    torch.testing.assert_close(state_of(page, 3)[1], torch.tensor([[0.1, 0.1]]) * 2 * torch.pi, atol=0.05, rtol=0)
