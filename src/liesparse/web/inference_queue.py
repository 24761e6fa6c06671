"""Inference outside the event loop: a bounded queue, and one thread that takes all waiting requests as a batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from liesparse.web.session import Session, View, infer

QUEUE_SIZE = 64
MAX_BATCH = 32

Prepare = Callable[[], tuple[Float[Tensor, " pixel"], str]]  # makes an image of norm 1, and a note about it


class QueueFullError(Exception):
    """Too many requests are waiting already."""


class _Request(NamedTuple):
    prepare: Prepare
    result: asyncio.Future[View]


class InferenceQueue:
    """Infers images in the order of submission; a batch takes hardly longer than one image."""

    def __init__(self, session: Session, size: int = QUEUE_SIZE) -> None:
        self.session, self.size = session, size
        self._waiting: deque[_Request] = deque()
        self._submitted = asyncio.Event()
        self._thread = ThreadPoolExecutor(1)  # each further thread would need its own working memory

    async def submit(self, prepare: Prepare) -> View:
        """Return what the model infers from the image that ``prepare`` makes; it runs in the queue's thread."""
        if len(self._waiting) >= self.size:
            raise QueueFullError(f"{self.size} images wait already. Try again in a moment.")
        request = _Request(prepare, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._submitted.set()
        try:
            return await request.result
        finally:
            if request in self._waiting:  # a cancelled request leaves the queue at once
                self._waiting.remove(request)

    async def run(self) -> None:
        """Process requests until cancelled."""
        while True:
            await self._submitted.wait()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))]
            if not self._waiting:
                self._submitted.clear()
            batch = [request for request in batch if not request.result.done()]
            prepares = [request.prepare for request in batch]
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._infer, prepares)
            for request, result in zip(batch, results, strict=True):
                if request.result.done():  # cancelled meanwhile
                    continue
                if isinstance(result, View):
                    request.result.set_result(result)
                else:
                    request.result.set_exception(result)

    def _infer(self, prepares: list[Prepare]) -> list[View | Exception]:
        """Prepare each image and infer all good ones together; an error stays with its own request."""
        results: dict[int, View | Exception] = {}
        good: dict[int, tuple[Tensor, str]] = {}
        for place, prepare in enumerate(prepares):
            try:
                pixels, note = prepare()
                good[place] = pixels, note
            except Exception as error:
                results[place] = error
        try:
            views = infer(self.session, torch.stack([pixels for pixels, _ in good.values()])) if good else []
            for (place, (_, note)), view in zip(good.items(), views, strict=True):
                results[place] = view.model_copy(update={"note": note})
        except Exception as error:
            for place in good:  # one by one, to find the image that fails
                results[place] = error if len(good) == 1 else self._infer([prepares[place]])[0]
        return [results[place] for place in range(len(prepares))]
