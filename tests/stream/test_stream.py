"""Streams on real bookies: append, read, tail, roll, take over, truncate, expire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerClosed, LedgerFenced
from stream import (
    EARLIEST,
    LATEST,
    FromSequence,
    FromTime,
    Janitor,
    Namespace,
    NoSuchStream,
    Position,
    Record,
    Start,
    StreamReader,
    TakenOver,
    Truncated,
    WriterOptions,
    encode,
)
from tests.real_cluster import SMALL, real_cluster


@asynccontextmanager
async def a_namespace(tmp_path: Path, **policy: Any) -> AsyncIterator[Namespace]:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        namespace = Namespace(client, "demo")
        await namespace.ensure(**policy)
        yield namespace


async def read_all(namespace: Namespace, stream: str, start: Start = EARLIEST) -> list[Record]:
    async with namespace.reader(stream, start=start) as reader:
        return [record async for batch in reader.read_to_end() for record in batch.records()]


async def drain(reader: StreamReader) -> None:
    async with aclosing(reader.read_to_end()) as batches:
        async for _ in batches:
            pass


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


async def test_what_was_appended_is_read_back_with_all_its_columns(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("clicks", create=True) as writer:
            first = await writer.append(b"a")
            second = await writer.append(
                b"b", key=b"k", event_time_ms=17, headers=[("h", b"1"), ("h", b"2")]
            )
            assert first < second
        records = await read_all(namespace, "clicks")
        assert values(records) == [b"a", b"b"]
        assert [record.position for record in records] == [first, second]
        assert [record.sequence for record in records] == [0, 1]
        assert (records[0].key, records[0].event_time_ms, records[0].headers) == (None, None, ())
        assert (records[1].key, records[1].event_time_ms) == (b"k", 17)
        assert records[1].headers == (("h", b"1"), ("h", b"2"))


async def test_appending_many_keeps_order_over_entries(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=500) as namespace:
        sent = [b"%d" % i * (i % 30) for i in range(1000)]
        async with namespace.writer("s", create=True) as writer:
            first, last = await writer.append_many(sent, event_times=list(range(1000)))
            assert writer.statistics().entries > 10
        records = await read_all(namespace, "s")
        assert values(records) == sent
        assert (records[0].position, records[-1].position) == (first, last)
        assert [record.event_time_ms for record in records] == list(range(1000))


async def test_callers_that_append_together_share_entries(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        positions: dict[int, Position] = {}

        async def append(number: int) -> None:
            for step in range(5):
                positions[number * 5 + step] = await writer.append(b"%d" % (number * 5 + step))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(append, number)
        assert writer.statistics().records == 500
        assert writer.statistics().entries < 100
        await writer.close()
        records = await read_all(namespace, "s")
        assert {int(record.value): record.position for record in records} == positions


async def test_a_cancelled_append_leaves_the_writer_usable(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.append(b"cancelled")
            await writer.append(b"kept")
        assert values(await read_all(namespace, "s"))[-1] == b"kept"


async def test_a_full_buffer_refuses_and_then_has_room(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=1000) as namespace:
        options = WriterOptions(pending_bytes_max=5000)
        async with namespace.writer("s", create=True, options=options) as writer:
            tickets = []
            while writer.has_room:
                tickets.append(writer.append_nowait(bytes(100)))
            with pytest.raises(trio.WouldBlock):
                writer.append_nowait(bytes(100))
            assert 30 < len(tickets) < 60
            await writer.wait_room()
            tickets.append(writer.append_nowait(b"more"))
            await writer.flush()
            assert all(ticket.is_confirmed for ticket in tickets)
            positions = [await ticket.wait() for ticket in tickets]
            assert positions == sorted(set(positions))


async def test_bad_records_are_refused_and_harm_nobody(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            good = writer.append_nowait(b"good")
            with pytest.raises(TypeError, match="must be bytes, not str"):
                writer.append_nowait("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="largest is 1048576"):
                writer.append_nowait(bytes((1 << 20) + 1))
            with pytest.raises(InvalidArgument, match="64 bits"):
                writer.append_nowait(b"x", event_time_ms=1 << 63)
            await good.wait()
        assert values(await read_all(namespace, "s")) == [b"good"]
        with pytest.raises(LedgerClosed):
            await writer.append(b"late")


async def test_rolling_by_size_keeps_order_and_positions(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=5000, roll_bytes=1 << 16) as namespace:
        async with namespace.writer("s", create=True) as writer:
            tickets = []
            for number in range(4000):
                while not writer.has_room:
                    await writer.wait_room()
                tickets.append(writer.append_nowait(b"%06d" % number + bytes(100)))
                if number % 100 == 0:
                    await tickets[-1].wait()
            positions = [await ticket.wait() for ticket in tickets]
            assert writer.statistics().rolls >= 4
        stream = await namespace.stream_metadata("s")
        assert len(stream.segments) >= 5
        assert not any(segment.is_open for segment in stream.segments)
        assert sum(segment.records for segment in stream.segments) == 4000
        records = await read_all(namespace, "s")
        assert [int(record.value[:6]) for record in records] == list(range(4000))
        assert [record.position for record in records] == positions
        assert [record.sequence for record in records] == list(range(4000))


async def test_a_tail_follows_over_rolls_and_a_new_writer(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=2000, roll_bytes=1 << 16) as namespace:
        await namespace.create_stream("s")
        seen: list[int] = []

        async def follow() -> None:
            async with namespace.reader("s") as reader:
                async for record in reader:
                    seen.append(int(record.value[:6]))
                    if len(seen) == 3000:
                        return

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                for part in range(3):
                    async with namespace.writer("s") as writer:
                        for number in range(part * 1000, part * 1000 + 1000, 10):
                            await writer.append_many(
                                [b"%06d" % n + bytes(100) for n in range(number, number + 10)]
                            )
        assert seen == list(range(3000))


async def test_takeover_fences_the_old_writer_and_loses_nothing(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as old:
            await old.append(b"1")
            async with namespace.writer("s") as new:
                assert new.epoch == old.epoch + 1
                await new.append(b"2")
                with pytest.raises(TakenOver, match=r"epoch 2; this writer held epoch 1"):
                    await old.append(b"never")
                with pytest.raises(LedgerFenced):
                    old.append_nowait(b"never")
                await new.append(b"3")
            with pytest.raises(TakenOver):
                await old.close()
            old.error = LedgerClosed("seen")
        records = await read_all(namespace, "s")
        assert values(records) == [b"1", b"2", b"3"]
        assert [record.sequence for record in records] == [0, 1, 2]


async def test_opening_and_closing_writers_leaves_no_empty_segments_behind(
    tmp_path: Path,
) -> None:
    async with a_namespace(tmp_path) as namespace:
        for _ in range(3):
            async with namespace.writer("s", create=True):
                pass
        stream = await namespace.stream_metadata("s")
        assert (stream.segments, stream.garbage, stream.epoch) == ((), (), 3)
        assert await namespace.client.list_ledgers() == []


async def test_readers_start_anywhere(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=300, roll_bytes=1 << 16) as namespace:
        async with namespace.writer("s", create=True) as writer:
            for number in range(0, 2000, 5):
                await writer.append_many(
                    [b"%06d" % n + bytes(60) for n in range(number, number + 5)]
                )
            everything = await read_all(namespace, "s")
            assert len(everything) == 2000
            for number in (0, 1, 777, 1998, 1999):
                start = everything[number].position
                assert (await read_all(namespace, "s", start))[0] == everything[number]
                found = await read_all(namespace, "s", FromSequence(number))
                assert found[0] == everything[number]
                assert len(found) == 2000 - number
                time_ms = everything[number].append_time_ms
                first = next(r for r in everything if r.append_time_ms >= time_ms)
                assert (await read_all(namespace, "s", FromTime(time_ms)))[0] == first
            assert await read_all(namespace, "s", LATEST) == []
            assert await read_all(namespace, "s", FromSequence(2000)) == []
            assert await read_all(namespace, "s", FromTime(1 << 50)) == []
            after = everything[1200].position.after
            assert (await read_all(namespace, "s", after))[0] == everything[1201]
            info = await namespace.info("s")
            assert (info.first_sequence, info.next_sequence, info.records) == (0, 2000, 2000)
        closed = await namespace.info("s")
        assert (closed.end_position.slot, closed.next_sequence) == (0, 2000)


async def test_records_and_batches_may_be_mixed_and_resumed(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=300) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append_many([b"%03d" % n for n in range(100)])
        async with namespace.reader("s") as reader:
            got = [int((await reader.__anext__()).value) for _ in range(5)]
            position = reader.position
            batch = await reader.next_batch()
            got += map(int, batch.values())
            async with aclosing(reader.read_to_end()) as rest:
                async for batch in rest:
                    got += map(int, batch.values())
            with trio.move_on_after(0.05) as scope:
                await reader.next_batch()
            assert scope.cancelled_caught
        assert got == list(range(100))
        assert [int(r.value) for r in await read_all(namespace, "s", position)] == list(
            range(5, 100)
        )


async def test_truncated_records_are_gone_and_the_reader_is_told(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=1000, roll_bytes=1 << 16) as namespace:
        async with namespace.writer("s", create=True) as writer:
            for number in range(0, 3000, 10):
                await writer.append_many(
                    [b"%06d" % n + bytes(60) for n in range(number, number + 10)]
                )
            everything = await read_all(namespace, "s")
            async with namespace.reader("s") as slow:
                assert (await slow.__anext__()).sequence == 0
                cut = everything[2500].position
                before = len((await namespace.stream_metadata("s")).segments)
                stream = await namespace.truncate("s", cut)
                assert stream.truncated_to == cut
                assert 0 < len(stream.segments) < before
                with pytest.raises(Truncated) as told:
                    await drain(slow)
                assert told.value.first_available == cut
            assert (await read_all(namespace, "s"))[0] == everything[2500]
            with pytest.raises(Truncated):
                await read_all(namespace, "s", everything[2499].position)
            with pytest.raises(Truncated):
                await read_all(namespace, "s", FromSequence(2499))
            assert (await namespace.truncate("s", everything[0].position)).truncated_to == cut
            assert (await namespace.info("s")).first_sequence == 2500
        with pytest.raises(InvalidArgument, match="cannot truncate"):
            await namespace.truncate("s", Position(99, 0, 0))


async def test_retention_by_size_deletes_old_ledgers_and_no_more(tmp_path: Path) -> None:
    keep = 100_000
    async with a_namespace(
        tmp_path, batch_bytes=4000, roll_bytes=1 << 16, retention_bytes=keep
    ) as namespace:
        async with namespace.writer("s", create=True) as writer:
            for _ in range(100):
                await writer.append_many([bytes(100)] * 40)
        before = await namespace.stream_metadata("s")
        janitor = Janitor(namespace.client, "demo")
        report = await janitor.sweep()
        assert report.ledgers_deleted > 0
        after = await namespace.stream_metadata("s")
        left = sum(segment.nbytes for segment in after.segments)
        assert keep <= left <= keep + max(segment.nbytes for segment in before.segments)
        assert await namespace.client.list_ledgers() == list(after.ledgers())
        again = await janitor.sweep()
        assert (again.ledgers_deleted, again.orphans_deleted) == (0, 0)


async def test_the_janitor_deletes_orphans_and_only_those(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"kept")
            tag = {"ledgerstream.stream": b"demo/s"}
            orphan = await namespace.client.create_ledger(custom=tag)
            other = await namespace.client.create_ledger()
            assert (await Janitor(namespace.client, "demo").sweep()).orphans_deleted == 0
            janitor = Janitor(namespace.client, "demo", orphan_age_ms=-1)
            assert (await janitor.sweep()).orphans_deleted == 1
            left = await namespace.client.list_ledgers()
            assert orphan.ledger_id not in left
            assert other.ledger_id in left
            await writer.append(b"still")
            orphan.abandon()
            other.abandon()
        assert values(await read_all(namespace, "s")) == [b"kept", b"still"]


async def test_a_deleted_stream_is_gone_for_writer_and_reader(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"x")
            async with namespace.reader("s", start=LATEST) as reader:
                await namespace.delete_stream("s")
                with pytest.raises(NoSuchStream), trio.fail_after(10):
                    await reader.__anext__()
            with pytest.raises(NoSuchStream):
                await writer.append(b"y")
            writer.error = LedgerClosed("seen")
        assert await namespace.list_streams() == []
        assert await namespace.client.list_ledgers() == []
        async with namespace.writer("s", create=True) as writer:
            assert await writer.append(b"new") == Position(1, 0, 0)


async def test_ledgers_are_committed_once_per_batch(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        client: LedgerClient = namespace.client

        async def closed_ledger(*records: bytes) -> int:
            async with client.create_ledger() as writer:
                await writer.append(encode(records, is_sequence_in_segment=True))
            return writer.ledger_id

        await namespace.create_stream("s")
        ledgers = [await closed_ledger(b"a", b"b"), await closed_ledger(b"c")]
        once = await namespace.commit_segments("s", "sink", 0, ledgers)
        assert await namespace.commit_segments("s", "sink", 0, [99]) == once
        await namespace.commit_segments("s", "sink", 1, [await closed_ledger(b"d")])
        records = await read_all(namespace, "s")
        assert values(records) == [b"a", b"b", b"c", b"d"]
        assert [record.sequence for record in records] == [0, 1, 2, 3]
        assert values(await read_all(namespace, "s", FromSequence(2))) == [b"c", b"d"]


async def test_a_writer_goes_on_when_its_ledger_fails(tmp_path: Path) -> None:
    """Two of four bookies stop in turn while records are on their way; each record is there
    once, in order, where the writer said it is."""
    async with (
        real_cluster(tmp_path, 4, **SMALL) as cluster,
        cluster.client(ensemble_change_timeout_s=0.3, add_timeout_s=0.5) as client,
    ):
        namespace = Namespace(client, "demo")
        await namespace.ensure(batch_bytes=500, write_quorum=2, ensemble_size=2)
        positions: list[Position] = []
        is_flowing = trio.Event()
        async with namespace.writer("s", create=True) as writer:

            async def append() -> None:
                for number in range(600):
                    positions.append(await writer.append(b"%d" % number))
                    if number == 100:
                        is_flowing.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                await is_flowing.wait()
                for number in range(3):
                    await cluster.stop(number)
                await trio.sleep(1)  # longer than the ledger looks for other bookies
                for number in range(3):
                    await cluster.start(number)
            assert writer.statistics().repairs >= 1
        records = await read_all(namespace, "s")
        assert [int(record.value) for record in records] == list(range(600))
        assert [record.position for record in records] == positions
