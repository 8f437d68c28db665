"""Streams on real bookies: append, read, tail, roll and takeover."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from ledger.errors import InvalidArgument, LedgerClosed, LedgerFenced
from stream import LATEST, FromSequence, FromTime, Position, TakenOver, WriterOptions
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import read_all, values


async def test_records_are_read_back_with_all_their_columns(tmp_path: Path) -> None:
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


async def test_appending_many_keeps_order_across_entries(tmp_path: Path) -> None:
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


async def test_a_full_buffer_refuses_records_until_there_is_capacity(tmp_path: Path) -> None:
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


async def test_invalid_records_are_refused_and_do_not_affect_others(tmp_path: Path) -> None:
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


def test_a_writer_needs_a_positive_bound() -> None:
    with pytest.raises(InvalidArgument, match="no record could ever be taken"):
        WriterOptions(pending_bytes_max=0)


async def test_event_times_are_whole_numbers(tmp_path: Path) -> None:
    """Other times are refused when appended: in the batch they would fail the writer."""
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            waiting = writer.append_nowait(b"good", event_time_ms=-5)
            producer = await writer.producer("loader")
            bad: float = 1.5
            with pytest.raises(TypeError, match=r"event time 1\.5"):
                writer.append_nowait(b"bad", event_time_ms=bad)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"event time 1\.5"):
                await writer.append_many([b"a", b"b"], event_times=[1, bad])  # type: ignore[list-item]
            with pytest.raises(TypeError, match=r"event time 1\.5"):
                await producer.append(b"bad", 0, event_time_ms=bad)  # type: ignore[arg-type]
            await waiting.wait()
        assert [r.event_time_ms for r in await read_all(namespace, "s")] == [-5]


async def test_headers_are_copied_at_the_append(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            producer = await writer.producer("loader")
            headers = [("h", b"1")]
            tickets = [writer.append_nowait(b"a", headers=headers)]
            headers[0] = ("h", b"2")
            ticket = producer.append_nowait(b"b", 0, headers=headers)
            assert ticket is not None
            tickets.append(ticket)
            headers.clear()
            for each in tickets:
                await each.wait()
        records = await read_all(namespace, "s")
        assert [record.headers for record in records] == [(("h", b"1"),), (("h", b"2"),)]


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


async def test_a_tail_follows_across_rolls_and_a_new_writer(tmp_path: Path) -> None:
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
        block = namespace.writer("s", create=True)
        old = await block.__aenter__()
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
            await block.__aexit__(None, None, None)
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
