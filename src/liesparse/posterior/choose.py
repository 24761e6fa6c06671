"""Engines by name."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from liesparse._checks import check_choice
from liesparse.posterior.adaptive import AdaptiveEngine
from liesparse.posterior.base import Engine
from liesparse.posterior.grid import GridEngine

EngineName = Literal["grid", "adaptive"]
ENGINES: tuple[EngineName, ...] = ("grid", "adaptive")


def make_engine(
    name: EngineName,
    frequencies: Int[Tensor, "irrep torus"],
    n_grid: int = 50,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Engine:
    """Make the engine ``name``; ``n_grid`` counts for the grid alone."""
    check_choice("posterior", name, ENGINES)
    if name == "adaptive":
        return AdaptiveEngine(frequencies, dtype=dtype, device=device)
    return GridEngine(frequencies, n_grid, dtype=dtype, device=device)
