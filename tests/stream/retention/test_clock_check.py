"""A janitor, or a writer, whose clock is wrong by a year: nothing is deleted or kept in silence."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Unpack

import pytest
import trio

from bookie.testing import SimCluster
from bookie.testing.cluster import simulate
from ledger.client import LedgerClient
from ledger.errors import NoSuchNode
from ledger.metastore.base import Delete
from stream import EARLIEST, FromTime, Janitor, Namespace, NamespaceSettings, NoSuchNamespace
from stream.errors import ClockInDoubt
from stream.retention import clock_check
from stream.retention.clock_check import MARK_PATH
from stream.store.streams import namespace_path
from tests.stream.whole_streams import read_all, values

DAY = 86_400_000
YEAR = 365 * DAY
Scenario = Callable[[SimCluster, Namespace], Awaitable[None]]


def with_namespace(scenario: Scenario, **policy: Unpack[NamespaceSettings]) -> None:
    async def in_cluster(cluster: SimCluster) -> None:
        async with cluster.client("writer") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(retention_ms=7 * DAY)
            await namespace.set_policy(**policy)
            await scenario(cluster, namespace)

    simulate(in_cluster, 3, time_limit_s=1e5)


async def write(namespace: Namespace, *segments: bytes) -> None:
    for value in segments:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(value)


async def stamped_ms(namespace: Namespace) -> list[int]:
    return [record.append_time_ms for record in await read_all(namespace, "s")]


@pytest.mark.parametrize("off_ms", [YEAR, -YEAR])
def test_a_clock_that_differs_from_the_metadata_store_sweeps_nothing(off_ms: int) -> None:
    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        await write(namespace, b"a", b"b")
        await namespace.create_stream("gone")
        await namespace.delete_stream("gone")
        ledgers = await namespace.client.list_ledgers()
        cluster.jump_clock("janitor", off_ms)
        async with cluster.client("janitor") as client:
            with pytest.raises(ClockInDoubt, match=r"36[45] d .*that of the metadata store"):
                await Janitor(client, "n").sweep()
            assert values(await read_all(namespace, "s")) == [b"a", b"b"]
            assert await namespace.client.list_ledgers() == ledgers
            assert len(await namespace.trash()) == 1
            # The operator may insist.
            report = await Janitor(client, "n", trust_clock=True).sweep()
            assert report.segments_dropped == (2 if off_ms > 0 else 0)

    with_namespace(scenario, trash_ms=7 * DAY)


def test_a_clock_a_year_ahead_of_everything_known_sweeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of the metadata store is that of the same machine, as with SQLite."""

    async def own_clock(client: LedgerClient) -> int:
        return client.now_ms()

    monkeypatch.setattr(clock_check, "_store_clock_ms", own_clock)

    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        await write(namespace, b"a", b"b")
        assert (await Janitor(namespace.client, "n").sweep()).segments_dropped == 0
        cluster.jump_clock("janitor", YEAR)
        async with cluster.client("janitor") as client:
            for _ in range(2):  # what is refused leaves no mark
                with pytest.raises(ClockInDoubt, match=r"newest time known .*, 365 d before"):
                    await Janitor(client, "n").sweep()
            await namespace.client.store.delete(MARK_PATH)
            with pytest.raises(ClockInDoubt, match="newest time known"):
                await Janitor(client, "n").sweep()
            assert values(await read_all(namespace, "s")) == [b"a", b"b"]
            # A stream that is written by this clock shows that the others are old.
            async with Namespace(client, "n").writer("young", create=True) as writer:
                await writer.append(b"c")
            assert (await Janitor(client, "n").sweep()).segments_dropped == 2
        with pytest.raises(ClockInDoubt, match="behind the last sweep"):
            await Janitor(namespace.client, "n").sweep()
        report = await Janitor(namespace.client, "n", trust_clock=True).sweep()
        assert report.failures == 0
        await Janitor(namespace.client, "n").sweep()  # the mark is right again

    with_namespace(scenario, trash_ms=7 * DAY)


def test_a_quiet_namespace_is_swept_while_janitors_run() -> None:
    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        await write(namespace, b"a", b"b")
        dropped = 0
        for _ in range(4):
            for node in ("writer", "janitor"):
                cluster.jump_clock(node, 20 * DAY)
            async with cluster.client("janitor") as client:
                dropped += (await Janitor(client, "n").sweep()).segments_dropped
        assert dropped == 2

    # The store's clock is that of the machine here.
    with pytest.MonkeyPatch.context() as patch:

        async def own_clock(client: LedgerClient) -> int:
            return client.now_ms()

        patch.setattr(clock_check, "_store_clock_ms", own_clock)
        with_namespace(scenario, trash_ms=7 * DAY)


