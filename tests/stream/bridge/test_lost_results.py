"""Callers that are cancelled at the moment their result arrives, and loops that end then.

Nothing is lost with the result, and no caller waits forever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from bookie.testing.in_process import InProcessCluster
from ledger.errors import InvalidArgument, LedgerClosed
from ledger.runtime import bridge
from ledger.runtime.bridge import BackgroundLoop, Completion, Job
from stream import aio, blocking
from stream.aio import bridge as aio_bridge
from stream.blocking import bridge as blocking_bridge
from stream.bridge.appends import Appends
from tests.stream.bridge.test_bridge import Recorder, loops, tick

RECORDS = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    directory: Path = tmp_path_factory.mktemp("answers")
    with InProcessCluster(directory) as running:
        yield running


def filled(cluster: InProcessCluster, name: str) -> list[bytes]:
    values = [b"%d" % number for number in range(RECORDS)]
    with (
        blocking.Namespace.connect(cluster.uri, name, create=True) as namespace,
        namespace.writer("s", create=True) as writer,
    ):
        for value in values:
            writer.append(value)
    return values


async def cancelled_too_late(step: asyncio.Task[object]) -> None:
    """Cancels a task whose result has arrived but which has not run since."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251 (it blocks this loop but not the trio thread)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


async def stubborn() -> int:
    with trio.CancelScope(shield=True):
        await trio.sleep(0.05)
    return 7


def test_a_result_that_no_caller_takes_is_given_back() -> None:
    returned: list[int] = []

    async def main() -> None:
        async with aio_bridge.open_bridge() as bridge:

            async def call() -> object:
                return await bridge.call(stubborn, returned.append)

            await cancelled_too_late(asyncio.create_task(call()))
            bridge.ask(lambda: None)
            assert returned == [7]
            assert await bridge.call(stubborn, returned.append) == 7

    asyncio.run(main())
    with blocking_bridge.open_bridge() as bridge:
        with pytest.raises(TimeoutError), blocking.fail_after(0.01):
            bridge.call(stubborn, returned.append)
        assert bridge.call(stubborn, returned.append) == 7
    assert returned == [7, 7]


@pytest.mark.parametrize("by", ["batch", "record"])
@pytest.mark.parametrize("auto_advance", [True, False])
def test_a_consumer_loses_nothing_when_a_request_is_cancelled(
    cluster: InProcessCluster, by: str, auto_advance: bool
) -> None:
    name = f"consumed-{by}-{auto_advance}"
    values = filled(cluster, name)
    seen: list[bytes] = []

    async def main() -> None:
        async with (
            aio.Namespace.connect(cluster.uri, name) as namespace,
            namespace.consumer("s", group="g", auto_advance=auto_advance) as consumer,
        ):

            async def step() -> list[bytes]:
                if by == "batch":
                    return (await anext(consumer)).batch.values()
                return [(await consumer.next_record()).record.value]

            while len(seen) < RECORDS:
                seen.extend(await step())
                if len(seen) < RECORDS:
                    await cancelled_too_late(asyncio.create_task(step()))
                    if auto_advance:
                        at = next(iter((await consumer.commit()).values()))
                        records = await namespace.read_last("s", RECORDS)
                        assert sum(record.position < at for record in records) <= len(seen)

    async def bounded() -> None:
        await asyncio.wait_for(main(), 60)

    asyncio.run(bounded())
    assert seen == values


def test_reading_backward_loses_nothing_when_a_step_is_cancelled(
    cluster: InProcessCluster,
) -> None:
    values = filled(cluster, "backward")
    seen: list[bytes] = []

    async def main() -> None:
        async with (
            aio.Namespace.connect(cluster.uri, "backward") as namespace,
            namespace.backward_batches("s") as batches,
        ):

            async def step() -> list[bytes]:
                return (await anext(batches)).values()

            while len(seen) < RECORDS:
                await cancelled_too_late(asyncio.create_task(step()))
                seen[:0] = await step()

    asyncio.run(main())
    assert seen == values


def test_a_wait_abandoned_before_its_block_began_breaks_nothing() -> None:
    """A completion may be set twice: `entered`, of a block whose caller has stopped waiting."""
    completion = Completion()
    bridge = blocking_bridge.Bridge
    with blocking_bridge.open_bridge() as own:
        with pytest.raises(TimeoutError), blocking.fail_after(0):
            own.wait(completion)
        bridge.wake([completion])
        bridge.wake([completion])
        own.call(tick)


