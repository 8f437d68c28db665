"""The micro-batch source as Spark's engine calls it, with real processes and without Spark."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connectors.spark.core import idle_polling
from connectors.spark.options.options import ReadOptions
from connectors.spark.schema import read_schema
from connectors.spark.source.data_loss import DataLoss
from connectors.spark.source.end_tracker import EndTracker
from connectors.spark.source.stream_reader import LedgerstreamStreamReader
from stream.errors import NoSuchStream
from tests.spark.streams import Streams, local

pytestmark = pytest.mark.system


@contextmanager
def reader_of(streams: Streams, *names: str, **others: str) -> Iterator[LedgerstreamStreamReader]:
    given = {"cluster": streams.cluster, **others}
    if names:
        given["streams"] = ",".join(names)
    given.setdefault("startingPosition", "earliest")
    options = ReadOptions.parse(given, {}, is_streaming=True)
    reader = LedgerstreamStreamReader(options, read_schema(None, options.columns))
    try:
        yield reader
    finally:
        reader.stop()


def sequence(offset: dict[str, Any], stream: str) -> int:
    found = offset["streams"].get(stream)
    return 0 if found is None else int(found["sequence"])


def test_a_sealed_record_is_found_at_once(streams: Streams) -> None:
    """As `processAllAvailable` guarantees: notifications of watches alone would be too late."""
    stream = streams.create()
    with reader_of(streams, stream) as reader:
        offset = reader.initialOffset()
        for count in range(1, 31):
            streams.append(stream, [b"%d" % count])
            offset = reader.latestOffset(offset, ReadAllAvailable())
            assert sequence(offset, stream) == count
            again = reader.latestOffset(offset, ReadAllAvailable())
            assert again == offset


def test_a_query_that_may_lose_records_restarts_without_a_purged_stream(
    streams: Streams,
) -> None:
    stream = streams.create()
    streams.append(stream, [b"1", b"2"])
    gone = f"{stream}-gone"
    begun = {"version": 1, "streams": {}}
    with (
        reader_of(streams, stream, gone) as strict,
        pytest.raises(NoSuchStream, match=gone),
    ):
        strict.latestOffset(begun, ReadAllAvailable())
    lenient = {"failOnDataLoss": "false"}
    with reader_of(streams, stream, gone, **lenient) as reader:
        assert sequence(reader.latestOffset(begun, ReadAllAvailable()), stream) == 2
    with (
        reader_of(streams, stream, gone, **lenient) as new,
        pytest.raises(NoSuchStream, match=gone),
    ):
        new.initialOffset()


def test_a_reader_without_new_records_returns_the_same_offset(streams: Streams) -> None:
    stream = streams.create()
    streams.append(stream, [b"1", b"2"])
    with reader_of(streams, stream) as reader:
        offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert sequence(offset, stream) == 2
        for _ in range(20):
            assert reader.latestOffset(offset, ReadAllAvailable()) is offset


def idle(
    reader: LedgerstreamStreamReader, monkeypatch: pytest.MonkeyPatch, *, may_ask: bool = False
) -> dict[str, Any]:
    """Reads what is there; returns the end. From then on only notifications end a poll."""

    async def not_asked(_: EndTracker) -> None:
        raise AssertionError("the reader has asked")

    limit = reader.getDefaultReadLimit()
    offset = reader.initialOffset()
    while (found := reader.latestOffset(offset, limit)) is not offset:
        offset = found
    if not may_ask:
        monkeypatch.setattr(EndTracker, "poll_ends", not_asked)
    monkeypatch.setattr(idle_polling, "POLLED_WITHIN_S", math.inf)
    monkeypatch.setattr(idle_polling, "ACTIVE_S", -1.0)
    monkeypatch.setattr(idle_polling, "WAIT_S", 60.0)
    return offset


def test_a_waiting_poll_is_ended_by_a_notification(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams.written([b"1"])
    with reader_of(streams, stream) as reader:
        offset = idle(reader, monkeypatch)
        streams.append(stream, [b"2"])
        assert sequence(reader.latestOffset(offset, ReadAllAvailable()), stream) == 2


def test_a_waiting_poll_finds_a_new_stream_of_a_pattern(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.create("found")
    with reader_of(streams, streamPattern="tests/found-*") as reader:
        offset = idle(reader, monkeypatch)
        stream = streams.written([b"1", b"2"], word="found")
        offset = reader.latestOffset(offset, ReadAllAvailable())
        assert sequence(offset, stream) == 2


def test_a_waiting_poll_ends_when_too_few_records_are_due(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams.written([b"1", b"2"])
    options = {"minRecordsPerTrigger": "10", "maxTriggerDelay": "2s"}
    with reader_of(streams, stream, **options) as reader:
        offset = idle(reader, monkeypatch, may_ask=True)
        limit = reader.getDefaultReadLimit()
        while (found := reader.latestOffset(offset, limit)) is offset:
            pass  # two checks have a pause between them
        assert sequence(found, stream) == 2


def test_a_waiting_poll_reports_a_deleted_stream(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams.written([b"1", b"2"])
    with reader_of(streams, stream, minRecordsPerTrigger="10") as reader:
        offset = idle(reader, monkeypatch)
        limit = reader.getDefaultReadLimit()
        streams.of(stream).delete_stream(local(stream))

        def poll() -> None:
            while reader.latestOffset(offset, limit) is offset:
                pass  # two checks have a pause between them

        with pytest.raises(DataLoss, match=stream):
            poll()
