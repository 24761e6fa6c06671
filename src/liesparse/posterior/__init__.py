"""P(s | I, α), the posterior of the pose, behind one interface; engines by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from liesparse._checks import check_choice
from liesparse.posterior.adaptive import AdaptiveEngine
from liesparse.posterior.ascent import Ascent, Modes, pose_log_density, refine_poses
from liesparse.posterior.base import (
    Engine,
    GridBased,
    Moments,
    Nodes,
    log_likelihood,
    natural_parameters,
    pose_natural,
)
from liesparse.posterior.distribution import TorusPosterior
from liesparse.posterior.grid import GridEngine, ReferenceEngine
from liesparse.posterior.sampling import MOST_AXES_BY_GRID, SamplingEngine
from liesparse.torus import Frequencies

__all__ = [
    "AdaptiveEngine",
    "Ascent",
    "Engine",
    "GridBased",
    "GridEngine",
    "Modes",
    "Moments",
    "Nodes",
    "ReferenceEngine",
    "SamplingEngine",
    "TorusPosterior",
    "engine_names",
    "log_likelihood",
    "make_engine",
    "natural_parameters",
    "pose_log_density",
    "pose_natural",
    "refine_poses",
    "register_engine",
]

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
    frequencies: Frequencies,
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
