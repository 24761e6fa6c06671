"""Table 1 of the paper: held-out SNR of LSC and of plain sparse coding, by recipe, row and seed [Chau20, sec. 5]."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.baselines import SparseCodingSettings, infer_sparse_codes, learn_sparse_coding
from liesparse.data import embedded_digits, load_mnist, rotations_scalings, translations
from liesparse.files import write_json
from liesparse.initialization import known_translation, random_start, start_from_data
from liesparse.metrics import active_codes, evaluate, snr
from liesparse.model import Parameters
from liesparse.posterior import AdaptiveEngine, make_engine
from liesparse.recipes import Recipe
from liesparse.state import Progress
from liesparse.training import N_MONITORED, History, train

N_TRAIN, N_TEST = 60_000, 10_000


@dataclass(frozen=True)
class Row:
    """One row of the table, with the paper's figures."""

    data: str
    n_components: int
    sparsity: float
    multiplicity: int
    paper_lsc: float
    paper_sparse_coding: float
    sparse_coding_rate: float = 0.001  # of our own baseline, tuned for each row
    sparse_coding_epochs: int = 10


ROWS = {
    "translation": Row("translation", 10, 10.0, 1, 28.5, 2.2),
    "rotation-scaling": Row("rotation-scaling", 10, 10.0, 1, 20.5, 2.6),
    "mnist-10": Row("mnist", 10, 10.0, 2, 4.8, 3.0),
    "mnist-100": Row("mnist", 100, 1.0, 2, 16.7, 15.3, 0.0004, 40),
}
NOISE_STD = 0.1
N_IRREPS = 128


class Images(NamedTuple):
    """Training images, and held-out ones that no training sees."""

    train: Float[Tensor, "image pixel"]
    test: Float[Tensor, "test pixel"]


class Job(NamedTuple):
    """One cell to be computed: a recipe, or "sparse-coding", "scikit-learn", "known-group"."""

    row: str
    method: str
    seed: int

    @property
    def file_name(self) -> str:
        """Return where the cell lies inside its folder."""
        return f"{self.row}.{self.method}.{self.seed}.json"


Recipes = dict[str, dict[str, Recipe]]  # by name, then by row
Tell = Callable[[float, str], None]  # the share that is done, and a note
Watch = Callable[[Job, float, str], None]


def load_images(row: Row, seed: int, data_dir: Path | None = None, n_train: int | None = None) -> Images:
    """Make or read a row's images; the synthetic test set has other draws of the transformation."""
    if row.data == "mnist":
        return Images(load_mnist("train", data_dir)[:n_train], load_mnist("test", data_dir))
    make = translations if row.data == "translation" else rotations_scalings
    generator = torch.Generator().manual_seed(seed)
    return Images(make(n_train or N_TRAIN, generator=generator).images, make(N_TEST, generator=generator).images)


def make_start(
    row: Row, recipe: Recipe, images: Float[Tensor, "image pixel"], *, generator: torch.Generator
) -> Parameters:
    """Return the parameters from which a row's model is learned."""
    start = random_start(
        images.shape[1],
        n_components=row.n_components,
        sparsity=row.sparsity,
        multiplicity=row.multiplicity,
        include_zero=recipe.include_zero,
        generator=generator,
        n_irreps=N_IRREPS,
        noise_std=NOISE_STD,
    )
    return start_from_data(start, images, generator=generator) if recipe.start == "data" else start


def pick_monitor_images(images: Images, seed: int) -> Float[Tensor, "few pixel"]:
    """Return the held-out images on which each epoch is judged, in any order: synthetic sets go through the digits."""
    return images.test[torch.randperm(len(images.test), generator=torch.Generator().manual_seed(seed))[:N_MONITORED]]


