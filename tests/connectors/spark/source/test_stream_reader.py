"""The micro-batch source as Spark's engine calls it, with real processes and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connectors.spark.options.options import ReadOptions
from connectors.spark.schema import read_schema
from connectors.spark.source.stream_reader import LedgerstreamStreamReader
from stream.errors import NoSuchStream
from tests.spark.streams import Streams

pytestmark = pytest.mark.system


@contextmanager
def reader_of(streams: Streams, *names: str, **others: str) -> Iterator[LedgerstreamStreamReader]:
    given = {"cluster": streams.cluster, "streams": ",".join(names), **others}
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
