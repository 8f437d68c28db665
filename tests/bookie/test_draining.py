"""A bookie that is to be emptied takes no new entries, and serves what it has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import trio

import bookie.draining
from bookie.bookie import Bookie
from bookie.testing import SimCluster, simulate
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.decommissions import Decommission, Decommissions, path_of
from ledger.options import ClientOptions

ID = "bookie-0:3181"
QUICK = ClientOptions(add_timeout_s=5.0)


def _bookie(cluster: SimCluster, name: str = "bookie-0") -> Bookie:
    found = cluster._nodes[name].bookie
    assert found is not None
    return found


async def _begin(cluster: SimCluster, bookie: str = ID) -> Decommissions:
    decommissions = Decommissions(cluster.metadata.connect(f"operator of {bookie}"))
    await decommissions.begin(Decommission(bookie=bookie, begun_ms=0))
    return decommissions


async def _wait_available(cluster: SimCluster, *, is_available: bool) -> None:
    registry = BookieRegistry(cluster.metadata.connect("waiting"))
    with trio.fail_after(5):
        async with aclosing(registry.watch_available()) as lists:
            async for listed in lists:
                if (ID in listed) is is_available:
                    break
        while (ID in await registry.read_only()) is is_available:  # noqa: ASYNC110
            await trio.sleep(0.1)  # the old node goes after the new one came


async def _wait_emptying(bookie: Bookie, is_emptying: bool) -> None:
    with trio.fail_after(5):
        while bookie.disk_monitor.is_emptying is not is_emptying:
            await bookie.disk_monitor.wait_change(bookie.disk_monitor.changes)


@pytest.mark.parametrize("seed", range(4))
def test_a_busy_writer_replaces_it_at_once_and_all_is_read(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=QUICK) as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            before = await client.ledger_metadata(writer.ledger_id)
            victim = before.last_fragment.bookies[0]
            for number in range(20):
                await writer.append(b"%d" % number)
            await _begin(cluster, victim)
            for number in range(20, 200):
                await writer.append(b"%d" % number)
                await trio.sleep(0.02)
            await writer.close()
            after = await client.ledger_metadata(writer.ledger_id)
            assert victim not in after.last_fragment.bookies
            assert len(after.fragments) == 2
            async with client.open_ledger(writer.ledger_id) as reader:
                entries = await reader.read(0, 199)
            assert [one.payload for one in entries] == [b"%d" % n for n in range(200)]

    simulate(scenario, seed, bookies=4)


def test_it_is_registered_as_what_it_is_and_again_when_that_is_cancelled() -> None:
    async def scenario(cluster: SimCluster) -> None:
        decommissions = await _begin(cluster)
        await _wait_available(cluster, is_available=False)
        bookie = _bookie(cluster)
        # An operator's wish and a full disk outlive it, and it outlives them.
        bookie.force_read_only(True)
        await decommissions.cancel(ID)
        await _wait_emptying(bookie, False)
        assert bookie.disk_monitor.gate.is_read_only
        await decommissions.begin(Decommission(bookie=ID, begun_ms=1))
        await _wait_emptying(bookie, True)
        bookie.force_read_only(False)
        assert bookie.disk_monitor.gate.is_read_only
        await decommissions.cancel(ID)
        await _wait_available(cluster, is_available=True)
        assert not bookie.disk_monitor.gate.is_read_only

    simulate(scenario)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_bookie_that_starts_is_never_seen_as_writable(is_damaged: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        store = cluster.metadata.connect("watcher")
        await cluster.kill_bookie("bookie-0")
        if is_damaged:
            await store.create(path_of(ID), b"{")
        else:
            await _begin(cluster)
        seen: list[list[str]] = []

        async def watch(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with aclosing(store.watch_children("/ledgers/available")) as lists:
                async for names in lists:
                    seen.append(names)
                    task_status.started()

        async with trio.open_nursery() as nursery:
            registry = BookieRegistry(store)
            while ID in await registry.available():  # noqa: ASYNC110 - its session has to end
                await trio.sleep(1)
            await nursery.start(watch)
            await cluster.start_bookie("bookie-0")
            assert list(await registry.read_only()) == [ID]
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        assert seen
        assert not any(ID in names for names in seen)

    simulate(scenario)


@asynccontextmanager
async def _idle_writer(cluster: SimCluster) -> AsyncIterator[int]:
    async with cluster.client(options=QUICK) as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"zero")
        await trio.sleep(1)  # it opens a connection of the other version, too
        yield writer.ledger_id
        # Its connection broke; what it writes now is in other bookies, or at the ack quorum here.
        await writer.append(b"one")
        await writer.close()
        async with client.open_ledger(writer.ledger_id) as reader:
            assert [one.payload for one in await reader.read(0, 1)] == [b"zero", b"one"]


def test_connections_of_idle_writers_end_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _idle_writer(cluster), cluster.client() as reading:
            server = _bookie(cluster).server
            assert server is not None
            await reading.bookie_info(timeout_s=1)
            connections = server.statistics().connections
            assert connections >= 2
            await _begin(cluster)
            await trio.sleep(bookie.draining.LEAVE_AFTER_S - 1)
            assert server.statistics().connections == connections
            await trio.sleep(2)
            # That of the reader stays, and so does what connects later.
            assert server.statistics().connections == connections - 1
            async with _idle_writer(cluster):
                connections = server.statistics().connections
                await trio.sleep(10 * bookie.draining.LEAVE_AFTER_S)
                assert server.statistics().connections == connections

    simulate(scenario)


def test_a_decommission_that_is_cancelled_in_time_ends_no_connection() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _idle_writer(cluster):
            server = _bookie(cluster).server
            assert server is not None
            connections = server.statistics().connections
            decommissions = await _begin(cluster)
            await trio.sleep(bookie.draining.LEAVE_AFTER_S / 2)
            await decommissions.cancel(ID)
            await trio.sleep(bookie.draining.LEAVE_AFTER_S * 2)
            assert server.statistics().connections == connections

    simulate(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_is_recovered_although_no_other_bookie_is_left(seed: int) -> None:
    """Two of three are to be emptied: recovery has nowhere else to go for the last entries."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=QUICK) as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            for number in range(30):
                await writer.append(b"%d" % number)
            for name in cluster.bookies[:2]:
                await _begin(cluster, f"{name}:3181")
            await _wait_available(cluster, is_available=False)
            async with client.open_ledger(writer.ledger_id) as reader:
                entries = await reader.read(0, 29)
            assert [one.payload for one in entries] == [b"%d" % n for n in range(30)]
            assert (await client.ledger_metadata(writer.ledger_id)).is_closed
            writer.abandon()

    simulate(scenario, seed)
