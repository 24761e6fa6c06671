"""The page as one file: nothing in it runs but its own script, and no text can change that."""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import pytest

from liesparse.web.html import export_page, make_document


class Reader(HTMLParser):
    """Collect elements with their text, as a browser parts them."""

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


def test_an_exported_page_is_small_and_whole(demo, tmp_path):
    path = tmp_path / "new folder" / "page.html"
    export_page(demo, path)
    assert path.read_text(encoding="utf-8") == make_document(demo, live=False).content
    assert path.stat().st_size < 800_000
    assert "{{" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", path.read_text(), flags=re.DOTALL)
