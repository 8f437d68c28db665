"""Named stories on the simulated cluster: each says what happens and what then holds."""

from __future__ import annotations

import pytest
import trio

from bookie.startup.cookies import CookieMismatch
from bookie.testing import CrashKind, SimCluster, simulate
from ledger.client import LedgerClient
from ledger.errors import (
    LedgerError,
    LedgerFenced,
    NotEnoughBookies,
    RecoveryIncomplete,
    RetryableError,
    SessionLost,
)
from ledger.options import ClientOptions
from stream.errors import TakenOver
from stream.namespace import Namespace
from tests.effort import scaled
from tests.sim.workload import closing

IMPATIENT = ClientOptions(add_timeout_s=0.5, read_timeout_s=0.5, ensemble_change_timeout_s=2.0)


def test_entries_survive_the_loss_of_power_of_all_bookies_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, client.create_ledger() as writer:
            await writer.append_many([b"%d" % number for number in range(100)])
            await writer.close()
        for name in cluster.bookies:
            await cluster.kill_bookie(name, CrashKind.POWER_LOST_ALL)
        await cluster.start_all()
        async with cluster.client() as client, client.open_ledger(writer.ledger_id) as reader:
            entries = await reader.read(0, 99)
        assert [bytes(entry.payload) for entry in entries] == [b"%d" % n for n in range(100)]

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_a_writer_goes_on_when_one_of_three_bookies_dies_and_uses_it_again_later() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            writer = await client.create_ledger()
            await writer.append(b"before")
            await cluster.kill_bookie("bookie-1", CrashKind.POWER_LOST_ALL)
            with trio.fail_after(10):
                await writer.append(b"without it")
            await cluster.start_bookie("bookie-1")
            await trio.sleep(10)
            await cluster.kill_bookie("bookie-2", CrashKind.POWER_LOST_ALL)
            with trio.fail_after(10):
                await writer.append(b"with it again")
            assert (await writer.close()).last_entry_id == 2

    simulate(scenario, 1)


def test_a_partitioned_writer_confirms_nothing_after_another_client_recovered_its_ledger() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("old", IMPATIENT) as old, cluster.client("new") as new:
            writer = await old.create_ledger()
            await writer.append(b"confirmed")
            cluster.network.partition(["old"], cluster.bookies)
            late = writer.append_nowait(b"in flight when the network broke")
            async with new.open_ledger(writer.ledger_id) as reader:
                end = reader.last_add_confirmed
            assert end == 0
            cluster.network.heal()
            with pytest.raises(LedgerFenced):
                await writer.wait_confirmed(late)
            assert writer.last_add_confirmed == end

    for seed in range(scaled(ci=1, night=20)):
        simulate(scenario, seed)


def test_two_recoverers_at_once_agree() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as old, cluster.client() as one, cluster.client() as other:
            writer = await old.create_ledger()
            await writer.append(b"a")
            for number in range(20):
                writer.append_nowait(b"%d" % number)
            await trio.sleep(0.002)
            ends: list[tuple[int, int]] = []

            async def recover(client: LedgerClient) -> None:
                reader = await client.open_ledger(writer.ledger_id)
                ends.append((reader.last_add_confirmed, reader.length))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(recover, one)
                nursery.start_soon(recover, other)
            assert ends[0] == ends[1]
            assert ends[0][0] >= writer.last_add_confirmed

    for seed in range(scaled(ci=1, night=40)):
        simulate(scenario, seed)


def test_recovery_does_not_decide_without_enough_bookies_and_does_when_they_are_back() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as old, cluster.client(options=IMPATIENT) as new:
            writer = await old.create_ledger()
            await writer.append(b"a")
            writer.abandon()
            for name in cluster.bookies[:2]:
                await cluster.kill_bookie(name)
            with pytest.raises(RecoveryIncomplete):
                await new.open_ledger(writer.ledger_id)
            await cluster.start_all()
            await trio.sleep(2)
            async with new.open_ledger(writer.ledger_id) as reader:
                assert reader.last_add_confirmed == 0

    simulate(scenario, 1)


