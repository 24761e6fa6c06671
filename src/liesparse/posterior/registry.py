"""Engines by name: :func:`make_engine` makes one, :func:`register_engine` adds one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from liesparse._checks import check_choice
from liesparse.posterior.adaptive import AdaptiveEngine
from liesparse.posterior.base import Engine
from liesparse.posterior.grid import GridEngine
from liesparse.posterior.sampling import MOST_AXES_BY_GRID, SamplingEngine

EngineFactory = Callable[..., Engine]  # called as (frequencies, n_grid, dtype=..., device=...)

_FACTORIES: dict[str, EngineFactory] = {
    "grid": GridEngine,
    "adaptive": lambda frequencies, _, **where: AdaptiveEngine(frequencies, **where),
    "sampling": lambda frequencies, _, **where: SamplingEngine(frequencies, **where),
}


def engine_names() -> tuple[str, ...]:
    """Return the names that :func:`make_engine` knows."""
    return ("auto", *_FACTORIES)


def register_engine(name: str, factory: EngineFactory) -> None:
    """Let ``posterior=name`` choose an engine of your own."""
    _FACTORIES[name] = factory


def make_engine(
    name: str,
    frequencies: Int[Tensor, "irrep torus"],
    n_grid: int = 50,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Engine:
    """Make the engine ``name``; ``n_grid`` counts for the grid alone.

    ``auto`` refines a grid for one and two transformations, and samples for more.
    """
    check_choice("posterior", name, engine_names())
    if name == "auto":
        name = "adaptive" if frequencies.shape[1] <= MOST_AXES_BY_GRID else "sampling"
    return _FACTORIES[name](frequencies, n_grid, dtype=dtype, device=device)
