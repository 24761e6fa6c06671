"""Take the README's pictures of the explorer: `python docs/make_screenshots.py`, with Chromium on the path."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from liesparse.web.session import open_session

FOLDER = Path(__file__).parent / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DRAWN = 1  # the shape that is traced in the dark picture


def main() -> None:
    """Take the explorer by day, by night with a drawing, and on a phone."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    command = [sys.executable, "-m", "liesparse", "explore", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)

        def visit(scheme: str, width: int, height: int, scale: float, link: str = "") -> Any:
            size = {"width": width, "height": height}
            page = browser.new_page(color_scheme=scheme, viewport=size, device_scale_factor=scale)  # type: ignore[arg-type]
            page.goto(address + link)
            page.wait_for_selector("body[data-ready]")
            page.wait_for_timeout(500)
            return page

        def take(page: Any, name: str) -> None:
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.save(FOLDER / f"explorer-{name}.png", optimize=True)

        day = visit("light", 1240, 1250, 1)
        day.click("#examples button:nth-child(18)")
        day.wait_for_timeout(500)
        take(day, "light")
        night = visit("dark", 1240, 1250, 1)
        night.click("#clear")
        trace(night)
        night.wait_for_timeout(1500)
        take(night, "dark")
        phone = visit("light", 390, 844, 1.5)
        phone.click("#examples button:nth-child(18)")
        phone.evaluate("scrollTo(0, 0)")
        phone.wait_for_timeout(500)
        take(phone, "phone")
        browser.close()
        server.terminate()


def trace(page: Any) -> None:
    """Draw over the bright pixels of a shape, a little to the side of where it lies."""
    shape = open_session().coder.model_.dictionary[:, DRAWN].reshape(28, 28)
    box = page.locator("#sketch").bounding_box()
    for row, column in (shape > 0.6 * shape.max()).nonzero().tolist():
        x, y = (column + 3.5) / 28, (row - 1.5) / 28
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.down()
        page.mouse.up()


if __name__ == "__main__":
    main()