def test_a_failed_job_ends_the_loop_and_every_caller_gets_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder, outcomes = Recorder(), list[BaseException]()

    def attempt(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 (it is checked below)
            outcomes.append(error)

    def sleeping(bridge: blocking_bridge.Bridge) -> None:
        bridge.call(trio.sleep_forever)

    def holding(bridge: blocking_bridge.Bridge) -> None:
        with bridge.hold(recorder.block):
            bridge.call(trio.sleep_forever)

    with blocking_bridge.open_bridge() as bridge:
        threads = [
            threading.Thread(target=attempt, args=(lambda act=act: act(bridge),))
            for act in (sleeping, holding)
        ]
        for thread in threads:
            thread.start()
        while not recorder.events:
            bridge.call(tick)
        bridge.post(Job(lambda: 1 // 0))
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)
        assert [type(error) for error in outcomes] == [LedgerClosed, LedgerClosed]
        with pytest.raises(LedgerClosed):
            bridge.call(tick)
    with blocking_bridge.open_bridge() as another:
        another.call(tick)
    assert "the background loop failed" in caplog.text


def test_a_call_that_starts_after_the_loop_ended_gets_an_error() -> None:
    loop = BackgroundLoop()
    loop.start()
    entered: list[BaseException | None] = []

    def die() -> None:
        assert loop._nursery is not None
        loop._nursery.cancel_scope.cancel()

    loop.post(die)
    loop.ended.wait()

    async def later() -> None:
        pass

    call = bridge.Call(loop, later, blocking_bridge.Bridge.wake)
    call.start()
    entered.append(call.error)
    assert isinstance(entered[0], LedgerClosed)


def test_ctrl_c_while_the_loop_starts_does_not_break_later_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = BackgroundLoop.start

    def interrupted(self: BackgroundLoop) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BackgroundLoop, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), blocking_bridge.open_bridge():
        pass
    monkeypatch.setattr(BackgroundLoop, "start", start)
    with blocking_bridge.open_bridge() as bridge:
        bridge.call(tick)


def test_a_block_dropped_in_the_trio_thread_does_not_stop_it() -> None:
    """Garbage collection, which runs in any thread, does this to a block that was never left."""
    recorder = Recorder()
    with blocking_bridge.open_bridge() as bridge:
        block = bridge.hold(recorder.block)
        block.__enter__()
        with blocking.fail_after(10):
            bridge.call(lambda: left_in_trio(block))
        while "left" not in recorder.events:
            bridge.call(tick)


async def left_in_trio(block: blocking_bridge.BridgedContext[str]) -> None:
    block.__exit__(GeneratorExit, GeneratorExit(), None)


def test_a_flush_does_not_wait_for_later_records(cluster: InProcessCluster) -> None:
    async def main() -> None:
        async with aio.Namespace.connect(cluster.uri, "flushed", create=True) as namespace:
            await namespace.set_policy(linger_ms=60_000)
            async with namespace.writer("s", create=True) as writer:
                first = writer.append_nowait(b"first")
                flushing = asyncio.create_task(writer.flush())
                while not flushing.done():
                    assert not first.is_confirmed or time.monotonic() < begin + 20
                    await asyncio.sleep(0)
                    if writer.has_room and not first.is_confirmed:
                        writer.append_nowait(b"later")
                assert first.is_confirmed

    begin = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begin < 20


def test_a_record_whose_hop_another_thread_has_yet_to_make_is_flushed(
    cluster: InProcessCluster,
) -> None:
    """The other thread is suspended between claiming the hop and making it."""
    with blocking.Namespace.connect(cluster.uri, "owed", create=True) as namespace:
        with namespace.writer("s", create=True) as writer:
            writer._appends._is_asked = True
            ticket = writer.append_nowait(b"1")
            writer.flush()
            assert ticket.is_confirmed
            writer._appends._is_asked = True
            writer.append_nowait(b"2")
        assert [record.value for record in namespace.read_last("s", 2)] == [b"1", b"2"]


def test_repeated_waits_for_capacity_leave_nothing_behind() -> None:
    appends = Appends("s", lambda job: None, lambda completions: None, 0)
    completions = {id(appends.want_room()) for _ in range(100)}
    assert len(completions) == 1
    with blocking_bridge.open_bridge() as bridge:
        completion = Completion()
        for _ in range(100):
            with pytest.raises(TimeoutError), blocking.fail_after(0):
                bridge.wait(completion)
        assert not completion.waiters

    async def main() -> None:
        async with aio_bridge.open_bridge() as bridge:
            for _ in range(100):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(bridge.wait(completion), 0.0001)
            assert not completion.waiters

    asyncio.run(main())


def test_an_append_in_another_asyncio_loop_is_refused(cluster: InProcessCluster) -> None:
    async def main() -> None:
        async with aio.Namespace.connect(cluster.uri, "foreign", create=True) as namespace:
            async with namespace.writer("s", create=True) as writer:
                ticket = writer.append_nowait(b"1")

                async def elsewhere() -> None:
                    with pytest.raises(RuntimeError, match="another asyncio event loop"):
                        await writer.append(b"never")

                await asyncio.to_thread(asyncio.run, elsewhere())
                await ticket.wait()
            assert [record.value for record in await namespace.read_last("s", 9)] == [b"1"]

    asyncio.run(main())


def test_the_asyncio_face_refuses_to_run_in_trio(cluster: InProcessCluster) -> None:
    before = loops()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="in trio use `stream`"):
            await aio.Namespace.connect(cluster.uri, "x").__aenter__()

    trio.run(main)
    assert loops() == before


def test_an_invalid_start_is_refused(cluster: InProcessCluster) -> None:
    filled(cluster, "begins")
    with blocking.Namespace.connect(cluster.uri, "begins") as namespace, blocking.fail_after(20):
        for start in ("earliest", 0, None):
            with (
                pytest.raises(InvalidArgument, match="must be EARLIEST"),
                namespace.reader("s", start=start) as reader,  # type: ignore[arg-type]
            ):
                next(reader)