def run_recipe(row: Row, recipe: Recipe, images: Images, seed: int, watch: Tell) -> dict[str, Any]:
    """Learn one model by a recipe and evaluate it."""
    began = time.monotonic()
    generator = torch.Generator().manual_seed(1000 + seed)
    start = make_start(row, recipe, images.train, generator=generator)
    evaluation_engine = make_engine(recipe.evaluation.posterior, start.frequencies, recipe.evaluation.n_grid)
    monitor_images = pick_monitor_images(images, seed)

    def look(progress: Progress, history: History) -> None:
        note = f"epoch {progress.epoch}" + (f", SNR {history[-1]['snr']:.1f}" if history else "")
        watch(progress.share, note)

    learned, history, _ = train(
        start,
        images.train,
        recipe.learning,
        generator=generator,
        monitor_images=monitor_images,
        evaluation_engine=evaluation_engine,
        callback=look,
    )
    seconds = time.monotonic() - began
    found = evaluate(learned, images.test, evaluation_engine, refine=recipe.evaluation.refine)
    at_maximum = evaluate(learned, images.test, evaluation_engine, refine=recipe.evaluation.refine, exact_map=True)
    return {
        "epochs": recipe.learning.n_epochs,
        "lsc_snr": found.snr,
        "lsc_snr_exact_map": at_maximum.snr,
        "sparsity_active": found.active_codes,
        "templates_alive": found.templates_alive,
        "seconds": round(seconds, 1),
        "history": history,
    }


def sparse_coding_settings(row: Row) -> SparseCodingSettings:
    """Return how plain sparse coding is learned, with the same σ and λ as the model."""
    return SparseCodingSettings(
        noise_std=NOISE_STD,
        sparsity=row.sparsity,
        dictionary_rate=row.sparse_coding_rate,
        n_epochs=row.sparse_coding_epochs,
    )


def run_sparse_coding(row: Row, images: Images, seed: int, watch: Tell) -> dict[str, Any]:
    """Learn plain sparse coding with the same K, σ and λ."""
    began = time.monotonic()
    dictionary = learn_sparse_coding(
        images.train,
        row.n_components,
        sparse_coding_settings(row),
        generator=torch.Generator().manual_seed(1000 + seed),
        callback=lambda progress: watch(progress.step / progress.n_steps, "sparse coding"),
    )
    return _judge_dictionary(row, dictionary, images) | {"seconds": round(time.monotonic() - began, 1)}


def run_scikit_learn(row: Row, images: Images, seed: int, watch: Tell) -> dict[str, Any]:
    """Learn the dictionary by scikit-learn's MiniBatchDictionaryLearning with positive codes."""
    from sklearn.decomposition import MiniBatchDictionaryLearning

    began = time.monotonic()
    watch(0.0, "scikit-learn")
    learner = MiniBatchDictionaryLearning(
        row.n_components,
        alpha=row.sparsity * NOISE_STD**2,  # its loss is σ² times ours
        max_iter=3,
        tol=0.0,
        max_no_improvement=None,  # all three passes
        batch_size=200,
        fit_algorithm="cd",
        positive_code=True,
        random_state=seed,
    )
    learner.fit(images.train.double().numpy())
    dictionary = torch.nn.functional.normalize(torch.from_numpy(learner.components_.T.copy()).float(), dim=0)
    return _judge_dictionary(row, dictionary, images) | {"seconds": round(time.monotonic() - began, 1)}


def run_known_group(row: Row, images: Images) -> dict[str, Any]:
    """Evaluate the Fourier basis with the ten true digits: the yardstick for learned translation."""
    model = known_translation(embedded_digits(), noise_std=NOISE_STD, sparsity=row.sparsity)
    engine = AdaptiveEngine(model.frequencies)
    found = evaluate(model, images.test, engine)
    return {"lsc_snr": found.snr, "lsc_snr_exact_map": evaluate(model, images.test, engine, exact_map=True).snr}


