"""Models on disk: one safetensors file with the settings as JSON in its header; never pickle."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from liesparse._checks import reject
from liesparse.model import Parameters

FORMAT = "liesparse-model"
FORMAT_VERSION = 1
_TENSORS = ("group_basis", "dictionary", "frequencies", "pose_prior")


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary name beside ``path``, sync, and rename: nobody ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:  # with the user's own permissions
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` as readable JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def save_model(path: str | Path, parameters: Parameters, settings: Any = None) -> None:
    """Save a model as one safetensors file, with how it was learned: a mapping or a dataclass of plain values."""
    parameters.validate()
    plain = asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else dict(settings or {})
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "noise_std": parameters.noise_std,
        "sparsity": parameters.sparsity,
        "settings": plain,
    }
    tensors = {name: getattr(parameters, name).contiguous() for name in _TENSORS}
    content = safetensors.torch.save(tensors, metadata={FORMAT: json.dumps(header)})
    write_atomically(Path(path), content)


def load_model(path: str | Path) -> tuple[Parameters, dict[str, Any]]:
    """Load a model and the settings saved with it; a file that is not one gives a ``ValueError``."""
    fix = "Pass a model.safetensors that liesparse wrote."
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(FORMAT, "null"))
            present = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in _TENSORS if name in present}
    except FileNotFoundError:
        reject("path", "an existing model file", str(path), fix)
    except (safetensors.SafetensorError, json.JSONDecodeError, OSError) as error:
        reject("path", "a readable safetensors file", f"{path} ({error})", fix)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        reject("path", "a liesparse model", f"{path}, which is something else", fix)
    if header.get("version") != FORMAT_VERSION:
        reject("path", f"format version {FORMAT_VERSION}", f"version {header.get('version')}", "Update liesparse.")
    missing = [name for name in _TENSORS if name not in tensors]
    missing += [name for name in ("noise_std", "sparsity") if name not in header]
    if missing:
        reject("path", "a complete model", f"{path} without {', '.join(missing)}", fix)
    parameters = Parameters(**tensors, noise_std=header["noise_std"], sparsity=header["sparsity"])
    return parameters.validate(), header.get("settings", {})
