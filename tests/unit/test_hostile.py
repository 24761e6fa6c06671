"""Files and words from somebody who means harm: one clear line, little memory, and nothing of theirs on the screen."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import shell
from liesparse import SparseCoder, ToroidalSubgroup
from liesparse.data import load_data, parse_spec, pictures
from liesparse.files import read_sealed, write_sealed
from liesparse.settings import load_recipe
from liesparse.web import session
from liesparse.web.server import open_socket
from liesparse.web.session import DEMO, open_session

pytestmark = pytest.mark.usefixtures("without_type_checker")


ESCAPE = "\x1b[31mred\x07\u202e"


@pytest.fixture
def baseline(tmp_path):
    """A file of plain sparse coding, and a way to seal it anew with other contents."""
    path = tmp_path / "baseline.safetensors"
    SparseCoder.from_dictionary(torch.eye(12)[:, :3].contiguous(), (3, 4)).save(path)

    def reseal(settings=None, **tensors):
        header, known = read_sealed(path, "SparseCoder")
        header["settings"] |= settings or {}
        write_sealed(path, "SparseCoder", header, known | tensors)
        return path

    return reseal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"components": torch.ones(3, 11)}, "components: expected .* n_pixels = 12"),
        ({"components": torch.ones(12)}, "components: expected"),
        ({"components": torch.full((3, 12), 1e30)}, "components: expected a finite number <= 1e.09"),
        ({"components": torch.ones(0, 12)}, "n_components: expected a whole number >= 1"),
        ({"components": torch.ones(3, 12, dtype=torch.int64)}, "components: expected a floating point"),
        ({"components": torch.ones(3, 12, dtype=torch.bfloat16)}, "with components of torch.bfloat16"),
        ({"components": torch.full((3, 12), float("nan"))}, "components: expected finite numbers"),
        ({"settings": {"noise_std": 0.0}}, "noise_std: expected a finite number"),
        ({"settings": {"noise_std": "much"}}, "noise_std: expected a finite number"),
        ({"settings": {"noise_std": 1e300}}, "noise_std: expected a finite number"),
        ({"settings": {"sparsity": -1}}, "sparsity: expected a finite number"),
        ({"settings": {"n_code_steps": 10**9}}, "n_code_steps: expected a whole number <= 10,000"),
        ({"settings": {"dtype": "int8"}}, "dtype: expected 'float32' or 'float64'"),
        ({"settings": {"dtype": ["float32"]}}, "dtype: expected 'float32' or 'float64'"),
    ],
)
def test_a_damaged_baseline_is_refused(baseline, change, message):
    with pytest.raises(ValueError, match=message):
        SparseCoder.load(baseline(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_basis": torch.ones(12, 4)}, "group_basis: expected orthonormal"),
        ({"group_basis": torch.eye(11, 4)}, r"group_basis: expected .*\(n_pixels = 12"),
        ({"frequencies": torch.tensor([[0], [10**9]])}, "frequencies: expected a finite number"),
        ({"frequencies": torch.tensor([[0.0], [1.0]])}, "frequencies: expected"),
        ({"group_basis": torch.eye(12, 4, dtype=torch.bfloat16)}, "with group_basis of torch.bfloat16"),
    ],
)
def test_a_damaged_subgroup_is_refused(tmp_path, change, message):
    images = np.random.default_rng(0).random((30, 12))
    path = tmp_path / "subgroup.safetensors"
    ToroidalSubgroup(n_irreps=2, multiplicity=1, n_epochs=1, random_state=0).fit(images, images[::-1]).save(path)
    header, tensors = read_sealed(path, "ToroidalSubgroup")
    write_sealed(path, "ToroidalSubgroup", header, tensors | change)
    with pytest.raises(ValueError, match=message):
        ToroidalSubgroup.load(path)


def lines_of(done):
    """Return what was printed, which must hold no control character."""
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert all(character.isprintable() or character == "\n" for character in said), said
    return said


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_no_control_character_of_a_name_reaches_the_screen(tmp_path):
    pixels = np.random.default_rng(0).random((5, 6, 6))
    folder = tmp_path / ESCAPE
    folder.mkdir()
    np.savez(folder / "a.npz", **{ESCAPE: pixels, "other": pixels})
    assert r"\x1b[31mred\x07\u202e" in lines_of(shell.run("data", "preview", folder / "a.npz", cwd=tmp_path))
    (folder / "a.npz").unlink()
    np.save(folder / "b.npy", pixels)
    assert "Look at preview.png" in lines_of(shell.run("data", "preview", folder, cwd=tmp_path))
    assert r"\x1b[31m" in lines_of(shell.run("data", "preview", folder, "--out", folder / "c.png", cwd=tmp_path))
    (folder / "b.npy").unlink()
    (folder / f"{ESCAPE}\n.png").write_bytes(b"noise")
    assert r"\x07\u202e\n.png" in lines_of(shell.run("data", "preview", folder, cwd=tmp_path))

    table = pa.table({f"{ESCAPE}{place}": pa.array(list(pixels.reshape(5, -1))) for place in range(2)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert r"\x1b[31mred" in lines_of(shell.run("data", "preview", tmp_path / "a.parquet", cwd=tmp_path))
    assert r"\x1b" in lines_of(shell.run("explore", folder, "--no-open", cwd=tmp_path))
    assert r"\x1b" in lines_of(shell.run("train", "digits", "--out", f"/proc/{ESCAPE}", cwd=tmp_path))


def test_many_or_long_names_are_told_in_a_few(tmp_path):
    path = tmp_path / "many.npz"
    np.savez(path, **{f"key{place}": np.zeros((2, 2)) for place in range(5000)})
    with pytest.raises(ValueError, match=r"one array of images, got key0, key1, .* and 4,990 more") as refused:
        load_data(str(path))
    assert len(str(refused.value)) < 1000
    np.savez(path, **{"x" * 60_000: np.zeros((2, 2)), "y": np.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"one array of images, got x+…x+") as refused:
        load_data(str(path))
    assert len(str(refused.value)) < 3000
    columns = {f"column{place}": [0.5] for place in range(2000)}
    pq.write_table(pa.table(columns), tmp_path / "many.parquet")
    with pytest.raises(ValueError, match=r"column0, .* and 1,990 more"):
        load_data(str(tmp_path / "many.parquet"))
    with pytest.raises(ValueError, match="one of n, n_test"):
        load_data("translation:" + "x" * 100_000 + "=1")
    done = shell.run("train", "digits", "--set", "x" * 100_000 + "=1", "--out", tmp_path / "run")
    assert len(lines_of(done)) < 3000


MEASURE = """
from pathlib import Path
from liesparse.data import load_data
def peak(): return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
load_data("{}/small:size=28,crop=yes")
before = peak()
try:
    print(load_data("{}/large{}").summary())
