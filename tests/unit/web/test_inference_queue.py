"""Requests for inference: a bounded number, in order, and an error stays with its request."""

import asyncio
import threading

import pytest
import torch
from starlette.exceptions import HTTPException

from liesparse.web import server
from liesparse.web.server import MAX_BATCH, InferenceQueue
from liesparse.web.session import infer, normalized


@pytest.fixture(scope="module")
def session(tiny):
    return tiny()


def image(number):
    return normalized(torch.randn(16, generator=torch.Generator().manual_seed(number), dtype=torch.float64))


def with_queue(session, scenario):
    """Run a test function while the queue is processed."""

    async def run():
        queue = InferenceQueue(session)
        worker = asyncio.create_task(queue.run())
        try:
            return await asyncio.wait_for(scenario(queue), 30)
        finally:
            worker.cancel()

    return asyncio.run(run())


def test_every_request_gets_its_own_result(session):
    async def scenario(queue):
        return await asyncio.gather(*(queue.submit(lambda n=n: (image(n), f"note {n}")) for n in range(50)))

    views = with_queue(session, scenario)
    expected = infer(session, torch.stack([image(n) for n in range(50)]))
    assert [view.codes for view in views] == [view.codes for view in expected]
    assert [view.note for view in views] == [f"note {n}" for n in range(50)]


def test_requests_are_processed_in_order(session):
    assert 2 * MAX_BATCH <= server.QUEUE_SIZE
    seen = []

    def prepare(number):
        seen.append(number)
        return image(number), ""

    async def scenario(queue):
        await asyncio.gather(*(queue.submit(lambda n=n: prepare(n)) for n in range(2 * MAX_BATCH)))

    with_queue(session, scenario)
    assert seen == list(range(2 * MAX_BATCH))


def test_the_event_loop_runs_during_inference(session):
    async def scenario(queue):
        release = threading.Event()

        def prepare():
            assert release.wait(10)
            return image(0), ""

        result = asyncio.create_task(queue.submit(prepare))
        await asyncio.sleep(0.05)
        assert not result.done()
        release.set()  # impossible if the loop were blocked
        return await result

    assert with_queue(session, scenario).codes == infer(session, image(0)[None])[0].codes


async def busy(queue):
    """Block the worker until the event is set."""
    begun, release = threading.Event(), threading.Event()

    def prepare():
        begun.set()
        assert release.wait(10)
        return image(0), ""

    first = asyncio.create_task(queue.submit(prepare))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    return first, release


def test_a_full_queue_refuses_and_recovers(session, monkeypatch):
    monkeypatch.setattr(server, "QUEUE_SIZE", 3)

    async def scenario(queue):
        first, release = await busy(queue)
        waiting = [asyncio.create_task(queue.submit(lambda: (image(1), ""))) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(HTTPException, match="3 images wait already"):
                await queue.submit(lambda: (image(2), ""))
        release.set()
        await asyncio.gather(first, *waiting)
        return await queue.submit(lambda: (image(2), ""))

    assert with_queue(session, scenario).codes == infer(session, image(2)[None])[0].codes


def test_a_cancelled_request_leaves_the_queue_and_is_not_prepared(session, monkeypatch):
    monkeypatch.setattr(server, "QUEUE_SIZE", 3)

    async def scenario(queue):
        first, release = await busy(queue)
        prepared = []
        leaving = [asyncio.create_task(queue.submit(lambda: prepared.append(1))) for _ in range(3)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        staying = [asyncio.create_task(queue.submit(lambda: (image(1), ""))) for _ in range(3)]  # not full
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(first, *staying)
        assert prepared == []

    with_queue(session, scenario)


def test_a_request_cancelled_during_inference_harms_no_other(session):
    async def scenario(queue):
        first, release = await busy(queue)
        first.cancel()
        release.set()
        return await queue.submit(lambda: (image(1), ""))

    assert with_queue(session, scenario).note == ""


def test_an_error_stays_with_its_request(session):
    def wrong():
        raise ValueError("not this one")

    async def scenario(queue):
        first, release = await busy(queue)
        prepares = [lambda: (image(1), ""), wrong, lambda: (torch.full((16,), torch.nan).double(), ""), lambda: None]
        prepares += [lambda: (torch.zeros(3).double(), ""), lambda: (image(2), "")]
        tasks = [asyncio.create_task(queue.submit(prepare)) for prepare in prepares]
        await asyncio.sleep(0)
        release.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    good, refused, nan, nothing, short, also_good = with_queue(session, scenario)
    assert (refused.status_code, refused.detail) == (422, "not this one")
    for error in (nan, nothing, short):
        assert isinstance(error, Exception)
    for number, view in ((1, good), (2, also_good)):
        assert view.codes == infer(session, image(number)[None])[0].codes
