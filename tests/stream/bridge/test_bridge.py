"""The trio loop behind the asyncio and blocking faces: its lifetime, errors and cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.lowlevel

from ledger.errors import LedgerClosed, TooManyRequests
from ledger.runtime import bridge as loop_bridge
from ledger.runtime import shared_loop
from stream.aio import bridge as aio
from stream.blocking import bridge as blocking


def loops() -> int:
    """Returns the number of running loops, after those that are ending have ended.

    Earlier tests may have left a loop that is ending, and a thread exists for a moment after its
    last report.
    """
    threads = [thread for thread in threading.enumerate() if thread.name == "ledgerstream-loop"]
    in_use = [loop._thread for loop in shared_loop._loops]
    for thread in threads:
        if thread not in in_use:
            thread.join(10)
    return sum(thread.is_alive() for thread in threads)


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Sends SIGINT to this process, as Ctrl-C does, unless the block ends first.

    Callers must expect KeyboardInterrupt outside of this block: on a busy machine the signal may
    arrive before the block has begun.
    """
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


class Recorder:
    """Runs calls and blocks in the trio thread and records their events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def slow_to_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            self.events.append("ended")

    @asynccontextmanager
    async def block(self, *, fails_at_exit: bool = False) -> AsyncIterator[str]:
        self.events.append("entered")
        try:
            async with trio.open_nursery() as nursery:
                yield "value"
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup:
            self.events.append("raised")
            raise
        finally:
            self.events.append("left")
        if fails_at_exit:
            raise LedgerClosed("at the end")


async def tick() -> None:
    await trio.lowlevel.checkpoint()


async def fail() -> None:
    raise ValueError("in the trio thread")


def test_the_loop_lives_as_long_as_a_bridge_is_open() -> None:
    before = loops()
    with blocking.open_bridge() as one:
        assert loops() == before + 1
        with blocking.open_bridge() as two:
            assert loops() == before + 1
            two.call(tick)
        one.call(tick)
    assert loops() == before
    with pytest.raises(LedgerClosed):
        one.call(tick)
    with pytest.raises(LedgerClosed), one.hold(Recorder().block):
        pass


def test_errors_are_raised_unchanged_in_the_caller() -> None:
    with blocking.open_bridge() as bridge, pytest.raises(ValueError, match="in the trio"):
        bridge.call(fail)

    async def main() -> None:
        async with aio.open_bridge() as bridge:
            with pytest.raises(ValueError, match="in the trio"):
                await bridge.call(fail)
            with pytest.raises(ZeroDivisionError):
                bridge.ask(lambda: 1 // 0)

    asyncio.run(main())


def test_a_cancelled_asyncio_task_ends_after_its_trio_side() -> None:
    recorder = Recorder()

    async def main() -> None:
        async with aio.open_bridge() as bridge:
            task = asyncio.create_task(bridge.call(recorder.slow_to_end))
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # a second cancellation changes nothing
            with pytest.raises(asyncio.CancelledError):
                await task
            assert recorder.events == ["ended"]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await bridge.call(recorder.slow_to_end)
            assert recorder.events == ["ended", "ended"]

    asyncio.run(main())


def test_a_call_cancelled_before_it_was_posted_never_begins() -> None:
    recorder = Recorder()

    async def main() -> None:
        async with aio.open_bridge() as bridge:
            task = asyncio.create_task(bridge.call(recorder.slow_to_end))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            task = asyncio.create_task(bridge.call(recorder.slow_to_end))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_ctrl_c_ends_the_trio_side_first() -> None:
    recorder = Recorder()
    with blocking.open_bridge() as bridge:
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.05):
            bridge.call(recorder.slow_to_end)
        assert recorder.events == ["ended"]
        bridge.call(tick)


def test_a_deadline_ends_the_trio_side_first() -> None:
    recorder = Recorder()
    with blocking.open_bridge() as bridge:
        begin = time.monotonic()
        with pytest.raises(TimeoutError), blocking.fail_after(60), blocking.fail_after(0.02):
            bridge.call(recorder.slow_to_end)
        assert time.monotonic() - begin < 5
        assert recorder.events == ["ended"]
        with blocking.fail_after(60):
            bridge.call(tick)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_raised_in_a_block_is_unchanged(error: type[BaseException]) -> None:
    recorder = Recorder()
    with blocking.open_bridge() as bridge:
        with (  # noqa: PT012 (it leaves through the block)
            pytest.raises(error),
            bridge.hold(recorder.block) as value,
        ):
            assert value == "value"
            raise error
        with bridge.hold(recorder.block):
            pass
        with (
            pytest.raises(LedgerClosed, match="at the end"),
            bridge.hold(lambda: recorder.block(fails_at_exit=True)),
        ):
            pass
    assert recorder.events == ["entered", "raised", "left", "entered", "left", "entered", "left"]


def test_a_block_cancelled_in_asyncio_is_left_in_trio() -> None:
    recorder = Recorder()

    async def main() -> None:
        async with aio.open_bridge() as bridge:

            async def use() -> None:
                async with bridge.hold(recorder.block):
                    await asyncio.sleep(3600)

            task = asyncio.create_task(use())
            while not recorder.events:  # noqa: ASYNC110 (it happens in another thread)
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert recorder.events == ["entered", "raised", "left"]

    asyncio.run(main())


def test_an_error_while_entering_a_block_is_raised_in_the_caller() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        await fail()
        yield

    with (
        blocking.open_bridge() as bridge,
        pytest.raises(ValueError, match="in the trio"),
        bridge.hold(broken),
    ):
        raise AssertionError("never entered")


def test_too_many_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bridge, "CALLS_MAX", 3)

    async def main() -> None:
        async with aio.open_bridge() as bridge:
            tasks = [asyncio.create_task(bridge.call(trio.sleep_forever)) for _ in range(3)]
            await asyncio.sleep(0.05)
            with pytest.raises(TooManyRequests, match="3 calls"):
                await bridge.call(trio.sleep_forever)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in ended)
            await bridge.call(tick)

    asyncio.run(main())


def test_many_threads_share_the_loop() -> None:
    done: list[int] = []
    with blocking.open_bridge() as bridge:

        def work(number: int) -> None:
            for _ in range(50):
                bridge.call(tick)
            done.append(number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(done) == list(range(8))


def test_a_bridge_used_in_another_asyncio_loop_raises() -> None:
    kept: list[aio.Bridge] = []

    async def keep() -> None:
        async with aio.open_bridge() as bridge:
            kept.append(bridge)

    async def use() -> None:
        with pytest.raises(RuntimeError, match="another asyncio event loop"):
            await kept[0].call(tick)

    asyncio.run(keep())
    asyncio.run(use())


def test_a_task_cancelled_while_the_loop_ends_stays_cancelled() -> None:
    async def main() -> None:
        async def use() -> None:
            async with aio.open_bridge():
                pass

        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = loops()
    asyncio.run(main())
    assert loops() == before
