"""Learn from unlabelled images what is in them and how it moves: Lie Group Sparse Coding.

The names below load on first use, so that ``liesparse --help`` answers without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liesparse.checkpoint import load_model as load_model
    from liesparse.checkpoint import save_model as save_model
    from liesparse.data import embedded_digits as embedded_digits
    from liesparse.data import load_mnist as load_mnist
    from liesparse.data import rotations_scalings as rotations_scalings
    from liesparse.data import translations as translations
    from liesparse.data import translations_rotations as translations_rotations
    from liesparse.data import unit_norm as unit_norm
    from liesparse.estimators import LieSparseCoder as LieSparseCoder
    from liesparse.estimators import SparseCoder as SparseCoder
    from liesparse.estimators import ToroidalSubgroup as ToroidalSubgroup
    from liesparse.inference import infer_codes as infer_codes
    from liesparse.inference import map_poses as map_poses
    from liesparse.initialization import random_start as random_start
    from liesparse.initialization import start_from_data as start_from_data
    from liesparse.lattice import half_lattice as half_lattice
    from liesparse.learning import Settings as Settings
    from liesparse.learning import learn as learn
    from liesparse.metrics import evaluate as evaluate
    from liesparse.metrics import snr as snr
    from liesparse.model import Parameters as Parameters
    from liesparse.model import PosePrior as PosePrior
    from liesparse.model import apply_transform as apply_transform
    from liesparse.model import narrow_prior as narrow_prior
    from liesparse.model import reconstruct as reconstruct
    from liesparse.posterior import AdaptiveEngine as AdaptiveEngine
    from liesparse.posterior import GridEngine as GridEngine
    from liesparse.posterior import ReferenceEngine as ReferenceEngine
    from liesparse.posterior import SamplingEngine as SamplingEngine
    from liesparse.posterior import TorusPosterior as TorusPosterior
    from liesparse.posterior import log_likelihood as log_likelihood
    from liesparse.recipes import load_recipe as load_recipe

__version__ = "0.1.0"

_HOMES = {
    "AdaptiveEngine": "posterior",
    "GridEngine": "posterior",
    "LieSparseCoder": "estimators",
    "Parameters": "model",
    "PosePrior": "model",
    "ReferenceEngine": "posterior",
    "SamplingEngine": "posterior",
    "Settings": "learning",
    "SparseCoder": "estimators",
    "ToroidalSubgroup": "estimators",
    "TorusPosterior": "posterior",
    "apply_transform": "model",
    "embedded_digits": "data",
    "evaluate": "metrics",
    "half_lattice": "lattice",
    "infer_codes": "inference",
    "learn": "learning",
    "load_mnist": "data",
    "load_model": "checkpoint",
    "load_recipe": "recipes",
    "log_likelihood": "posterior",
    "map_poses": "inference",
    "narrow_prior": "model",
    "random_start": "initialization",
    "reconstruct": "model",
    "rotations_scalings": "data",
    "save_model": "checkpoint",
    "snr": "metrics",
    "start_from_data": "initialization",
    "translations": "data",
    "translations_rotations": "data",
    "unit_norm": "data",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'liesparse' has no attribute {name!r}")
    return getattr(import_module(f"liesparse.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
