"""The metadata store is put back to an older state under a cluster that was stopped."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

from bookie.testing import SimCluster, run_simulated
from bookie.testing.scheduler import Simulation
from stream.core.position import FromEnd, FromSequence, Position, PositionLost, Start
from stream.namespace import Namespace


async def append(cluster: SimCluster, stream: str, prefix: str, count: int) -> list[Position]:
    async with cluster.client() as client:
        namespace = Namespace(client, "ns")
        await namespace.ensure()
        async with namespace.writer(stream, create=True) as writer:
            values = [b"%s %d" % (prefix.encode(), number) for number in range(count)]
            return [await writer.append(value) for value in values]


async def read(cluster: SimCluster, stream: str) -> list[str]:
    async with (
        cluster.client() as client,
        Namespace(client, "ns").reader(stream) as reader,
    ):
        return [
            record.value.decode()
            async for batch in reader.read_to_end()
            for record in batch.records()
        ]


async def refuses(cluster: SimCluster, stream: str, starts: Sequence[Start]) -> None:
    async with cluster.client() as client:
        for start in starts:
            with pytest.raises(PositionLost, match="lost when the cluster was put back"):
                async with Namespace(client, "ns").reader(stream, start=start) as reader:
                    await reader.__anext__()


async def stop(cluster: SimCluster) -> None:
    for bookie in cluster.bookies:
        await cluster.kill_bookie(bookie)


def simulate(main: Callable[[SimCluster], Awaitable[None]], seed: int = 0) -> None:
    async def run(simulation: Simulation) -> None:
        async with SimCluster(simulation) as cluster:
            await main(cluster)

    run_simulated(run, seed)


def test_a_stream_made_after_a_restore_has_no_records_of_another() -> None:
    """A writer of a new stream gets the id of a ledger that the metadata has forgotten."""

    async def main(cluster: SimCluster) -> None:
        await append(cluster, "a", "a", 3)
        backup = cluster.metadata.tree.backup()
        await append(cluster, "b", "b", 50)
        await stop(cluster)
        cluster.metadata.tree.put_back(backup)
        await cluster.start_all()
        await append(cluster, "c", "first", 3)
        await append(cluster, "c", "second", 4)
        assert await read(cluster, "c") == [
            *(f"first {n}" for n in range(3)), *(f"second {n}" for n in range(4)),
        ]  # fmt: skip

    simulate(main)


def test_what_the_metadata_has_forgotten_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main(cluster: SimCluster) -> None:
        await append(cluster, "a", "a", 3)
        backup = cluster.metadata.tree.backup()
        newest = cluster.metadata.tree
        await append(cluster, "b", "b", 50)
        after = newest.backup()
        await stop(cluster)
        cluster.metadata.tree.put_back(backup)
        await cluster.start_all()
        await trio.sleep(60)  # several rounds of garbage collection
        assert "ledgers_deleted=" not in caplog.text
        assert "metadata was put back to an older state" in caplog.text
        await stop(cluster)
        cluster.metadata.tree.put_back(after)
        await cluster.start_all()
        assert await read(cluster, "b") == [f"b {n}" for n in range(50)]

    simulate(main)


def test_positions_of_lost_records_are_refused_and_never_used_again() -> None:
    async def main(cluster: SimCluster) -> None:
        before = await append(cluster, "a", "a", 3)
        backup = cluster.metadata.tree.backup()
        lost = [*await append(cluster, "a", "lost", 5), *await append(cluster, "a", "lost", 5)]
        await stop(cluster)
        cluster.metadata.tree.put_back(backup)
        await cluster.start_all()
        await refuses(cluster, "a", [*lost, *map(FromSequence, range(3, 13))])
        again = await append(cluster, "a", "again", 3)
        assert not set(again) & set(lost)
        assert await read(cluster, "a") == [
            *(f"a {n}" for n in range(3)), *(f"again {n}" for n in range(3)),
        ]  # fmt: skip
        await refuses(cluster, "a", [*lost, *map(FromSequence, range(3, 13))])
        async with cluster.client() as client:
            namespace = Namespace(client, "ns")
            for start in (before[2], FromEnd(4), FromSequence(2)):
                async with namespace.reader("a", start=start) as reader:
                    found = [
                        record.value.decode()
                        async for batch in reader.read_to_end()
                        for record in batch.records()
                    ]
                assert found == ["a 2", "again 0", "again 1", "again 2"], start

    simulate(main)


def test_a_client_that_connects_before_the_bookies_leaves_the_gap_too() -> None:
    async def main(cluster: SimCluster) -> None:
        await append(cluster, "a", "a", 3)
        backup = cluster.metadata.tree.backup()
        lost = await append(cluster, "a", "lost", 5)
        await stop(cluster)
        cluster.metadata.tree.put_back(backup)
        async with cluster.client() as client:
            assert await client.restores() == 0
            await cluster.start_all()
            async with Namespace(client, "ns").writer("a") as writer:
                assert await writer.append(b"again") > Position(999_999, 0, 0) > max(lost)

    simulate(main)
