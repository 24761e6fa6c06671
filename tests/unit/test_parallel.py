"""What processes say to each other: means weighted by images, rows in their order, one wish to stop for all."""

import multiprocessing
import os
import socket
import time
import traceback

import pytest
import torch

from liesparse.parallel import Group, LostError, join

SIZE = 3


def test_alone_nothing_is_said_and_nothing_changes():
    with join() as group:
        assert type(group) is Group
        tensors = [torch.ones(2), torch.zeros(())]
        assert all(a is b for a, b in zip(group.mean(tensors, 5), tensors, strict=True))
        assert group.part(tensors[0]) is group.gather(tensors[0]) is group.broadcast(tensors[0]) is tensors[0]
        assert group.speaks_first()
        assert not group.stopping
        group.ask_to_stop()
        assert group.stopping


def uneven_means(group):
    """5, 2 and 0 images: the last counts for nothing, whatever it says."""
    every = torch.arange(14.0, dtype=torch.float64).reshape(7, 2)
    own = every.split([5, 2, 0])[group.rank]
    mine = own.mean(dim=0) if len(own) else torch.full((2,), 1e3, dtype=torch.float64)
    matrix, number = group.mean([mine.outer(torch.ones(3).double()), mine.sum()], len(own))
    torch.testing.assert_close(matrix, every.mean(dim=0).outer(torch.ones(3).double()))
    torch.testing.assert_close(number, every.mean(dim=0).sum())


def rows_in_order(group):
    every = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    assert group.gather(group.part(every)).equal(every)
    assert group.gather(every.split([6, 0, 1])[group.rank]).equal(every)
    assert len(group.part(torch.arange(2))) == (1, 1, 0)[group.rank]


def the_firsts_values(group):
    """Exactly, whatever the type."""
    rng = torch.Generator().manual_seed(group.rank)
    own = [torch.randn(2, 3, generator=rng), torch.randn(2, generator=rng).double(), rng.get_state()]
    expected = torch.Generator().manual_seed(0)
    wanted = [torch.randn(2, 3, generator=expected), torch.randn(2, generator=expected).double(), expected.get_state()]
    for found, first in zip(group.broadcast(own), wanted, strict=True):
        assert found.equal(first)
        assert found.dtype == first.dtype


def one_wish_stops_all(group):
    group.mean([torch.ones(1)], 1)
    assert not group.stopping
    if group.rank == 1:
        group.ask_to_stop()
    assert not group.stopping  # until all have heard of it
    group.mean([torch.ones(1)], 1)
    assert group.stopping


def a_wish_is_forgotten(group):
    group.ask_to_stop()
    group.begin()
    group.mean([torch.ones(1)], 1)
    assert not group.stopping


def words_are_compared(group):
    time.sleep(0.1 * group.rank)
    assert group.all_equal("the same")
    assert not group.all_equal(f"I am {group.rank}")
    assert group.all_equal("the same")


def one_speaks(group):
    told = group.gather(torch.tensor([float(group.speaks_first())]))
    assert float(told.sum()) == 1


def a_loss_is_noticed(group):
    if group.rank == 2:
        time.sleep(0.5)  # until what it found before is on its way
        os._exit(0)
    with pytest.raises(LostError, match="Another process of this training is gone"):
        group.mean([torch.ones(1)], 1)


PARTS = [uneven_means, rows_in_order, the_firsts_values, one_wish_stops_all, a_wish_is_forgotten, words_are_compared]
PARTS += [one_speaks, a_loss_is_noticed]  # in this order


def be_one(rank, port, answers):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(SIZE), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    with join() as group:
        for part in PARTS:
            try:
                part(group)
                answers.put((part.__name__, ""))
            except BaseException:
                answers.put((part.__name__, traceback.format_exc()))


@pytest.fixture(scope="module")
def answers():
    """Let three processes go through all parts, and collect what they found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    processes = [fork.Process(target=be_one, args=(rank, port, queue), daemon=True) for rank in range(SIZE)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=120) for _ in range(SIZE * len(PARTS) - 1)]  # one is lost on purpose
    for process in processes:
        process.join(30)
    return found


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_in_three_processes(answers, part):
    told = [text for name, text in answers if name == part.__name__]
    assert len(told) == SIZE - (part is a_loss_is_noticed)
    assert not any(told), "\n".join(told)


def test_a_group_that_cannot_be_joined_is_said(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="processes: expected a group that torchrun made"), join():
        pass
