"""Named scenarios of streams on the simulated cluster: single faults and their consequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from stream import (
    Janitor,
    Namespace,
    Position,
    Truncated,
    WriterOptions,
    create_namespace,
)
from tests.effort import scaled
from tests.stream.short_timeouts import IMPATIENT
from tests.stream.whole_streams import read_values


def test_entries_whose_acks_were_lost_are_not_written_twice() -> None:
    """The bookies store records but their responses get lost.

    The writer abandons the ledger, finds the records by recovery, and sends only the missing ones.
    """

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("writer", IMPATIENT) as client:
            await create_namespace(client, "demo")
            namespace = Namespace(client, "demo")
            async with namespace.writer("s", create=True) as writer:
                first = await writer.append(b"before")
                for name in cluster.bookies:
                    cluster.network.block(name, "writer")
                lost = [writer.append_nowait(b"%d" % number) for number in range(3)]
                await trio.sleep(0.2)
                lost += [writer.append_nowait(b"%d" % number) for number in range(3, 5)]
                await trio.sleep(20)
                assert not lost[0].is_confirmed
                cluster.network.heal()
                with trio.fail_after(30):
                    positions = [await ticket.wait() for ticket in lost]
                    last = await writer.append(b"after")
                assert writer.statistics().repairs >= 1
            expected = [b"before", *(b"%d" % number for number in range(5)), b"after"]
            assert await read_values(namespace) == expected
            assert [first, *positions, last] == sorted({first, *positions, last})
            assert positions[0].segment == first.segment, "stored records must stay where they are"

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_nothing_is_confirmed_in_a_segment_before_it_is_published() -> None:
    """A writer dies between sending to its next ledger and publishing it.

    The writer that takes over does not know that ledger, so no record in it may be confirmed.
    """

    async def scenario(cluster: SimCluster) -> None:
        confirmed: list[tuple[Position, bytes]] = []
        began_roll = trio.Event()

        async def write(client: LedgerClient) -> None:
            namespace = Namespace(client, "demo", writer_options=WriterOptions())
            async with namespace.writer("s", create=True) as writer:
                for number in range(1_000_000):
                    value = b"%d" % number + bytes(1000)
                    confirmed.append((await writer.append(value), value))
                    if number == 62:
                        cluster.metadata.options = replace(
                            cluster.metadata.options, delay_max_s=3.0
                        )
                        began_roll.set()

        async with cluster.client() as client:
            await create_namespace(client, "demo", roll_bytes=1 << 16)
            process = cluster.start_client(write)
            await began_roll.wait()
            await trio.sleep(cluster.chance.random() * 8)
            process.kill()
            await process.finished.wait()
            cluster.metadata.options = replace(cluster.metadata.options, delay_max_s=0.005)
            namespace = Namespace(client, "demo")
            await namespace.seal_stream("s")
            values = await read_values(namespace)
            assert values[: len(confirmed)] == [value for _, value in confirmed]

    for seed in range(scaled(ci=1, night=40)):
        simulate(scenario, seed)


def test_an_idle_segment_rolls_by_age_only_if_it_has_records() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            await create_namespace(client, "demo", roll_ms=10_000)
            namespace = Namespace(client, "demo")
            async with namespace.writer("s", create=True) as writer:
                await trio.sleep(60)
                assert writer.statistics().rolls == 0
                await writer.append(b"one")
                await trio.sleep(9)
                assert writer.statistics().rolls == 0
                await trio.sleep(60)
                assert writer.statistics().rolls == 1
                await writer.append(b"two")
            stream = await namespace.stream_metadata("s")
            assert [segment.records for segment in stream.segments] == [1, 1]
            assert await read_values(namespace) == [b"one", b"two"]

    simulate(scenario, 0)


def test_a_lingering_batch_is_sent_at_its_deadline() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            await create_namespace(client, "demo", linger_ms=1000, compression="zstd")
            namespace = Namespace(client, "demo")
            async with namespace.writer("s", create=True) as writer:
                tickets = [writer.append_nowait(bytes(500))]
                await trio.sleep(0.6)
                tickets.append(writer.append_nowait(bytes(500)))
                await trio.sleep(0.3)
                assert not any(ticket.is_confirmed for ticket in tickets)
                await trio.sleep(0.3)
                assert all(ticket.is_confirmed for ticket in tickets)
                assert writer.statistics().entries == 1
            stream = await namespace.stream_metadata("s")
            assert stream.segments[0].nbytes < 500, "it was compressed"
            assert await read_values(namespace) == [bytes(500)] * 2

    simulate(scenario, 0)


def test_old_segments_expire_and_the_stream_continues() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            await create_namespace(client, "demo", retention_ms=60_000, trash_ms=0)
            namespace = Namespace(client, "demo")
            janitor = Janitor(client, "demo")
            for number in range(3):
                async with namespace.writer("s", create=True) as writer:
                    await writer.append(b"%d" % number)
                await janitor.sweep()
                assert await read_values(namespace) == [b"%d" % n for n in range(number + 1)]
                await trio.sleep(10)
            await trio.sleep(45)
            assert (await janitor.sweep()).streams_truncated == 1
            kept = await read_values(namespace)
            assert kept
            assert kept[-1] == b"2"
            assert len(kept) < 3
            await trio.sleep(60)
            assert (await janitor.sweep()).ledgers_deleted == len(kept)
            assert await client.list_ledgers() == []
            async with namespace.writer("s") as writer:
                await writer.append(b"new")
                assert (await namespace.info("s")).next_sequence == 4
            assert await read_values(namespace) == [b"new"]

    simulate(scenario, 0)


def test_a_reader_behind_retention_learns_where_to_continue() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            await create_namespace(client, "demo", retention_ms=1000)
            namespace = Namespace(client, "demo")
            for number in range(2):
                async with namespace.writer("s", create=True) as writer:
                    await writer.append_many([b"%d" % number] * 3)
            async with namespace.reader("s") as reader:
                first = await reader.__anext__()
                assert first.sequence == 0
                assert reader.position == first.position.after
                await trio.sleep(20)
                async with namespace.writer("s") as writer:
                    last = await writer.append(b"last")
                    await Janitor(client, "demo").sweep()
                    # Records already fetched are still returned; then the error is raised.
                    assert [(await reader.__anext__()).sequence for _ in range(2)] == [1, 2]
                    with pytest.raises(Truncated) as caught:
                        await reader.__anext__()
                    assert caught.value.first_available == Position(last.segment, 0, 0)

    simulate(scenario, 0)


def test_a_writer_survives_an_outage_of_the_metadata_store() -> None:
    """Appending needs no metadata: only rolling waits until the store is back."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("writer", IMPATIENT) as client:
            await create_namespace(client, "demo", roll_bytes=1 << 16)
            namespace = Namespace(client, "demo")
            async with namespace.writer("s", create=True) as writer:
                await writer.append(b"0")
                cluster.metadata.cut_off("writer")
                for number in range(1, 200):
                    await writer.append(b"%d/" % number + bytes(1000))
                assert writer.statistics().rolls == 0
                await trio.sleep(30)
                cluster.metadata.heal()
                await trio.sleep(10)
                await writer.append(b"200")
                assert writer.statistics().rolls == 1
            numbers = [int(value.split(b"/")[0]) for value in await read_values(namespace)]
            assert numbers == list(range(201))

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)
