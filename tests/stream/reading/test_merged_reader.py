"""Several streams that are read as one, on real bookies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from ledger.errors import InvalidArgument, LedgerClosed, RetryableError
from stream import FromSequence, MergedReader, MergedRecord, Namespace, NoSuchStream, Position
from tests.real_cluster import SMALL, real_cluster
from tests.stream.real_namespace import a_namespace


async def fill(namespace: Namespace, stream: str, times: Sequence[int | None]) -> None:
    """Appends five records per entry; each value names its stream and its place in it."""
    async with namespace.writer(stream, create="#" not in stream) as writer:
        for first in range(0, len(times), 5):
            part = times[first : first + 5]
            values = [b"%s %d" % (stream.encode(), first + n) for n in range(len(part))]
            await writer.append_many(values, event_times=list(part))


async def take(reader: MergedReader, count: int) -> list[bytes]:
    with trio.fail_after(20):
        return [(await reader.__anext__()).record.value for _ in range(count)]


async def rest_of(reader: MergedReader) -> list[MergedRecord]:
    with trio.fail_after(20):
        return [merged async for merged in reader]


async def test_streams_are_returned_whole_and_in_the_order_of_time(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with a_namespace(tmp_path) as namespace:
        for name, count in (("a", 100), ("b", 37), ("c", 0), ("d", 61)):
            times = sorted(rng.randrange(10_000) for _ in range(count))
            await namespace.ensure_stream(name)
            await fill(namespace, name, times)
        async with namespace.merged_reader(["a", "b", "c", "d"], follow=False) as reader:
            assert reader.watermark_ms is None
            merged = await rest_of(reader)
        times = [m.record.event_time_ms or 0 for m in merged]
        assert times == sorted(times)
        assert not any(m.is_late for m in merged)
        assert len(merged) == 198
        for name in "abcd":
            sequences = [m.record.sequence for m in merged if m.stream == name]
            assert sequences == list(range(len(sequences)))
        async with namespace.merged_reader("*", follow=False) as reader:
            found = [
                (batch.stream, value) async for batch in reader.batches()
                for value in batch.batch.to_arrow().column("value").to_pylist()
            ]  # fmt: skip
        assert found == [(m.stream, m.record.value) for m in merged]


async def test_order_by_append_time_goes_by_entries(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        for name, start in (("a", 900), ("b", 100), ("a", 500)):
            await fill(namespace, name, list(range(start, start + 10)))
            await trio.sleep(0.002)  # append times are in milliseconds, and these must differ
        async with namespace.merged_reader(
            ["b", "a"], order_by="append_time", follow=False
        ) as reader:
            merged = await rest_of(reader)
        assert "".join(m.stream for m in merged) == "a" * 10 + "b" * 10 + "a" * 10


@pytest.mark.parametrize(
    ("lateness_ms", "at_first", "then", "late"),
    [(0, [10, 20, 30, 40, 50], [15, 60], [15]), (35, [10], [15, 20, 30, 40, 50, 60], [])],
)
async def test_late_records_are_marked_and_lateness_puts_them_in_order(
    tmp_path: Path, lateness_ms: int, at_first: list[int], then: list[int], late: list[int]
) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        await writer.append_many([b""] * 5, event_times=[10, 20, 30, 40, 50])
        async with namespace.merged_reader(
            "s", lateness_ms=lateness_ms, idle_timeout_ms=None
        ) as reader:
            with trio.fail_after(10):
                merged = [await reader.__anext__() for _ in at_first]
                assert [m.record.event_time_ms for m in merged] == at_first
                # A record without an event time gets its append time, which is far later.
                await writer.append_many([b""] * 3, event_times=[15, 60, None])
                await writer.append(b"", event_time_ms=1 << 50)
                merged = [await reader.__anext__() for _ in [*then, None]]
        assert [m.record.event_time_ms for m in merged] == [*then, None]
        assert [m.record.event_time_ms for m in merged if m.is_late] == late


async def test_a_quiet_stream_holds_the_others_back_until_it_is_idle(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("quiet")
        async with namespace.writer("busy", create=True) as writer:
            await writer.append(b"1", event_time_ms=1)
            async with namespace.merged_reader(["busy", "quiet"], idle_timeout_ms=None) as reader:
                with trio.move_on_after(0.2) as scope:
                    await reader.__anext__()
                assert scope.cancelled_caught
            async with namespace.merged_reader(["busy", "quiet"], idle_timeout_ms=50) as reader:
                assert await take(reader, 1) == [b"1"]
                assert reader.watermark_ms == 1
                await writer.append(b"2", event_time_ms=2)
                assert await take(reader, 1) == [b"2"]
            await fill(namespace, "quiet", [3])
            await writer.append(b"4", event_time_ms=4)
            async with namespace.merged_reader(["busy", "quiet"], idle_timeout_ms=None) as reader:
                assert await take(reader, 3) == [b"1", b"2", b"quiet 0"]
                start = reader.positions()
            async with namespace.merged_reader(
                ["busy", "quiet"], start=start, idle_timeout_ms=50
            ) as reader:
                assert await take(reader, 1) == [b"4"]


async def test_a_stream_read_from_behind_its_last_record_is_idle_too(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await fill(namespace, "quiet", [1, 2])
        await fill(namespace, "busy", [3])
        start = {"quiet": (await namespace.read_last("quiet", 1))[0].position.after}
        async with namespace.merged_reader(
            ["busy", "quiet"], start=start, idle_timeout_ms=30
        ) as reader:
            assert await take(reader, 1) == [b"busy 0"]


async def test_new_streams_and_partitions_join(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("clicks", partitions=2)
        await fill(namespace, "clicks#0", [1, 3])
        await fill(namespace, "clicks#1", [2])
        async with (
            namespace.merged_reader("clicks", idle_timeout_ms=30) as one,
            namespace.merged_reader("*", idle_timeout_ms=30) as all_of_them,
        ):
            for reader in (one, all_of_them):
                assert await take(reader, 3) == [b"clicks#0 0", b"clicks#1 0", b"clicks#0 1"]
            await namespace.grow_stream("clicks", partitions=3)
            await fill(namespace, "clicks#2", [4])
            await fill(namespace, "views", [5])
            assert await take(one, 1) == [b"clicks#2 0"]
            assert sorted(await take(all_of_them, 2)) == [b"clicks#2 0", b"views 0"]
            assert one.streams == ["clicks#0", "clicks#1", "clicks#2"]
            assert sorted(all_of_them.streams) == [*one.streams, "views"]


async def test_a_stream_that_only_matches_may_be_deleted_and_created_again(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, trash_ms=0) as namespace:
        await fill(namespace, "a", [1])
        await fill(namespace, "b", [1])
        async with namespace.merged_reader(["a", "b*"], idle_timeout_ms=30) as reader:
            assert await take(reader, 2) == [b"a 0", b"b 0"]
            await namespace.delete_stream("b")
            with trio.fail_after(10):
                while reader.streams != ["a"]:
                    with trio.move_on_after(0.05):
                        await reader.__anext__()
            await fill(namespace, "b", [7, 8])
            assert await take(reader, 2) == [b"b 0", b"b 1"]
            await namespace.delete_stream("a")
            with pytest.raises(NoSuchStream, match="'a'"):
                await take(reader, 1)


async def test_reading_continues_where_another_reader_was(tmp_path: Path) -> None:
    rng = random.Random(5)
    async with a_namespace(tmp_path) as namespace:
        for name in "abc":
            await fill(namespace, name, sorted(rng.randrange(1000) for _ in range(50)))
        async with namespace.merged_reader("*", follow=False) as reader:
            everything = await rest_of(reader)
            assert len(reader.positions()) == 3
        start: dict[str, Position] = {}
        found: list[bytes] = []
        while len(found) < 150:
            async with namespace.merged_reader("*", follow=False, start=start) as reader:
                found += await take(reader, min(rng.randrange(1, 20), 150 - len(found)))
                start = reader.positions()
        assert found == [merged.record.value for merged in everything]


async def test_records_and_batches_may_be_mixed_and_calls_cancelled(tmp_path: Path) -> None:
    rng = random.Random(7)
    async with a_namespace(tmp_path) as namespace:
        for name in "ab":
            await fill(namespace, name, [rng.randrange(100) for _ in range(60)])
        async with namespace.merged_reader("*", follow=False, lateness_ms=1000) as reader:
            everything = await rest_of(reader)
        found: list[bytes] = []
        async with namespace.merged_reader("*", follow=False, lateness_ms=1000) as reader:
            while True:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    found.append((await reader.__anext__()).record.value)
                try:
                    found += (await reader.next_batch()).batch.values()
                    found.append((await reader.__anext__()).record.value)
                except StopAsyncIteration:
                    break
        assert found == [merged.record.value for merged in everything]
        with pytest.raises(LedgerClosed):
            await reader.__anext__()


async def test_a_stream_far_ahead_waits_and_memory_stays_bounded(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        for name, base in (("ahead", 1_000_000), ("behind", 0)):
            async with namespace.writer(name, create=True) as writer:
                for first in range(0, 400, 10):
                    await writer.append_many(
                        [bytes(1000)] * 10, event_times=list(range(base + first, base + first + 10))
                    )
        async with namespace.merged_reader("*", follow=False, buffer_bytes=100_000) as reader:
            most = 0
            names = []
            async for batch in reader.batches():
                names.append(batch.stream)
                await trio.testing.wait_all_tasks_blocked()
                most = max(most, reader.buffered_bytes)
        assert names == ["behind"] * 40 + ["ahead"] * 40
        assert 50_000 < most < 100_000 + 2 * 25_000


async def test_an_outage_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client(read_timeout_s=0.5) as client,
    ):
        namespace = Namespace(client, "demo")
        await namespace.ensure()
        for name in "ab":
            await fill(namespace, name, list(range(20)))
        for number in range(3):
            await cluster.stop(number)
        async with namespace.merged_reader(["a", "b"], follow=False) as reader:
            with pytest.raises(RetryableError):
                await take(reader, 1)
            for number in range(3):
                await cluster.start(number)
            merged: list[MergedRecord] = []
            with trio.fail_after(20):
                while len(merged) < 40:
                    try:
                        merged.append(await reader.__anext__())
                    except RetryableError:
                        await trio.sleep(0.05)
            assert [m.record.event_time_ms for m in merged] == [n // 2 for n in range(40)]


async def test_streams_that_cannot_be_merged_are_refused(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("a")
        await namespace.create_stream("b")
        with pytest.raises(NoSuchStream, match="'c'"):
            async with namespace.merged_reader(["a", "c"]):
                pass
        for start in (Position(1, 0, 0), FromSequence(3)):
            async with namespace.merged_reader("a", start=start, follow=False):
                pass
            with pytest.raises(InvalidArgument, match="a place in one stream"):
                async with namespace.merged_reader("*", start=start):
                    pass
        async with namespace.merged_reader("none*", follow=False) as reader:
            assert await rest_of(reader) == []
        for wrong in ({"order_by": "size"}, {"idle_timeout_ms": -1}, {"lateness_ms": -1}):
            with pytest.raises(InvalidArgument):
                namespace.merged_reader("a", **wrong)
