"""Streams that are appended, rolled, truncated and taken over while Spark reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ledger.errors import LedgerError
from stream.errors import TakenOver
from tests.spark.streams import Streams, local

NewCheckpoint = Callable[[], str]
Row = tuple[str, int, int, int, bytes]
"""Stream, partition, segment, sequence, value."""


@dataclass
class Collected:
    """The rows of a query by micro-batch; a repeated micro-batch replaces the earlier one."""

    done: dict[int, list[Row]] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        columns = frame.select("stream", "partition", "segment", "sequence", "value")
        self.done[batch_id] = [(*row[:4], bytes(row[4])) for row in columns.collect()]

    @property
    def batches(self) -> list[list[Row]]:
        return [self.done[batch_id] for batch_id in sorted(self.done)]

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    def of(self, name: str, *, but_last: int = 0) -> list[tuple[int, bytes]]:
        """Returns the sequences and values of a stream or partition, in the order of arrival.

        Leaves out those of the last micro-batches.
        """
        stream, _, partition = name.partition("#")
        return [
            (row[3], row[4])
            for batch in self.batches[: len(self.batches) - but_last]
            for row in batch
            if row[0] == stream and row[1] == int(partition or 0)
        ]


def begin(
    spark: SparkSession, streams: Streams, checkpoint: str, **options: object
) -> tuple[StreamingQuery, Collected]:
    """Starts a query, which ends at the current end if `availableNow` is given."""
    available_now = options.pop("availableNow", False)
    collected = options.pop("into", None) or Collected()
    assert isinstance(collected, Collected)
    reader = spark.readStream.format("ledgerstream").option("cluster", streams.cluster)
    for name, value in {"startingPosition": "earliest", **options}.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.foreachBatch(collected)
    writer = writer.option("checkpointLocation", checkpoint)
    trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
    for _ in range(5):
        query = writer.trigger(**trigger).start()
        wait_for(partial(_has_begun, query), "the query", 120)
        # Spark gives its Python workers ten seconds to start, which a busy machine may not have.
        if "failed to connect back" not in str(query.exception()):
            break
    return query, collected


def _has_begun(query: StreamingQuery) -> bool:
    return not query.isActive or "Initializing" not in str(query.status["message"])


def drain(spark: SparkSession, streams: Streams, checkpoint: str, **options: object) -> Collected:
    query, collected = begin(spark, streams, checkpoint, availableNow=True, **options)
    assert query.awaitTermination(180), "AvailableNow did not end"
    return collected


def wait_for(holds: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not after {seconds} s"
        time.sleep(0.02)


@contextmanager
def beside(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs functions in threads during the block; raises their errors at its end."""
    stop, errors = threading.Event(), []

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    if errors:
        raise errors[0]


