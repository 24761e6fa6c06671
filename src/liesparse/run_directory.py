"""The folder of a run: what ``train`` writes and every later command reads."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from liesparse._checks import count, refusing, reject
from liesparse.devices import to_cpu
from liesparse.estimators import LieSparseCoder, SparseCoder
from liesparse.files import write_atomically, write_json
from liesparse.inference import infer_codes
from liesparse.metrics import Explained, active_codes, compare_evidence, evaluate, examine, snr
from liesparse.model import Codes, Images, Parameters, Poses, reconstruct
from liesparse.motions import describe_motion
from liesparse.posterior import Engine, pose_natural
from liesparse.settings import EvaluationSettings
from liesparse.training import N_MONITORED

MODEL, BASELINE, LARGE = "model.safetensors", "baseline.safetensors", "baseline_large.safetensors"
SETTINGS, METRICS, HISTORY, CHECKPOINTS = "run.json", "metrics.json", "history.json", "checkpoints"
CARD = "README.md"
CARD_NUMBERS = {
    "lsc_snr_exact_map": "signal-to-noise ratio",
    "sparse_coding_snr": "signal-to-noise ratio, plain sparse coding with as many templates",
    "large_baseline_snr": "signal-to-noise ratio, plain sparse coding with as many free numbers",
    "lsc_evidence": "evidence, nats an image",
    "sparse_coding_evidence": "evidence, plain sparse coding with as many templates",
    "large_baseline_evidence": "evidence, plain sparse coding with as many free numbers",
}


class Run(NamedTuple):
    """A finished run."""

    folder: Path
    coder: LieSparseCoder
    baseline: SparseCoder | None
    settings: dict[str, Any]  # data, seed, recipe: how to do it again
    metrics: dict[str, Any]
    large_baseline: SparseCoder | None = None  # plain sparse coding with as many free numbers


def save_run(run: Run) -> None:
    """Write all files of a run, or none of them; the model comes last, as a folder without it is no finished run.

    They are written beside the folder's own first: what fails leaves an earlier run as it was.
    """
    records = {SETTINGS: run.settings, METRICS: run.metrics, HISTORY: {"epochs": run.coder.history_}}
    coders = {BASELINE: run.baseline, LARGE: run.large_baseline, MODEL: run.coder}
    run.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".run-", dir=run.folder) as stage:
        for name, record in records.items():
            write_json(Path(stage) / name, record)
        write_atomically(Path(stage) / CARD, model_card(run).encode())
        for name, coder in coders.items():
            if coder is not None:
                coder.save(Path(stage) / name)
        for name in (*records, CARD, *coders):
            if (Path(stage) / name).exists():
                os.replace(Path(stage) / name, run.folder / name)
            else:
                (run.folder / name).unlink(missing_ok=True)  # an earlier run's, which belongs to no model any more


def model_card(run: Run) -> str:
    """Return what a reader, or a hub of models, needs to know of a run, as Markdown with a YAML head."""
    from jinja2 import Template  # only who writes a run waits for it

    coder = run.coder
    text = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    return Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        verdict=coder.verdict_,
        motion=run.metrics.get("motion", ""),
        size=f"{coder.n_components} templates, a torus of {count(coder.model_.torus_dim, 'axis', 'axes')}",
        shape=" × ".join(map(str, coder.image_shape_)),
        data=run.settings.get("data_summary") or run.settings.get("data") or "unknown data",
        how=json.dumps({name: value for name, value in run.settings.items() if name != "data_summary"}, default=str),
        numbers={name: run.metrics[key] for key, name in CARD_NUMBERS.items() if key in run.metrics},
        file=MODEL,
    )


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
    plain = [SparseCoder.load(folder / name) if (folder / name).is_file() else None for name in (BASELINE, LARGE)]
    return Run(folder, coder, plain[0], read_json(folder / SETTINGS), read_json(folder / METRICS), plain[1])


def read_json(path: Path) -> dict[str, Any]:
    """Return what a file of a run holds, nothing where there is none."""
    if not path.exists():
        return {}
    damaged = (OSError, ValueError, RecursionError)
    with refusing("readable JSON files", path, "Delete that file, or train again.", damaged, "RUN"):
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("no object")
    return value


def measure(
    coder: LieSparseCoder,
    baseline: SparseCoder | None,
    images: Images,
    evaluation: EvaluationSettings | None = None,
    *,
    large_baseline: SparseCoder | None = None,
) -> dict[str, Any]:
    """Return the held-out quality of a model, plain sparse coding beside it.

    ``lsc_snr`` and ``lsc_active_codes`` are by the paper's α̂, for its table; those called ``exact_map``, and the
    evidence, by the codes that ``infer`` and the report have. Where the pose is sampled,
    ``least_effective_sample_size`` says how far its integrals can be trusted.
    """
    model, evaluation = coder.model_, evaluation or EvaluationSettings()
    images = images.to(model.device, model.dtype)
    engine, few = evaluation.make_engine(model), images[:N_MONITORED]
    found = evaluate(model, images, engine, refine=evaluation.refine)
    codes, poses = (part.to(model.device) for part in coder.infer(images))
    ours = Explained(
        codes, 1 / snr(images, reconstruct(model, codes, poses)), coder.score_samples(images).to(codes), poses.shape[1]
    )
    both = (("sparse_coding", baseline), ("large_baseline", large_baseline))
    plain = {name: one for name, one in both if one is not None}
    exact, *plainly = compare(model, [ours, *(explained_by(one, images) for one in plain.values())])
    health = examine(model, few, engine)
    metrics: dict[str, Any] = {
        "n_test_images": len(images),
        "lsc_snr": found.snr,
        "lsc_active_codes": found.active_codes,
        "lsc_snr_exact_map": exact["snr"],
        "lsc_active_codes_exact_map": exact["active_codes"],
        "lsc_evidence": exact["evidence"],
        "lsc_log_likelihood": exact["log_likelihood"],
        "templates_alive": found.templates_alive,
        "posterior_width": health.posterior_width,
        "multimodal_share": health.multimodal_share,
        **found.registered,
    }
    if coder.verdict_ is not None:
        names = ("found", "n_motions", "explained", "plain_snr")
        metrics |= {f"verdict_{name}": getattr(coder.verdict_, name) for name in names}
    metrics |= {"motion": words} if (words := motion_in_words(coder, codes, poses, coder.image_shape_)) else {}
    if isinstance(engine, Engine):  # of one group
        natural = pose_natural(model, few, infer_codes(model, few, engine))
        sample_size = float(engine.effective_sample_size(natural).min())
        if math.isfinite(sample_size):
            metrics["least_effective_sample_size"] = sample_size
    for (name, one), found_plainly in zip(plain.items(), plainly, strict=True):
        metrics[f"{name}_components"] = len(one.components_)
        metrics |= {f"{name}_{key}": value for key, value in found_plainly.items()}
    return metrics


def motion_in_words(coder: LieSparseCoder, codes: Codes, poses: Poses, image_shape: tuple[int, ...]) -> str:
    """Say in a sentence what was found and how far it goes; nothing where no motion was, or none that has a name."""
    found = coder.verdict_ is None or coder.verdict_.found
    return describe_motion(coder.model_, codes, poses, image_shape) if found else ""


def explained_by(baseline: SparseCoder, images: Images) -> Explained:
    """Return how plain sparse coding explains images."""
    on_cpu = to_cpu(images)
    left, scores = 1 / snr(on_cpu, baseline.reconstruct(on_cpu)), baseline.score_samples(on_cpu)
    return Explained(baseline.transform(on_cpu).to(images), left.to(images), scores.to(images))


def measure_baseline(baseline: SparseCoder, images: Images) -> dict[str, Any]:
    """Return the held-out quality of plain sparse coding alone."""
    found = {"components": len(baseline.components_)} | quality(explained_by(baseline, images))
    return {f"sparse_coding_{name}": value for name, value in found.items()}


def quality(explained: Explained) -> dict[str, float]:
    """Return the means over images of SNR, active codes and ln P(I|α̂)."""
    return {
        "snr": float((1 / explained.left).mean()),
        "active_codes": active_codes(explained.codes),
        "log_likelihood": float(explained.log_likelihood.mean()),
    }


def compare(model: Parameters, models: Sequence[Explained]) -> list[dict[str, float]]:
    """Return the quality of several models, with the evidence by which they are compared."""
    each = zip(models, compare_evidence(model, models), strict=True)
    return [quality(one) | {"evidence": float(evidence.mean())} for one, evidence in each]
