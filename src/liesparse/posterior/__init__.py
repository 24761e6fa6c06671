"""P(s | I, α), the posterior of the pose, behind one interface; one file per engine."""

from liesparse.posterior.adaptive import AdaptiveEngine
from liesparse.posterior.ascent import Ascent
from liesparse.posterior.base import Engine, GridBased, Moments, Nodes
from liesparse.posterior.distribution import TorusPosterior
from liesparse.posterior.grid import GridEngine
from liesparse.posterior.modes import Modes, pose_log_density, refine_poses
from liesparse.posterior.natural import log_likelihood, natural_parameters, pose_natural
from liesparse.posterior.reference import ReferenceEngine
from liesparse.posterior.registry import engine_names, make_engine, register_engine
from liesparse.posterior.sampling import SamplingEngine

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
