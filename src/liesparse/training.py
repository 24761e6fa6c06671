"""From images to a model: the start, the loop with a record of its health, checkpoints, and an exact resume."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse._checks import check_count, reject
from liesparse.checkpoint import Checkpoint, differences, load_latest, remove_unfinished, save_checkpoint
from liesparse.devices import aligned
from liesparse.files import hash_tensor
from liesparse.learning import resume
from liesparse.metrics import examine
from liesparse.model import Parameters
from liesparse.parallel import ALONE, READER_DIED, Group, LostError
from liesparse.settings import EvaluationSettings, ModelSettings, Recipe, Settings
from liesparse.start import FEW_IMAGES, Start, choose_start
from liesparse.state import BatchSource, Progress, ShuffledArrays, State
from liesparse.symmetry import pose_ranges
from liesparse.verdict import Verdict, judge, plain_dictionary, poses_of_many

N_MONITORED = 200  # images from which the health of each epoch is read: at most a tenth, and of few nobody keeps any
N_RECORDS = 50  # epochs whose health is recorded, at most about so many
GO_ON = "Call fit(X), or what you called, again with the same images, settings and folder to go on from there."


History = list[dict[str, Any]]
Watch = Callable[[Progress, History], None]  # called after each batch


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the step was finished and, where there is a folder, saved; ``checkpoint`` is where it stopped."""

    def __init__(self, message: str, checkpoint: Checkpoint) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class CheckpointPolicy(NamedTuple):
    """Where and how often to save: every so many steps, at the end of each epoch, and on Ctrl-C."""

    folder: Path
    every: int = 200
    keep: int = 2

    def is_due(self, progress: Progress) -> bool:
        """Tell whether to save after this step."""
        return progress.end_of_epoch or progress.step % check_count("every", self.every) == 0


class Trained(NamedTuple):
    """A finished run."""

    parameters: Parameters
    history: History
    n_steps: int
    verdict: Verdict | None = None  # whether a motion was found; None where nobody looked
    pose_ranges: Float[Tensor, "component torus 3"] | None = None  # where the poses of each template lie
    plain: Float[Tensor, "pixel plain_component"] | None = None  # plain sparse coding with as many free numbers


def learn_model(
    images: Float[Tensor, "image pixel"],
    model: ModelSettings,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    source: BatchSource | None = None,
    start: Parameters | None = None,
    monitor_images: Float[Tensor, "few pixel"] | None = None,
    checkpoints: CheckpointPolicy | None = None,
    callback: Watch | None = None,
    group: Group = ALONE,
) -> Trained:
    """Learn a model by a recipe from unit-norm images: the way that every command and estimator takes.

    Where the batches come from a ``source``, ``images`` are those from which learning starts. Without
    ``monitor_images`` some of the images are kept out of learning for the health of each epoch and the verdict.
    """
    recipe = recipe.for_group(model.group)
    if monitor_images is None:
        order = torch.randperm(len(images), generator=generator).to(images.device)
        n_kept = count_monitored(len(images)) if start is None else 0
        monitor_images, images = images[order[: n_kept or N_MONITORED]], images[order[n_kept:]]
    chosen = (
        choose_start(images, model, recipe, generator=generator, monitor_images=monitor_images)
        if start is None
        else Start(start)
    )
    learning = recipe.learning if chosen.one_shape else replace(recipe.learning, lattice="paper")
    trained = train(
        chosen.parameters,
        images if source is None else source,
        learning,
        generator=generator,
        monitor_images=monitor_images,
        evaluation=recipe.evaluation,
        checkpoints=checkpoints,
        callback=callback,
        group=group,
    )
    if group.rank > 0:
        return trained
    engine = recipe.evaluation.make_engine(trained.parameters)
    with torch.no_grad():
        seen = poses_of_many(trained.parameters, images, engine)
        plain = plain_dictionary(trained.parameters, images)
    verdict = judge(
        trained.parameters,
        monitor_images,
        images,
        engine,
        seen=seen,
        plain=plain,
        pair_share=chosen.pair_share,
        n_starts=recipe.n_init,
        n_agreed=chosen.n_agreed,
        given=not recipe.learning.learn_group,
    )
    history = [*trained.history[:-1], *({**last, "motion_found": verdict.found} for last in trained.history[-1:])]
    return trained._replace(history=history, verdict=verdict, pose_ranges=pose_ranges(*seen), plain=plain)


