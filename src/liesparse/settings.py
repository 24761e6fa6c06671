"""What is learned and how: the size of a model, and every number that decides an update, checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from liesparse import stiefel
from liesparse._checks import check_choice, check_count, check_real, reject
from liesparse.inference import CODE_UPDATES, GRADIENTS, CodeUpdate, Gradient
from liesparse.model import PosePrior
from liesparse.posterior import engine_names

Count = int | Any  # a whole number, or "auto"
Method = Literal["gradient", "em"]
METHODS: tuple[Method, ...] = ("gradient", "em")
Lattice = Literal["paper", "fitted"]
LATTICES: tuple[Lattice, ...] = ("paper", "fitted")

LEAST_EPOCHS, MOST_EPOCHS = 12, 400  # of n_epochs="auto"
IMAGES_PER_COMPONENT, MOST_IMAGES = 20_000, 600_000  # that it shows, where the data is small
LONGEST_HOT, LONGEST_SINGLE = 0.3, 0.5  # shares of the training
COOLING, MOST_COOLING = 9.0, 9.0  # the memory grows by this factor in the length of a first phase, at most so often
BATCH_PER_COMPONENT, BATCH_SIZES = 5, (25, 100)  # of batch_size="auto"

MOST_IRREPS = 128  # the paper's L, where the images have room for it


@dataclass(frozen=True)
class ModelSettings:
    """The size of a model and its priors; the numbers among the defaults are the paper's [Chau20, app. E]."""

    n_components: int = 10
    n_irreps: Count = "auto"  # 128, or as many as fit into the images
    torus_dim: int = 2
    multiplicity: Count = "auto"  # 1; with one axis and a fitted lattice many, of few frequencies
    sparsity: float = 10.0
    noise_std: float | Any = "auto"  # 0.1, less for noisy images: liesparse.initialization.suggest_noise
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
    n_epochs : int or "auto"
        Passes over the data; auto is 12, or as many as show 20,000 images for each shape, at most 400.
    batch_size : int or "auto"
        Images per batch (paper: B); auto is 5 for each shape, from 25 to 100.
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
    hot_images : float
        How many images for each shape the first phase lasts, up to three tenths of the training. In it the memory is
        short. For three times as long, up to half of the training, only the largest code of each image counts: with
        several shapes per image the dictionary explains motion by mixing, and W learns nothing.
    first_memory, last_memory : float
        EM: how many images for each shape the running averages remember, in the first phase and at the end. A short
        memory shakes the model out of poor optima, a long one averages noise away.
    batches_per_update : int
        EM: batches averaged before W and Φ are set anew.
    reseed_overlap : float
        Below 1: up to twice the length of the first phase, six times in each, a shape that no image uses, or that
        equals another in some pose up to this overlap, starts anew as the image that is explained worst.
    lattice : {"paper", "fitted"}
        The frequencies stay as they are at the start, or they are fitted twice to the energy of the planes
        (``lattice.fitted_lattice``).
    """

    n_epochs: Count = 20
    batch_size: Count = 100
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
    hot_images: float = 0.0
    first_memory: float = 12.0
    last_memory: float = 1000.0
    batches_per_update: int = 2
    reseed_overlap: float = 1.0
    lattice: Lattice = "paper"

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size"):
            if getattr(self, name) != "auto":
                check_count(name, getattr(self, name))
        for name in ("n_code_steps", "batches_per_update"):
            check_count(name, getattr(self, name))
        check_count("n_grid", self.n_grid, 2)
        for name in ("code_start", "dictionary_rate", "group_rate"):
            check_real(name, getattr(self, name), minimum=0)
        check_real("first_memory", self.first_memory, above=0)
        check_real("last_memory", self.last_memory, minimum=self.first_memory)
        check_real("hot_images", self.hot_images, minimum=0)
        check_real("reseed_overlap", self.reseed_overlap, above=0, maximum=1)
        check_choice("posterior", self.posterior, engine_names())
        check_choice("method", self.method, METHODS)
        check_choice("code_update", self.code_update, CODE_UPDATES)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_choice("lattice", self.lattice, LATTICES)
        check_choice("metric", self.metric, stiefel.METRICS)

    def resolve(self, n_components: int, n_images: int | None = None) -> Settings:
        """Return the settings with numbers in place of auto; ``n_images`` is None where nobody knows it."""
        size, epochs = self.batch_size, self.n_epochs
        if size == "auto":
            size = min(max(BATCH_PER_COMPONENT * n_components, BATCH_SIZES[0]), BATCH_SIZES[1])
        if epochs == "auto":
            wanted = LEAST_EPOCHS if n_images is None else -(-_usual_length(n_components) // n_images)
            epochs = min(max(LEAST_EPOCHS, wanted), MOST_EPOCHS)
        return replace(self, batch_size=size, n_epochs=epochs)

    def phases(self, n_components: int, n_steps: int | None) -> tuple[float, float]:
        """Return the length of the training in batches, and the share of it that is the first phase."""
        length = n_steps or _usual_length(n_components) / self.batch_size
        return length, min(LONGEST_HOT, self.hot_images * n_components / (length * self.batch_size))

    def memory(self, done: float, hot: float) -> float:
        """Return how many images for each shape the averages remember, after a share ``done`` of the training."""
        cooling = max(0.0, done - hot) / (hot or LONGEST_HOT)
        return min(self.last_memory, self.first_memory * COOLING ** min(cooling, MOST_COOLING))


def _usual_length(n_components: int) -> int:
    return min(IMAGES_PER_COMPONENT * n_components, MOST_IMAGES)