except ValueError as error:
    print(error)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
@pytest.mark.parametrize("mode", ["RGBA", "RGB", "L"])
def test_a_large_picture_takes_little_memory(tmp_path, mode):
    """49 megapixels of RGBA are 196 MB once decoded: not a multiple of that."""
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
        Image.new(mode, (64, 64), "white").save(tmp_path / name / "a.png")
    Image.new(mode, (64, 64), "white").save(tmp_path / "small" / "b.png")
    Image.new(mode, (7000, 7000), "white").save(tmp_path / "large" / "b.png", compress_level=1)
    n_bytes = 49_000_000 * (1 if mode == "L" else 4)
    for parameters, most in ((":size=28,crop=yes", n_bytes + 120_000_000), ("", 60_000_000)):
        done = shell.Forked(exec, MEASURE.format(tmp_path, tmp_path, parameters), {}, apart=True).complete()
        said, added = done.stdout.splitlines()
        assert int(added) < most
        assert ("1 image to learn from and 1 to test" if parameters else "at most 1,048,576 pixels") in said


def test_a_run_that_asks_for_many_test_images_opens_soon(tmp_path, monkeypatch):
    folder, asked = tmp_path / "run", []
    shutil.copytree(DEMO, folder)

    def spy(spec, **parameters):
        asked.append(int(parameters.get("n_test", parse_spec(spec).parameters["n_test"])))
        return load_data("translation:n=1,n_test=3")

    monkeypatch.setattr(session, "load_data", spy)
    for n in (7, 10**6, 10**8, 10**18):
        (folder / "run.json").write_text(json.dumps({"data": f"translation:n=5,n_test={n}"}))
        open_session(folder)
    assert asked == [7, *[session.MAX_TEST] * 3]


