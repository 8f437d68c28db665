"""LedgerWriter with real bookies: order, windows, failures and fences."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.core.metadata import LedgerState
from ledger.errors import (
    BookieUnavailable,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
)
from tests.real_cluster import SMALL, real_cluster


def payload_of(entry_id: int) -> bytes:
    return b"%d:" % entry_id + bytes(entry_id % 300)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (1, 1, 1), (4, 2, 2), (4, 3, 2), (3, 3, 1)])
async def test_appended_entries_are_read_back(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    ensemble, write, ack = sizes
    async with real_cluster(tmp_path, 4, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
        ) as writer:
            assert await writer.append(payload_of(0)) == 0
            assert await writer.append_many(map(payload_of, range(1, 500))) == 499
            assert writer.last_add_confirmed == 499
        assert writer.metadata.state is LedgerState.CLOSED
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = await reader.read(0, 499)
        assert [e.payload for e in entries] == [payload_of(i) for i in range(500)]


async def test_a_full_window_waits_and_never_overfills(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client(window_entries=10) as client,
        client.create_ledger() as writer,
    ):
        for i in range(10):
            assert writer.append_nowait(payload_of(i)) == i
        with pytest.raises(trio.WouldBlock):
            writer.append_nowait(b"")
        await writer.wait_room()
        assert writer.append_nowait(payload_of(10)) == 10
        await writer.flush()
        assert writer.last_add_confirmed == 10


async def test_each_caller_is_woken_once_its_entry_is_confirmed(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        client.create_ledger() as writer,
    ):
        woken: list[int] = []

        async def append() -> None:
            entry_id = await writer.append(b"x")
            assert writer.last_add_confirmed >= entry_id
            woken.append(entry_id)

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(append)
        assert sorted(woken) == list(range(200))


async def test_a_cancelled_append_does_not_stop_the_others(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        client.create_ledger() as writer,
    ):
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.append(b"unknown")
        assert await writer.append(b"known") == 1


async def test_a_lost_bookie_is_replaced(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 4, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger() as writer:
            await writer.append_many(map(payload_of, range(50)))
            victim = next(
                n
                for n, b in cluster.bookies.items()
                if b.bookie_id in writer.metadata.last_fragment.bookies
            )
            await cluster.stop(victim)
            await writer.append_many(map(payload_of, range(50, 100)))
            with trio.fail_after(20):
                while writer.statistics().ensemble_changes == 0:
                    await writer.append(payload_of(writer.last_add_pushed + 1))
        lost = cluster.bookies[victim].bookie_id
        assert lost not in writer.metadata.last_fragment.bookies
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = await reader.read(0, writer.last_add_confirmed)
        assert [e.payload for e in entries] == [payload_of(i) for i in range(len(entries))]


async def test_three_bookies_survive_the_loss_of_one_and_use_it_again(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger() as writer:
            await writer.append(payload_of(0))
            await cluster.stop(1)
            await writer.append_many(map(payload_of, range(1, 100)))
            assert writer.statistics().ensemble_changes == 0
            await cluster.start(1)
            with trio.fail_after(20):
                while writer.statistics().ensemble_changes == 0:
                    await writer.append(payload_of(writer.last_add_pushed + 1))
            await cluster.stop(0)
            await writer.append(payload_of(writer.last_add_pushed + 1))
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = await reader.read(0, writer.last_add_confirmed)
        assert [e.payload for e in entries] == [payload_of(i) for i in range(len(entries))]


async def test_without_an_ack_quorum_the_error_gives_the_arithmetic(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, 3, **SMALL) as cluster,
        cluster.client(ensemble_change_timeout_s=0.5) as client,
    ):
        writer = await client.create_ledger()
        await writer.append(b"0")
        await cluster.stop(0)
        await cluster.stop(1)
        with pytest.raises(NotEnoughBookies, match="needed 2 of 3 acks"):
            await writer.append(b"1")
        with pytest.raises(NotEnoughBookies):
            writer.append_nowait(b"2")


async def test_recovery_fences_the_writer_and_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append_many(map(payload_of, range(20)))
        async with cluster.client() as other, other.open_ledger(writer.ledger_id) as reader:
            with pytest.raises(LedgerFenced):
                await writer.append(payload_of(20))
            assert reader.metadata.is_closed
            assert reader.last_add_confirmed >= writer.last_add_confirmed
            entries = await reader.read(0, reader.last_add_confirmed)
        assert [e.payload for e in entries] == [payload_of(i) for i in range(len(entries))]
        with pytest.raises(LedgerFenced):
            await writer.close()


async def test_a_closed_writer_accepts_no_entries(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append(b"0")
        closed = await writer.close()
        assert (closed.last_entry_id, closed.length) == (0, 1)
        assert await writer.close() == closed
        with pytest.raises(LedgerClosed):
            writer.append_nowait(b"1")


async def test_an_empty_ledger_closes_at_minus_one(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger() as writer:
            pass
        assert writer.metadata.last_entry_id == -1
        async with client.open_ledger(writer.ledger_id) as reader:
            assert reader.last_add_confirmed == -1


async def test_an_idle_writer_announces_its_last_entry(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, 3, **SMALL) as cluster,
        cluster.client(lac_linger_ms=1) as client,
        client.create_ledger() as writer,
        client.open_ledger(writer.ledger_id, recover=False) as reader,
    ):
        for i in range(5):
            await writer.append(payload_of(i))
            with trio.fail_after(5):
                while reader.last_add_confirmed < i:
                    await reader.wait_lac_after(reader.last_add_confirmed, 5)
        assert (await reader.read(4, 4))[0].payload == payload_of(4)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (3, 3, 3)])
async def test_the_last_entries_of_a_dead_writer_are_read_without_fencing(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ensemble, write, ack = sizes
    async with real_cluster(tmp_path, 3, **SMALL) as cluster:
        # The linger is so long that only the entries themselves carry the last add confirmed.
        async with cluster.client(lac_linger_ms=3_600_000) as client:
            writer = await client.create_ledger(
                ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
            )
            for i in range(7):
                await writer.append(payload_of(i))
            async with (
                cluster.client() as other,
                other.open_ledger(writer.ledger_id, recover=False) as reader,
            ):
                assert (
                    reader.last_add_confirmed == 5
                )  # its writer lives and may still announce more
        async with (
            cluster.client() as other,
            other.open_ledger(writer.ledger_id, recover=False) as reader,
        ):
            assert reader.last_add_confirmed == 6
            assert not reader.is_closed
            assert (await reader.read(6, 6))[0].payload == payload_of(6)


async def test_a_tail_gets_the_last_entries_of_a_writer_that_dies(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, 3, **SMALL) as cluster,
        cluster.client(long_poll_s=0.05) as other,
    ):
        async with cluster.client(lac_linger_ms=3_600_000) as client:
            writer = await client.create_ledger()
            for i in range(3):
                await writer.append(payload_of(i))
            reader = await other.open_ledger(writer.ledger_id, recover=False)
            assert reader.last_add_confirmed == 1
        with trio.fail_after(5):
            assert await reader.wait_lac_after(1, 5) == 2


async def test_a_reserved_ledger_is_written_once(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        ledger_id = await client.reserve_ledger()
        async with client.write_reserved(ledger_id) as writer:
            await writer.append(b"0")
            with pytest.raises(LedgerClosed, match="has or had a writer"):
                await client.write_reserved(ledger_id)
        async with client.open_ledger(ledger_id) as reader:
            assert [e.payload for e in await reader.read(0, 0)] == [b"0"]


async def test_no_entry_follows_those_that_close_flushes(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append(b"x" * 10)
        refused = trio.Event()

        async def keep_appending() -> None:
            while True:
                try:
                    writer.append_nowait(b"y" * 1000)
                except LedgerClosed:
                    refused.set()
                    return
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_appending)
            await trio.lowlevel.checkpoint()
            closed = await writer.close()
            await refused.wait()
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = await reader.read(0, closed.last_entry_id)
        assert closed.length == sum(len(entry.payload) for entry in entries)


@pytest.mark.parametrize("payload", ["text", 7, None])
async def test_a_payload_that_is_not_bytes_changes_nothing(tmp_path: Path, payload: Any) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        client.create_ledger() as writer,
    ):
        with pytest.raises(InvalidArgument, match="must be bytes"):
            writer.append_nowait(payload)
        assert await writer.append(b"fine") == 0


async def test_buffers_count_in_bytes(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger() as writer:
            numbers = array("i", [1, 2, 3])
            await writer.append(memoryview(numbers))
            await writer.append(bytearray(b"more"))
        async with client.open_ledger(writer.ledger_id) as reader:
            found = [entry.payload for entry in await reader.read(0, 1)]
        assert found == [numbers.tobytes(), b"more"]


async def test_a_writer_ends_with_its_client(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **SMALL) as cluster:
        async with cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(b"x")
        with pytest.raises(LedgerClosed, match="client was closed"):
            await writer.append(b"y")


async def test_a_lost_explicit_lac_is_sent_again(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        cluster.client(long_poll_s=0.2) as other,
        client.create_ledger() as writer,
    ):
        await writer.append(b"0")
        async with other.open_ledger(writer.ledger_id, recover=False) as reader:
            assert await reader.wait_lac_after(-1, 5) == 0
            for bookie in writer.metadata.last_fragment.bookies:
                # In the pause after this no request is sent to the bookie over v3.
                client.pool.connection(bookie, 3).close(BookieUnavailable("cut in flight"))
            await writer.append(b"1")
            with trio.fail_after(10):
                while reader.last_add_confirmed < 1:
                    await reader.wait_lac_after(0, 1)


async def test_a_burst_that_was_sent_already_carries_no_newer_lac(tmp_path: Path) -> None:
    """Acks may come between a large entry, sent at once, and the end of its tick."""
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        cluster.client() as other,
        client.create_ledger() as writer,
    ):
        for _ in range(2):
            writer.append_nowait(bytes(150_000))
        for bookie in writer.metadata.last_fragment.bookies:
            writer.acked(bookie, 0, 1)
        writer.settle()
        assert writer.last_add_confirmed == 1
        async with other.open_ledger(writer.ledger_id, recover=False) as reader:
            with trio.fail_after(20):
                while reader.last_add_confirmed < 1:
                    await reader.wait_lac_after(reader.last_add_confirmed, 1)


async def test_objects_of_the_append_path_have_few_enough_attributes(tmp_path: Path) -> None:
    """CPython shares the keys of up to 30 attributes; with more, each access costs more."""
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        client.create_ledger() as writer,
    ):
        assert len(vars(writer)) < 30
