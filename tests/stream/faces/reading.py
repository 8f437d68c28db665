"""Behaviour of readers and cursors.

It is written once, for asyncio, and runs on every face (see suite.py).
"""

from __future__ import annotations

import pytest

from ledger.errors import InvalidArgument, LedgerClosed
from stream.aio import (
    EARLIEST,
    LATEST,
    CursorMoved,
    FromCursor,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Namespace,
    NoSuchCursor,
    NoSuchStream,
    Position,
    Start,
    Truncated,
)
from tests.stream.faces.aio_side import give_up_after, pause, together


async def fill(namespace: Namespace, count: int, stream: str = "s", begin: int = 0) -> None:
    """Appends records whose values are their numbers, ten to an entry.

    The event time of a record is a thousand times its number.
    """
    numbers = range(begin, begin + count)
    async with namespace.writer(stream, create=True) as writer:
        for at in range(begin, begin + count, 10):
            some = [number for number in numbers if at <= number < at + 10]
            await writer.append_many(
                [b"%d" % number for number in some],
                keys=[b"k%d" % (number % 3) for number in some],
                event_times=[1000 * number for number in some],
            )


async def numbers_from(namespace: Namespace, start: Start, stream: str = "s") -> list[int]:
    numbers: list[int] = []
    async with namespace.reader(stream, start=start) as reader:
        async for batch in reader.read_to_end():
            numbers += [int(value) for value in batch.values()]
    return numbers


async def check_readers_begin_at_the_given_start(namespace: Namespace) -> None:
    await fill(namespace, 50)
    assert await numbers_from(namespace, EARLIEST) == list(range(50))
    assert await numbers_from(namespace, LATEST) == []
    assert await numbers_from(namespace, FromSequence(33)) == list(range(33, 50))
    assert await numbers_from(namespace, FromEnd(7)) == list(range(43, 50))
    assert await numbers_from(namespace, FromEventTime(21_000)) == list(range(21, 50))
    assert await numbers_from(namespace, FromTime(0)) == list(range(50))
    assert await numbers_from(namespace, FromTime(1 << 50)) == []
    async with namespace.reader("s") as reader:
        positions: list[Position] = []
        async for record in reader:
            positions.append(record.position)
            if len(positions) == 50:
                break
    assert await numbers_from(namespace, positions[17]) == list(range(17, 50))


async def check_a_reader_knows_where_to_resume(namespace: Namespace) -> None:
    await fill(namespace, 30)
    for stop in (1, 9, 10, 11, 25, 30):
        seen: list[int] = []
        async with namespace.reader("s") as reader:
            async for record in reader:
                seen.append(int(record.value))
                if len(seen) == stop:
                    break
            resume = reader.position
        assert seen + await numbers_from(namespace, resume) == list(range(30))


async def check_records_and_batches_may_be_mixed(namespace: Namespace) -> None:
    await fill(namespace, 40)
    async with namespace.reader("s") as reader:
        first = await anext(reader)
        assert int(first.value) == 0
        rest = await reader.next_batch()
        assert [int(value) for value in rest.values()] == list(range(1, 10))
        assert int((await anext(reader)).value) == 10
        async for batch in reader.batches():
            assert [int(value) for value in batch.values()] == list(range(11, 20))
            break
        end = await reader.end_position()
        left: list[int] = []
        while True:
            some = await reader.next_batch_before(end)
            if some is None:
                break
            left += [int(value) for value in some.values()]
        assert left == list(range(20, 40))
        assert await reader.next_batch_before(end) is None


async def check_a_tail_sees_what_is_appended_later(namespace: Namespace) -> None:
    await namespace.create_stream("s")
    seen: list[int] = []

    async def follow() -> None:
        async with namespace.reader("s") as reader:
            async for record in reader:
                seen.append(int(record.value))
                if len(seen) == 30:
                    return

    async def write() -> None:
        await fill(namespace, 20)
        await fill(namespace, 10, begin=20)

    await together(follow, write)
    assert seen == list(range(30))


