"""Behaviour of writers.

It is written once, for asyncio, and runs on every face (see suite.py).
"""

from __future__ import annotations

import pytest

from ledger.errors import InvalidArgument, LedgerClosed, LedgerFenced
from stream.aio import (
    EpochMismatch,
    HandedOver,
    Namespace,
    Position,
    ProducerGap,
    Record,
    SequenceMismatch,
    TakenOver,
    Ticket,
    WouldBlock,
    WriterOptions,
)
from tests.stream.faces.aio_side import give_up_after, together


async def everything(namespace: Namespace, stream: str = "s") -> list[Record]:
    records: list[Record] = []
    async with namespace.reader(stream) as reader:
        async for batch in reader.read_to_end():
            records += batch.records()
    return records


async def values(namespace: Namespace, stream: str = "s") -> list[bytes]:
    return [record.value for record in await everything(namespace, stream)]


async def check_append_returns_the_position_of_the_record(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as writer:
        assert writer.stream == "s"
        assert writer.epoch == 1
        first = await writer.append(b"a")
        second = await writer.append(b"b", b"key", 17, [("h", b"1"), ("h", b"2")])
        assert first < second
        assert writer.statistics().records == 2
    records = await everything(namespace)
    assert [record.position for record in records] == [first, second]
    assert (records[0].key, records[0].event_time_ms, records[0].headers) == (None, None, ())
    assert (records[1].key, records[1].event_time_ms) == (b"key", 17)
    assert records[1].headers == (("h", b"1"), ("h", b"2"))


async def check_append_many_keeps_order_across_entries(namespace: Namespace) -> None:
    await namespace.set_policy(batch_bytes=500)
    sent = [b"%d" % i * (i % 30) for i in range(1000)]
    async with namespace.writer("s", create=True) as writer:
        first, last = await writer.append_many(sent, event_times=list(range(1000)))
        assert writer.statistics().entries > 10
        with pytest.raises(InvalidArgument):
            await writer.append_many([])
    records = await everything(namespace)
    assert [record.value for record in records] == sent
    assert (records[0].position, records[-1].position) == (first, last)
    assert [record.sequence for record in records] == list(range(1000))


async def check_append_many_takes_headers(namespace: Namespace) -> None:
    await namespace.set_policy(batch_bytes=500)
    async with namespace.writer("s", create=True) as writer:
        await writer.append(b"before")
        await writer.append_many(
            [b"%d" % i for i in range(100)],
            headers=[[("n", b"%d" % i)] if i % 3 else None for i in range(100)],
        )
        with pytest.raises(InvalidArgument, match="1 headers for 2 values"):
            await writer.append_many([b"a", b"b"], headers=[{"n": b"1"}])
        with pytest.raises(TypeError, match="headers are pairs"):
            await writer.append_many([b"a", b"b"], headers=[{"n": b"1"}, {"n": "2"}])  # type: ignore[dict-item]
        await writer.append(b"behind")
    assert [record.headers for record in await everything(namespace)] == [
        (), *((("n", b"%d" % i),) if i % 3 else () for i in range(100)), (),
    ]  # fmt: skip


async def check_concurrent_callers_each_get_their_position(namespace: Namespace) -> None:
    positions: dict[bytes, Position] = {}
    async with namespace.writer("s", create=True) as writer:

        async def caller(number: int) -> None:
            for step in range(4):
                value = b"%d/%d" % (number, step)
                positions[value] = await writer.append(value)

        async def one() -> None:
            await caller(1)

        async def two() -> None:
            await caller(2)

        async def three() -> None:
            await caller(3)

        await together(one, two, three)
        assert writer.statistics().records == 12
    assert {record.value: record.position for record in await everything(namespace)} == positions


async def check_tickets_are_confirmed_in_order(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as writer:
        tickets = [writer.append_nowait(b"%03d" % number) for number in range(300)]
        await tickets[-1].wait()
        assert all(ticket.is_confirmed for ticket in tickets)
        positions = [await ticket.wait() for ticket in tickets]
        assert positions == sorted(set(positions))
        assert [ticket.sequence for ticket in tickets] == list(range(300))
    assert await values(namespace) == [b"%03d" % number for number in range(300)]


async def check_flush_makes_accepted_records_durable(namespace: Namespace) -> None:
    await namespace.set_policy(linger_ms=60_000)
    async with namespace.writer("s", create=True) as writer:
        ticket = writer.append_nowait(b"x")
        was_confirmed = ticket.is_confirmed
        await writer.flush()
        assert (was_confirmed, ticket.is_confirmed) == (False, True)
        assert await values(namespace) == [b"x"]


async def check_a_full_buffer_refuses_records_until_there_is_capacity(namespace: Namespace) -> None:
    options = WriterOptions(pending_bytes_max=5000)
    async with namespace.writer("s", create=True, options=options) as writer:
        tickets: list[Ticket] = []
        while writer.has_room:
            tickets.append(writer.append_nowait(bytes(100)))
        with pytest.raises(WouldBlock):
            writer.append_nowait(bytes(100))
        assert tickets
        await writer.wait_room()
        tickets.append(writer.append_nowait(b"more"))
        await writer.flush()
        assert [await ticket.wait() for ticket in tickets]
    assert len(await values(namespace)) == len(tickets)


async def check_invalid_records_do_not_affect_others(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as writer:
        good = writer.append_nowait(b"good")
        with pytest.raises(TypeError, match="must be bytes, not str"):
            writer.append_nowait("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="largest is 1048576"):
            await writer.append(bytes((1 << 20) + 1))
        await good.wait()
    assert await values(namespace) == [b"good"]
    with pytest.raises(LedgerClosed):
        await writer.append(b"late")
    with pytest.raises(LedgerClosed):
        writer.append_nowait(b"late")


async def check_a_record_beyond_the_limit_of_the_namespace_is_refused(namespace: Namespace) -> None:
    await namespace.set_policy(record_bytes_max=10)
    async with namespace.writer("s", create=True) as writer:
        with pytest.raises(InvalidArgument, match="record_bytes_max"):
            await writer.append(bytes(11))
        await writer.append(bytes(10))
    assert await values(namespace) == [bytes(10)]


async def check_conditional_appends(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as writer:
        await writer.append(b"0", expected_sequence=0)
        assert writer.next_sequence == 1
        with pytest.raises(SequenceMismatch):
            await writer.append(b"again", expected_sequence=0)
        with pytest.raises(SequenceMismatch):
            await writer.append_many([b"again"], expected_sequence=0)
        await writer.append_many([b"1", b"2"], expected_sequence=1)
    assert await values(namespace) == [b"0", b"1", b"2"]


async def check_a_mismatch_counts_durable_records(namespace: Namespace) -> None:
    await namespace.set_policy(linger_ms=60_000)
    async with namespace.writer("s", create=True) as writer:
        ticket = writer.append_nowait(b"0")
        with pytest.raises(SequenceMismatch):
            await writer.append(b"again", expected_sequence=0)
        assert await ticket.wait() == (1, 0, 0)
    assert await values(namespace) == [b"0"]


async def check_headers_are_copied_at_the_append(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as writer:
        headers = [("h", b"1")]
        ticket = writer.append_nowait(b"0", headers=headers)
        headers.clear()
        await ticket.wait()
    async with namespace.reader("s") as reader:
        assert (await anext(reader)).headers == (("h", b"1"),)


async def check_a_takeover_ends_the_previous_writer(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as other:
        await other.append(b"theirs")
    with pytest.raises(TakenOver):  # noqa: PT012 (the block's end raises too)
        async with namespace.writer("s") as old:
            await old.append(b"old")
            async with namespace.writer("s") as new:
                assert new.epoch == old.epoch + 1
                await new.append(b"new")
                with pytest.raises(LedgerFenced):
                    await old.append(b"lost")
                assert isinstance(old.error, TakenOver)
                with pytest.raises(TakenOver):
                    old.append_nowait(b"lost")
            await old.flush()
    assert await values(namespace) == [b"theirs", b"old", b"new"]


async def check_a_takeover_happens_only_at_the_given_epoch(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as writer:
        epoch = writer.epoch
    with pytest.raises(EpochMismatch):
        async with namespace.writer("s", if_epoch=epoch - 1):
            pass
    async with namespace.writer("s", if_epoch=epoch) as writer:
        await writer.append(b"x")


async def check_a_writer_hands_over_when_asked(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as old:
        tickets = [old.append_nowait(b"%d" % number) for number in range(50)]
        async with namespace.writer("s", hand_over_s=20) as new:
            assert [await ticket.wait() for ticket in tickets]
            assert isinstance(old.error, HandedOver)
            await new.append(b"new")
    assert await values(namespace) == [b"%d" % number for number in range(50)] + [b"new"]


async def check_a_block_that_raises_seals_nothing(namespace: Namespace) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 (it leaves through the block)
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"kept")
            raise ZeroDivisionError
    assert (await namespace.stream_metadata("s")).open_segment is not None
    async with namespace.writer("s") as writer:
        await writer.append(b"more")
    assert await values(namespace) == [b"kept", b"more"]


async def check_a_cancelled_append_leaves_the_writer_usable(namespace: Namespace) -> None:
    await namespace.set_policy(linger_ms=60_000)
    async with namespace.writer("s", create=True) as writer:
        async with give_up_after(0.05):
            await writer.append(b"unknown")
            raise AssertionError("the record must linger for a minute")
        ticket = writer.append_nowait(b"kept")
        await writer.flush()
        await ticket.wait()
    assert (await values(namespace))[-1] == b"kept"


async def check_a_producer_appends_each_record_once(namespace: Namespace) -> None:
    async with namespace.writer("s", create=True) as writer:
        producer = await writer.producer("loader-7")
        assert producer.last_sequence == -1
        assert await producer.append(b"0", 0) is not None
        assert await producer.append_many([b"0", b"1", b"2"], 0) is not None
        assert await producer.append(b"1", 1) is None or producer.next_sequence == 3
        with pytest.raises(ProducerGap):
            await producer.append(b"9", 9)
    async with namespace.writer("s") as writer:
        producer = await writer.producer("loader-7")
        assert producer.last_sequence == 2
        assert await producer.append(b"2", 2) is None
        assert await producer.append(b"3", 3, key=b"k") is not None
    assert await values(namespace) == [b"0", b"1", b"2", b"3"]


async def check_rolling_keeps_order_and_positions(namespace: Namespace) -> None:
    await namespace.set_policy(batch_bytes=5000, roll_bytes=1 << 16)
    async with namespace.writer("s", create=True) as writer:
        tickets: list[Ticket] = []
        while writer.statistics().segment < 3:
            while not writer.has_room:
                await writer.wait_room()
            tickets.append(writer.append_nowait(b"%06d" % len(tickets) + bytes(100)))
            if len(tickets) % 100 == 0:
                await tickets[-1].wait()
        positions = [await ticket.wait() for ticket in tickets]
    records = await everything(namespace)
    assert [int(record.value[:6]) for record in records] == list(range(len(tickets)))
    assert [record.position for record in records] == positions


async def check_several_writers_append_at_once(namespace: Namespace) -> None:
    async def write(stream: str) -> None:
        async with namespace.writer(stream, create=True) as writer:
            for number in range(20):
                await writer.append(b"%d" % number)

    async def one() -> None:
        await write("a")

    async def two() -> None:
        await write("b")

    await together(one, two)
    assert await values(namespace, "a") == await values(namespace, "b")
