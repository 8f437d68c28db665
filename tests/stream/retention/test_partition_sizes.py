"""With a real janitor, `retention_bytes` counts all partitions of a stream as one."""

from __future__ import annotations

from pathlib import Path

from stream import Janitor, Namespace
from stream.retention.partition_sizes import PartitionSizes
from stream.retention.reclaim import apply_retention, read_stream_version
from tests.stream.real_namespace import a_namespace

SEGMENTS = 3


async def write(namespace: Namespace, partition: str) -> int:
    """Appends sealed segments of at least 4,000 bytes, and returns their total bytes."""
    for _ in range(SEGMENTS):
        async with namespace.writer(partition) as writer:
            await writer.append_many([bytes(100)] * 40)
    return sum(s.nbytes for s in (await namespace.stream_metadata(partition)).segments)


async def live(namespace: Namespace, partition: str) -> int:
    return len((await namespace.stream_metadata(partition)).live())


async def test_the_oldest_partition_goes_first_and_all_count_as_one(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("clicks", partitions=3)
        await namespace.create_stream("plain")
        sizes = [await write(namespace, f"clicks#{number}") for number in (0, 1)]
        await write(namespace, "plain")
        keep = sizes[1] + sizes[0] // SEGMENTS  # the newest of the older one, and a little more
        shown = await namespace.what_if(retention_bytes=keep)
        assert {p.stream: len(p.dropped) for p in shown} == {
            "clicks#0": SEGMENTS - 1, "clicks#1": 0, "clicks#2": 0, "plain": 0,
        }  # fmt: skip
        await namespace.set_policy(retention_bytes=keep)
        plan = await namespace.explain_retention("clicks#0")
        assert len(plan.dropped) == SEGMENTS - 1
        assert "in 3 partitions, retention_bytes wants" in plan.segments[0].reason
        report = await Janitor(namespace.client, "demo").sweep()
        assert report.segments_dropped == SEGMENTS - 1
        assert await live(namespace, "clicks#0") == 1
        assert await live(namespace, "clicks#1") == SEGMENTS
        await namespace.set_policy(retention_bytes=sizes[1])
        report = await Janitor(namespace.client, "demo").sweep()
        assert await live(namespace, "clicks#0") == 0
        assert await live(namespace, "clicks#1") == SEGMENTS
        again = await Janitor(namespace.client, "demo").sweep()
        assert (report.segments_dropped, again.segments_dropped) == (1, 0)


async def test_retention_does_not_use_a_stale_size_of_another_partition(tmp_path: Path) -> None:
    """The other partition is truncated by hand after it was counted: its bytes no longer exist."""
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("clicks", partitions=2)
        await write(namespace, "clicks#0")
        keep = await write(namespace, "clicks#1")
        await namespace.set_policy(retention_bytes=keep)
        store = namespace.store
        counted = PartitionSizes(namespace.client, "demo")
        seen = await read_stream_version(store, "demo", "clicks#0")
        share, checks = await counted.share(seen.policy, seen.stream)
        assert share is not None
        assert (share.drop_through, len(checks)) == (SEGMENTS, 1)
        last = (await namespace.stream_metadata("clicks#1")).segments[-1]
        await namespace.truncate("clicks#1", last.end)
        applied = await apply_retention(namespace.client, "demo", seen, counted)
        assert applied.plan.dropped == ()
        assert await live(namespace, "clicks#0") == SEGMENTS
