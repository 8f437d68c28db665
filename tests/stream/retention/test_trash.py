"""The trash restores truncated and deleted streams, and purges them after its window.

A policy is explained before it is set.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from ledger.errors import InvalidArgument, LedgerFenced
from stream import (
    DataWouldBeDropped,
    Janitor,
    Namespace,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchStream,
    NotInTrash,
    Position,
    StreamExists,
    TooManyStreams,
    Verdict,
    delete_namespace,
)
from stream.retention.trash import TOMBSTONE_MS
from stream.store.cursors import cursors_path
from stream.store.streams import stream_path
from tests.stream.sim_namespace import sim_namespace
from tests.stream.whole_streams import read_all, values

WINDOW_MS = 60_000
Scenario = Callable[[Namespace], Awaitable[None]]


def _idle_config(name: str, chance: random.Random) -> BookieConfig:
    """Returns the configuration of bookies that are idle for hours."""
    return dataclasses.replace(
        small_config(name, chance), checkpoint_interval_ms=60_000, garbage_interval_ms=60_000
    )


def simulate_trash(scenario: Scenario) -> None:
    async def in_cluster(simulation: Simulation) -> None:
        async with (
            SimCluster(simulation, config=_idle_config) as cluster,
            sim_namespace(cluster, trash_ms=WINDOW_MS) as namespace,
        ):
            await scenario(namespace)

    run_simulated(in_cluster, 7, time_limit_s=1e6)


async def write(namespace: Namespace, stream: str, *segments: Sequence[bytes]) -> None:
    """Appends each sequence of records as a segment."""
    for records in segments:
        async with namespace.writer(stream, create="#" not in stream) as writer:
            await writer.append_many(list(records))


async def sweep(namespace: Namespace, **report: int) -> None:
    done = await Janitor(namespace.client, namespace.name, orphan_age_ms=0).sweep()
    assert done.failures == 0
    for what, number in report.items():
        assert getattr(done, what) == number, done


async def ledgers(namespace: Namespace) -> int:
    return len(await namespace.client.list_ledgers())


def test_truncated_segments_are_restored_until_their_time_has_passed() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a", b"b"], [b"c"], [b"d"])
        await namespace.truncate("s", Position(3, 0, 0))
        assert values(await read_all(namespace, "s")) == [b"d"]
        (entry,) = await namespace.trash()
        assert (entry.stream, entry.is_deleted, entry.segments, entry.records) == ("s", False, 2, 3)
        assert entry.purge_ms - entry.since_ms == WINDOW_MS
        await namespace.untruncate("s", Position(2, 0, 0))
        assert values(await read_all(namespace, "s")) == [b"c", b"d"]
        await namespace.untruncate("s")
        assert values(await read_all(namespace, "s")) == [b"a", b"b", b"c", b"d"]
        assert await namespace.trash() == []
        await namespace.truncate("s", Position(2, 0, 0))
        await trio.sleep(WINDOW_MS / 1000 - 1)
        await sweep(namespace, segments_purged=0)
        assert await ledgers(namespace) == 3
        await trio.sleep(2)
        await sweep(namespace, segments_purged=1, ledgers_deleted=1)
        assert await ledgers(namespace) == 2
        with pytest.raises(InvalidArgument, match="what is before 2:0:0 was purged"):
            await namespace.untruncate("s", Position(1, 0, 0))
        assert (await namespace.untruncate("s")).truncated_to == Position(2, 0, 0)

    simulate_trash(scenario)


def test_without_trash_ledgers_are_deleted_at_once() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.set_policy(trash_ms=0)
        await write(namespace, "s", [b"a"], [b"b"])
        await namespace.truncate("s", Position(2, 0, 0))
        assert await ledgers(namespace) == 1
        await namespace.delete_stream("s")
        assert await ledgers(namespace) == 0
        with pytest.raises(NotInTrash):
            await namespace.undelete_stream("s")
        assert await namespace.list_streams() == []
        await write(namespace, "s", [b"new"])
        assert values(await read_all(namespace, "s")) == [b"new"]

    simulate_trash(scenario)


def test_a_deleted_stream_is_restored_whole_without_its_writer() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a", b"b"])
        async with namespace.cursor("s", "c") as cursor:
            cursor.advance(Position(1, 1, 0))
        block = namespace.writer("s")
        writer = await block.__aenter__()
        await writer.append(b"c")
        await namespace.delete_stream("s")
        assert await namespace.list_streams() == []
        with pytest.raises(NoSuchStream, match="stream undelete n/s"):
            await namespace.info("s")
        (entry,) = await namespace.trash()
        assert (entry.is_deleted, entry.segments, entry.records) == (True, 2, 3)
        await namespace.undelete_stream("s")
        with pytest.raises(LedgerFenced):
            await writer.append(b"never")
        with pytest.raises(LedgerFenced):
            await block.__aexit__(None, None, None)
        await write(namespace, "s", [b"d"])
        assert values(await read_all(namespace, "s")) == [b"a", b"b", b"c", b"d"]
        (kept,) = await namespace.cursors("s")
        assert kept.position == Position(1, 1, 0)
        assert await namespace.trash() == []
        await sweep(namespace, orphans_deleted=0)
        assert len(await read_all(namespace, "s")) == 4

    simulate_trash(scenario)


def test_a_name_in_use_again_keeps_the_deleted_stream_in_the_trash() -> None:
    async def scenario(namespace: Namespace) -> None:
        for generation in (b"first", b"second", b"third"):
            await write(namespace, "s", [generation])
            await namespace.delete_stream("s")
        await write(namespace, "s", [b"now"])
        with pytest.raises(StreamExists, match="--as-name NAME"):
            await namespace.undelete_stream("s")
        await namespace.undelete_stream("s", as_name="third")
        await namespace.undelete_stream("s", as_name="second")
        assert values(await read_all(namespace, "third")) == [b"third"]
        assert values(await read_all(namespace, "second")) == [b"second"]
        assert await namespace.list_streams() == ["s", "second", "third"]
        await trio.sleep(2 * WINDOW_MS / 1000)
        await sweep(namespace, streams_purged=1, orphans_deleted=0)
        with pytest.raises(NotInTrash):
            await namespace.undelete_stream("s", as_name="first")
        for name, value in (("s", b"now"), ("second", b"second"), ("third", b"third")):
            assert values(await read_all(namespace, name)) == [value]
        assert await ledgers(namespace) == 3

    simulate_trash(scenario)


def test_purged_streams_leave_nothing_behind() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a"], [b"b"], [b"c"])
        await namespace.truncate("s", Position(2, 0, 0))
        assert await namespace.purge("s") == 1
        with pytest.raises(NotInTrash):
            await namespace.purge("s")
        async with namespace.cursor("s", "c") as cursor:
            cursor.advance(Position(2, 0, 0))
        await namespace.delete_stream("s")
        with pytest.raises(NamespaceNotEmpty, match="stream purge n/s"):
            await delete_namespace(namespace.client, "n")
        assert await namespace.purge("s") == 2
        assert await ledgers(namespace) == 0
        assert await namespace.list_streams() == []
        store = namespace.client.store
        assert await store.children("/ledgerstream/namespaces/n/streams") == ["s"]
        await trio.sleep(max(TOMBSTONE_MS, WINDOW_MS) / 1000)
        await sweep(namespace)
        for folder in ("streams", "trash", "cursors"):
            assert await store.children(f"/ledgerstream/namespaces/n/{folder}") == []
        await delete_namespace(namespace.client, "n")
        with pytest.raises(NoSuchNamespace):
            await namespace.list_streams()
        assert await store.children("/ledgerstream/namespaces") == []

    simulate_trash(scenario)


def test_a_namespace_is_deleted_with_its_trash_if_that_is_requested() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a"])
        async with namespace.cursor("s", "c"):
            pass
        with pytest.raises(NamespaceNotEmpty, match="has 1 streams"):
            await delete_namespace(namespace.client, "n", purge=True)
        await namespace.delete_stream("s")
        await delete_namespace(namespace.client, "n", purge=True)
        assert await ledgers(namespace) == 0
        assert await namespace.client.store.children("/ledgerstream/namespaces") == []
        await namespace.ensure(trash_ms=WINDOW_MS)
        await write(namespace, "s", [b"b"])

    simulate_trash(scenario)


def test_versions_never_begin_again_under_a_name() -> None:
    """A change decided before a stream was deleted cannot match a stream created after it."""

    async def scenario(namespace: Namespace) -> None:
        store, path = namespace.client.store, stream_path("n", "s")
        seen = []
        for _ in range(3):
            await write(namespace, "s", [b"a"])
            seen.append((await store.get(path)).version)
            await namespace.delete_stream("s")
            seen.append((await store.get(path)).version)
            await namespace.undelete_stream("s")
            seen.append((await store.get(path)).version)
            epoch = (await namespace.stream_metadata("s")).epoch
            await namespace.delete_stream("s")
            await namespace.create_stream("s")
            assert (await namespace.stream_metadata("s")).epoch > epoch
        assert seen == sorted(set(seen))

    simulate_trash(scenario)


def test_partitioned_streams_are_restored_with_all_partitions() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.create_stream("p", partitions=3)
        await write(namespace, "p#1", [b"a"], [b"b"])
        await namespace.delete_stream("p")
        assert await namespace.list_streams() == []
        with pytest.raises(InvalidArgument, match="under its own name only"):
            await namespace.undelete_stream("p", "q")
        with pytest.raises(InvalidArgument, match="restore all of 'p'"):
            await namespace.undelete_stream("p#1")
        await namespace.undelete_stream("p")
        assert await namespace.partitions("p") == ["p#0", "p#1", "p#2"]
        assert values(await read_all(namespace, "p#1")) == [b"a", b"b"]
        with pytest.raises(StreamExists):
            await namespace.undelete_stream("p")
        await namespace.delete_stream("p")
        await trio.sleep(2 * WINDOW_MS / 1000)
        await sweep(namespace, streams_purged=3, ledgers_deleted=2)
        with pytest.raises(NotInTrash):
            await namespace.undelete_stream("p")
        await trio.sleep(TOMBSTONE_MS / 1000)
        await sweep(namespace)
        assert await namespace.list_streams() == []
        assert await namespace.client.store.children("/ledgerstream/namespaces/n/streams") == []

    simulate_trash(scenario)


def test_a_policy_that_would_drop_data_is_refused_unless_that_is_allowed() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a" * 100], [b"b" * 100], [b"c" * 100])
        await write(namespace, "other", [b"x"])
        segments = (await namespace.stream_metadata("s")).segments
        two = segments[1].nbytes + segments[2].nbytes
        plans = {plan.stream: plan for plan in await namespace.what_if(retention_bytes=two)}
        assert [segment.number for segment in plans["s"].dropped] == [1]
        assert not plans["other"].dropped
        with pytest.raises(DataWouldBeDropped, match=r"drop 1 segments \(1 records") as refused:
            await namespace.set_policy(allow_drop=False, retention_bytes=two)
        assert [plan.stream for plan in refused.value.plans] == ["s"]
        assert (await namespace.policy()).retention_bytes is None
        tried = await namespace.set_policy(dry_run=True, retention_bytes=two)
        assert tried.retention_bytes == two
        assert (await namespace.policy()).retention_bytes is None
        await namespace.set_policy(retention_bytes=two)
        # Data that is dropped already is no reason to refuse; purging it is.
        await namespace.set_policy(allow_drop=False, roll_ms=5000)
        with pytest.raises(DataWouldBeDropped, match="permanently"):
            await namespace.set_policy(allow_drop=False, trash_ms=0)
        plan = await namespace.explain_retention("s")
        assert [segment.verdict for segment in plan.segments] == [
            Verdict.DROP, Verdict.KEEP, Verdict.KEEP,
        ]  # fmt: skip
        await sweep(namespace, segments_dropped=1)
        assert len(await read_all(namespace, "s")) == 2

    simulate_trash(scenario)


def test_retention_waits_for_cursors_and_for_those_that_are_missing() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.set_policy(retention_ms=0, retention_cursors=("billing",))
        await write(namespace, "s", [b"a"], [b"b"], [b"c"])
        await trio.sleep(1)
        await sweep(namespace, segments_dropped=0)
        async with namespace.cursor("s", "billing") as cursor:
            await sweep(namespace, segments_dropped=0)
            cursor.advance(Position(2, 0, 0))
            await cursor.commit()
            await sweep(namespace, segments_dropped=1)
        await namespace.delete_cursor("s", "billing")
        await sweep(namespace, segments_dropped=0)

    simulate_trash(scenario)


def test_a_namespace_has_a_limit_of_streams() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.set_policy(streams_max=2)
        await namespace.create_stream("a")
        await namespace.create_stream("b")
        with pytest.raises(TooManyStreams, match="has 2 streams, 1 more are over streams_max of 2"):
            await namespace.create_stream("c")
        with pytest.raises(StreamExists):
            await namespace.create_stream("a")
        await namespace.delete_stream("a")
        with pytest.raises(TooManyStreams, match="3 more"):
            await namespace.create_stream("p", partitions=3)
        await namespace.create_stream("c")

    simulate_trash(scenario)


def test_recreated_partitions_have_epochs_that_no_earlier_writer_holds() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.create_stream("p", partitions=1)
        await write(namespace, "p#0", [b"a"])
        before = await namespace.stream_metadata("p#0")
        await namespace.delete_stream("p")
        await namespace.create_stream("p", partitions=1)
        after = await namespace.stream_metadata("p#0")
        assert after.epoch > before.epoch
        assert after.created_ms > before.created_ms

    simulate_trash(scenario)


def test_cursors_wait_in_the_trash_with_their_stream_and_are_purged_with_it() -> None:
    async def scenario(namespace: Namespace) -> None:
        cursors = partial(namespace.client.store.children, cursors_path("n", "s"))
        await namespace.set_policy(trash_ms=100 * WINDOW_MS)
        await write(namespace, "s", [b"a"])
        await namespace.set_cursor("s", "first", Position(1, 1, 0))
        await namespace.delete_stream("s")
        await write(namespace, "s", [b"b"])
        await namespace.set_cursor("s", "second", Position(2, 1, 0))
        await trio.sleep(80 * WINDOW_MS / 1000)
        await namespace.delete_cursor("s", "second")
        await namespace.delete_stream("s")
        await namespace.undelete_stream("s", as_name="b")
        await namespace.undelete_stream("s")
        assert [cursor.name for cursor in await namespace.cursors("s")] == ["first"]
        await namespace.delete_stream("s")
        await write(namespace, "s", [b"c"])
        await namespace.set_cursor("s", "third", Position(3, 1, 0))
        await trio.sleep(200 * WINDOW_MS / 1000)
        await sweep(namespace)
        assert await cursors() == ["third"]

    simulate_trash(scenario)


def test_a_plain_stream_is_restored_though_its_name_is_partitioned_now() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"plain"])
        await namespace.delete_stream("s")
        await namespace.create_stream("s", partitions=2)
        with pytest.raises(StreamExists):
            await namespace.undelete_stream("s")
        await namespace.undelete_stream("s", as_name="before")
        assert values(await read_all(namespace, "before")) == [b"plain"]
        assert await namespace.list_streams() == ["before", "s"]

    simulate_trash(scenario)
