"""Every how-to is a script: run each on a small scale, and see that it prints and draws what its page shows."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

HOWTOS = Path(__file__).parents[2] / "docs" / "howto"
SMALL = {
    "discover": {"n_images": 2000, "n_epochs": 2, "n_test": 100},
    "canonicalize": {"n_images": 2000, "n_epochs": 2, "n_test": 100},
    "classify": {"n_images": 2000, "n_epochs": 2, "n_test": 100},
    "three": {"n_images": 1000, "n_epochs": 2, "n_test": 300, "seeds": (0,)},
    "prior": {"data": "mnist-mini:n=400,n_test=200", "n_epochs": 1},
}


@pytest.mark.parametrize("name", SMALL)
def test_script_prints_the_numbers_and_draws_the_picture(name, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(HOWTOS))
    monkeypatch.delitem(sys.modules, "common", raising=False)
    spec = importlib.util.spec_from_file_location(f"howto_{name}", HOWTOS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(tmp_path, **SMALL[name])
    picture = tmp_path / f"howto-{name}.png"
    assert picture.stat().st_size > 5000
    page = (HOWTOS / f"{name}.md").read_text()
    assert f"../images/howto-{name}.png" in page
    blank = re.compile(r"[\d.,]+")
    printed = [blank.sub("#", line) for line in capsys.readouterr().out.splitlines() if "Look at" not in line]
    shown = blank.sub("#", page)
    assert printed
    for line in printed:  # the page shows the same lines, with the numbers of the full run
        assert line in shown


def test_every_page_has_a_script_and_a_picture():
    for page in HOWTOS.glob("*.md"):
        assert page.with_suffix(".py").is_file()
        assert (HOWTOS.parent / "images" / f"howto-{page.stem}.png").is_file()
