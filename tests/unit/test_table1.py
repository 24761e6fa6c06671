"""Table 1: the plan, cells that are kept, the figures side by side; with tiny data and one epoch."""

import gzip
import json
from dataclasses import replace

import pytest
import torch

from liesparse.data import load_mnist
from liesparse.reproduce import table1
from liesparse.reproduce.parts import run
from liesparse.reproduce.table1 import ROWS, flat_cells, plan, summarize, table
from liesparse.settings import load_recipe


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(table1, "N_TRAIN", 300)
    monkeypatch.setattr(table1, "N_TEST", 60)
    monkeypatch.setattr(table1, "N_MONITORED", 20)


def quick(name):
    recipe = load_recipe(name)
    start = "data" if recipe.start == "pairs" else recipe.start  # pairs take seconds, and are tried elsewhere
    return replace(recipe, start=start, learning=replace(recipe.learning, n_epochs=1))


@pytest.fixture
def recipes():
    return {name: {"translation": quick(name)} for name in ("paper", "best")}


def collect(recipes, folder, method=None):
    told = []
    jobs = [job for job in plan(["translation"], recipes, 1, folder) if method in (None, job.names[1])]
    found = list(run(jobs, folder, told.append))
    return found, told


def test_the_rows_are_the_papers():
    facts = {name: (row.model.n_components, row.model.sparsity, row.paper_lsc) for name, row in ROWS.items()}
    assert facts == {
        "translation": (10, 10.0, 28.5),
        "rotation-scaling": (10, 10.0, 20.5),
        "mnist-10": (10, 10.0, 4.8),
        "mnist-100": (100, 1.0, 16.7),
    }


@pytest.mark.slow
def test_the_whole_table_of_one_row(recipes, tmp_path):
    found, told = collect(recipes, tmp_path)
    by_method = {job.names[1]: cell for job, cell in found}
    assert set(by_method) == {"known-group", "scikit-learn", "sparse-coding", "paper", "best"}
    assert max(step.share for step in told) == 1
    cells = flat_cells(found, recipes)
    keys = {"row", "recipe", "seed", "epochs", "lsc_snr", "sparse_coding_snr", "lsc_active_codes", "templates_alive"}
    assert all(keys | {"seconds"} <= cell.keys() for cell in cells)
    assert [cell["recipe"] for cell in cells] == ["paper", "best"]
    assert cells[0]["sparse_coding_snr"] == by_method["sparse-coding"]["sparse_coding_snr"]
    history = by_method["best"]["history"]
    assert {"objective", "snr", "templates_alive", "posterior_width", "multimodal_share"} <= history[0].keys()
    lines = table(found, ["translation"], recipes)
    assert lines[0] == ["row", "published", "paper", "best", "published SC", "our SC", "scikit-learn"]
    assert lines[1][:2] == ["translation", "28.5"]


def test_finished_cells_are_not_computed_again(recipes, tmp_path):
    [(_, first)], _ = collect(recipes, tmp_path, "best")
    [(_, again)], told = collect(recipes, tmp_path, "best")
    assert again == json.loads(json.dumps(first))
    assert told == []
    other = {"best": {"translation": recipes["best"]["translation"].with_values({"learning.first_memory": 20.0})}}
    _, told = collect(other, tmp_path, "best")
    assert told  # other settings are another cell


def test_a_baseline_with_other_settings_is_computed_again(recipes, tmp_path, monkeypatch):
    collect(recipes, tmp_path, "sparse-coding")
    assert collect(recipes, tmp_path, "sparse-coding")[1] == []
    monkeypatch.setitem(ROWS, "translation", replace(ROWS["translation"], sparse_coding_epochs=1))
    assert collect(recipes, tmp_path, "sparse-coding")[1]


def test_half_a_file_is_computed_again(recipes, tmp_path):
    (tmp_path / "translation.sparse-coding.0.json").write_text('{"row": "transl')
    [(job, cell)], told = collect(recipes, tmp_path, "sparse-coding")
    assert job.file_name == "translation.sparse-coding.0.json"
    assert told
    assert cell["sparse_coding_snr"] > 1


def test_summary():
    assert summarize([]) == "-"
    assert summarize([3.14159]) == "3.14"
    assert summarize([1.0, 2.0, 6.0]) == "3.00 (1.00-6.00)"
    assert summarize([10.0, 20.0]) == "15.0 (10.0-20.0)"


@pytest.mark.parametrize("compressed", [True, False])
def test_mnist_is_read_from_a_folder(tmp_path, compressed):
    pixels = torch.randint(1, 255, (3, 784), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    content = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 28, 28)) + pixels.numpy().tobytes()
    name = "t10k-images-idx3-ubyte" + (".gz" if compressed else "")
    (tmp_path / name).write_bytes(gzip.compress(content) if compressed else content)
    images = load_mnist("test", tmp_path)
    assert images.shape == (3, 784)
    torch.testing.assert_close(images.norm(dim=1), torch.ones(3))
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte.gz in .*--data-dir"):
        load_mnist("train", tmp_path)


def test_a_file_that_is_cut_short(tmp_path):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03" + b"\x00\x00\x00\x09" * 3 + b"12")
    with pytest.raises(ValueError, match=r"MNIST file: expected an idx file of images, .* cut short"):
        load_mnist("test", tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(5000))[:20])
    with pytest.raises(ValueError, match=r"MNIST file: expected an idx file of images, .* cut short"):
        load_mnist("test", tmp_path)
