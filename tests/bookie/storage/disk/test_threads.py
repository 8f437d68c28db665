"""Threads for blocking calls: as many as needed, none permanently, and every outcome arrives."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from bookie.storage.disk.threads import BlockingCallPool

NAME = "threads of a test"


def alive() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


async def none_left() -> None:
    with trio.fail_after(10):
        while alive():
            await trio.lowlevel.checkpoint()


async def test_what_a_call_returns_or_raises_arrives() -> None:
    threads = BlockingCallPool(NAME, 2)

    def fails() -> None:
        raise OSError(5, "of a disk")

    assert await threads.run(lambda: 7) == 7
    with pytest.raises(OSError, match="of a disk"):
        await threads.run(fails)
    assert await threads.run(threading.get_ident) != threading.get_ident()
    threads.end()
    await none_left()


@pytest.mark.parametrize("threads_max", [1, 3])
async def test_no_more_threads_than_may_be_and_no_more_than_calls(threads_max: int) -> None:
    threads = BlockingCallPool(NAME, threads_max)
    goes_on = threading.Event()
    async with trio.open_nursery() as nursery:
        for calls in range(1, 7):
            nursery.start_soon(threads.run, goes_on.wait)
            await trio.testing.wait_all_tasks_blocked()
            assert alive() == min(calls, threads_max)
        goes_on.set()
    made_by = {await threads.run(threading.get_ident) for _ in range(20)}
    assert len(made_by) <= 2, "who was idle for longer may end; the first may not have been back"
    assert alive() == threads_max
    threads.end()
    await none_left()


@pytest.mark.parametrize("has_one", [False, True])
async def test_where_no_thread_is_to_be_had_those_that_are_there_do_it(
    has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, goes_on = BlockingCallPool(NAME, 3), threading.Event()

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with trio.open_nursery() as nursery:
        if has_one:
            nursery.start_soon(threads.run, goes_on.wait)
            await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(threading.Thread, "start", none)
        if has_one:
            nursery.start_soon(threads.run, goes_on.wait)
            await trio.testing.wait_all_tasks_blocked()
        else:
            with pytest.raises(OSError, match="gives no thread"):
                await threads.run(goes_on.wait)
        goes_on.set()
    threads.end()
    await none_left()


async def test_one_thread_makes_calls_in_order() -> None:
    threads, made = BlockingCallPool(NAME, 1), list[int]()

    async def call(number: int) -> None:
        await threads.run(lambda: made.append(number))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(call, number)
            await trio.lowlevel.checkpoint()
    assert len(made) == 100
    threads.end()
    await none_left()


async def test_cancelling_waits_for_the_outcome() -> None:
    threads, goes_on, is_done = BlockingCallPool(NAME, 1), threading.Event(), False

    def do() -> None:
        nonlocal is_done
        goes_on.wait(10)
        is_done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run, do)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        goes_on.set()
    assert is_done
    threads.end()
    await none_left()


@pytest.mark.parametrize("seed", range(5))
async def test_calls_are_made_whenever_threads_end(seed: int) -> None:
    """Idle ones at once, all of them in between: a call is never left to one that has gone."""
    threads, rng, made = BlockingCallPool(NAME, 3, idle_s=0.0), random.Random(seed), 0

    def counted() -> None:
        nonlocal made
        made += 1  # one at a time: each caller waits

    async def calls(next_one: Callable[[], float]) -> None:
        for _ in range(200):
            await threads.run(counted if next_one() < 0.5 else threading.get_ident)
            if made > 300 and next_one() < 0.2:
                threads.end()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(calls, rng.random)
    assert made > 200
    threads.end()
    await none_left()
