"""Table 1 of the paper: held-out SNR of LSC and of plain sparse coding, by recipe, row and seed [Chau20, sec. 5]."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from liesparse.data import embedded_digits
from liesparse.estimators import LieSparseCoder
from liesparse.files import write_json
from liesparse.initialization import known_translation
from liesparse.recipes import Recipe
from liesparse.reproduce.rows import (
    ROWS,
    Order,
    Row,
    RowImages,
    Step,
    baseline_from,
    find_or_learn,
    find_or_learn_baseline,
    load_images,
)
from liesparse.run_directory import measure, measure_baseline


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
Watch = Callable[[Job, float, str], None]


def learn_scikit_learn(row: Row, images: RowImages, seed: int) -> dict[str, Any]:
    """Learn the dictionary by scikit-learn's MiniBatchDictionaryLearning with positive codes, and measure it."""
    from sklearn.decomposition import MiniBatchDictionaryLearning

    learner = MiniBatchDictionaryLearning(
        row.model.n_components,
        alpha=row.model.sparsity * row.model.noise_std**2,  # its loss is σ² times ours
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
    return measure_baseline(baseline_from(dictionary, row, images), images.test)


def measure_known_group(row: Row, images: RowImages) -> dict[str, Any]:
    """Measure the Fourier basis with the ten true digits: the yardstick for learned translation."""
    digits = embedded_digits()
    model = known_translation(digits, noise_std=row.model.noise_std, sparsity=row.model.sparsity)
    return measure(LieSparseCoder.from_model(model, tuple(digits.shape[1:])), None, images.test)


def compute_cell(job: Job, recipes: Recipes, folder: Path, data_dir: Path | None, watch: Watch) -> dict[str, Any]:
    """Compute one cell of the table."""
    began, row = time.monotonic(), ROWS[job.row]
    watch(job, 0.0, "starting")
    images = load_images(row, job.seed, data_dir)

    def tell(step: Step) -> None:
        watch(job, step.share, step.note)

    if job.method == "known-group":
        cell = measure_known_group(row, images)
    elif job.method == "scikit-learn":
        cell = learn_scikit_learn(row, images, job.seed)
    elif job.method == "sparse-coding":
        order = Order(job.row, row, Recipe(), job.seed, folder)
        cell = measure_baseline(find_or_learn_baseline(order, images, tell), images.test)
    else:
        recipe = recipes[job.method][job.row]
        run = find_or_learn(Order(job.row, row, recipe, job.seed, folder / job.method), images, tell)
        cell = run.metrics | {"epochs": recipe.learning.n_epochs, "history": run.coder.history_}
    return {"row": job.row, "recipe": job.method, "seed": job.seed} | cell | {"seconds": time.monotonic() - began}


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
        cell = _read_cell(path)
        settings = _plain(recipes[job.method][job.row] if job.method in recipes else ROWS[job.row])
        if cell is None or cell.get("settings") != settings:
            cell = compute_cell(job, recipes, folder, data_dir, watch) | {"settings": settings}
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
