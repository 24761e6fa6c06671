"""P(s | I, α), the posterior of the pose, behind one interface; one file per engine."""

from liesparse.posterior.adaptive import AdaptiveEngine
from liesparse.posterior.base import Engine, GridBased, Moments
from liesparse.posterior.choose import ENGINES, EngineName, make_engine
from liesparse.posterior.distribution import TorusPosterior
from liesparse.posterior.grid import GridEngine
from liesparse.posterior.natural import draw_poses, log_likelihood, natural_parameters, pose_natural
from liesparse.posterior.peaks import pose_log_density, refine_poses, refined_peaks
from liesparse.posterior.reference import ReferenceEngine
from liesparse.posterior.sampling import SamplingEngine

__all__ = [
    "ENGINES",
    "AdaptiveEngine",
    "Engine",
    "EngineName",
    "GridBased",
    "GridEngine",
    "Moments",
    "ReferenceEngine",
    "SamplingEngine",
    "TorusPosterior",
    "draw_poses",
    "log_likelihood",
    "make_engine",
    "natural_parameters",
    "pose_log_density",
    "pose_natural",
    "refine_poses",
    "refined_peaks",
]
