"""docs/equations.md names only functions and tests that exist; docs/api.md is what the docstrings say."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import liesparse

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_the_api_reference_is_up_to_date():
    command = [sys.executable, "-c", "import make_api; print(make_api.make(), end='')"]
    made = subprocess.run(command, cwd=ROOT / "docs", capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), "Run python docs/make_api.py."
    for name in set(liesparse.__all__) - {"__version__"}:
        assert f"### `{name}`" in made
