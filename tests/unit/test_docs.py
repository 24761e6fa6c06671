"""The documentation names only what exists, its code runs, and its picture of the rooms is the import contract."""

import importlib
import inspect
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import liesparse
from liesparse import metrics, posterior
from liesparse.cli import app
from liesparse.data import datasets

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (ROOT / "docs" / "equations.md").read_text()
TESTS = sorted(set(re.findall(r"`((?:laws|oracle|unit|e2e)/\w+\.py::\w+)`", PAGE)))
ROWS = [line.split("|") for line in PAGE.replace(r"\|", "∣").splitlines() if line.startswith("|")][2:]
FUNCTIONS = sorted({name for row in ROWS for name in re.findall(r"`([\w.]+)`", row[3])})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_exists(name):
    module, function = name.rsplit(".", 1)
    assert hasattr(importlib.import_module(f"liesparse.{module}"), function)


@pytest.mark.parametrize("name", TESTS)
def test_test_exists(name):
    file, function = name.split("::")
    assert re.search(rf"^def {function}\(", (ROOT / "tests" / file).read_text(), flags=re.MULTILINE)


def test_every_row_has_a_function_and_a_test():
    assert len(ROWS) > 25
    for row in ROWS:
        assert "`" in row[3] or "the same" in row[3], row
        assert "::" in row[4], row


@pytest.mark.parametrize(
    "equation", ["eq. 1", "eq. 2", "eq. 3", "eq. 4", "eq. 5", "eq. 6", "app. A", "app. B", "app. C", "app. D", "app. E"]
)
def test_every_numbered_equation_and_appendix_is_listed(equation):
    assert any(equation in row[1] for row in ROWS)


LISTED = re.findall(r"^   (liesparse\.[\w.]+)$", (DOCS / "api.rst").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("path", LISTED)
def test_the_api_reference_lists_what_exists_and_has_a_docstring(path):
    module, name = path.rsplit(".", 1)
    assert inspect.getdoc(getattr(importlib.import_module(module), name))


def test_the_api_reference_lists_all_that_the_package_exports():
    assert len(LISTED) == len(set(LISTED))
    assert {f"liesparse.{name}" for name in liesparse.__all__} - {"liesparse.__version__"} <= set(LISTED)


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


PAGES = ("README.md", "CONTRIBUTING.md", "docs/library.md")
BLOCKS = [(page, number) for page in PAGES for number in range(len(python_blocks(page)))]


@pytest.fixture
def registries():
    """Forget afterwards what a page registered."""
    tables = (metrics._METRICS, posterior._FACTORIES, datasets.DATASETS)
    known = [dict(table) for table in tables]
    yield
    for table, before in zip(tables, known, strict=True):
        table.clear()
        table.update(before)


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_python_in_the_pages_runs(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("liesparse.settings.MOST_EPOCHS", 2)  # and fewer images: the page is not there to wait for
    code = python_blocks(page)[number].replace("30_000", "190")
    exec(compile(code, f"{page}, block {number + 1}", "exec"), {"__name__": "page"})


def test_the_readme_is_short_and_has_its_parts():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert len(python_blocks("README.md")[0].splitlines()) <= 12
    for word in ("template", "pose", "torus"):
        assert f"A **{word}** " in text
    assert text.count("\n|---") == 1  # one table


SITE = [*DOCS.glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#]+?)(?:#[\w-]*)?\)", text):
        if not link.startswith(("http", "generated/")):  # generated/ is checked when the site is built
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_page_is_in_the_site():
    pages = {page.stem for page in (*DOCS.glob("*.md"), *DOCS.glob("*.rst"))} - {"index"}
    trees = "".join(
        block for page in DOCS.glob("*.md") for block in re.findall(r"```{toctree}.*?```", page.read_text(), re.S)
    )
    assert pages <= set(trees.split())


def test_every_command_is_described():
    table = (DOCS / "commands.md").read_text(encoding="utf-8")
    described = {
        name.split()[0]
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", cell)
    }
    assert described == set(get_command(app).commands)


def layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in row.split("|")] for row in rows]


def test_the_picture_of_the_rooms_is_the_import_contract():
    drawn = runpy.run_path(str(DOCS / "make_architecture.py"))["make"]()
    assert drawn == (DOCS / "images" / "architecture.svg").read_text(encoding="utf-8"), "Run docs/make_architecture.py."
    heights = {}
    for height, room in re.findall(r'y="([\d.]+)" font-weight="600" font-size="13">(\w+)<', drawn):
        heights.setdefault(float(height), []).append(room)
    assert [heights[height] for height in sorted(heights)] == layers()


def test_the_map_in_contributing_is_the_import_contract():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text[text.index("```\ncli ") + 4 :].split("\n```")[0].splitlines()
    assert [re.split(r"  +", row)[0].split(", ") for row in rows] == layers()


def test_the_version_is_in_one_place():
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "docs/conf.py"):
        assert liesparse.__version__ not in (ROOT / name).read_text(encoding="utf-8")
    assert f"## [{liesparse.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
