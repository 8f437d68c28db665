"""The cursor of a query, and its metrics, in a real query."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from connectors.spark import lag_of
from stream.blocking import Position
from tests.spark.streams import Streams, local
from tests.system.cluster import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NewCheckpoint = Callable[[], str]


def begin(
    spark: SparkSession, streams: Streams, checkpoint: str, stream: str, **options: str
) -> StreamingQuery:
    reader = spark.readStream.format("ledgerstream").option("cluster", streams.cluster)
    reader = reader.options(startingPosition="earliest", cursor="copy", **options)
    writer = reader.load(stream).writeStream.format("noop")
    return writer.option("checkpointLocation", checkpoint).start()


def cursor(streams: Streams, stream: str) -> Position:
    (found,) = streams.of(stream).cursors(local(stream))
    assert found.name == "copy"
    return found.position


def wait_cursor(streams: Streams, stream: str, position: Position) -> None:
    """Waits for a running query, which moves its cursor at most once a second."""
    deadline_s = time.monotonic() + PATIENCE_S
    while cursor(streams, stream) != position:
        assert time.monotonic() < deadline_s, f"the cursor is at {cursor(streams, stream)}"
        time.sleep(0.1)


def test_a_cursor_is_where_the_checkpoint_is(
    spark: SparkSession, streams: Streams, new_checkpoint: NewCheckpoint
) -> None:
    stream = streams.written([b"%d" % n for n in range(30)], segments=3)
    checkpoint = new_checkpoint()
    query = begin(spark, streams, checkpoint, stream, maxRecordsPerTrigger="10")
    query.processAllAvailable()
    wait_cursor(streams, stream, Position(3, 0, 0))  # the third micro-batch is the last one
    query.stop()
    # Kafka's metrics, where Spark has no place for those of a source in Python.
    lag = lag_of(query.lastProgress)
    assert lag is not None
    expected = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "0"}
    assert lag.metrics == {**expected, "avgOffsetsBehindLatest": "0.0"}
    assert query.lastProgress is not None
    assert query.lastProgress["sources"][0]["metrics"] == {}
    reported = query.lastProgress["sources"][0]["latestOffset"]
    reported = json.loads(reported) if isinstance(reported, str) else reported
    assert reported["metrics"] == lag.metrics
    # The next start sets it to what was committed at the end.
    query = begin(spark, streams, checkpoint, stream)
    query.processAllAvailable()
    wait_cursor(streams, stream, Position(3, 1, 0))
    query.stop()


def test_another_query_does_not_get_the_cursor(
    spark: SparkSession, streams: Streams, new_checkpoint: NewCheckpoint
) -> None:
    stream = streams.written([b"1", b"2"], segments=2)
    query = begin(spark, streams, new_checkpoint(), stream, maxRecordsPerTrigger="1")
    query.processAllAvailable()
    query.stop()
    other = begin(spark, streams, new_checkpoint(), stream)
    with pytest.raises(Exception, match="is used by a query or program") as caught:
        other.processAllAvailable()
    assert f"cursor delete {stream} copy" in str(caught.value)
