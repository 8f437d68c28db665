"""Named stories of streams on the simulated cluster: what breaks, and what then holds."""

from __future__ import annotations

from dataclasses import replace

import trio

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.options import ClientOptions
from stream import EARLIEST, Namespace, Position, WriterOptions, create_namespace

IMPATIENT = ClientOptions(add_timeout_s=0.5, read_timeout_s=0.5, ensemble_change_timeout_s=1.0)


async def contents(namespace: Namespace) -> list[bytes]:
    async with namespace.reader("s", start=EARLIEST) as reader:
        return [value async for batch in reader.read_to_end() for value in batch.values()]


def test_entries_whose_acks_were_lost_are_not_written_twice() -> None:
    """The bookies store records but their answers get lost; the writer gives the ledger up,
    finds them by recovery, and sends only what is not there."""

    async def story(cluster: SimCluster) -> None:
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
            assert await contents(namespace) == expected
            assert [first, *positions, last] == sorted({first, *positions, last})
            assert positions[0].segment == first.segment, "what was stored stays where it is"

    for seed in range(3):
        simulate(story, seed)


def test_nothing_is_confirmed_in_a_segment_before_it_is_published() -> None:
    """A writer dies between sending to its next ledger and publishing it: whoever takes over
    knows nothing of that ledger, so nothing in it may have been confirmed."""

    async def story(cluster: SimCluster) -> None:
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
            values = await contents(namespace)
            assert values[: len(confirmed)] == [value for _, value in confirmed]

    for seed in range(10):
        simulate(story, seed)
