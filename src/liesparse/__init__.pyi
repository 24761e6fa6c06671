"""The public names and where they live; they load on first use."""

from .checkpoint import load_model as load_model
from .checkpoint import save_model as save_model
from .data import embedded_digits as embedded_digits
from .data import load_mnist as load_mnist
from .data import rotations_scalings as rotations_scalings
from .data import translations as translations
from .data import translations_rotations as translations_rotations
from .data import unit_norm as unit_norm
from .estimators import LieSparseCoder as LieSparseCoder
from .estimators import SparseCoder as SparseCoder
from .estimators import ToroidalSubgroup as ToroidalSubgroup
from .inference import infer_codes as infer_codes
from .inference import map_poses as map_poses
from .initialization import random_start as random_start
from .initialization import start_from_data as start_from_data
from .lattice import half_lattice as half_lattice
from .learning import learn as learn
from .metrics import evaluate as evaluate
from .metrics import snr as snr
from .model import Parameters as Parameters
from .model import PosePrior as PosePrior
from .model import apply_transform as apply_transform
from .model import narrow_prior as narrow_prior
from .model import reconstruct as reconstruct
from .posterior import AdaptiveEngine as AdaptiveEngine
from .posterior import GridEngine as GridEngine
from .posterior import ReferenceEngine as ReferenceEngine
from .posterior import SamplingEngine as SamplingEngine
from .posterior import TorusPosterior as TorusPosterior
from .posterior import log_likelihood as log_likelihood
from .settings import Settings as Settings
from .settings import load_recipe as load_recipe
from .suggestion import suggest as suggest

__version__: str