async def check_a_wait_at_the_end_can_be_cancelled(namespace: Namespace) -> None:
    await fill(namespace, 10)
    async with namespace.reader("s", start=LATEST) as reader:
        async with give_up_after(0.05):
            await reader.next_batch()
            raise AssertionError("there is no record to return")
        at = reader.position
        # The reader also serves another kind of request after that.
        async for _ in reader.read_to_end():
            raise AssertionError("there is no record to return")
        await fill(namespace, 5, begin=10)
        assert int((await anext(reader)).value) == 10
        assert reader.position > at
        rest = await reader.next_batch()
        assert [int(value) for value in rest.values()] == [11, 12, 13, 14]


async def check_reading_to_the_end_can_be_repeated(namespace: Namespace) -> None:
    await fill(namespace, 10)
    async with namespace.reader("s") as reader:
        assert [len(batch) async for batch in reader.read_to_end()] == [10]
        assert [len(batch) async for batch in reader.read_to_end()] == []
        await fill(namespace, 10, begin=10)
        assert [len(batch) async for batch in reader.read_to_end()] == [10]


async def check_a_closed_reader_raises(namespace: Namespace) -> None:
    await fill(namespace, 10)
    async with namespace.reader("s") as reader:
        await reader.next_batch()
        await reader.aclose()
        await reader.aclose()
        with pytest.raises(LedgerClosed):
            await reader.next_batch()


async def check_a_reader_of_a_missing_stream_raises(namespace: Namespace) -> None:
    with pytest.raises(NoSuchStream):
        async with namespace.reader("nothing"):
            pass
    with pytest.raises(InvalidArgument):
        async with namespace.reader("bad/name"):
            pass


async def check_truncation_is_reported_or_skipped(namespace: Namespace) -> None:
    await fill(namespace, 30)
    async with namespace.reader("s", start=FromSequence(15)) as reader:
        cut = (await anext(reader)).position
    await namespace.truncate("s", cut)
    assert await numbers_from(namespace, EARLIEST) == list(range(15, 30))
    with pytest.raises(Truncated) as caught:
        async with namespace.reader("s", start=Position(1, 0, 0)) as reader:
            await anext(reader)
    assert caught.value.first_available == cut
    async with namespace.reader("s", start=Position(1, 0, 0), on_truncated="earliest") as reader:
        assert int((await anext(reader)).value) == 15
    async with namespace.reader("s", start=Position(1, 0, 0), on_truncated="latest") as reader:
        async for _ in reader.read_to_end():
            raise AssertionError("it must continue at the end")
    await namespace.untruncate("s")
    assert await numbers_from(namespace, EARLIEST) == list(range(30))


async def check_the_last_records_are_read_backward(namespace: Namespace) -> None:
    await fill(namespace, 45)
    assert [int(r.value) for r in await namespace.read_last("s", 3)] == [42, 43, 44]
    assert len(await namespace.read_last("s", 100)) == 45
    backward: list[int] = []
    async with namespace.backward_batches("s") as batches:
        async for batch in batches:
            backward += reversed([int(value) for value in batch.values()])
        assert batches.position is not None
    assert backward == list(range(44, -1, -1))
    part = namespace.backward_batches("s", before=Position(1, 1, 0))
    assert [int(value) for value in (await anext(part)).values()] == list(range(10))
    await part.aclose()


async def check_batches_have_columns(namespace: Namespace) -> None:
    await fill(namespace, 10)
    async with namespace.reader("s") as reader:
        batch = await reader.next_batch()
    assert list(batch.keys()) == [b"k%d" % (number % 3) for number in range(10)]
    assert list(batch.event_times()) == [1000 * number for number in range(10)]
    assert batch.first_sequence == 0
    assert [record.value for record in batch] == batch.values()


async def check_a_cursor_remembers_the_handled_records(namespace: Namespace) -> None:
    await fill(namespace, 30)
    async with (
        namespace.cursor("s", "mailer") as cursor,
        namespace.reader("s", start=cursor.position) as reader,
    ):
        assert (cursor.name, cursor.stream) == ("mailer", "s")
        async for record in reader:
            cursor.advance(record)
            if int(record.value) == 14:
                break
        assert cursor.position == reader.position
        assert await cursor.commit() == cursor.committed == cursor.position
        lag = await cursor.lag()
        assert lag.records == 15
        cursor.advance(await reader.next_batch())
    assert await numbers_from(namespace, FromCursor("mailer")) == list(range(20, 30))
    assert (await namespace.cursor_lag("s", "mailer")).records == 10
    assert [each.name for each in await namespace.cursors("s")] == ["mailer"]
    await namespace.set_cursor("s", "mailer", FromSequence(5))
    assert await numbers_from(namespace, FromCursor("mailer")) == list(range(5, 30))
    await namespace.delete_cursor("s", "mailer")
    with pytest.raises(NoSuchCursor):
        await numbers_from(namespace, FromCursor("mailer"))


