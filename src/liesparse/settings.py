"""What is learned and how: the size of a model, and every number that decides how it is found and evaluated.

They are checked when they are set. A recipe is all of them but the size, as a file: ``paper`` is what was published,
``best`` is ours and the default; any other TOML file of the same form will do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from liesparse import stiefel
from liesparse._checks import NOISE, check_choice, check_count, check_real, refusing, reject
from liesparse.groups import Composition, KnownGroup, LearnedTorus
from liesparse.inference import CODE_UPDATES, GRADIENTS, CodeUpdate, Gradient
from liesparse.model import Parameters, PosePrior
from liesparse.posterior import PoseEngine, engine_names, engine_of

Count = int | Any  # a whole number, or "auto"
Method = Literal["gradient", "em"]
Lattice = Literal["paper", "fitted"]
Start = Literal["random", "data", "pairs"]
RECIPES = ("best", "paper")

LEAST_EPOCHS, MOST_EPOCHS = 6, 400  # of n_epochs="auto"
IMAGES_PER_COMPONENT, MOST_IMAGES = 5_000, 200_000  # that it shows, where the data is small
COOLED = 0.6  # share of the training after which the memory is as long as it gets
BATCH_PER_COMPONENT, BATCH_SIZES = 5, (25, 100)  # of batch_size="auto"

MOST_STEPS = 10_000  # of FISTA, points of a grid axis, planes of one frequency: more is a mistake
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
    group: KnownGroup | Composition | None = None  # where the transformations are known, in part or in whole

    def __post_init__(self) -> None:
        check_count("n_components", self.n_components)
        if self.multiplicity != "auto":
            check_count("multiplicity", self.multiplicity, maximum=MOST_STEPS)
        if self.noise_std != "auto":
            check_real("noise_std", self.noise_std, **NOISE)
        if not isinstance(self.pose_prior, PosePrior) and self.pose_prior != "uniform":
            reject("pose_prior", "'uniform' or a PosePrior", repr(self.pose_prior), "See liesparse.narrow_prior.")


@dataclass(frozen=True)
class Settings:
    """How to learn. The defaults are the paper's [Chau20, app. E].

    Attributes
    ----------
    n_epochs : int or "auto"
        Passes over the data; auto is 6, or as many as show 5,000 images for each shape, at most 400.
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
    first_memory, last_memory : float
        EM: how many images for each shape the running averages remember, at first and after three fifths of the
        training; where images are sums of several shapes, fewer by the root of their number. A short memory shakes the
        model out of poor optima, a long one averages noise away.
    batches_per_update : int
        EM: batches averaged before W and Φ are set anew, as long as the memory is short.
    reseed_overlap : float
        Below 1: fifteen times in the first three quarters of the training, a shape that no image uses, or that
        equals another in some pose up to this overlap, starts anew as an image that is explained badly.
    lattice : {"paper", "fitted"}
        The frequencies stay as they are at the start, or they are fitted: by the search for good coordinates of the
        pose, and on several axes to the energy of the planes, three times in the first third of the training
        (``em.fit_lattice``).
    learn_group : bool
        Whether W is learned, or only Φ, where the group is known.
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
    first_memory: float = 12.0
    last_memory: float = 1000.0
    batches_per_update: int = 2
    reseed_overlap: float = 1.0
    lattice: Lattice = "paper"
    learn_group: bool = True

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size"):
            if getattr(self, name) != "auto":
                check_count(name, getattr(self, name))
        for name in ("n_code_steps", "batches_per_update"):
            check_count(name, getattr(self, name), maximum=MOST_STEPS)
        check_count("n_grid", self.n_grid, 2, maximum=MOST_STEPS)
        for name in ("code_start", "dictionary_rate", "group_rate"):
            check_real(name, getattr(self, name), minimum=0)
        check_real("first_memory", self.first_memory, above=0)
        check_real("last_memory", self.last_memory, minimum=self.first_memory)
        check_real("reseed_overlap", self.reseed_overlap, above=0, maximum=1)
        check_choice("posterior", self.posterior, engine_names())
        check_choice("method", self.method, get_args(Method))
        check_choice("code_update", self.code_update, CODE_UPDATES)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_choice("lattice", self.lattice, get_args(Lattice))
        check_choice("metric", self.metric, stiefel.METRICS)
        _check_flag("learn_group", self.learn_group)

    def resolve(self, n_components: int, n_images: int | None = None) -> Settings:
        """Return the settings with numbers in place of auto; ``n_images`` is None where nobody knows it."""
        size, epochs = self.batch_size, self.n_epochs
        if size == "auto":
            size = min(max(BATCH_PER_COMPONENT * n_components, BATCH_SIZES[0]), BATCH_SIZES[1])
        if epochs == "auto":
            wanted = LEAST_EPOCHS if n_images is None else -(-_usual_length(n_components) // n_images)
            epochs = min(max(LEAST_EPOCHS, wanted), MOST_EPOCHS)
        return replace(self, batch_size=size, n_epochs=epochs)

    def length(self, n_components: int, n_steps: int | None) -> float:
        """Return the length of the training in batches; without ``n_steps``, that of a usual one."""
        return n_steps or _usual_length(n_components) / self.batch_size

    def memory(self, done: float) -> float:
        """Return how many images for each shape the averages remember, after a share ``done`` of the training."""
        return self.first_memory * (self.last_memory / self.first_memory) ** min(1.0, done / COOLED)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        reject(name, "true or false", repr(value), "Write it without quotes.")


def _usual_length(n_components: int) -> int:
    return min(IMAGES_PER_COMPONENT * n_components, MOST_IMAGES)


@dataclass(frozen=True)
class EvaluationSettings:
    """How held-out images are reconstructed: the engine, its grid, and whether the best pose is refined."""

    posterior: str = "auto"
    n_grid: int = 100
    refine: bool = True

    def __post_init__(self) -> None:
        check_choice("posterior", self.posterior, engine_names())
        check_count("n_grid", self.n_grid, 2)
        _check_flag("refine", self.refine)

    def make_engine(self, model: Parameters) -> PoseEngine:
        """Return the engine for a model."""
        return engine_of(model, self.posterior, self.n_grid)


@dataclass(frozen=True)
class Recipe:
    """Where learning starts, how it goes on, and how the result is evaluated.

    ``n_init`` starts are tried, and the best goes on. ``include_zero`` gives the lattice a plane that does not turn;
    the paper leaves open whether ω = 0 is in it.
    """

    start: Start = "data"
    n_init: int = 1
    include_zero: bool = True
    learning: Settings = field(default_factory=Settings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        check_choice("start", self.start, get_args(Start))
        check_count("n_init", self.n_init)
        _check_flag("include_zero", self.include_zero)

    def for_group(self, group: KnownGroup | Composition | None) -> Recipe:
        """Return the recipe for a group that is known, or to be learned."""
        inner = group.inner if isinstance(group, Composition) else group
        learned = inner is None or isinstance(inner, LearnedTorus)
        return self if learned else self.with_values({"learning.learn_group": False})

    def values(self) -> dict[str, Any]:
        """Return all values, named as ``start`` or ``learning.n_epochs``."""
        return _flatten(asdict(self))

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """Return the recipe with some values changed, named as ``start`` or ``learning.n_epochs``."""
        recipe = self
        for name, value in values.items():
            if name not in setting_names():
                reject("setting", f"one of {', '.join(setting_names())}", repr(name), "Check its name.")
            part, _, key = name.rpartition(".")
            change = {part: replace(getattr(recipe, part), **{key: value})} if part else {key: value}
            recipe = replace(recipe, **change)
        return recipe


def setting_names() -> list[str]:
    """Return the names of all values of a recipe."""
    return list(Recipe().values())


def load_recipe(name: str | Path = "best") -> Recipe:
    """Load a recipe that ships with the package, or any TOML file."""
    path = Path(str(name))  # a damaged model may name anything
    if str(name) in RECIPES:
        path = Path(__file__).parent / "recipes" / f"{name}.toml"
    elif path.suffix != ".toml" or not path.is_file():
        reject("recipe", "'best', 'paper' or the path of a .toml file", repr(str(name)), "Check the name.")
    damaged = (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError)
    with refusing("a TOML file", name, "Correct that line, and save the file as UTF-8.", damaged, "recipe"):
        return Recipe().with_values(_flatten(tomllib.loads(path.read_text(encoding="utf-8"))))


def parse_values(pairs: list[str]) -> dict[str, Any]:
    """Turn ``key=value`` from the command line into values; numbers and true/false as TOML has them, else text."""
    values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            reject("setting", "key=value", repr(pair), "Put an equals sign between the name and the value.")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text.strip()
    return values


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
