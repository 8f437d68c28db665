"""Idempotent producers on real bookies: a retried record is stored once and never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledger.errors import InvalidArgument, LedgerError
from stream import Namespace, Position, ProducerGap, TakenOver, TooManyProducers, WriterOptions
from stream.core.entry.format import read_header
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import read_all, values


async def headers_of(namespace: Namespace, stream: str) -> list[tuple[int, int, int, bool]]:
    """Returns producer, its sequence, record count and mark of each entry of the newest segment."""
    segment = (await namespace.stream_metadata(stream)).segments[-1]
    async with namespace.client.open_ledger(segment.ledger_id, recover=False) as reader:
        entries = await reader.read(0, await reader.read_last_confirmed())
    headers = [read_header(entry.payload) for entry in entries]
    return [(h.producer_id, h.producer_sequence, h.count, h.has_producers_before) for h in headers]


async def test_records_that_were_appended_before_are_skipped(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        loader = await writer.producer("loader")
        assert (loader.last_sequence, loader.next_sequence) == (-1, 0)
        first = await loader.append(b"0", 0)
        assert isinstance(first, Position)
        assert await loader.append(b"0", 0) is None
        assert await loader.append_many([b"0", b"1", b"2"], 0) is not None
        assert await loader.append_many([b"0", b"1", b"2"], 0) is None
        assert await loader.append_many([], 3) is None
        assert loader.last_sequence == 2
        assert await writer.producer("loader") is loader
        assert values(await read_all(namespace, "s")) == [b"0", b"1", b"2"]


async def test_a_gap_is_refused_and_nothing_is_appended(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        loader = await writer.producer("loader")
        for sequence in (1, 7, -1):
            with pytest.raises(ProducerGap, match="its next one is 0"):
                await loader.append(b"x", sequence)
        with pytest.raises(ProducerGap):
            await loader.append_many([b"x"], 1)
        with pytest.raises(TypeError):
            await loader.append(b"x", 0.0)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await loader.append(bytes((1 << 20) + 1), 0)
        assert loader.next_sequence == 0
        with pytest.raises(InvalidArgument):
            await writer.producer("no/name")


async def test_a_retry_of_a_record_in_flight_waits_for_it(tmp_path: Path) -> None:
    async with (
        a_namespace(tmp_path, linger_ms=50) as namespace,
        namespace.writer("s", create=True) as writer,
    ):
        loader = await writer.producer("loader")
        ticket = loader.append_nowait(b"0", 0)
        assert ticket is not None
        again = loader.append_nowait(b"0", 0)
        assert again is not None
        with trio.move_on_after(0):
            await loader.append(b"1", 1)  # cancelled, but accepted
        place = await loader.append(b"1", 1)
        assert await again.wait() == await ticket.wait()
        assert place == (await ticket.wait())._replace(slot=1)
        assert values(await read_all(namespace, "s")) == [b"0", b"1"]


async def test_the_next_writer_knows_the_last_sequence_of_each_producer(tmp_path: Path) -> None:
    """This includes an unsealed segment with entries of several producers and of none."""
    async with a_namespace(tmp_path) as namespace:
        block = namespace.writer("s", create=True)
        old = await block.__aenter__()
        a, b = await old.producer("a"), await old.producer("b")
        for sequence in range(3):
            await a.append(b"a%d" % sequence, sequence)
            await old.append(b"plain")
        await b.append_many([b"b%d" % n for n in range(5)], 0)
        async with namespace.writer("s") as writer:
            a, b = await writer.producer("a"), await writer.producer("b")
            assert (a.last_sequence, b.last_sequence) == (2, 4)
            assert await b.append_many([b"b3", b"b4", b"b5"], 3) is not None
            assert (await writer.producer("c")).last_sequence == -1
        await block.__aexit__(None, None, None)
        stream = await namespace.stream_metadata("s")
        assert {name: state.last_sequence for name, state in stream.producers.items()} == {
            "a": 2,
            "b": 5,
            "c": -1,
        }
        records = [record.value for record in await read_all(namespace, "s")]
        assert [value for value in records if value[:1] == b"b"] == [b"b%d" % n for n in range(6)]
        async with namespace.writer("s") as writer:
            b = await writer.producer("b")
            assert b.last_sequence == 5
            await b.append(b"b6", 6)
        assert (await namespace.stream_metadata("s")).producers["b"].last_sequence == 6


async def test_an_entry_has_one_producer_and_marks_whether_others_came_before(
    tmp_path: Path,
) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        await writer.append(b"plain")
        a, b = await writer.producer("a"), await writer.producer("b")
        tickets = [a.append_nowait(b"a0", 0), a.append_nowait(b"a1", 1)]
        tickets += [b.append_nowait(b"b0", 0), writer.append_nowait(b"p"), a.append_nowait(b"", 2)]
        for ticket in tickets:
            assert ticket is not None
            await ticket.wait()
        assert await headers_of(namespace, "s") == [
            (0, 0, 1, False),
            (1, 0, 2, False),
            (2, 0, 1, True),
            (0, 0, 1, True),
            (1, 2, 1, True),
        ]


async def test_producers_survive_rolls(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, roll_bytes=1 << 16, batch_bytes=5000) as namespace:
        async with namespace.writer("s", create=True) as writer:
            a, b = await writer.producer("a"), await writer.producer("b")
            for step in range(20):
                await a.append_many([bytes(1000)] * 20, 20 * step)
                await b.append(b"b", step)
            assert writer.statistics().rolls > 2
        stream = await namespace.stream_metadata("s")
        assert stream.producers["a"].last_sequence == 399
        assert stream.producers["b"].last_sequence == 19
        assert len(await read_all(namespace, "s")) == 420


async def test_a_stream_remembers_a_limited_number_of_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.core.metadata.streams.PRODUCERS_MAX", 2)
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        await writer.producer("a")
        await writer.producer("b")
        with pytest.raises(TooManyProducers, match="forget_producer"):
            await writer.producer("c")
        await namespace.forget_producer("s", "a")
        assert (await writer.producer("c")).last_sequence == -1
        assert set((await namespace.stream_metadata("s")).producers) == {"b", "c"}


async def test_many_tasks_may_retry_the_same_records(tmp_path: Path) -> None:
    options = WriterOptions(pending_bytes_max=4000)
    async with (
        a_namespace(tmp_path, batch_bytes=1000) as namespace,
        namespace.writer("s", create=True, options=options) as writer,
    ):
        loader = await writer.producer("loader")
        sent = [b"%03d" % n + bytes(50) for n in range(500)]

        async def load() -> None:
            await loader.append_many(sent, 0)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(load)
        assert values(await read_all(namespace, "s")) == sent


async def test_a_failed_writer_distinguishes_durable_from_unknown_records(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        block = namespace.writer("s", create=True)
        old = await block.__aenter__()
        loader = await old.producer("loader")
        await loader.append(b"0", 0)
        async with namespace.writer("s") as writer:
            with pytest.raises(TakenOver):
                await loader.append(b"1", 1)
            assert loader.last_sequence == 0
            assert await loader.append(b"0", 0) is None  # durable, although the writer failed
            with pytest.raises(TakenOver):
                await old.producer("other")
            loader = await writer.producer("loader")
            await loader.append(b"1", loader.last_sequence + 1)
        with pytest.raises(LedgerError):
            await block.__aexit__(None, None, None)
        assert values(await read_all(namespace, "s")) == [b"0", b"1"]
