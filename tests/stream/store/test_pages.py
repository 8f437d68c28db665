"""Pages of segments in real stores: races, damage, purges, and how much is read."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import MetadataConflict
from ledger.metastore.backup import decode_backup, export_lines
from ledger.metastore.base import Check, MetadataStore
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.sqlite.store import open_sqlite
from stream import EARLIEST, FromSequence, Namespace, StreamMetadata
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import paged
from stream.core.metadata.pages import MARKS_MAX, Pages, page_name
from stream.core.metadata.segments import SegmentEnd
from stream.core.position import Position, Start
from stream.core.retention import RetentionPlan, explain
from stream.core.sinks import committed
from stream.core.trash import purged
from stream.retention.janitor import Janitor
from stream.retention.trash import TOMBSTONE_MS
from stream.store.pages import PageLost, PageStore, all_may_lack, forget_pages, pages_path
from stream.store.streams import StreamStore, stream_path
from tests.ledger.metastore.counting_store import CountingStore
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import with_many


@asynccontextmanager
async def opened(driver: str, path: Path) -> AsyncIterator[MetadataStore]:
    if driver == "memory":
        async with MemoryStore(MemoryTree(), lambda: 0) as memory:
            yield memory
    else:
        async with open_sqlite(str(path / "cluster.db")) as store:
            yield store


async def new_stream(store: MetadataStore) -> StreamStore:
    streams = StreamStore(store)
    await streams.create_namespace(NamespaceMetadata(name="n", created_ms=0))
    await streams.create_stream("n", StreamMetadata(name="s", created_ms=1))
    return streams


def longer(stream: StreamMetadata, count: int, begin: int) -> StreamMetadata:
    """Returns the stream after ledgers were committed that it does not have yet: to look for each
    of them in all of its pages would take most of the time."""
    ends = [(begin + n, SegmentEnd(0, 1, 10, begin, begin)) for n in range(count)]
    added = committed(replace(stream, segments=(), pages=Pages()), ends, begin)
    return replace(added, segments=(*stream.segments, *added.segments), pages=stream.pages)


async def grow(streams: StreamStore, count: int, *, at_once: int = 500) -> StreamMetadata:
    stream, _ = await streams.read_stream("n", "s")
    for begin in range(1, count + 1, at_once):
        some = min(at_once, count + 1 - begin)
        change = partial(longer, count=some, begin=begin)
        stream = await streams.update_stream("n", "s", change)
    return stream


async def nodes_below(store: MetadataStore, path: str) -> list[str]:
    found = []
    for name in await store.children(path):
        below = await nodes_below(store, f"{path}/{name}")
        found += below or [f"{path}/{name}"]
    return found


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
async def test_segments_are_found_in_pages_and_purged_with_them(
    driver: str, tmp_path: Path
) -> None:
    async with opened(driver, tmp_path) as store:
        streams = await new_stream(store)
        stream = await grow(streams, 3_000)
        folder = pages_path(stream.pages.folder)
        assert len(await nodes_below(store, folder)) > 40
        listed = await streams.pages.listed(stream, 2_990)
        assert [segment.number for segment in listed] == list(range(2_990, 3_001))
        found = await streams.pages.resolve(stream, lambda s: s.segment_at(Position(77, 0, 0)))
        assert found is not None
        assert (found.number, found.ledger_id, found.first_sequence) == (77, 77, 76)

        policy = NamespaceMetadata(name="n", created_ms=0, retention_bytes=3_000, trash_ms=0)
        plan = await streams.pages.resolve(stream, lambda s: explain(s, policy, {}, 5_000))
        assert sum(one.count for one in plan.dropped) == 2_700
        await streams.update_stream("n", "s", lambda s: s.truncated(plan.begin, 5_000))
        for _ in range(3):
            stream = await streams.update_stream(
                "n", "s", lambda s: purged(replace(s, garbage=()), 2_700)
            )
        assert (stream.pages.first, len(stream.garbage)) == (2_701, 700)
        left = await nodes_below(store, folder)
        assert {path.rpartition("/")[2] for path in left if "-" in path.rpartition("/")[2]} == {
            page_name(run).rpartition("/")[2] for run in stream.pages.roots
        }


async def test_a_page_of_a_writer_that_lost_is_found_and_used() -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        streams = await new_stream(store)
        stream, version = await streams.read_stream("n", "s")
        target = longer(stream, 128, 1)
        one, made = paged(target, "n/s~1~1")
        is_same = Check(stream_path("n", "s"), version)
        await PageStore(store).prepare("n", target, is_same, 64, 16)  # and dies
        left = await nodes_below(store, pages_path("n/s~1~1"))
        assert [path.rpartition("/")[2] for path in left] == [
            page_name(made[0].run).rpartition("/")[2]
        ]
        stored, _ = await streams.put_stream("n", target, version)
        assert stored == one
        assert await nodes_below(store, pages_path("n/s~1~1")) == left
        with pytest.raises(MetadataConflict):
            await streams.put_stream("n", longer(target, 100, 500), version)
        assert await nodes_below(store, pages_path("n/s~1~1")) == left, "a loser writes no page"


async def test_a_page_that_a_writer_left_damaged_is_written_again() -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        streams = await new_stream(store)
        stream, version = await streams.read_stream("n", "s")
        target = longer(stream, 128, 1)
        page = paged(target, "n/s~1~1")[1][0]
        await store.create(f"{pages_path('n/s~1~1')}/{page_name(page.run)}", b"torn")
        stored, _ = await streams.put_stream("n", target, version)
        assert len(await streams.pages.listed(stored)) == 128


@pytest.mark.parametrize("is_missing", [True, False])
async def test_a_lost_page_is_named_and_costs_only_what_it_lists(is_missing: bool) -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        streams = await new_stream(store)
        stream = await grow(streams, 300)
        run = stream.pages.levels[0][1]
        path = f"{pages_path(stream.pages.folder)}/{page_name(run)}"
        if is_missing:
            await store.delete(path)
        else:
            await store.put(path, b"garbage")
        with pytest.raises(PageLost) as lost:
            await streams.pages.resolve(stream, lambda s: s.segment_at(Position(70, 0, 0)))
        for word in (
            "'n/s'",
            path,
            "65 to 128",
            "64 segments",
            "missing" if is_missing else "damaged",
            "Cure: put the node back",
            "129:0:0",
        ):
            assert word in str(lost.value)
        for number in (1, 64, 129, 300):
            at = Position(number, 0, 0)
            found = await streams.pages.resolve(
                stream, partial(StreamMetadata.segment_at, position=at)
            )
            assert found is not None
            assert found.number == number
        # The cure: behind it, the stream can be truncated, purged and read.
        await streams.update_stream("n", "s", lambda s: s.truncated(Position(129, 0, 0), 9))
        stream = await streams.update_stream(
            "n", "s", lambda s: purged(s, s.last_dropped()), may_lack=all_may_lack
        )
        assert (stream.pages.first, len(stream.garbage)) == (129, 64)
        assert await streams.pages.resolve(stream, lambda s: s.first_available) == (129, 0, 0)


LONG = NamespaceMetadata(name="n", created_ms=0, retention_bytes=10**9)
QUESTIONS: dict[str, Callable[[StreamMetadata], object]] = {
    "end": lambda s: s.segment_at(Position(s.next_segment - 1, 0, 0)),
    "begin": lambda s: s.segment_at(s.first_available),
    "middle": lambda s: s.segment_at(Position(s.next_segment // 2, 0, 0)),
    "sequence": lambda s: s.first_where(lambda span: span.next_sequence > s.next_sequence // 3),
    "show": lambda s: s.live(),
    "sweep": lambda s: explain(s, LONG, {}, 9),
}


async def costs_of(count: int) -> dict[str, tuple[int, int]]:
    """Returns requests and bytes of metadata for each question, by a client that has read nothing,
    and those of rolls until one makes a page, and with it one of each level that is full."""
    store = CountingStore()
    streams = await new_stream(store)
    await grow(streams, count, at_once=1_000)
    cost: dict[str, tuple[int, int]] = {}
    for what, question in QUESTIONS.items():
        forget_pages(store)
        gets, nbytes = store.gets, store.bytes_read
        stream, version = await streams.read_stream("n", "s")
        await streams.pages.resolve(stream, question)
        cost[what] = store.gets - gets, store.bytes_read - nbytes
    before = store.gets, store.transactions, store.bytes_written
    levels = stream.pages.levels
    for n in range(64):
        stream, version = await streams.put_stream("n", longer(stream, 1, 10**6 + n), version)
    assert store.gets == before[0]
    cost["rolls"] = store.transactions - before[1], store.bytes_written - before[2]
    cost["levels that grew"] = (
        sum(old != new for old, new in zip_longest(levels, stream.pages.levels)), 0
    )  # fmt: skip
    return cost


async def test_what_is_read_and_written_does_not_grow_with_the_stream() -> None:
    # With 39 pages of each level but the last: the next page makes one of each.
    few, many, most = [await costs_of(count) for count in (100, 2_612, 82_484)]
    for what in few:
        for cost in (many, most):
            assert cost[what][1] <= 2 * few[what][1], f"{what}: {cost[what]} bytes, {few[what]}"
    assert [one["levels that grew"][0] for one in (few, many, most)] == [1, 2, 3]
    levels = 3
    for what in QUESTIONS:
        assert few[what][0] == 1
        assert most[what][0] <= 1 + levels, what
    assert most["end"][0] == 1
    for cost in (few, many, most):
        assert cost["rolls"][0] <= 64 + 2, "one change for each roll, and one for its pages"


async def test_a_sweep_of_a_stream_that_was_truncated_often_reads_few_pages() -> None:
    store = CountingStore()
    streams = await new_stream(store)
    await grow(streams, 4_000, at_once=1_000)
    for time_ms in range(1, 80):
        at = Position(47 * time_ms, 0, 0)
        stream = await streams.update_stream(
            "n", "s", partial(StreamMetadata.truncated, position=at, now_ms=10**7 * time_ms)
        )
    assert len(stream.pages.marks) == MARKS_MAX
    policy = NamespaceMetadata(name="n", created_ms=0, retention_bytes=10_000, trash_ms=10**8)
    forget_pages(store)
    before = store.gets
    plan = await streams.pages.resolve(stream, lambda s: explain(s, policy, {}, 5 * 10**8))
    assert 0 < plan.purge_through < 47 * 79
    boundaries = 3  # of the trash, of the stream, and of its size
    assert store.gets - before <= boundaries * len(stream.pages.levels)


async def test_a_sweep_that_drops_nothing_reads_no_page() -> None:
    store = CountingStore()
    streams = await new_stream(store)
    stream = await grow(streams, 4_000, at_once=1_000)
    forget_pages(store)
    unlimited = NamespaceMetadata(name="n", created_ms=0)
    for policy in (
        replace(unlimited, retention_bytes=1 << 60), replace(unlimited, retention_ms=1 << 50)
    ):  # fmt: skip
        before = store.gets

        def ask(known: StreamMetadata, policy: NamespaceMetadata = policy) -> RetentionPlan:
            return explain(known, policy, {}, 1_000_000, in_short=True)

        plan = await streams.pages.resolve(stream, ask)
        assert (plan.dropped, plan.purge_through) == ((), 0)
        assert store.gets == before


def test_a_long_stream_is_written_read_deleted_and_restored() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            store = namespace.client.store
            await namespace.create_stream("s")
            for value in (b"first", b"last"):
                async with namespace.writer("s") as writer:
                    await writer.append(value)
                if value == b"first":
                    await namespace.store.update_stream("n", "s", partial(with_many, count=600))
            assert await first_value(namespace, "s", FromSequence(6_001)) == b"last"
            assert await first_value(namespace, "s", EARLIEST) == b"first"
            info = await namespace.info("s")
            assert (info.segments, info.records) == (602, 6_002)
            assert [one.number for one in await namespace.segments("s", since=601)] == [601, 602]
            await namespace.delete_stream("s")
            await namespace.undelete_stream("s", as_name="t")
            assert (await namespace.info("t")).segments == 602
            stream = await namespace.stream_metadata("t")
            assert stream.pages.folder.startswith("n/s~")
            await namespace.truncate("t", Position(500, 0, 0))
            await namespace.untruncate("t", Position(300, 0, 0))
            assert (await namespace.info("t")).first_position == Position(300, 0, 0)
            await namespace.delete_stream("t")
            await namespace.purge("t")
            await trio.sleep(TOMBSTONE_MS / 1000)
            await Janitor(namespace.client, "n").sweep()
            assert await nodes_below(store, "/ledgerstream/namespaces/n/pages") == []
            assert await namespace.client.list_ledgers() == []

    simulate(scenario)


async def first_value(namespace: Namespace, stream: str, start: Start) -> bytes | None:
    async with namespace.reader(stream, start=start) as reader:
        async for batch in reader.batches():
            return next(iter(batch.records())).value
    raise AssertionError("the stream has records")


async def test_a_backup_has_each_page_that_it_names() -> None:
    """Also of a stream that gets pages while the backup is made."""
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        await BookieRegistry(store).init_cluster(random.Random(1))
        streams = await new_stream(store)
        await grow(streams, 130)
        lines = [line async for line in export_lines(store, "/ledgers")]
        paths = [path for path, _ in decode_backup(lines).nodes]
        heads = [n for n, path in enumerate(paths) if path == stream_path("n", "s")]
        pages = [n for n, path in enumerate(paths) if "/pages/" in path]
        assert len(pages) >= 1
        assert max(heads) < min(pages), "a page is there before it is named, so it is read after"