class Appender:
    """Appends numbers to a stream, in segments that roll, and takes over again after a takeover.

    Appends with an unknown result are repeated: a value may be in the stream twice, and then must
    be read twice.
    """

    def __init__(self, streams: Streams, name: str, *, pause_s: float) -> None:
        self.pause_s = pause_s
        self.streams = streams
        self.name = name
        self.confirmed = 0

    def __call__(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with self.streams.writer(self.name) as writer:
                    while not stop.is_set():
                        values = [b"%08d" % (self.confirmed + n) + bytes(400) for n in range(30)]
                        writer.append_many(values)
                        self.confirmed += len(values)
                        stop.wait(self.pause_s)
            except LedgerError:
                continue


def test_every_record_of_changing_streams_is_read_once_and_in_order(
    spark: SparkSession, streams: Streams, new_checkpoint: NewCheckpoint
) -> None:
    streams.namespace("moving").set_policy(roll_bytes=1 << 16, trash_ms=0)
    plain, partitioned = streams.create("plain", namespace="moving"), "moving/parts"
    streams.make(partitioned, partitions=2)
    late = "moving/late"
    checkpoint = new_checkpoint()
    names = [plain, f"{partitioned}#0", f"{partitioned}#1"]

    truncated: list[int] = []

    def take_over(stop: threading.Event) -> None:
        while not stop.wait(0.7):
            with suppress(TakenOver):
                streams.of(plain).seal_stream(local(plain))

    def truncate(stop: threading.Event) -> None:
        """Returns the position after the records that the query has read."""
        while not stop.wait(0.5):
            # Records that were not committed may be read again.
            read = sorted(collected.of(plain, but_last=2))
            rows = {row.sequence: row.position for row in streams.rows(plain)}
            if read and read[-1][0] in rows:
                streams.of(plain).truncate(local(plain), rows[read[-1][0]])
                truncated.append(read[-1][0])

    query, collected = begin(
        spark, streams, checkpoint, streamPattern="moving/*", maxRecordsPerTrigger=2000
    )
    appenders = [Appender(streams, name, pause_s=0.1) for name in names]
    with beside(*appenders, take_over, truncate):
        time.sleep(3)
        streams.make(late)
        streams.append(late, [b"late-%d" % n for n in range(10)])
        wait_for(lambda: len(set(truncated)) > 2 or not query.isActive, "truncations", 120)
    query.stop()
    assert query.exception() is None
    # The same Spark checkpoint again, in one micro-batch after the other, then all at once.
    drain(
        spark, streams, checkpoint, streamPattern="moving/*", maxRecordsPerTrigger=1500,
        into=collected,
    )  # fmt: skip
    assert all(len(batch) <= 2000 for batch in collected.batches)
    assert collected.of(late) == [(n, b"late-%d" % n) for n in range(10)]
    for name, appender in zip(names, appenders, strict=True):
        read = collected.of(name)
        assert [sequence for sequence, _ in sorted(read)] == list(range(len(read)))
        assert len(read) >= appender.confirmed > 0
        there = [(row.sequence, row.value) for row in streams.rows(name)]
        assert sorted(read)[-len(there) :] == there
    assert streams.rows(plain)[0].sequence > 0, "nothing was truncated"
    assert max(row[2] for row in collected.rows) > 3, "nothing was rolled"
    assert_order_within_segments(collected)


def assert_order_within_segments(collected: Collected) -> None:
    for batch in collected.batches:
        last: dict[tuple[str, int, int], int] = {}
        for stream, partition, segment, sequence, _ in batch:
            key = (stream, partition, segment)
            assert sequence > last.get(key, -1), f"{key}: {sequence} came after {last[key]}"
            last[key] = sequence


def test_available_now_ends_at_the_record_that_was_last_when_it_began(
    spark: SparkSession, streams: Streams, new_checkpoint: NewCheckpoint
) -> None:
    name, checkpoint = streams.create("available-now"), new_checkpoint()
    appender = Appender(streams, name, pause_s=0.3)
    options: dict[str, Any] = {"stream": name, "minRecordsPerTrigger": 10**6}
    with beside(appender):
        wait_for(lambda: appender.confirmed >= 90, "records are appended")
        before = appender.confirmed
        query, first = begin(
            spark, streams, checkpoint, availableNow=True, maxRecordsPerTrigger=10**6, **options
        )
        wait_for(lambda: first.batches, "the first micro-batch")
        after = appender.confirmed
        assert query.awaitTermination(180)
        # The last batch of a running writer may be confirmed without being known to be.
        assert before - 30 <= len(first.rows) <= after + 60
        wait_for(lambda: appender.confirmed >= len(first.rows) + 500, "more than two limits")
        second = drain(
            spark, streams, checkpoint, stream=name, maxRecordsPerTrigger=170,
            minRecordsPerTrigger=100,
        )  # fmt: skip
    assert {len(batch) for batch in second.batches[:-1]} == {170}
    assert len(second.batches) > 2
    last = drain(spark, streams, checkpoint, stream=name)
    read = [row for part in (first, second, last) for row in part.of(name)]
    assert read == [(row.sequence, row.value) for row in streams.rows(name)]
    assert drain(spark, streams, checkpoint, stream=name).rows == []


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_were_truncated_unread_fail_the_query_or_are_counted(
    spark: SparkSession, streams: Streams, new_checkpoint: NewCheckpoint, fails: bool
) -> None:
    name, checkpoint = streams.written([b"%d" % n for n in range(100)]), new_checkpoint()
    options = {"stream": name, "failOnDataLoss": str(fails).lower()}
    assert len(drain(spark, streams, checkpoint, **options).rows) == 100
    streams.append(name, [b"%d" % n for n in range(100, 200)])
    streams.of(name).truncate(local(name), streams.rows(name)[150].position)
    query, collected = begin(spark, streams, checkpoint, availableNow=True, **options)
    if fails:
        with pytest.raises(Exception, match=rf"DataLoss.*'{name}'.* 100 to 149 \(50 records\)"):
            query.awaitTermination(180)
        return
    assert query.awaitTermination(180)
    assert [value for _, value in collected.of(name)] == [b"%d" % n for n in range(150, 200)]
    (source,) = query.recentProgress[-1].sources
    assert source.latestOffset is not None
    assert '"lost_records": 50' in source.latestOffset


def test_lag_and_newest_offsets_are_in_the_progress(
    spark: SparkSession, streams: Streams, new_checkpoint: NewCheckpoint
) -> None:
    name = streams.written([b"%d" % n for n in range(100)])
    query, _ = begin(
        spark, streams, new_checkpoint(), availableNow=True, stream=name, maxRecordsPerTrigger=60
    )
    assert query.awaitTermination(180)
    lags = [source.latestOffset for p in query.recentProgress for source in p.sources]
    assert '"lag": {"records": 40, ' in str(lags[0])
    assert '"lag": {"records": 0, "bytes": 0, "seconds": 0}' in str(lags[1])


@pytest.mark.parametrize("position", ["end=20", "latest"])
def test_a_failed_first_micro_batch_is_read_again_after_more_appends(
    spark: SparkSession, streams: Streams, new_checkpoint: NewCheckpoint, position: str
) -> None:
    """Spark does not store where a query began, and asks for it again after a restart."""
    name, checkpoint = streams.create(), new_checkpoint()
    streams.append(name, [b"%d" % n for n in range(30)])

    class Failing(Collected):
        def __call__(self, frame: DataFrame, batch_id: int) -> None:
            raise RuntimeError("the first time")

    options = {"stream": name, "startingPosition": position}
    query, _ = begin(spark, streams, checkpoint, into=Failing(), **options)
    wait_for(lambda: not query.isActive, "the end of the query")
    assert "the first time" in str(query.exception())
    streams.append(name, [b"%d" % n for n in range(30, 80)])
    collected = drain(spark, streams, checkpoint, **options)
    first = 10 if position == "end=20" else 30
    assert [sequence for sequence, _ in collected.of(name)] == list(range(first, 80))
