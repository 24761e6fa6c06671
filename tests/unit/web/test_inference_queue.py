"""Questions to the model: bounded, in order, each on its own."""

import asyncio
import threading

import pytest
import torch

from liesparse.web.inference_queue import MOST_AT_ONCE, FullError, InferenceQueue
from liesparse.web.session import infer, normalized


@pytest.fixture(scope="module")
def session(tiny):
    return tiny()


def image(number):
    return normalized(torch.randn(16, generator=torch.Generator().manual_seed(number), dtype=torch.float64))


def at_desk(session, story, **settings):
    """Run a story beside a queue that works."""

    async def run():
        queue = InferenceQueue(session, **settings)
        worker = asyncio.create_task(queue.work())
        try:
            return await asyncio.wait_for(story(queue), 30)
        finally:
            worker.cancel()

    return asyncio.run(run())


def test_everyone_gets_their_own_answer(session):
    async def story(queue):
        return await asyncio.gather(*(queue.submit(lambda n=n: (image(n), f"note {n}")) for n in range(50)))

    views = at_desk(session, story)
    expected = infer(session, torch.stack([image(n) for n in range(50)]))
    assert [view.codes for view in views] == [view.codes for view in expected]
    assert [view.note for view in views] == [f"note {n}" for n in range(50)]


def test_questions_are_taken_in_the_order_in_which_they_came(session):
    seen = []

    def prepare(number):
        seen.append(number)
        return image(number), ""

    async def story(queue):
        await asyncio.gather(*(queue.submit(lambda n=n: prepare(n)) for n in range(2 * MOST_AT_ONCE)))

    at_desk(session, story, most_waiting=2 * MOST_AT_ONCE)
    assert seen == list(range(2 * MOST_AT_ONCE))


def test_the_loop_stays_free_while_the_model_thinks(session):
    async def story(queue):
        release = threading.Event()

        def prepare():
            assert release.wait(10)
            return image(0), ""

        answer = asyncio.create_task(queue.submit(prepare))
        await asyncio.sleep(0.05)
        assert not answer.done()
        release.set()  # which the loop could not do if it had to wait
        return await answer

    assert at_desk(session, story).codes == infer(session, image(0)[None])[0].codes


async def busy(queue):
    """Give the worker something that takes until the event is set."""
    begun, release = threading.Event(), threading.Event()

    def prepare():
        begun.set()
        assert release.wait(10)
        return image(0), ""

    first = asyncio.create_task(queue.submit(prepare))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    return first, release


def test_a_full_desk_refuses_and_recovers(session):
    async def story(queue):
        first, release = await busy(queue)
        waiting = [asyncio.create_task(queue.submit(lambda: (image(1), ""))) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(FullError):
                await queue.submit(lambda: (image(2), ""))
        release.set()
        await asyncio.gather(first, *waiting)
        return await queue.submit(lambda: (image(2), ""))

    assert at_desk(session, story, most_waiting=3).codes == infer(session, image(2)[None])[0].codes


def test_who_leaves_makes_room_and_costs_nothing(session):
    async def story(queue):
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

    at_desk(session, story, most_waiting=3)


def test_who_leaves_while_the_model_thinks_harms_nobody(session):
    async def story(queue):
        first, release = await busy(queue)
        first.cancel()
        release.set()
        return await queue.submit(lambda: (image(1), ""))

    assert at_desk(session, story).note == ""


def test_an_error_stays_with_its_question(session):
    def wrong():
        raise ValueError("not this one")

    async def story(queue):
        first, release = await busy(queue)
        questions = [lambda: (image(1), ""), wrong, lambda: (torch.full((16,), torch.nan).double(), ""), lambda: None]
        questions += [lambda: (torch.zeros(3).double(), ""), lambda: (image(2), "")]
        tasks = [asyncio.create_task(queue.submit(question)) for question in questions]
        await asyncio.sleep(0)
        release.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    good, refused, nan, nothing, short, also_good = at_desk(session, story)
    assert str(refused) == "not this one"
    for error in (nan, nothing, short):
        assert isinstance(error, Exception)
    for number, view in ((1, good), (2, also_good)):
        assert view.codes == infer(session, image(number)[None])[0].codes
