"""What is learned and how: the size of a model, and every number that decides an update, checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from liesparse import stiefel
from liesparse._checks import check_choice, check_count, check_real, reject
from liesparse.inference import CODE_UPDATES, GRADIENTS, CodeUpdate, Gradient
from liesparse.model import PosePrior
from liesparse.posterior import engine_names

Schedule = Literal["constant", "cosine"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine")
Method = Literal["gradient", "em"]
METHODS: tuple[Method, ...] = ("gradient", "em")


MOST_IRREPS = 128  # the paper's L, where the images have room for it


@dataclass(frozen=True)
class ModelSettings:
    """The size of a model and its priors; the defaults are the paper's [Chau20, app. E]."""

    n_components: int = 10
    n_irreps: int | str = "auto"  # 128, or as many as fit into the images
    torus_dim: int = 2
    multiplicity: int = 1
    sparsity: float = 10.0
    noise_std: float = 0.1
    pose_prior: str | PosePrior = "uniform"

    def __post_init__(self) -> None:
        check_count("n_components", self.n_components)
        if not isinstance(self.pose_prior, PosePrior) and self.pose_prior != "uniform":
            reject("pose_prior", "'uniform' or a PosePrior", repr(self.pose_prior), "See liesparse.narrow_prior.")


@dataclass(frozen=True)
class Settings:
    """How to learn. The defaults are the paper's [Chau20, app. E].

    Attributes
    ----------
    n_epochs, batch_size : int
        Passes over the data, and images per update (paper: B).
    posterior : {"auto", "grid", "adaptive", "sampling"}
        How the pose is integrated out: on the paper's grid, as finely as each posterior needs, or by importance
        sampling; auto is adaptive for up to two transformations and sampling for more.
    n_grid : int
        Quadrature points per torus axis of the grid (paper: N).
    n_code_steps, code_start, code_update, gradient
        Inference of the codes, see :func:`liesparse.inference.infer_codes`.
    method : {"gradient", "em"}
        Gradient steps as in the paper, or online EM.
    dictionary_rate, group_rate : float
        Gradient: learning rates of Φ and W (paper: η_Φ, η_W).
    metric : {"canonical", "euclidean"}
        Gradient: metric of the Stiefel manifold for Riemannian Adam; the paper's is canonical.
    em_rate : float
        EM: share of one batch in the running averages; 1 / em_rate batches are remembered.
    batches_per_update : int
        EM: batches averaged before W and Φ are set anew.
    schedule : {"constant", "cosine"}
        Whether all rates stay or fall to 0 along half a cosine.
    single_shape_epochs : int
        During the first so many epochs only the largest code of each image counts in the updates.
        With several shapes per image the dictionary explains motion by mixing, and W learns nothing.
    reseed_overlap : float
        Below 1: after each epoch of the first half, a shape that no image uses, or that equals another in some
        pose up to this overlap, starts anew as the image that is explained worst.
    """

    n_epochs: int = 20
    batch_size: int = 100
    posterior: str = "grid"
    n_grid: int = 50
    n_code_steps: int = 20
    code_start: float = 0.01
    code_update: CodeUpdate = "subgradient"
    gradient: Gradient = "approximate"
    method: Method = "gradient"
    dictionary_rate: float = 0.05
    group_rate: float = 0.3
    metric: stiefel.Metric = "canonical"
    em_rate: float = 0.1
    batches_per_update: int = 2
    schedule: Schedule = "constant"
    single_shape_epochs: int = 0
    reseed_overlap: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size", "n_code_steps", "batches_per_update"):
            check_count(name, getattr(self, name))
        check_count("n_grid", self.n_grid, 2)
        check_count("single_shape_epochs", self.single_shape_epochs, 0)
        for name in ("code_start", "dictionary_rate", "group_rate"):
            check_real(name, getattr(self, name), minimum=0)
        check_real("em_rate", self.em_rate, above=0, maximum=1)
        check_real("reseed_overlap", self.reseed_overlap, above=0, maximum=1)
        check_choice("posterior", self.posterior, engine_names())
        check_choice("method", self.method, METHODS)
        check_choice("code_update", self.code_update, CODE_UPDATES)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("metric", self.metric, stiefel.METRICS)
