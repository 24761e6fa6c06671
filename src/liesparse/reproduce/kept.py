"""Results of several seeds: each is computed once and kept as a file; and what all seeds say together."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from liesparse.files import write_json


class Step(NamedTuple):
    """How far something is."""

    share: float  # that is done
    note: str
    end_of_epoch: bool = False


Tell = Callable[[Step], None]


class Job(NamedTuple):
    """A result of one seed that is wanted."""

    names: tuple[str, ...]
    seed: int
    made_with: dict[str, Any]  # what a file must hold to be this result: other settings are another result
    compute: Callable[[Tell], dict[str, Any]]
    minutes: float = 1.0  # about, beside others

    def __str__(self) -> str:
        """Return how a person calls it."""
        return f"{', '.join(self.names)}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """Return where it lies inside its folder."""
        return f"{'.'.join(self.names)}.{self.seed}.json"


Results = list[tuple[Job, dict[str, Any]]]


def run(jobs: Sequence[Job], folder: Path, tell: Tell) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Compute what ``folder`` does not have yet, each result written when it is done, and yield all of them."""
    total, done = sum(job.minutes for job in jobs), 0.0
    for job in jobs:

        def tell_part(step: Step, job: Job = job, before: float = done) -> None:
            tell(Step((before + step.share * job.minutes) / total, f"{job}: {step.note}"))

        made_with = json.loads(json.dumps(job.made_with))  # as JSON has it
        try:
            kept = json.loads((folder / job.file_name).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            kept = {}
        if not made_with.items() <= kept.items():
            tell_part(Step(0.0, "begins"))
            kept = job.compute(tell_part) | made_with
            write_json(folder / job.file_name, kept)
        done += job.minutes
        yield job, kept


def over_seeds(
    values: Sequence[float],
    show: Callable[[float], str],
    middle: Callable[[Sequence[float]], float] = statistics.median,
    to: str = " to ",
) -> str:
    """Return the middle of the values, with the lowest and the highest if there are several."""
    shown, low, high = (show(found(values)) for found in (middle, min, max))
    return shown if len(values) == 1 else f"{shown} ({low}{to}{high})"
