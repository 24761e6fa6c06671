"""Tutorial and how-tos are scripts: run each on a small scale, and see that it prints and draws what its page shows."""

import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted([*DOCS.glob("howto/*.py"), *DOCS.glob("tutorial/*.py")])
SMALL = {
    "first_model": {"N_IMAGES = 20_000": "N_IMAGES = 190", "N_EPOCHS = 10": "N_EPOCHS = 2"},
    "discover": {"= 20_000, 10, 1000": "= 190, 9, 100"},
    "canonicalize": {"= 20_000, 10, 1000": "= 190, 9, 100"},
    "classify": {"= 20_000, 10, 1000": "= 190, 9, 100"},
    "particles": {"N_IMAGES = 1500": "N_IMAGES = 60", "random_state=0).fit": "random_state=0, n_epochs=1).fit"},
    "nuisance": {"= 4000, 2, 500": "= 40, 1, 30"},
    "three": {"= 20_000, 6, 1000": "= 190, 3, 200", "(1,), 10_000": "(1,), 190"},
    "layer": {"= (0, 1, 2), 1000, 1000": "= (0,), 150, 200"},
    "prior": {"n=1500,n_test=500": "n=400,n_test=200", "N_EPOCHS = 9": "N_EPOCHS = 1"},
}
NUMBER = re.compile(r"[+-]?[\d.,]+")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a script with small numbers in place of those of its page; return its variables and its figures."""

    def run(script):
        source = script.read_text(encoding="utf-8")
        for full, small in SMALL[script.stem].items():
            assert source.count(full) == 1
            source = source.replace(full, small)
        folder = tmp_path_factory.mktemp(script.stem)
        copy = folder / script.name
        copy.write_text(source, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("LIESPARSE_DOCS", "gallery")
            patch.setattr(plt, "show", lambda: None)
            plt.switch_backend("agg")
            plt.close("all")
            names = runpy.run_path(str(copy))
            sizes = []
            for number in plt.get_fignums():
                plt.figure(number).savefig(folder / f"{number}.png")
                sizes.append((folder / f"{number}.png").stat().st_size)
            plt.close("all")
        return names, sizes

    return run


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_prints_the_numbers_and_draws_the_picture(script, run, capsys):
    names, sizes = run(script)
    assert sizes
    assert min(sizes) > 4000
    printed = [NUMBER.sub("#", line) for line in capsys.readouterr().out.splitlines()]
    assert printed
    page = NUMBER.sub("#", script.read_text(encoding="utf-8"))
    if "When this page was written" in page:  # the page shows the same lines, with the numbers of the full run
        assert all(line in page for line in printed)
    if script.stem == "layer":
        assert names["outcomes"][0].correlation > 0.95  # a short run finds the rotation
        check_the_true_angles(names)


def check_the_true_angles(layer):
    picture = torch.zeros(1, 28, 28)
    picture[0, 13:15, 20:24] = 1.0  # on the right
    turned = layer["turn"](picture, torch.tensor([torch.pi / 2])).view(28, 28)
    assert turned[4:8, 13:15].sum() > 0.9 * picture.sum()  # at the top: counter-clockwise
    pairs = layer["draw_pairs"](20, blend=False, generator=torch.Generator().manual_seed(0))
    again = layer["turn"](pairs.first.view(-1, 28, 28), pairs.turns)
    back = layer["turn"](pairs.first.view(-1, 28, 28), -pairs.turns)
    assert (again - pairs.second).square().mean() < 0.1 * (back - pairs.second).square().mean()


def test_every_script_is_run_here_and_opens_with_a_title():
    assert {script.stem for script in SCRIPTS} == set(SMALL)
    for script in SCRIPTS:
        lines = script.read_text(encoding="utf-8").splitlines()
        assert lines[2] == "=" * len(lines[1])
