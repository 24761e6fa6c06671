"""Where computations happen: the one place that names a device.

Everything else makes its tensors where its inputs are. Random numbers are drawn on the CPU and moved, so that a
seed gives the same start everywhere; frequencies stay on the CPU, as they decide sizes.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from liesparse._checks import reject

_CPU = torch.device("cpu")
ALIGNMENT = 64  # bytes, of all that torch's own allocator gives
DRY = torch.device("meta")  # for dry runs: tensors with shapes but without values


def choose_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu", "cuda" or "cuda:1"; "auto" is CUDA if there is any, else the CPU.

    Of several GPUs "auto" and "cuda" take the one that ``torchrun`` gives a process by LOCAL_RANK, else torch's
    current one.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return _CPU
    if name == "mps":
        reject("device", "'auto', 'cpu' or 'cuda'", "'mps', which has no double precision", "Pass 'cpu'.")
    if not isinstance(name, str) or not re.fullmatch(r"cuda(:\d{1,3})?", name):
        reject("device", "'auto', 'cpu', 'cuda' or 'cuda:1'", repr(name), "Pass one of them.")
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if n_gpus == 0:
        reject("device", "a device of this machine", f"{name!r}, but torch sees no GPU", "Pass 'auto' or 'cpu'.")
    _, _, number = name.partition(":")
    index = int(number or os.environ.get("LOCAL_RANK") or torch.cuda.current_device())
    if index >= n_gpus:
        reject("device", f"one of {n_gpus} GPU(s)", f"cuda:{index}", "Pass a lower number, or start fewer processes.")
    return torch.device("cuda", index)


def message_backends() -> str:
    """Return torch.distributed's backend for messages, by where they lie: gloo on CPUs, NCCL on GPUs."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def is_cpu(device: torch.device) -> bool:
    """Tell whether compiled code can read tensors there, and whether looking at values waits for no device."""
    return device.type == _CPU.type


def to_cpu(tensor: Tensor) -> Tensor:
    """Return a result to those who compute no further: files, NumPy, pictures. The only way back from a device."""
    return tensor.detach().to(_CPU)


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor row-major and at a multiple of 64 bytes, as torch makes it; a copy where it is not so.

    BLAS may round otherwise for another layout: only with one layout do equal values give bit-identical results.
    """
    row_major = all(step == math.prod(tensor.shape[axis + 1 :]) for axis, step in enumerate(tensor.stride()))
    if row_major and tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def read_numbers(tensor: Tensor) -> list[float]:
    """Return the values of a vector, for which the program waits until the device has them.

    A dry run, on torch's ``meta`` device, reads ones.
    """
    return [1.0] * len(tensor) if tensor.device == DRY else to_cpu(tensor).tolist()


@contextmanager
def _without_autocast() -> Iterator[None]:
    with torch.autocast(_CPU.type, enabled=False), torch.autocast("cuda", enabled=False):
        yield


# A decorator that keeps a function out of a caller's autocast: half precision holds neither ω·s nor an orthonormal W.
full_precision = _without_autocast()
