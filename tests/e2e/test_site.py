"""The documentation site builds without a warning, and every link inside it leads somewhere; no script is run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("sphinx_gallery")
pytest.importorskip("pydata_sphinx_theme")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("generated"))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    options = ["--fail-on-warning", "--keep-going", "--nitpicky", "-D", "plot_gallery=0"]
    command = [sys.executable, "-m", "sphinx", *options, str(folder / "docs"), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_link_leads_somewhere(site):
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if "_static" not in page.parts}
    names = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    assert len(pages) > 80
    broken = []
    for page, text in pages.items():
        for link in re.findall(r'<(?:a|img|link)\b[^>]*?(?:href|src)="([^"]+)"', text):
            path, fragment = urldefrag(unquote(link))
            if re.match(r"[a-z]+:", path):
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            if not target.exists() or (fragment and target in names and fragment not in names[target]):
                broken.append((page.name, link))
    assert not broken


def test_each_script_is_offered_as_a_notebook(site):
    scripts = [*(ROOT / "docs").glob("howto/*.py"), *(ROOT / "docs").glob("tutorial/*.py")]
    assert {path.stem for path in site.rglob("*.ipynb")} == {path.stem for path in scripts}
