"""The folder of a run: what ``train`` writes and every later command reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from liesparse._checks import refusing, reject
from liesparse.devices import to_cpu
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.files import write_json
from liesparse.inference import infer_codes
from liesparse.metrics import active_codes, evaluate, examine, snr
from liesparse.model import Images
from liesparse.posterior import CompositeEngine, pose_natural
from liesparse.recipes import EvaluationSettings
from liesparse.training import N_MONITORED

MODEL, BASELINE = "model.safetensors", "baseline.safetensors"
SETTINGS, METRICS, HISTORY, CHECKPOINTS = "run.json", "metrics.json", "history.json", "checkpoints"


class Run(NamedTuple):
    """A finished run."""

    folder: Path
    coder: LieSparseCoder
    baseline: SparseCoder | None
    settings: dict[str, Any]  # data, seed, recipe: how to do it again
    metrics: dict[str, Any]


def save_run(run: Run) -> None:
    """Write all files of a run, or none of them; the model comes last, as a folder without it is no finished run."""
    records = {SETTINGS: run.settings, METRICS: run.metrics, HISTORY: {"epochs": run.coder.history_}}
    coders = {MODEL: run.coder} if run.baseline is None else {BASELINE: run.baseline, MODEL: run.coder}
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, record in records.items():
            write_json(run.folder / name, record)
        for name, coder in coders.items():
            coder.save(run.folder / name)
    except BaseException:  # a full disk, Ctrl-C
        for name in (*records, *coders):
            (run.folder / name).unlink(missing_ok=True)
        raise


def load_run(folder: Path) -> Run:
    """Read a run; a folder that is not one gives a ``ValueError`` that says so."""
    fix = "Pass a folder that `liesparse train` or `liesparse demo` wrote."
    if not folder.is_dir():
        reject("RUN", "the folder of a run", f"{folder}, which is no folder", fix)
    if not (folder / MODEL).is_file():
        unfinished = (folder / CHECKPOINTS).is_dir()
        if unfinished:
            fix = "Finish it first: the same `liesparse train` command with --resume."
        reject("RUN", f"a folder with a {MODEL}", f"{folder}, {'unfinished' if unfinished else 'something else'}", fix)
    coder = LieSparseCoder.load(folder / MODEL)
    baseline = SparseCoder.load(folder / BASELINE) if (folder / BASELINE).is_file() else None
    return Run(folder, coder, baseline, _read_json(folder / SETTINGS), _read_json(folder / METRICS))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    damaged = (OSError, ValueError, RecursionError)
    with refusing("readable JSON files", path, "Delete that file, or train again.", damaged, "RUN"):
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("no object")
    return value


def measure(
    coder: LieSparseCoder, baseline: SparseCoder | None, images: Images, evaluation: EvaluationSettings | None = None
) -> dict[str, Any]:
    """Return the held-out quality of a model, plain sparse coding beside it.

    Where the pose is sampled, ``least_effective_sample_size`` says how far its integrals can be trusted.
    """
    model, evaluation = coder.model_, evaluation or EvaluationSettings()
    images = images.to(model.device, model.dtype)
    engine, few = evaluation.make_engine(model), images[:N_MONITORED]
    found = evaluate(model, images, engine, refine=evaluation.refine)
    at_maximum = evaluate(model, images, engine, refine=evaluation.refine, exact_map=True)
    health = examine(model, few, engine)
    metrics: dict[str, Any] = {
        "n_test_images": len(images),
        "lsc_snr": found.snr,
        "lsc_snr_exact_map": at_maximum.snr,
        "lsc_active_codes": found.active_codes,
        "lsc_log_likelihood": coder.score(images),
        "templates_alive": found.templates_alive,
        "posterior_width": health.posterior_width,
        "multimodal_share": health.multimodal_share,
        **found.registered,
    }
    if coder.verdict_ is not None:
        names = ("found", "n_motions", "explained", "plain_snr")
        metrics |= {f"verdict_{name}": getattr(coder.verdict_, name) for name in names}
    if not isinstance(engine, CompositeEngine):
        natural = pose_natural(model, few, infer_codes(model, few, engine))
        sample_size = float(engine.effective_sample_size(natural).min())
        if math.isfinite(sample_size):
            metrics["least_effective_sample_size"] = sample_size
    return metrics | (measure_baseline(baseline, images) if baseline is not None else {})


def measure_baseline(baseline: SparseCoder, images: Images) -> dict[str, Any]:
    """Return the held-out quality of plain sparse coding."""
    images = to_cpu(images)
    return {
        "sparse_coding_snr": float(snr(images, baseline.reconstruct(images)).mean()),
        "sparse_coding_active_codes": active_codes(baseline.transform(images)),
        "sparse_coding_log_likelihood": baseline.score(images),
    }
