"""`retention_bytes` of partitioned streams with pages: what it costs, and without one of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from stream import Namespace, Position
from stream.core.metadata.pages import page_name
from stream.core.metadata.segments import Segment, SegmentState
from stream.core.metadata.streams import StreamMetadata
from stream.core.retention import SizeShare, size_shares
from stream.namespace import create_namespace
from stream.retention import partition_sizes
from stream.retention.janitor import Janitor
from stream.retention.partition_sizes import PartitionSizes
from stream.store.pages import forget_pages, pages_path
from tests.ledger.metastore.counting_store import CountingStore
from tests.sim.retention.actors import MetadataClient

NOW_MS = 1_700_000_000_000
SEGMENTS = 200


def filled(stream: StreamMetadata, ledger_id: int) -> StreamMetadata:
    """Returns the stream with segments of 10 bytes, one every 100 ms."""
    segments = []
    for n in range(1, SEGMENTS + 1):
        time_ms = NOW_MS - 3_600_000 + 100 * n
        segments.append(
            Segment(
                n, ledger_id + n, n - 1, time_ms, SegmentState.SEALED, 0, 1, 10, time_ms, time_ms
            )
        )
    return replace(
        stream, segments=tuple(segments), next_segment=SEGMENTS + 1, next_sequence=SEGMENTS
    )


async def a_namespace(store: CountingStore, partitions: int) -> Namespace:
    """Returns a namespace with stream "clicks", each partition of which has segments of 10 bytes,
    of which all but half of a page are in pages, and begins in the middle of the first page."""
    client = MetadataClient(
        store, rng=random.Random(1), now_ms=lambda: NOW_MS, next_id=lambda: 1 << 40
    )
    await create_namespace(client, "n", retention_bytes=10 * 100 * partitions)
    namespace = Namespace(client, "n")
    await namespace.create_stream("clicks", partitions=partitions)
    for number, name in enumerate(await namespace.partitions("clicks")):
        await namespace.store.update_stream("n", name, partial(filled, ledger_id=1000 * number))
        await namespace.truncate(name, Position(20, 0, 0))
    return namespace


async def shares_of(namespace: Namespace) -> dict[str, SizeShare | None]:
    """Returns the share of each partition, as a sweep asks for them."""
    policy, sizes = await namespace.policy(), PartitionSizes(namespace.client, "n")
    found = {}
    for name in await namespace.partitions("clicks"):
        stream = await namespace.stream_metadata(name)
        found[name], _ = await sizes.share(policy, stream)
    return found


async def test_pages_of_partitions_are_read_once_in_a_sweep() -> None:
    reads, partitions = [], (4, 24)
    for count in partitions:
        store = CountingStore(lambda: NOW_MS)
        namespace = await a_namespace(store, count)
        forget_pages(namespace.client.store)
        before = store.gets
        shares = await shares_of(namespace)
        reads.append(store.gets - before)
        streams = [await namespace.stream_metadata(name) for name in shares]
        plain = [filled(StreamMetadata(name=one.name, created_ms=1), 0) for one in streams]
        cut = [one.truncated(Position(20, 0, 0), NOW_MS) for one in plain]
        wanted = size_shares(cut, 10 * 100 * count)
        for name, share in shares.items():
            assert share is not None
            assert share.drop_through == wanted[name].drop_through == 100, name
    few, many = reads
    # Two documents, and the pages around the begin and the boundary.
    assert many <= 5 * partitions[1], reads
    assert few <= 5 * partitions[0] + 5, reads


async def test_shares_are_calculated_once_while_no_partition_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace = await a_namespace(CountingStore(lambda: NOW_MS), 6)
    asked = 0

    def counted(streams: Iterable[StreamMetadata], nbytes: int) -> dict[str, SizeShare]:
        nonlocal asked
        asked += 1
        return size_shares(streams, nbytes)

    monkeypatch.setattr(partition_sizes, "size_shares", counted)
    await shares_of(namespace)
    assert asked <= 4, "once, and again for the pages of each level"


async def test_a_lost_page_of_a_partition_stops_no_other() -> None:
    namespace = await a_namespace(CountingStore(lambda: NOW_MS), 3)
    store = namespace.client.store
    lost = await namespace.stream_metadata("clicks#1")
    path = pages_path(lost.pages.folder)
    await store.delete(f"{path}/{page_name(lost.pages.roots[0])}")
    forget_pages(store)
    report = await Janitor(namespace.client, "n").sweep()
    assert report.failures == 1, "that partition itself"
    for name in await namespace.partitions("clicks"):
        stream = await namespace.stream_metadata(name)
        assert stream.truncated_to < Position(100, 0, 0), "it counts nothing: more is kept"
    await namespace.set_policy(retention_bytes=10 * 100)
    await Janitor(namespace.client, "n").sweep()
    begins = [(await namespace.stream_metadata(f"clicks#{n}")).truncated_to for n in range(3)]
    assert begins[1] == Position(20, 0, 0)
    assert min(begins[0], begins[2]) > Position(140, 0, 0)
