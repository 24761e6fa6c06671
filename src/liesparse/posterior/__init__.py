"""P(s | I, α), the posterior of the pose, behind one interface; engines by name."""

from collections.abc import Callable

import torch

from liesparse._checks import check_choice, reject
from liesparse.model import Codes, Images, Parameters
from liesparse.posterior.adaptive import AdaptiveEngine as AdaptiveEngine
from liesparse.posterior.base import Device
from liesparse.posterior.base import Engine as Engine
from liesparse.posterior.base import GridEngine as GridEngine
from liesparse.posterior.base import Moments as Moments
from liesparse.posterior.base import ReferenceEngine as ReferenceEngine
from liesparse.posterior.composite_posterior import CompositePosterior as CompositePosterior
from liesparse.posterior.composition import CompositeEngine as CompositeEngine
from liesparse.posterior.distribution import TorusPosterior as TorusPosterior
from liesparse.posterior.interface import Ascent as Ascent
from liesparse.posterior.interface import Evidence as Evidence
from liesparse.posterior.interface import PoseEngine as PoseEngine
from liesparse.posterior.interface import PoseExpectation as PoseExpectation
from liesparse.posterior.interface import log_likelihood as log_likelihood
from liesparse.posterior.interface import pose_log_density as pose_log_density
from liesparse.posterior.interface import pose_natural as pose_natural
from liesparse.posterior.interface import refine_poses as refine_poses
from liesparse.posterior.sampling import MOST_AXES_BY_GRID
from liesparse.posterior.sampling import SamplingEngine as SamplingEngine
from liesparse.torus import Frequencies

AnyPosterior = TorusPosterior | CompositePosterior
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
    """Let ``posterior=name`` choose an engine of your own; the factory is called as those of this file are."""
    if name in engine_names():
        reject("name", "one that is not taken", repr(name), "Choose another.")
    _FACTORIES[name] = factory


def make_engine(
    name: str, frequencies: Frequencies, n_grid: int = 50, *, dtype: torch.dtype = torch.float32, device: Device = None
) -> Engine:
    """Make the engine ``name``; ``n_grid`` counts for those on a fixed grid.

    ``auto`` refines a grid for one and two transformations, and samples for more.
    """
    check_choice("posterior", name, engine_names())
    if name == "auto":
        name = "adaptive" if frequencies.shape[1] <= MOST_AXES_BY_GRID else "sampling"
    return _FACTORIES[name](frequencies, n_grid, dtype=dtype, device=device)


def pose_posterior(parameters: Parameters, images: Images, codes: Codes) -> AnyPosterior:
    """Return P(s | I, α), with modes, widths and densities."""
    if parameters.outer is not None:
        return CompositePosterior(parameters, images, codes)
    return TorusPosterior(pose_natural(parameters, images, codes), parameters.frequencies)


def engine_of(parameters: Parameters, name: str = "auto", n_grid: int = 50) -> PoseEngine:
    """Make the engine ``name`` for a model; where it has an outer group, the engine is for that."""
    frequencies = parameters.actions[0].frequencies
    engine = make_engine(name, frequencies, n_grid, dtype=parameters.dtype, device=parameters.device)
    return engine if parameters.outer is None else CompositeEngine(engine, parameters.frequencies)
