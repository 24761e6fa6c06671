"""A server, a browser, and pages that must log no errors."""

from pathlib import Path

import pytest

from e2e.explorer.browsing import BROWSER, FLAGS, serving, settle
from liesparse.web.session import open_session


@pytest.fixture(scope="module")
def session():
    return open_session()


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
    """Open pages that must log no errors, except those that a test expects."""
    contexts, errors = [], []

    def visit(where, *, expected="", **settings):
        context = browser.new_context(**{"viewport": {"width": 1240, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))

        def check(message):
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                errors.append(message.text)

        page.on("console", check)
        page.goto(where)
        page.wait_for_selector("body[data-ready]")
        settle(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert errors == []


def pytest_collection_modifyitems(items):
    reason = "no browser: install Chromium (Debian: apt install chromium) to run the explorer's tests"
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)
            if BROWSER is None:
                item.add_marker(pytest.mark.skip(reason=reason))
