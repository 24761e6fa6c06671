"""Damaged models: bytes changed under the old seal, or contents changed and sealed anew."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import torch
from formats import Case
from hostile import FLOATS, INTEGERS, damage, to_json, tree
from samples import Samples

from liesparse.files import read_sealed, write_sealed

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def sealed_file(rng: Random, samples: Samples, folder: Path) -> Case:
    """Spoil a sealed file in one of three ways."""
    kind = rng.choice(list(samples.sealed))
    good, path = samples.sealed[kind], folder / "model.safetensors"
    content, how = good.read_bytes(), rng.random()
    if how < 0.3:
        path.write_bytes(damage(content, rng))
        return "damaged_model", (kind, str(path))
    if how < 0.5:
        (length,) = struct.unpack("<Q", content[:8])
        header = to_json(tree(json.loads(content[8 : 8 + length]), rng), rng)
        size = len(header) if rng.random() < 0.9 else rng.choice(INTEGERS) % 2**64
        path.write_bytes(struct.pack("<Q", size) + header + content[8 + length :])
        return "damaged_model", (kind, str(path))
    header, tensors = read_sealed(good, kind)
    for _ in range(rng.randint(1, 2)):
        if rng.random() < 0.5:
            spoiled = tree(header, rng)
            header = spoiled if isinstance(spoiled, dict) else header
        else:
            name = rng.choice(list(tensors))
            tensors = tensors | {name: other_tensor(tensors[name], rng)}
    try:
        write_sealed(path, kind, header, tensors)
    except (ValueError, TypeError):  # what cannot be written needs no reading
        path.write_bytes(damage(content, rng))
        return "damaged_model", (kind, str(path))
    return "resealed_model", (kind, str(path))


def other_tensor(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Change the values, the type or the shape of a tensor."""
    how = rng.randrange(7)
    if how == 0:
        return tensor.to(rng.choice(DTYPES))
    if how == 1:
        return tensor.flatten()
    if how == 2:
        return tensor[: rng.randint(0, 2)] if tensor.ndim else tensor
    if how == 3:
        return tensor.repeat([rng.choice((1, 2)) for _ in tensor.shape])
    factor: Any = rng.choice(FLOATS if tensor.is_floating_point() else INTEGERS[:12])
    changed = tensor.clone()
    factor = torch.tensor(factor, dtype=torch.float64 if tensor.is_floating_point() else torch.int64).to(tensor.dtype)
    if how == 4 or not changed.numel():
        return changed * factor
    if how == 5:
        changed.view(-1)[rng.randrange(changed.numel())] = factor
        return changed
    return changed.T.contiguous() if changed.ndim == 2 else changed