def test_a_truncation_by_a_clock_a_year_ahead_empties_no_trash() -> None:
    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        await write(namespace, b"a", b"b", b"c")
        positions = [record.position for record in await read_all(namespace, "s")]
        await namespace.truncate("s", positions[1])
        cluster.jump_clock("wrong", YEAR)
        async with cluster.client("wrong") as client:
            await Namespace(client, "n").truncate("s", positions[2])
        await namespace.untruncate("s")
        assert values(await read_all(namespace, "s")) == [b"a", b"b", b"c"]

    with_namespace(scenario, trash_ms=7 * DAY)


@pytest.mark.parametrize("off_ms", [YEAR, -YEAR])
def test_a_writer_whose_clock_jumps_and_returns_stamps_as_if_it_had_not(
    off_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"before")
            cluster.jump_clock("writer", off_ms)
            await writer.append(b"meanwhile")
            await trio.sleep(60)
            await writer.append(b"still")
            cluster.jump_clock("writer", -off_ms)
            await writer.append(b"after")
        times = await stamped_ms(namespace)
        assert times == sorted(times)
        assert times[-1] - times[0] < 120_000
        async with namespace.reader("s", start=FromTime(times[2])) as reader:
            assert (await anext(reader)).value == b"still"

    with caplog.at_level(logging.WARNING):
        with_namespace(scenario)
    assert f"the clock of this machine jumped by {off_ms / DAY:+.1f} d" in caplog.text
    assert "is followed again" in caplog.text


def test_a_stream_stamped_ahead_is_reported_to_its_writer_and_by_the_janitor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        cluster.jump_clock("wrong", YEAR)
        await namespace.create_stream("s")
        async with (
            cluster.client("wrong") as client,
            Namespace(client, "n").writer("s") as writer,
        ):
            await writer.append(b"ahead")
        await write(namespace, b"later")
        times = await stamped_ms(namespace)
        assert times[0] == times[1] > namespace.client.now_ms() + 364 * DAY
        caplog.clear()
        await write(namespace, b"last")
        assert "append times stand still until then. Cure: correct the clock" in caplog.text
        caplog.clear()
        janitor = Janitor(namespace.client, "n")
        for _ in range(3):
            await janitor.sweep()
        assert caplog.text.count("ahead of this clock: retention by age keeps it until") == 1
        assert values(await read_all(namespace, "s", EARLIEST)) == [b"ahead", b"later", b"last"]

    with caplog.at_level(logging.WARNING):
        with_namespace(scenario)


def test_a_segment_rolls_by_age_after_the_clock_went_back() -> None:
    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        cluster.jump_clock("wrong", YEAR)
        await namespace.create_stream("s")
        async with (
            cluster.client("wrong") as client,
            Namespace(client, "n").writer("s") as writer,
        ):
            await writer.append(b"a")
            cluster.jump_clock("wrong", -YEAR)
            with trio.fail_after(5 * 3600):
                while len((await namespace.stream_metadata("s")).segments) < 2:
                    await trio.sleep(60)
                    await writer.append(b"b")

    with_namespace(scenario, roll_ms=30 * DAY)


def test_ledgers_of_an_earlier_namespace_of_the_name_are_no_orphans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The metadata of the namespace was lost, and the next append made another one."""

    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        await write(namespace, b"a", b"b")
        ledgers = await namespace.client.list_ledgers()
        store = namespace.client.store
        paths = [namespace_path("n")]
        for path in paths:
            paths += [f"{path}/{name}" for name in await store.children(path)]
        await store.transaction([Delete(path) for path in reversed(paths)])
        with pytest.raises(NoSuchNamespace):
            await Janitor(namespace.client, "n", orphan_age_ms=-1).sweep()
        with pytest.raises(NoSuchNode):
            await store.get(namespace_path("n"))
        await trio.sleep(1)
        await namespace.ensure()
        report = await Janitor(namespace.client, "n", orphan_age_ms=-1).sweep()
        assert (report.orphans_deleted, report.ledgers_deleted) == (0, 0)
        assert await namespace.client.list_ledgers() == ledgers
        assert f"{len(ledgers)} ledgers, like {ledgers[0]}, are older than the" in caplog.text

    with caplog.at_level(logging.WARNING):
        with_namespace(scenario)


def test_the_check_of_a_clock_leaves_no_node_of_a_deleted_namespace() -> None:
    async def scenario(cluster: SimCluster, namespace: Namespace) -> None:
        janitor = Janitor(namespace.client, "n")
        with pytest.raises(NoSuchNamespace):
            await Janitor(namespace.client, "other")._trash.moves()
        assert await namespace.client.store.children("/ledgerstream/namespaces") == ["n"]
        assert (await janitor.sweep()).failures == 0

    with_namespace(scenario)