@pytest.mark.parametrize("host", ["é..ü", "xn--é", "\udcff", "a\0b", " ", "a" * 300, ESCAPE, "", "["])
def test_an_odd_host_is_refused_in_one_line(host):
    with pytest.raises(ValueError, match=r"Cannot listen on|--host: expected") as refused:
        open_socket(host, 0)
    assert str(refused.value).isprintable()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_nothing_stays_where_the_cache_cannot_be_written(tmp_path):
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"), "/dev/null/nowhere")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | places | {"TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "liesparse", "data", "preview", "digits"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "preview.png").exists()
    assert list(temporary.iterdir()) == []


def test_what_the_fuzz_has_found(tmp_path, monkeypatch):
    recipe, header, twice = tmp_path / "a.toml", tmp_path / "a.npy", tmp_path / "a.parquet"
    recipe.write_bytes(b'start = "\xff"')
    with pytest.raises(ValueError, match="recipe: expected a TOML file"):
        load_recipe(recipe)
    header.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2, 2)}")
    with pytest.raises(ValueError, match="a header that is far too long"):  # and no 4 GB for it
        load_data(str(header))
    np.save(tmp_path / "scalar.npy", np.float32(3))
    with pytest.raises(ValueError, match=r"expected shape \(n, height, width\), .* got \(\)"):
        load_data(str(tmp_path / "scalar.npy"))
    with zipfile.ZipFile(tmp_path / "nameless.zip", "w") as archive:
        nameless = zipfile.ZipInfo("x")
        nameless.filename = ""
        archive.writestr(nameless, b"")
    with pytest.raises(ValueError, match="at least 2 pictures, got none"):
        load_data(str(tmp_path / "nameless.zip"))
    monkeypatch.setattr(pictures, "MAX_OTHERS", 2)
    with pytest.raises(ValueError, match="a folder of pictures, got more than 2 other files"):
        load_data(str(tmp_path))
    images = pa.array([[1.0, 2.0, 3.0, 4.0]] * 3, pa.list_(pa.float32()))
    labels = pa.array([0, 1, 2])
    pq.write_table(pa.Table.from_arrays([images, labels, labels], names=["image", "label", "label"]), twice)
    assert len(load_data(str(twice)).train) == 2


def test_a_parquet_file_that_crashes_its_reader_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [[1.0, 2.0]] * 3}), path)
    good, optional, required = path.read_bytes(), b"\x02\x18\x07element", b"\x00\x18\x07element"
    assert good.count(optional) == 1
    path.write_bytes(good.replace(optional, required))  # its histograms of levels no longer fit: pyarrow 26 aborts
    with pytest.raises(ValueError, match=r"expected a parquet file, got .*a\.parquet \(.+\)\. Write or fetch it anew"):
        load_data(str(path))
    path.write_bytes(good)
    assert len(load_data(str(path)).train) == 2


@pytest.mark.parametrize(
    ("end", "said"), [("os.abort()", "pyarrow crashes"), ("raise SystemExit('no room')", "no room")]
)
def test_a_reader_of_parquet_that_ends_early_is_refused(tmp_path, monkeypatch, end, said):
    path, start = tmp_path / "a.parquet", subprocess.Popen
    pq.write_table(pa.table({"image": [[1.0, 2.0]] * 3}), path)
    code = f'import os; print(\'[3, 6, [["image", "lists"]]]\', flush=True); {end}'
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: start([command[0], "-c", code], **how))
    with pytest.raises(ValueError, match=rf"expected a parquet file, got .*a\.parquet \({said}\)"):
        load_data(str(path))