def _judge_dictionary(row: Row, dictionary: Float[Tensor, "pixel component"], images: Images) -> dict[str, Any]:
    codes = infer_sparse_codes(dictionary, images.test, noise_std=NOISE_STD, sparsity=row.sparsity, n_code_steps=200)
    return {
        "sparse_coding_snr": float(snr(images.test, codes @ dictionary.T).mean()),
        "sparse_coding_active": active_codes(codes),
    }


def plan(rows: list[str], recipes: Recipes, n_seeds: int) -> list[Job]:
    """List all cells of the table, the fast ones first."""
    jobs = [Job("translation", "known-group", 0)] if "translation" in rows else []
    jobs += [Job(row, "scikit-learn", 0) for row in rows]
    jobs += [Job(row, "sparse-coding", seed) for seed in range(n_seeds) for row in rows]
    return jobs + [Job(row, name, seed) for seed in range(n_seeds) for name in recipes for row in rows]


def run(
    jobs: list[Job], recipes: Recipes, folder: Path, *, data_dir: Path | None = None, watch: Watch
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Compute the cells that ``folder`` does not have yet, each written when it is done, and yield all of them."""
    for job in jobs:
        path = folder / job.file_name
        row, cell = ROWS[job.row], _read_cell(path)
        settings = _plain(recipes[job.method][job.row] if job.method in recipes else row)
        if cell is None or cell.get("settings") != settings:
            images = load_images(row, job.seed, data_dir)

            def tell(share: float, note: str, job: Job = job) -> None:
                watch(job, share, note)

            tell(0.0, "starting")
            cell = {"row": job.row, "recipe": job.method, "seed": job.seed}
            if job.method == "known-group":
                cell |= run_known_group(row, images)
            elif job.method == "sparse-coding":
                cell |= run_sparse_coding(row, images, job.seed, tell)
            elif job.method == "scikit-learn":
                cell |= run_scikit_learn(row, images, job.seed, tell)
            else:
                cell |= run_recipe(row, recipes[job.method][job.row], images, job.seed, tell)
            cell["settings"] = settings
            write_json(path, cell)
        yield job, cell


def _read_cell(path: Path) -> dict[str, Any] | None:
    try:
        cell: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return cell


def _plain(settings: Recipe | Row) -> dict[str, Any]:
    """Return settings as JSON has them; a cell on disk counts only if it was made with the same ones."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return plain


def flat_cells(found: dict[Job, dict[str, Any]], recipes: Recipes) -> list[dict[str, Any]]:
    """Return the cells of the recipes for the JSON file, sparse coding of the same row and seed beside each."""
    cells = []
    for job, cell in found.items():
        if job.method in recipes:
            baseline = found.get(job._replace(method="sparse-coding"), {})
            kept = {key: value for key, value in cell.items() if key not in ("history", "settings")}
            cells.append(kept | {"sparse_coding_snr": baseline.get("sparse_coding_snr")})
    return cells


def summarize(values: list[float]) -> str:
    """Return mean and range, or the one value."""
    if not values:
        return "-"
    digits = 1 if max(values) >= 10 else 2
    mean, low, high = (f"{value:.{digits}f}" for value in (statistics.fmean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low}-{high})"


def table(found: dict[Job, dict[str, Any]], rows: list[str], recipes: Recipes) -> list[list[str]]:
    """Return the lines of the table: the paper, each recipe, and sparse coding side by side."""

    def column(row: str, method: str, key: str) -> str:
        return summarize([cell[key] for job, cell in found.items() if (job.row, job.method) == (row, method)])

    lines = [["row", "published", *recipes, "published SC", "our SC", "scikit-learn"]]
    for name in rows:
        row = ROWS[name]
        lines.append(
            [
                name,
                f"{row.paper_lsc}",
                *(column(name, recipe, "lsc_snr") for recipe in recipes),
                f"{row.paper_sparse_coding}",
                column(name, "sparse-coding", "sparse_coding_snr"),
                column(name, "scikit-learn", "sparse_coding_snr"),
            ]
        )
    return lines