def count_monitored(n_images: int) -> int:
    """Return how many of some images are kept out of learning, for the health of each epoch and the verdict."""
    return min(N_MONITORED, n_images // 10) if n_images >= FEW_IMAGES else 0


def train(
    start: Parameters,
    images: Float[Tensor, "image pixel"] | BatchSource,
    settings: Settings,
    *,
    generator: torch.Generator,
    monitor_images: Float[Tensor, "few pixel"] | None = None,
    evaluation: EvaluationSettings = EvaluationSettings(),  # noqa: B008, it is frozen
    checkpoints: CheckpointPolicy | None = None,
    callback: Watch | None = None,
    group: Group = ALONE,
) -> Trained:
    """Learn as :func:`liesparse.learning.learn` does, and keep a record.

    After each epoch (of many, about fifty of them) the health of the model on ``monitor_images`` joins the history.
    With ``checkpoints``, a run of the same settings, images and start that is in its folder is resumed exactly: the
    result is byte-identical.
    Of the processes of ``group`` (:func:`liesparse.parallel.join`) the first reads and writes the folder, and keeps
    the history.
    """
    group = Group() if group is ALONE else group
    group.begin()
    first = group.rank == 0
    n_images = len(images) if isinstance(images, Tensor) else None
    settings = settings.resolve(start.n_components, n_images)
    source = ShuffledArrays(images, settings.batch_size) if isinstance(images, Tensor) else images
    checkpoint = Checkpoint(State.begin(start, generator), [], {})
    if checkpoints is not None and first:
        checkpoint = _resume_or_begin(checkpoints, checkpoint, source, settings)
    history = list(checkpoint.history)
    monitor_images = None if monitor_images is None else aligned(monitor_images)
    _check_agreement(group, source, settings, start)

    def watch(progress: Progress) -> None:
        nonlocal checkpoint
        if progress.end_of_epoch and monitor_images is not None and first and _is_time(progress, settings):
            health = examine(progress.parameters, monitor_images, evaluation.make_engine(progress.parameters))
            history.append({"epoch": progress.epoch, **health._asdict()})
        checkpoint = checkpoint._replace(state=progress.state, history=list(history))
        stop = group.stopping  # read once: a wish from now on is for the next step
        if checkpoints and first and (stop or checkpoints.is_due(progress)):
            save_checkpoint(checkpoints.folder, checkpoint, keep=checkpoints.keep)
        if callback is not None:
            callback(progress, history)
        if stop and progress.step != progress.n_steps:
            group.gather(torch.zeros(1))  # nobody leaves before the first process has saved
            raise Interrupted(_stopped_message(progress, checkpoints), checkpoint)

    try:
        with _stop_after_step(group):
            state = resume(checkpoint.state, source, settings, callback=watch, group=group)
    except RuntimeError as error:
        if READER_DIED not in str(error):
            raise
        raise LostError("The process that reads the images was ended, perhaps as memory ran out") from error
    return Trained(state.parameters, history, state.step)


def _is_time(progress: Progress, settings: Settings) -> bool:
    """Tell whether an epoch joins the history: with many short ones, only the last of each fiftieth of them."""
    thin = max(1, settings.n_epochs // N_RECORDS)
    return progress.epoch % thin == 0 or progress.epoch == settings.n_epochs


def _check_agreement(group: Group, source: BatchSource, settings: Settings, start: Parameters) -> None:
    """Reject processes with other images or settings than the others, as on machines with other files."""
    if group.size == 1:
        return
    sizes = [list(start.group_basis.shape), list(start.dictionary.shape)]
    if not group.all_equal([source.fingerprint(), asdict(settings), sizes]):
        fix = "Give every machine the same files, and every process the same command."
        reject("data", "the same images and settings in every process", "others in some of them", fix)


def _resume_or_begin(
    checkpoints: CheckpointPolicy, fresh: Checkpoint, source: BatchSource, settings: Settings
) -> Checkpoint:
    remove_unfinished(checkpoints.folder)
    data = source.fingerprint()
    if data is None:
        fix = "Pass an array or a folder of shards, or no folder for checkpoints."
        reject("images", "images that can be known again, where a run is to be resumed", "a stream", fix)
    parameters = fresh.state.parameters
    every = (*vars(parameters).values(), *(parameters.outer or ()))
    begin = "".join(hash_tensor(value) for value in every if isinstance(value, Tensor))
    identity = {
        **asdict(settings),
        "noise_std": parameters.noise_std,
        "sparsity": parameters.sparsity,
        "data": data,
        "start": hash_tensor(torch.frombuffer(bytearray(begin.encode()), dtype=torch.uint8)),
        "random": hash_tensor(fresh.state.random),
    }
    identity = json.loads(json.dumps(identity))
    found = load_latest(checkpoints.folder)
    if found is None:
        return fresh._replace(identity=identity)
    if found.identity != identity:
        reject(
            "folder",
            "checkpoints of the same run",
            f"{checkpoints.folder} with " + "; ".join(differences(identity, found.identity)),
            "Use the same images, seed and settings to go on, or another folder to start anew.",
        )
    return found._replace(state=found.state.to(parameters.device))


def _stopped_message(progress: Progress, checkpoints: CheckpointPolicy | None) -> str:
    where = f"Stopped after step {progress.step}" + (f" of {progress.n_steps}" if progress.n_steps else "")
    if checkpoints is None:
        return f"{where}; nothing was saved. Give a folder for checkpoints to be able to go on."
    return f"{where}; saved in {checkpoints.folder}. {GO_ON}"


@contextmanager
def _stop_after_step(group: Group) -> Iterator[None]:
    """Turn the first Ctrl-C into a wish that is granted after the step; alone, the second ends at once."""

    def note(_number: int, _frame: FrameType | None) -> None:
        group.ask_to_stop()
        if group.size == 1:  # several processes stop together, or not at all: torchrun ends what takes too long
            signal.signal(signal.SIGINT, before)

    # Elsewhere Python does not allow it; and a handler that is not Python's own is someone else's choice.
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    ours = ours and before is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
