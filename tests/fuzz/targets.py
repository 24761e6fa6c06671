"""What is fed with damaged inputs: loaders, commands and routes. Each accepts, or refuses in our words."""

from __future__ import annotations

import math
import os
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from samples import Samples
from starlette.testclient import TestClient

import liesparse
from liesparse import LieSparseCoder, SparseCoder, ToroidalSubgroup
from liesparse.checkpoint import load_checkpoint
from liesparse.data import load_data, load_images
from liesparse.files import Sealed, read_sealed
from liesparse.run_directory import load_run, measure
from liesparse.settings import load_recipe
from liesparse.web import server, session
from shell import run

HERE = str(Path(liesparse.__file__).parent)
MEMORY = ("allocate memory", "out of memory", "not enough memory", "unable to allocate", "alloc of size")
LONGEST = 4000  # characters of a message


class FindingError(Exception):
    """Something that must not happen: its kind, and what there is to know."""


def is_memory(text: str) -> bool:
    """Tell whether memory ran out."""
    return any(words in text.lower() for words in MEMORY) or "MemoryError" in text


def judge(error: Exception) -> str:
    """Return "refused" for an error in our own words; raise a finding for any other."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, MemoryError) or is_memory(str(error)):
        raise FindingError("memory", trace)
    own = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(HERE)
    if not isinstance(error, ValueError | OSError) or not (
        own or " expected " in str(error) or isinstance(error, OSError)
    ):
        raise FindingError("traceback", trace)
    if len(str(error)) > LONGEST or not str(error).replace("\n", "").isprintable():
        raise FindingError("message", trace[-3 * LONGEST :])
    return "refused"


def command(*words: str, cwd: Path) -> str:
    """Run a command in this process."""
    done = run(*words, cwd=cwd)
    said = done.stdout + done.stderr
    if "Traceback" in said:
        raise FindingError("memory" if is_memory(said) else "traceback", said)
    if is_memory(said):
        raise FindingError("memory", said)
    clean = said.replace("\n", "").replace("\t", "").isprintable() or done.returncode == 2  # 2: typer's own words
    if not clean or max(map(len, said.splitlines()), default=0) > 3 * LONGEST:
        raise FindingError("message", repr(said[: 2 * LONGEST]))
    return "refused" if done.returncode else "accepted"


class Targets:
    """All of them, by name."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self._client: TestClient | None = None

    def call(self, name: str, arguments: tuple[Any, ...], folder: Path) -> str:
        """Feed one input; return "accepted" or "refused"."""
        try:
            return getattr(self, name)(folder, *arguments) or "accepted"
        except FindingError:
            raise
        except Exception as error:
            return judge(error)

    def load_data(self, _folder: Path, spec: str) -> None:
        found = load_data(spec, download=False)
        if not math.isfinite(float(found.train.sum() + found.test.sum())):
            raise FindingError("not finite", spec)

    def load_images(self, _folder: Path, spec: str) -> None:
        load_images(spec, (8, 8), download=False)

    def preview(self, folder: Path, spec: str) -> str:
        return command("data", "preview", "--out", str(folder / "preview.png"), "--", spec, cwd=folder)

    def arguments(self, folder: Path, *words: str) -> str:
        return command(*words, cwd=folder)

    def recipe(self, folder: Path, path: str) -> str:
        load_recipe(path)
        return command("train", "./missing.npy", "--out", str(folder / "out"), "--recipe", path, cwd=folder)

    def open_run(self, _folder: Path, path: str) -> None:
        load_run(Path(path))

    def explore(self, folder: Path, path: str) -> str:
        return command("explore", path, "--export", str(folder / "page.html"), cwd=folder)

    def evaluate(self, _folder: Path, path: str) -> None:
        run = load_run(Path(path))
        measure(run.coder, run.baseline, self.samples.images[:4])

    def damaged_model(self, _folder: Path, kind: str, path: str) -> None:
        """Changed bytes under an old seal: refused, unless nothing that counts has changed."""
        found = self._load(kind, path)
        good = read_sealed(self.samples.sealed[kind], kind)
        if found.header != good.header or found.tensors.keys() != good.tensors.keys():
            raise FindingError("damaged model accepted", f"{kind} {path}")
        if not all(found.tensors[name].equal(tensor) for name, tensor in good.tensors.items()):
            raise FindingError("damaged model accepted", f"{kind} {path}")

    def _load(self, kind: str, path: str) -> Sealed:
        if kind == "checkpoint":
            load_checkpoint(Path(path))
        else:
            {"LieSparseCoder": LieSparseCoder, "SparseCoder": SparseCoder}.get(kind, ToroidalSubgroup).load(path)
        return read_sealed(path, kind)

    def resealed_model(self, _folder: Path, kind: str, path: str) -> None:
        """Other contents under a new seal: refused, or a model that works."""
        images = self.samples.images[:3]
        if kind == "checkpoint":
            load_checkpoint(Path(path))
            return
        if kind == "ToroidalSubgroup":
            found = [ToroidalSubgroup.load(path).infer_pose(images, images.flip(0))]
        elif kind == "SparseCoder":
            coder = SparseCoder.load(path)
            found = [coder.transform(images), coder.reconstruct(images), coder.score_samples(images)]
        else:
            model = LieSparseCoder.load(path)
            found = [model.transform(images), model.reconstruct(images), model.score_samples(images)]
        if not all(np.isfinite(np.asarray(values)).all() for values in found):
            raise FindingError("damaged model accepted", f"{kind} {path}: results that are not finite")

    def request(self, _folder: Path, method: str, url: str, headers: dict[str, str], content: bytes) -> str:
        """Send a request to the server's routes, in this process."""
        if self._client is None:
            client = TestClient(server.make_app(self.samples.session), base_url="http://localhost")
            self._client = client.__enter__()
        found = self._client.request(method, url, headers=headers, content=content)
        if found.status_code >= 500 and found.status_code != 503:
            raise FindingError("traceback", f"{method} {url} {found.status_code} {found.text}")
        return "refused" if found.status_code >= 400 else "accepted"

    def upload(self, _folder: Path, content: bytes) -> None:
        session.read_upload(self.samples.session, content)


def without_network() -> None:
    """Nothing is fetched: neither by sockets, nor by other programs."""
    import socket

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no network here")

    socket.create_connection = socket.getaddrinfo = refuse  # type: ignore[assignment]
    os.environ["PATH"] = ""
    torch.set_num_threads(1)
