"""A writer that takes over learns what bookies missed of the segments that the dead one closed."""

from __future__ import annotations

import trio

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.core.availability import decode_entries_held, expected_ranges, missing_ranges
from ledger.wire.messages import ListEntriesRequest, ListEntriesResponse
from stream import Namespace, create_namespace
from stream.takeover import RECENT_MS

PATIENCE_S = 60.0


async def lacking(client: LedgerClient, ledger_id: int, bookie: str) -> bool:
    metadata = await client.ledger_metadata(ledger_id)
    answer = await client.pool.call(bookie, ListEntriesRequest(ledger_id), timeout_s=5)
    held = answer.availability if isinstance(answer, ListEntriesResponse) else b""
    ranges = decode_entries_held(held) if held else iter(())
    return bool(list(missing_ranges(expected_ranges(metadata, bookie), sorted(ranges))))


async def write_and_die(cluster: SimCluster, deaf: str) -> None:
    """Seals segments of which one bookie misses entries, and dies at once."""
    done = trio.Event()

    async def write(client: LedgerClient) -> None:
        namespace = Namespace(client, "demo")
        async with namespace.writer("s") as writer:
            await writer.append(b"all bookies have this")
            cluster.network.block("writer", deaf)
            segments = 1
            while segments < 4:  # a new ledger waits for a bookie that is silent
                await writer.append(b"x" * 8000)
                await trio.sleep(0.01)
                segments = len((await namespace.stream_metadata("s")).segments)
            done.set()
            await trio.sleep_forever()

    process = cluster.start_client(write, name="writer")
    with trio.fail_after(PATIENCE_S):
        await done.wait()
    process.kill()
    await process.finished.wait()
    cluster.network.heal()


def test_what_a_dead_writer_knew_is_found_at_the_takeover() -> None:
    async def scenario(cluster: SimCluster) -> None:
        deaf = cluster.bookies[1]
        async with cluster.client() as client:
            await create_namespace(client, "demo", roll_bytes=1 << 16)
            namespace = Namespace(client, "demo")
            await namespace.create_stream("s")
            await write_and_die(cluster, deaf)
            stream = await namespace.stream_metadata("s")
            sealed = [one.ledger_id for one in stream.segments if not one.is_open]
            assert len(sealed) >= 2
            await trio.sleep(2)
            missed = [one for one in sealed if await lacking(client, one, f"{deaf}:3181")]
            assert missed
            assert await client.underreplication.list() == [], "the writer did not live to say so"
            async with namespace.writer("s") as writer:
                await writer.append(b"taken over")
                await trio.sleep(10)
            marked = await client.underreplication.list()
            assert set(missed) <= set(marked)

    simulate(scenario, 1, bookies=3)


def test_segments_that_were_sealed_long_ago_are_not_asked_for() -> None:
    async def scenario(cluster: SimCluster) -> None:
        deaf = cluster.bookies[1]
        async with cluster.client() as client:
            await create_namespace(client, "demo", roll_bytes=1 << 16)
            namespace = Namespace(client, "demo")
            await namespace.create_stream("s")
            await write_and_die(cluster, deaf)
            before = await namespace.stream_metadata("s")
            sealed = [one.ledger_id for one in before.segments if not one.is_open]
            await trio.sleep(RECENT_MS / 1000 + 10)
            async with namespace.writer("s") as writer:
                await writer.append(b"taken over")
                await trio.sleep(10)
            assert not set(sealed) & set(await client.underreplication.list())

    simulate(scenario, 1, bookies=3)
