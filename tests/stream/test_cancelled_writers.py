"""Calls of a writer, cancelled at each of their awaits: the writer stays usable or is clearly
closed, what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import LedgerClosed
from stream import Namespace, StreamWriter, Ticket, WriterOptions
from tests.cancelling import at_every_step, is_cancelled_at

STEPS_MAX = 2000
STRIDES = pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
"""Of the long ones every seventh step with every change."""
SMALL = WriterOptions(pending_bytes_max=300)


async def all_values(namespace: Namespace) -> list[bytes]:
    async with namespace.reader("s") as reader:
        return [r.value async for batch in reader.read_to_end() for r in batch.records()]


def check(found: list[bytes], acknowledged: list[bytes], doubtful: list[bytes]) -> None:
    """Acknowledged records once, in their order; the others once or not at all."""
    assert [value for value in found if value in acknowledged] == acknowledged
    for value in doubtful:
        assert found.count(value) <= 1
    assert not set(found) - set(acknowledged) - set(doubtful)


async def _append(writer: StreamWriter) -> None:
    await writer.append(b"doubt")


async def _append_expecting(writer: StreamWriter) -> None:
    await writer.append(b"doubt", expected_sequence=writer.next_sequence)


async def _append_many(writer: StreamWriter) -> None:
    await writer.append_many([b"doubt", *(bytes([n]) * 100 for n in range(20))])


async def _flush(writer: StreamWriter) -> None:
    await writer.wait_room()
    writer.append_nowait(b"doubt")
    await writer.flush()


async def _produce(writer: StreamWriter) -> None:
    producer = await writer.producer("loader")
    await producer.append(b"doubt", 0)


async def _produce_many(writer: StreamWriter) -> None:
    producer = await writer.producer("loader")
    await producer.append_many([b"doubt", *(bytes([n]) * 100 for n in range(20))], 0)


@pytest.mark.parametrize(
    "call", [_append, _append_expecting, _append_many, _flush, _produce, _produce_many]
)
def test_a_call_that_is_cancelled_leaves_the_writer_usable(
    call: Callable[[StreamWriter], Awaitable[None]],
) -> None:
    def run(step: int) -> bool:
        async def story(cluster: SimCluster) -> bool:
            async with cluster.client() as client:
                namespace = Namespace(client, "n", writer_options=SMALL)
                await namespace.ensure(batch_bytes=100)
                async with namespace.writer("s", create=True) as writer:
                    while writer.has_room:
                        writer.append_nowait(b"")

                    async def cancelled() -> None:
                        await call(writer)

                    is_cancelled = await is_cancelled_at(step, cancelled)
                    await writer.append(b"after")
                    producer = await writer.producer("loader")
                    # As a retry of what was cancelled: it is there by now, or comes now.
                    known = producer.next_sequence
                    await producer.append(b"last", known)
                    assert producer.last_sequence == known
                found = [value for value in await all_values(namespace) if value]
                doubtful = [b"doubt", *(bytes([n]) * 100 for n in range(20))]
                check(found, [b"after", b"last"], doubtful)
                assert is_cancelled or b"doubt" in found
                return is_cancelled

        return simulate(story, 1)

    assert at_every_step(run, most=STEPS_MAX) >= 1


@STRIDES
@pytest.mark.parametrize("hand_over_s", [None, 5.0])
def test_a_takeover_that_is_cancelled_leaves_a_stream_that_can_be_taken_over(
    hand_over_s: float | None, stride: int
) -> None:
    def run(step: int) -> bool:
        async def story(cluster: SimCluster) -> bool:
            async with cluster.client() as client:
                namespace = Namespace(client, "n")
                await namespace.ensure()
                try:
                    async with namespace.writer("s", create=True) as writer:
                        await writer.append(b"old")
                        raise ZeroDivisionError  # leaves the segment open
                except ZeroDivisionError:
                    pass

                async def enter_and_leave() -> None:
                    async with namespace.writer("s", hand_over_s=hand_over_s) as writer:
                        await writer.append(b"between")

                is_cancelled = await is_cancelled_at(step, enter_and_leave)
                async with namespace.writer("s") as writer:
                    await writer.append(b"new")
                found = await all_values(namespace)
                check(found, [b"old", b"new"], [b"between"])
                return is_cancelled

        return simulate(story, 2)

    assert at_every_step(run, most=STEPS_MAX, stride=stride) > 40


def test_closing_that_is_cancelled_can_be_repeated() -> None:
    def run(step: int) -> bool:
        async def story(cluster: SimCluster) -> bool:
            async with cluster.client() as client:
                namespace = Namespace(client, "n")
                await namespace.ensure()
                async with namespace.writer("s", create=True) as writer:
                    await writer.append(b"1")
                    writer.append_nowait(b"2")
                    is_cancelled = await is_cancelled_at(step, writer.close)
                    with pytest.raises(LedgerClosed):
                        writer.append_nowait(b"never")
                    await writer.close()
                assert await all_values(namespace) == [b"1", b"2"]
                assert (await namespace.stream_metadata("s")).open_segment is None
                return is_cancelled

        return simulate(story, 3)

    assert at_every_step(run, most=STEPS_MAX) >= 2


def test_who_waits_elsewhere_is_told_when_the_end_of_the_block_was_cancelled() -> None:
    async def story(cluster: SimCluster) -> None:
        told: list[LedgerClosed] = []

        async def wait(ticket: Ticket) -> None:
            with pytest.raises(LedgerClosed, match="abandoned") as error:
                await ticket.wait()
            told.append(error.value)

        async with cluster.client() as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(linger_ms=60_000)
            with trio.fail_after(50):
                async with trio.open_nursery() as nursery:
                    with trio.move_on_after(10):
                        async with namespace.writer("s", create=True) as writer:
                            for bookie in cluster.bookies:
                                await cluster.kill_bookie(bookie)
                            nursery.start_soon(wait, writer.append_nowait(b"1"))
            assert len(told) == 1

    simulate(story, 5)


@STRIDES
def test_a_block_that_is_cancelled_in_the_middle_of_a_roll_loses_nothing(stride: int) -> None:
    rolls: set[int] = set()

    def run(step: int) -> bool:
        async def story(cluster: SimCluster) -> bool:
            acknowledged: list[bytes] = []
            doubtful: list[bytes] = []
            async with cluster.client() as client:
                namespace = Namespace(client, "n")
                await namespace.ensure(roll_ms=1000, batch_bytes=1)

                async def write() -> None:
                    async with namespace.writer("s", create=True) as writer:
                        until_s = trio.current_time() + 1.2
                        while trio.current_time() < until_s:
                            value = b"%d" % len(doubtful)
                            doubtful.append(value)
                            await writer.append(value)
                            acknowledged.append(value)
                            if rolls_before != writer.statistics().rolls:
                                return
                            await trio.sleep(0.02)

                rolls_before, since_s = 0, trio.current_time() + 1.0
                is_cancelled = await is_cancelled_at(step, write, since_s=since_s)
                rolls.add(len((await namespace.stream_metadata("s")).segments))
                async with namespace.writer("s") as writer:
                    await writer.append(b"new")
                acknowledged.append(b"new")
                check(await all_values(namespace), acknowledged, doubtful)
                return is_cancelled

        return simulate(story, 4)

    assert at_every_step(run, most=STEPS_MAX, stride=stride) > 40
    assert rolls == {1, 2}
