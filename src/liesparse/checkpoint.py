"""Models and unfinished runs on disk: what :mod:`liesparse.files` seals, and how to make it whole again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liesparse import em, stiefel
from liesparse._checks import reject
from liesparse.files import Sealed, need, read_sealed, write_sealed
from liesparse.groups import Basis
from liesparse.model import TENSORS, Parameters
from liesparse.state import State

_STATE = ("momentum", "second_moment", "moved", "returned", "gram", "random")
_OUTER = ("outer_basis", "outer_frequencies")
_HASHES = {"data": "other images", "start": "another start", "random": "another seed"}  # a hash tells nobody anything
_NAMES = f"step-{9 * '[0-9]'}.safetensors"


def versions() -> dict[str, str]:
    """Return what a result may depend on."""
    return {"liesparse": version("liesparse"), "torch": torch.__version__}


def save_model(path: str | Path, parameters: Parameters, settings: Any = None) -> None:
    """Save a model as one safetensors file, with how it was learned: a mapping or a dataclass of plain values."""
    parameters.validate()
    plain = asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else dict(settings or {})
    header, tensors = pack_parameters(parameters)
    write_sealed(path, "model", header | {"settings": plain, "versions": versions()}, tensors)


def load_model(path: str | Path) -> tuple[Parameters, dict[str, Any]]:
    """Load a model and the settings saved with it; a file that is not one gives a ``ValueError``."""
    sealed = read_sealed(path, "model")
    return unpack_parameters(sealed, path), sealed.header.get("settings", {})


def pack_parameters(parameters: Parameters) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split parameters into what JSON holds and what safetensors holds."""
    header = {"noise_std": float(parameters.noise_std), "sparsity": float(parameters.sparsity)}
    outer = {} if parameters.outer is None else dict(zip(_OUTER, parameters.outer, strict=True))
    return header, {name: getattr(parameters, name) for name in TENSORS} | outer


def unpack_parameters(sealed: Sealed, path: str | Path) -> Parameters:
    """Make parameters from a file and check them."""
    numbers = ("noise_std", "sparsity")
    need(sealed, path, dict.fromkeys(numbers, float), TENSORS)
    parts: dict[str, Any] = {name: sealed.tensors[name] for name in TENSORS}
    if any(name in sealed.tensors for name in _OUTER):
        need(sealed, path, {}, _OUTER)
        parts["outer"] = Basis(*(sealed.tensors[name] for name in _OUTER))
    return Parameters(**parts, **{name: sealed.header[name] for name in numbers}).validate()


class Checkpoint(NamedTuple):
    """An unfinished run: where it stands, what happened, and what it was started with."""

    state: State
    history: list[dict[str, Any]]
    identity: dict[str, Any]  # settings, hash of the data and of the start: what must be equal to go on


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Write a checkpoint beside the earlier ones, then delete all but the last ``keep``."""
    state = checkpoint.state
    header, tensors = pack_parameters(state.parameters)
    header |= {name: getattr(state, name) for name in ("step", "place", "epoch", "code_sum")}
    header |= {"adam_step": state.adam.step, "versions": versions()}
    header |= {"history": checkpoint.history, "identity": checkpoint.identity}
    tensors |= {"momentum": state.adam.momentum, "second_moment": state.adam.second_moment, "random": state.random}
    path = folder / f"step-{state.step:09d}.safetensors"
    write_sealed(path, "checkpoint", header, tensors | state.averages._asdict())
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest first; names that were never finished do not count."""
    return sorted(folder.glob(_NAMES))


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed process had begun to write."""
    for path in folder.glob(f".{_NAMES}.*"):
        path.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; the model it holds also counts as the last good one."""
    sealed = read_sealed(path, "checkpoint")
    counts = dict.fromkeys(("step", "place", "epoch", "adam_step"), int)
    need(sealed, path, counts | {"code_sum": float, "history": list, "identity": dict}, _STATE)
    parameters, (header, tensors) = unpack_parameters(sealed, path), sealed
    averages = em.Averages(*(tensors[name] for name in em.Averages._fields))
    shapes = [value.shape for value in em.Averages.zero(parameters)]
    if [value.shape for value in averages] != shapes or tensors["momentum"].shape != parameters.group_basis.shape:
        reject("path", "a checkpoint whose parts fit", str(path), "Use another copy.")
    adam = stiefel.AdamState(header["adam_step"], tensors["momentum"], tensors["second_moment"])
    step, place, epoch = (header[name] for name in ("step", "place", "epoch"))
    state = State(parameters, adam, averages, step, place, epoch, tensors["random"], header["code_sum"], parameters)
    return Checkpoint(state, header["history"], header["identity"])


def load_latest(folder: Path) -> Checkpoint | None:
    """Return the last checkpoint of a folder, or None if there is none."""
    found = list_checkpoints(folder)
    return load_checkpoint(found[-1]) if found else None


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Name what differs between two identities, one line for each value."""
    names = [name for name in sorted(set(ours) | set(theirs)) if ours.get(name) != theirs.get(name)]
    return [_HASHES.get(name) or f"{name} = {theirs.get(name)!r}, not {ours.get(name)!r}" for name in names]