def test_a_failed_sync_kills_the_bookie_and_nothing_it_did_not_sync_was_acknowledged() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.append(b"synced")
            (name,) = (b.partition(":")[0] for b in writer.metadata.last_fragment.bookies)
            cluster.disk(name).options.sync_error_probability = 1.0
            late = writer.append_nowait(b"not synced")
            await trio.sleep(1)
            assert not cluster.is_up(name)
            cluster.disk(name).options.sync_error_probability = 0.0
            cluster.disk(name).crash(CrashKind.POWER_LOST_ALL)
            await cluster.start_bookie(name)
            await trio.sleep(2)
            assert writer.last_add_confirmed in (late - 1, late)
            writer.abandon()
            async with client.open_ledger(writer.ledger_id) as reader:
                assert reader.last_add_confirmed == writer.last_add_confirmed

    simulate(scenario, 1)


def test_a_tail_sees_every_entry_while_bookies_die_one_after_the_other() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as one, cluster.client() as other:
            writer = await one.create_ledger()
            seen: list[bytes] = []

            async def write() -> None:
                for number in range(60):
                    await writer.append(b"%d" % number)
                    await trio.sleep(0.1)
                await writer.close()

            async def faults() -> None:
                for name in cluster.bookies:
                    await cluster.kill_bookie(name, CrashKind.POWER_LOST_TORN)
                    await trio.sleep(0.5)
                    await cluster.start_bookie(name)
                    await trio.sleep(1)

            async with (
                other.open_ledger(writer.ledger_id, recover=False) as reader,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(write)
                nursery.start_soon(faults)
                async with closing(reader.tail(0)) as batches:
                    async for batch in batches:
                        seen += [bytes(entry.payload) for entry in batch]
            assert seen == [b"%d" % number for number in range(60)]

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_without_enough_bookies_a_ledger_is_not_created() -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in cluster.bookies[1:]:
            await cluster.kill_bookie(name)
        await trio.sleep(5)
        async with cluster.client() as client:
            with pytest.raises(NotEnoughBookies):
                await client.create_ledger()

    simulate(scenario, 1)


def test_a_rotten_replica_is_never_served() -> None:
    async def scenario(cluster: SimCluster) -> None:
        values = [b"%d" % number * 40 for number in range(60)]
        async with cluster.client() as client, client.create_ledger() as writer:
            await writer.append_many(values)
        await trio.sleep(3)  # a checkpoint has moved everything into entry logs
        for name in cluster.bookies:
            await cluster.kill_bookie(name)
        disk = cluster.disk("bookie-1")
        flipped = 0
        for path in [path for path in disk.inodes if path.endswith(".log")]:
            for offset in range(300, disk.inodes[path].size, 61):
                disk.flip_bit(path, offset, offset % 8)
                flipped += 1
        assert flipped > 20
        await cluster.start_all()
        async with (
            cluster.client(options=IMPATIENT) as client,
            client.open_ledger(writer.ledger_id) as reader,
        ):
            entries = await reader.read(0, 59)
        assert [bytes(entry.payload) for entry in entries] == values

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_a_bookie_whose_disk_was_emptied_does_not_start_as_if_nothing_had_happened() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, client.create_ledger() as writer:
            await writer.append(b"remember me")
        await cluster.kill_bookie("bookie-0")
        cluster.disk("bookie-0").wipe()
        await cluster.start_bookie("bookie-0")

    with pytest.raises(CookieMismatch, match="emptied"):
        simulate(scenario, 1)


def test_space_of_deleted_ledgers_comes_back() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            ledger_ids = []
            for _ in range(10):
                async with client.create_ledger() as writer:
                    await writer.append_many([bytes(5000)] * 30)
                ledger_ids.append(writer.ledger_id)
            await trio.sleep(5)
            before = {name: _entry_log_bytes(cluster, name) for name in cluster.bookies}
            assert min(before.values()) > 1_000_000
            for ledger_id in ledger_ids:
                await client.delete_ledger(ledger_id)
            await trio.sleep(120)
            for name in cluster.bookies:
                assert _entry_log_bytes(cluster, name) < before[name] / 3

    simulate(scenario, 1)


def _entry_log_bytes(cluster: SimCluster, bookie: str) -> int:
    inodes = cluster.disk(bookie).inodes
    return sum(inode.size for path, inode in inodes.items() if path.endswith(".log"))


def test_a_slow_disk_of_one_bookie_does_not_slow_a_writer_down() -> None:
    async def scenario(cluster: SimCluster) -> None:
        cluster.disk("bookie-2").options.slow_factor = 100.0
        async with cluster.client() as client:
            writer = await client.create_ledger()
            begun_s = trio.current_time()
            for number in range(50):
                await writer.append(b"%d" % number)
            assert trio.current_time() - begun_s < 2.0
            writer.abandon()

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_a_takeover_overtaken_by_another_one_says_so() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("first") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure()
            await namespace.ensure_stream("s")
            with pytest.raises(ZeroDivisionError):
                async with namespace.writer("s"):
                    raise ZeroDivisionError  # leaves an open segment without records
        outcome: list[Exception | None] = []

        async def slow_takeover() -> None:
            async with cluster.client("slow") as client:
                try:
                    async with Namespace(client, "n").writer("s"):
                        outcome.append(None)
                except LedgerError as error:
                    outcome.append(error)

        async with trio.open_nursery() as nursery:
            cluster.network.partition(["slow"], cluster.bookies)
            nursery.start_soon(slow_takeover)
            await trio.sleep(0.5)
            # It waits for the bookies to fence the open segment; another one is quicker, seals
            # the segment without records, and deletes its ledger.
            async with (
                cluster.client("quick") as client,
                Namespace(client, "n").writer("s") as writer,
            ):
                await writer.append(b"mine")
                await trio.sleep(1)
                cluster.network.heal()
                await trio.sleep(5)
        assert len(outcome) == 1
        assert outcome[0] is None or isinstance(outcome[0], TakenOver | RetryableError)

    for seed in range(scaled(ci=1, night=20)):
        simulate(scenario, seed)


def test_what_readers_find_behind_a_writer_taken_for_dead_stays() -> None:
    """The writer lives; only its session ended. It would replace a bookie a reader counted."""

    async def scenario(cluster: SimCluster) -> None:
        network, metadata = cluster.network, cluster.metadata
        async with cluster.client("writer", IMPATIENT) as one, cluster.client("reader") as other:
            writer = await one.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
            await writer.append(b"confirmed")
            first, second = (b.partition(":")[0] for b in writer.metadata.last_fragment.bookies)
            network.block(first, "writer")
            network.block(second, "writer")
            writer.append_nowait(b"stored twice, and the writer does not know")
            await trio.sleep(0.1)
            metadata.cut_off("writer")
            metadata.expire("writer")
            async with other.open_ledger(writer.ledger_id, recover=False) as reader:
                served = await reader.read_last_confirmed()
            network.reset(first, "writer")
            network.heal()
            metadata.heal()
            network.partition(["writer"], [first])
            network.options.latency_min_s = network.options.latency_max_s = 0.1
            with trio.fail_after(5):
                while writer.error is None:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert isinstance(writer.error, SessionLost)
            network.partition(["writer"], cluster.bookies)
            network.partition(["recoverer"], [second])
            async with (
                cluster.client("recoverer", IMPATIENT) as third,
                third.open_ledger(writer.ledger_id) as reader,
            ):
                assert reader.last_add_confirmed >= served

    for seed in range(scaled(ci=1, night=40)):
        simulate(scenario, seed, bookies=6)


def test_reading_to_the_end_survives_that_only_a_lost_bookie_knew_the_end() -> None:
    async def scenario(cluster: SimCluster) -> None:
        network = cluster.network
        async with cluster.client("writer") as one, cluster.client("reader", IMPATIENT) as other:
            await Namespace(one, "n").ensure(batch_bytes=1)
            async with Namespace(one, "n").writer("s", create=True) as writer:
                await writer.append(b"0")
                await trio.sleep(1)
                await writer.append_many([b"1", b"2", b"3"])
                # Only one bookie hears that these are confirmed.
                for name in cluster.bookies[1:]:
                    network.block("writer", name)
                await trio.sleep(1)
                network.options.latency_min_s = network.options.latency_max_s = 0.05
                async with Namespace(other, "n").reader("s") as reader:
                    cut_s = cluster.chance.uniform(0.1, 0.6)
                    begun_s = trio.current_time()
                    cluster.simulation.call_at(
                        begun_s + cut_s,
                        lambda: network.partition(["reader"], cluster.bookies[:1]),
                    )
                    try:
                        async for _ in reader.read_to_end():
                            pass
                    except RetryableError:
                        pass
                network.heal()

    for seed in range(scaled(ci=2, night=80)):
        simulate(scenario, seed)
