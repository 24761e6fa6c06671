"""Inference off the event loop: a bounded queue, and one thread that takes all that wait at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.web.session import Session, View, infer

MOST_WAITING = 64
MOST_AT_ONCE = 32

Prepare = Callable[[], tuple[Float[Tensor, " pixel"], str]]


class FullError(Exception):
    """So many wait already that one more would wait too long."""


class _Question(NamedTuple):
    prepare: Prepare
    answer: asyncio.Future[View]


class InferenceQueue:
    """Answers questions about images, in the order in which they came; a batch costs hardly more than one."""

    def __init__(self, session: Session, *, most_waiting: int = MOST_WAITING) -> None:
        self.session, self.most_waiting = session, most_waiting
        self._waiting: deque[_Question] = deque()
        self._news = asyncio.Event()
        self._thread = ThreadPoolExecutor(1)  # several would each keep memory of their own

    async def submit(self, prepare: Prepare) -> View:
        """Return what the model thinks of the image that ``prepare`` makes, in the queue's own thread."""
        if len(self._waiting) >= self.most_waiting:
            raise FullError
        question = _Question(prepare, asyncio.get_running_loop().create_future())
        self._waiting.append(question)
        self._news.set()
        try:
            return await question.answer
        finally:
            if question in self._waiting:  # who leaves makes room
                self._waiting.remove(question)

    async def work(self) -> None:
        """Answer for ever; cancel it to end."""
        while True:
            await self._news.wait()
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
            if not self._waiting:
                self._news.clear()
            wanted = [question for question in taken if not question.answer.done()]  # who left waits no more
            if not wanted:
                continue
            prepares = [question.prepare for question in wanted]
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, prepares)
            for question, answer in zip(wanted, answers, strict=True):
                if question.answer.done():
                    continue
                if isinstance(answer, View):
                    question.answer.set_result(answer)
                else:
                    question.answer.set_exception(answer)

    def _answer(self, prepares: list[Prepare]) -> list[View | Exception]:
        """Prepare each image and look at all good ones together; one that fails fails alone."""
        answers: dict[int, View | Exception] = {}
        good: dict[int, tuple[Tensor, str]] = {}
        for place, prepare in enumerate(prepares):
            try:
                pixels, note = prepare()
                good[place] = pixels, note
            except Exception as error:
                answers[place] = error
        views = self._infer([pixels for pixels, _ in good.values()])
        for (place, (_, note)), view in zip(good.items(), views, strict=True):
            answers[place] = view.model_copy(update={"note": note}) if isinstance(view, View) else view
        return [answers[place] for place in range(len(prepares))]

    def _infer(self, images: list[Tensor]) -> Sequence[View | Exception]:
        try:
            return infer(self.session, torch.stack(images)) if images else []
        except Exception as error:
            return [error] if len(images) == 1 else [self._infer([image])[0] for image in images]