async def check_a_cursor_that_was_moved_is_reported(namespace: Namespace) -> None:
    await fill(namespace, 30)
    with pytest.raises(CursorMoved):  # noqa: PT012 (the block's end raises too)
        async with namespace.cursor("s", "c", commit_interval_ms=60_000) as cursor:
            await namespace.set_cursor("s", "c", FromSequence(20))
            cursor.advance(Position(1, 1, 0))
            await cursor.commit()


async def check_a_merge_is_ordered_by_time(namespace: Namespace) -> None:
    for stream, offset in (("a", 0), ("b", 5)):
        async with namespace.writer(stream, create=True) as writer:
            await writer.append_many(
                [b"%d" % number for number in range(offset, 100, 10)],
                event_times=list(range(offset, 100, 10)),
            )
    seen: list[tuple[str, int]] = []
    async with namespace.merged_reader(["a", "b"], follow=False) as reader:
        assert sorted(reader.streams) == ["a", "b"]
        async for merged in reader:
            seen.append((merged.stream, int(merged.record.value)))
        assert set(reader.positions()) == {"a", "b"}
    assert [number for _, number in seen] == list(range(0, 100, 5))
    assert [stream for stream, _ in seen] == ["a", "b"] * 10
    async with namespace.merged_reader("*", follow=False) as reader:
        assert sum([len(some.batch) async for some in reader.batches()]) == 20


async def check_a_merge_resumes_where_it_was_left(namespace: Namespace) -> None:
    for stream, offset in (("a", 0), ("b", 1), ("c", 2)):
        async with namespace.writer(stream, create=True) as writer:
            times = [time + offset for time in range(0, 90, 3) if time % 9 or offset]
            await writer.append_many([b"%d" % time for time in times], event_times=times)
    expected: list[int] = sorted(
        [time for time in range(90) if time % 3] + [time for time in range(0, 90, 3) if time % 9]
    )
    for stop in (1, 2, 3, 10, 35, 79, 80):
        seen: list[int] = []
        async with namespace.merged_reader("*", follow=False) as reader:
            async for merged in reader:
                seen.append(int(merged.record.value))
                if len(seen) == stop:
                    break
            places = reader.positions()
            watermark = reader.watermark_ms
        async with namespace.merged_reader("*", start=places, follow=False) as reader:
            batch = await reader.next_batch() if stop < 80 else None
            seen += [] if batch is None else [int(value) for value in batch.batch.values()]
            async for merged in reader:
                seen.append(int(merged.record.value))
        assert seen == expected
        assert watermark is not None
        assert watermark >= expected[stop - 1]


async def check_a_merge_that_waits_can_be_cancelled(namespace: Namespace) -> None:
    await fill(namespace, 3)
    async with namespace.merged_reader("s", idle_timeout_ms=50) as reader:
        seen = [int((await anext(reader)).record.value) for _ in range(3)]
        async with give_up_after(0.1):
            await anext(reader)
            raise AssertionError("there is no record to return")
        await fill(namespace, 2, begin=3)
        seen += [int((await anext(reader)).record.value) for _ in range(2)]
    assert seen == [0, 1, 2, 3, 4]


async def check_a_slow_reader_reads_large_records_in_order(namespace: Namespace) -> None:
    value = bytes(100_000)
    async with namespace.writer("s", create=True) as writer:
        await writer.append_many([value] * 150)
    async with namespace.reader("s") as reader:
        sequences: list[int] = []
        async for batch in reader.read_to_end():
            sequences += [record.sequence for record in batch]
            if len(sequences) < 20:
                await pause(0.01)
    assert sequences == list(range(150))
