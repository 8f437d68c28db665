"""Cut at every await: producers, hand-over, cursors, merged and backward readers, consumers."""

from __future__ import annotations

import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import LedgerError
from stream import EARLIEST, FromCursor, Namespace
from stream.reading.merged_reader import MergedReader
from tests.sim.cancellation import Operation, cut_everywhere, cut_once
from tests.sim.streams.test_cancellation import Check, Judge, run
from tests.stream.sim_namespace import sim_namespace
from tests.stream.whole_streams import read_values


def test_a_producers_append_that_was_cut_is_tried_again() -> None:
    """Also by the next writer: exactly once, whatever was cut where."""

    async def scenario(namespace: Namespace) -> None:
        await namespace.ensure_stream("s")
        sequence = 0

        async def make(number: int) -> tuple[Operation, Check]:
            async def operation() -> None:
                nonlocal sequence
                async with namespace.writer("s") as writer:
                    producer = await writer.producer("loader")
                    for value in range(max(0, sequence - 2), sequence + 3):
                        await producer.append(b"%d" % value, value)
                        sequence = max(sequence, value + 1)

            async def check() -> None:
                return

            return operation, check

        assert await cut_everywhere(make) > 20
        values = await read_values(namespace)
        assert values[:sequence] == [b"%d" % number for number in range(sequence)]
        # What was cut is there once or not at all, and nothing is there twice.
        assert values == [b"%d" % number for number in range(len(values))]

    run(scenario)


def test_a_writer_that_asks_for_the_stream_is_cut() -> None:
    """The running writer continues, or reports that it handed over; nothing confirmed is lost."""

    async def scenario(namespace: Namespace) -> None:
        await namespace.ensure_stream("s")
        judge = Judge(namespace, "s")
        is_over = False

        async def keep_writing() -> None:
            number = 0
            while not is_over:
                try:
                    async with namespace.writer("s") as writer:
                        while not is_over:
                            number += 1  # what became of the one before may be unknown
                            await judge.append(writer, b"old %d" % number)
                            await trio.sleep(0.1)
                except LedgerError:
                    await trio.sleep(0.5)

        async def make(number: int) -> tuple[Operation, Check]:
            async def operation() -> None:
                async with namespace.writer("s", hand_over_s=2) as writer:
                    await judge.append(writer, b"new %d" % number)

            async def check() -> None:
                await trio.sleep(0.7)

            return operation, check

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_writing)
            await trio.sleep(1)
            assert await cut_everywhere(make) > 10
            is_over = True
        values = await read_values(namespace)
        assert len(set(values)) == len(values)
        assert not set(judge.acked) - set(values)

    run(scenario)


def test_cursor() -> None:
    """Whatever is cut, the cursor stored never goes back, and never passes what was advanced."""

    async def scenario(namespace: Namespace) -> None:
        async with namespace.writer("s", create=True) as writer:
            await writer.append_many([b"%d" % number for number in range(1000)])
        reached = stored = -1

        async def make(number: int) -> tuple[Operation, Check]:
            async def operation() -> None:
                nonlocal reached
                async with (
                    namespace.cursor("s", "c", commit_interval_ms=5) as cursor,
                    namespace.reader("s", start=FromCursor("c")) as reader,
                ):
                    for _ in range(3):
                        record = await reader.__anext__()
                        reached = max(reached, record.sequence)
                        cursor.advance(record)
                        await trio.sleep(0.01)
                    await cursor.commit()

            async def check() -> None:
                nonlocal stored
                cursors = await namespace.cursors("s")
                if cursors:
                    async with namespace.reader("s", start=FromCursor("c")) as reader:
                        now = (await reader.__anext__()).sequence
                    assert stored <= now <= reached + 1
                    stored = now

            return operation, check

        assert await cut_everywhere(make) > 10
        assert stored > 10

    run(scenario)


def test_merged_reader() -> None:
    async def scenario(namespace: Namespace) -> None:
        for stream, first in (("a", 0), ("b", 1)):
            async with namespace.writer(stream, create=True) as writer:
                for number in range(first, 60, 2):
                    await writer.append(b"%d" % number, event_time_ms=number)
        for at in range(15):
            seen: list[bytes] = []
            async with namespace.merged_reader(
                ["a", "b"], start=EARLIEST, order_by="event_time", idle_timeout_ms=100
            ) as reader:
                while len(seen) < 60:

                    async def read(reader: MergedReader = reader, seen: list[bytes] = seen) -> None:
                        seen.append((await reader.__anext__()).record.value)

                    if await cut_once(read, at) and len(seen) < 60:
                        await read()
            assert sorted(seen, key=int) == [b"%d" % number for number in range(60)]
            assert [v for v in seen if int(v) % 2] == [b"%d" % n for n in range(1, 60, 2)]
            assert [v for v in seen if not int(v) % 2] == [b"%d" % n for n in range(0, 60, 2)]

    run(scenario)


def test_a_consumer_that_is_cut_hands_its_partitions_over() -> None:
    """Each record is handled by some consumer, at least once, whichever was cut where."""

    async def in_cluster(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            await namespace.create_stream("s", partitions=2)
            async with namespace.partitioned_writer("s") as writer:
                for number in range(200):
                    await writer.append(b"%d" % number, key=b"%d" % number)
            handled: dict[bytes, None] = {}

            async def make(number: int) -> tuple[Operation, Check]:
                async def operation() -> None:
                    async with namespace.consumer("s", group="g", member=f"m{number}") as consumer:
                        for _ in range(2):
                            with trio.move_on_after(3):
                                item = await consumer.__anext__()
                                handled.update(dict.fromkeys(item.batch.values()))
                        await consumer.commit()

                async def check() -> None:
                    return

                return operation, check

            assert await cut_everywhere(make) > 10
            async with namespace.consumer("s", group="g", member="last") as consumer:
                with trio.move_on_after(60):
                    while len(handled) < 200:
                        item = await consumer.__anext__()
                        handled.update(dict.fromkeys(item.batch.values()))
            assert sorted(handled, key=int) == [b"%d" % number for number in range(200)]

    simulate(in_cluster, 0, time_limit_s=100_000)
