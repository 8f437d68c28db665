"""The metadata store is out of reach, or is not the one it was: what waits, and what must not
happen meanwhile."""

from __future__ import annotations

import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.metastore import MetadataOptions
from ledger.options import ClientOptions
from stream.core.position import EARLIEST
from stream.namespace import Namespace
from tests.effort import scaled
from tests.stream.whole_streams import read_values

IMPATIENT = ClientOptions(add_timeout_s=0.5, read_timeout_s=0.5, ensemble_change_timeout_s=2.0)


def test_a_writer_without_an_ack_quorum_waits_for_the_store() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("writer", IMPATIENT) as client:
            writer = await client.create_ledger()
            await writer.append(b"before")
            cluster.metadata.cut_off("writer")
            for name in cluster.bookies[:2]:
                await cluster.kill_bookie(name)
                await cluster.start_bookie(name)
            late = writer.append_nowait(b"meanwhile")
            await trio.sleep(60)
            assert writer.error is None
            cluster.metadata.heal()
            with trio.fail_after(10):
                await writer.wait_confirmed(late)
            writer.abandon()

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_a_stream_goes_on_after_ten_minutes_without_metadata() -> None:
    """A bookie dies in it, the segment grows old, and the session is gone at its end."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("writer", IMPATIENT) as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(roll_ms=1000)
            await namespace.ensure_stream("s")
            async with namespace.writer("s") as writer:
                await writer.append(b"0")
                cluster.metadata.cut_off("writer")
                await writer.append(b"1")
                cluster.metadata.expire("writer")
                for name in cluster.bookies[:2]:
                    await cluster.kill_bookie(name)
                ticket = writer.append_nowait(b"2")
                await trio.sleep(600)
                assert writer.error is None
                await cluster.start_all()
                cluster.metadata.heal()
                with trio.fail_after(10):
                    await ticket.wait()
            assert await read_values(namespace) == [b"0", b"1", b"2"]

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_who_follows_a_stream_goes_on_after_an_outage() -> None:
    """Segments come and go in it, which the reader cannot learn of meanwhile."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("writer") as client, cluster.client("reader") as other:
            namespace = Namespace(client, "n")
            await namespace.ensure(roll_ms=1000)
            await namespace.ensure_stream("s")
            async with (
                namespace.writer("s") as writer,
                Namespace(other, "n").reader("s", start=EARLIEST) as reader,
            ):
                await writer.append(b"0")
                seen = [(await anext(reader)).value]
                cluster.metadata.cut_off("reader")
                for number in range(1, 31):
                    await writer.append(b"%d" % number)
                    await trio.sleep(1)
                assert writer.statistics().rolls > 10

                async def follow() -> None:
                    while len(seen) < 31:
                        seen.append((await anext(reader)).value)

                with trio.move_on_after(60):
                    await follow()
                assert len(seen) < 31
                cluster.metadata.heal()
                with trio.fail_after(10):
                    await follow()
                assert seen == [b"%d" % number for number in range(31)]

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_bookies_that_were_restarted_are_found_without_the_store() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as writer, cluster.client("reader", IMPATIENT) as client:
            async with writer.create_ledger() as ledger:
                await ledger.append_many([b"%d" % number for number in range(10)])
            async with client.open_ledger(ledger.ledger_id) as reader:
                for first in range(10):
                    await reader.read(first, first)  # every bookie was reached once
                cluster.metadata.cut_off("reader")
                for name in cluster.bookies:
                    await cluster.kill_bookie(name)
                await cluster.start_all()
                with trio.fail_after(10):
                    assert len(await reader.read(0, 9)) == 10

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_a_bookie_started_without_metadata_waits_for_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.kill_bookie("bookie-0")
        cluster.metadata.cut_off("bookie-0")
        process = cluster.begin_bookie("bookie-0")
        await trio.sleep(600)
        assert cluster.is_up("bookie-0")
        assert not process.started.is_set()
        cluster.metadata.heal()
        with trio.fail_after(10):
            await process.started.wait()
        async with cluster.client() as client:
            assert len(await client.bookies.available()) == 3

    simulate(scenario, 1)


def test_an_emptied_store_empties_no_disk() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            async with client.create_ledger() as writer:
                await writer.append_many([bytes(5000)] * 200)
            path = f"{client.ledgers.root}/00/0000/L{writer.ledger_id:04d}"
            node = await client.store.get(path)
            instance = await client.store.get(f"{client.ledgers.root}/INSTANCEID")
            await client.store.put(f"{client.ledgers.root}/INSTANCEID", b"another cluster's")
            await client.store.delete(path)
            await trio.sleep(300)
            await client.store.put(f"{client.ledgers.root}/INSTANCEID", instance.data)
            await client.store.create(path, node.data)
            async with client.open_ledger(writer.ledger_id) as reader:
                assert len(await reader.read(0, 199)) == 200

    simulate(scenario, 1)


def test_changes_that_happen_after_they_were_given_up_break_no_stream() -> None:
    """A server stops, its clients reconnect, and then it carries out what they sent
    before. Meanwhile the writer needs one ledger after the other: it has no session to change
    ensembles with, and bookies die."""
    repairs = 0

    async def scenario(cluster: SimCluster) -> None:
        nonlocal repairs
        calm = cluster.metadata.options
        trouble = MetadataOptions(
            delay_max_s=0.1,
            timeout_s=0.2,
            error_before_probability=0.2,
            error_late_probability=0.3,
            late_max_s=1.0,
        )
        async with cluster.client("writer", IMPATIENT) as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(roll_ms=1000)
            await namespace.ensure_stream("s")
            async with namespace.writer("s") as writer:
                for number in range(100):
                    if number % 10 == 5:
                        cluster.metadata.options = trouble
                        cluster.metadata.expire("writer")
                        for name in cluster.bookies[1:]:
                            await cluster.kill_bookie(name)
                        await cluster.start_all()
                    await writer.append(b"%d" % number)
                    await trio.sleep(0.1)
                repairs += writer.statistics().repairs
                cluster.metadata.options = calm
            assert await read_values(namespace) == [b"%d" % number for number in range(100)]

    for seed in range(scaled(ci=2, night=12)):
        simulate(scenario, seed)
    assert repairs > 10
