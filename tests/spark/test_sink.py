"""The sink in Spark: batch writes, queries, repeats, failures and errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectors.spark import register
from connectors.spark.client.client_cache import cached_cluster
from ledger.client import LedgerClient
from stream.core.routing import partition_of
from stream.takeover import STREAM_TAG
from tests.spark.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def _write(frame: DataFrame, streams: Streams, mode: str = "append", **options: Any) -> None:
    given = {"cluster": streams.cluster, **options}
    frame.write.format("ledgerstream").mode(mode).options(**given).save()


async def _list(client: LedgerClient) -> list[int]:
    return await client.list_ledgers()


async def _tags(client: LedgerClient, ledger_id: int) -> dict[str, bytes]:
    return dict((await client.ledger_metadata(ledger_id)).custom)


def _ledgers(streams: Streams) -> set[int]:
    return set(cached_cluster(streams.cluster).run(_list))


def test_a_frame_is_appended_in_the_order_of_its_partitions(
    spark: SparkSession, streams: Streams
) -> None:
    name = streams.create()
    frame = spark.range(0, 5000, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    _write(frame, streams, stream=name)
    assert streams.values(name) == [b"%d" % number for number in range(5000)]
    _write(frame.limit(2), streams, stream=name)
    assert len(streams.values(name)) == 5002


def test_all_columns_of_a_record_are_written(spark: SparkSession, streams: Streams) -> None:
    name = streams.create()
    frame = spark.sql(
        "SELECT CAST('v' AS BINARY) AS value, 'k' AS key,"
        " TIMESTAMP '2020-01-01 00:00:00.001999 UTC' AS event_time,"
        " array(named_struct('name', 'h', 'value', CAST('x' AS BINARY))) AS headers"
        " UNION ALL SELECT CAST('' AS BINARY), NULL, NULL, NULL"
    ).coalesce(1)
    _write(frame, streams, stream=name)
    first, second = streams.rows(name)
    assert (first.value, first.key, first.event_time_ms) == (b"v", b"k", 1577836800001)
    assert first.headers == (("h", b"x"),)
    assert (second.value, second.key, second.event_time_ms) == (b"", None, None)
    assert second.headers == ()


def test_nulls_return_as_nulls(spark: SparkSession, streams: Streams) -> None:
    name = streams.create()
    frame = spark.sql(
        "SELECT CAST(NULL AS BINARY) AS VALUE, 'gone' AS Key,"
        " array(named_struct('name', 'h', 'value', CAST(NULL AS BINARY)),"
        " named_struct('name', 'e', 'value', CAST('' AS BINARY))) AS headers"
        " UNION ALL SELECT CAST('' AS BINARY), 'empty', NULL"
    ).coalesce(1)
    _write(frame, streams, stream=name)
    read = spark.read.format("ledgerstream").option("cluster", streams.cluster).load(name)
    tombstone, empty = (
        read.select("key", "value", "headers").orderBy("key", ascending=False).collect()
    )
    assert (tombstone.key, tombstone.value) == (b"gone", None)
    assert [(h.name, h.value) for h in tombstone.headers] == [("h", None), ("e", b"")]
    assert (empty.key, empty.value, empty.headers) == (b"empty", b"", [])
    with pytest.raises(Exception, match="column 'value' is null in row 0"):
        _write(spark.sql("SELECT CAST(NULL AS BINARY) AS value"), streams, stream=name)


def test_times_of_options_are_in_the_zone_of_the_session(
    spark: SparkSession, streams: Streams
) -> None:
    name = streams.create()
    frame = spark.sql(
        "SELECT 'v' AS value, TIMESTAMP '2026-07-01 00:00:00 UTC' + make_interval(0, 0, 0, 0, n)"
        " AS event_time FROM VALUES (-3), (-2), (-1), (0) AS hours(n)"
    ).coalesce(1)
    _write(frame, streams, stream=name)
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        register(spark)
        read = spark.read.format("ledgerstream").option("cluster", streams.cluster)
        read = read.option("startingPosition", "event-time=2026-07-01 00:00:00")
        assert read.load(name).count() == 3
        assert read.option("timeZone", "UTC").load(name).count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
        register(spark)


def test_headers_may_be_a_map(spark: SparkSession, streams: Streams) -> None:
    name = streams.create()
    _write(spark.sql("SELECT 'v' AS value, map('a', 'b') AS headers"), streams, stream=name)
    assert [row.headers for row in streams.rows(name)] == [(("a", b"b"),)]


def test_keys_decide_the_partition(spark: SparkSession, streams: Streams) -> None:
    name = streams.create(partitions=3)
    frame = spark.range(300).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) key")
    _write(frame, streams, stream=name)
    for number in range(3):
        rows = streams.rows(f"{name}#{number}")
        assert {partition_of(row.key or b"", 3) for row in rows} <= {number}
    assert sum(len(streams.rows(f"{name}#{number}")) for number in range(3)) == 300


def test_rows_fan_out_to_the_streams_they_name(spark: SparkSession, streams: Streams) -> None:
    names = [streams.create(), streams.create()]
    frame = spark.range(100).selectExpr(
        "CAST(id AS STRING) AS value", f"IF(id % 2 = 0, '{names[0]}', '{names[1]}') AS stream"
    )
    _write(frame, streams)
    for rest, name in enumerate(names):
        assert streams.values(name) == [b"%d" % n for n in range(100) if n % 2 == rest]


def test_a_frame_without_rows_changes_nothing(spark: SparkSession, streams: Streams) -> None:
    name = streams.create()
    _write(spark.sql("SELECT 'v' AS value").where("value = 'w'"), streams, stream=name)
    assert streams.of(name).stream_metadata(name.partition("/")[2]).segments == ()


def test_a_version_of_an_application_is_written_once(spark: SparkSession, streams: Streams) -> None:
    name = streams.create()
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    for version in (1, 1, 2):
        _write(frame, streams, stream=name, txnAppId=name.replace("/", "-"), txnVersion=version)
    assert len(streams.values(name)) == 20
    with pytest.raises(Exception, match="committed batch 2 already, 1 is older"):
        _write(frame, streams, stream=name, txnAppId=name.replace("/", "-"), txnVersion=1)


def test_a_batch_is_sorted_over_its_tasks(spark: SparkSession, streams: Streams) -> None:
    name = streams.create()
    frame = spark.range(3000).selectExpr(
        "CAST(id AS STRING) AS value", "(id * 7919) % 3000 AS event_time"
    )
    _write(frame.repartition(4), streams, stream=name, sortWithinBatch="event_time")
    assert [row.event_time_ms for row in streams.rows(name)] == list(range(3000))


def test_a_task_that_fails_leaves_nothing_in_a_stream(
    spark: SparkSession, streams: Streams
) -> None:
    name = streams.create()
    before = _ledgers(streams)
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "IF(id = 99, raise_error('no more'), CAST(id AS STRING)) AS value"
    )
    with pytest.raises(Exception, match="no more"):
        _write(frame, streams, stream=name)
    assert streams.values(name) == []
    # A task that Spark kills cannot report its ledgers: the janitor finds them by their tags.
    for left in _ledgers(streams) - before:
        assert cached_cluster(streams.cluster).run(_tags, left)[STREAM_TAG] == name.encode()


@pytest.mark.parametrize(
    ("query", "options", "expected_error"),
    [
        ("SELECT 1 AS value", {}, "column 'value' is int; it must be binary or string"),
        ("SELECT 'v' AS text", {}, "column 'text' is not part"),
        ("SELECT 'k' AS key", {}, "no column 'value'"),
        ("SELECT 'v' AS value, DATE '2020-01-01' AS event_time", {}, "CAST.event_time AS TIMEST"),
        ("SELECT CAST(NULL AS STRING) AS value", {}, "'value' is null in row 0"),
        ("SELECT repeat('x', 2000000) AS value", {}, "record_bytes_max"),
        ("SELECT 'v' AS value", {"sortWithinBatch": "key"}, "not written"),
        ("SELECT 'v' AS value", {"stream": "tests/no-such-stream"}, "no-such-stream"),
        ("SELECT 'v' AS value, 'tests/nowhere' AS stream", {}, "createStreams"),
    ],
)
def test_unwritable_frames_are_refused_with_a_cure(
    spark: SparkSession, streams: Streams, query: str, options: dict[str, str], expected_error: str
) -> None:
    name = streams.create()
    before = _ledgers(streams)
    with pytest.raises(Exception, match=expected_error):
        _write(spark.sql(query), streams, **{"stream": name, **options})
    assert streams.values(name) == []
    assert _ledgers(streams) == before


def test_overwriting_is_refused(spark: SparkSession, streams: Streams) -> None:
    with pytest.raises(Exception, match="appended to, never overwritten"):
        _write(spark.sql("SELECT 'v' AS value"), streams, "overwrite", stream=streams.create())


def test_a_missing_stream_is_created_by_option(spark: SparkSession, streams: Streams) -> None:
    name = streams.name("made")
    _write(spark.sql("SELECT 'v' AS value"), streams, stream=name, createStreams="true")
    assert streams.values(name) == [b"v"]


def test_any_thread_may_write(spark: SparkSession, streams: Streams) -> None:
    """Spark looks for the format in the active session of the thread, and another one has none."""
    name = streams.create()
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    failed: list[BaseException] = []

    def write() -> None:
        try:
            _write(frame, streams, stream=name)
        except Exception as error:  # noqa: BLE001 - raised in the test's thread
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not failed, failed[0]
    assert len(streams.values(name)) == 3


# Queries


class _Files:
    """Text files, each one micro-batch of a query."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def add(self, number: int, lines: int = 5) -> list[bytes]:
        texts = [f"{number}-{line}" for line in range(lines)]
        path = self.directory / f"{number}.txt"
        path.write_text("".join(f"{text}\n" for text in texts))
        os.utime(path, (1e9 + number, 1e9 + number))
        return [text.encode() for text in texts]

    def query(
        self, spark: SparkSession, streams: Streams, checkpoint: str, **options: str
    ) -> DataStreamWriter:
        reader = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        frame = reader.load(str(self.directory))
        writer = frame.writeStream.format("ledgerstream").trigger(availableNow=True)
        writer = writer.option("cluster", streams.cluster).options(**options)
        return writer.option("checkpointLocation", checkpoint)


@pytest.fixture
def files(tmp_path: Path) -> _Files:
    return _Files(tmp_path / "files")


def _forget_commit(checkpoint: str, batch: int) -> None:
    """Restores the state before Spark recorded that the batch is done."""
    for path in Path(checkpoint, "commits").glob(f"*{batch}*"):
        path.unlink()


def test_a_query_writes_each_batch_once_over_restarts(
    spark: SparkSession, streams: Streams, files: _Files, new_checkpoint: Callable[[], str]
) -> None:
    name, checkpoint = streams.create(), new_checkpoint()
    expected = files.add(0) + files.add(1)
    files.query(spark, streams, checkpoint, stream=name).start().awaitTermination()
    assert streams.values(name) == expected
    before = _ledgers(streams)
    _forget_commit(checkpoint, 1)
    expected += files.add(2)
    files.query(spark, streams, checkpoint, stream=name).start().awaitTermination()
    assert streams.values(name) == expected
    assert len(_ledgers(streams) - before) == 1


def test_small_results_of_all_tasks_are_one_segment(
    spark: SparkSession, streams: Streams, files: _Files, new_checkpoint: Callable[[], str]
) -> None:
    """Also beside a task whose result is not small; in a batch write as in a query."""
    name = streams.create()
    frame = spark.range(0, 400, 1, 16).selectExpr(
        "IF(id = 250, repeat('x', 200000), CAST(id AS STRING)) AS value"
    )
    _write(frame, streams, stream=name, smallResultBytes="100k")
    values = [b"x" * 200_000 if number == 250 else b"%d" % number for number in range(400)]
    assert streams.values(name) == values
    segments = streams.of(name).stream_metadata(name.partition("/")[2]).segments
    assert [segment.records for segment in segments] == [250, 25, 125]
    name = streams.create()
    expected = files.add(0, lines=40) + files.add(1, lines=40)
    reader = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    rows = reader.load(str(files.directory)).repartition(16)
    writer = rows.writeStream.format("ledgerstream").trigger(availableNow=True)
    writer = writer.options(cluster=streams.cluster, stream=name, sortWithinBatch="value")
    writer.option("checkpointLocation", new_checkpoint()).start().awaitTermination()
    assert streams.values(name) == [*sorted(expected[:40]), *sorted(expected[40:])]
    segments = streams.of(name).stream_metadata(name.partition("/")[2]).segments
    assert [segment.records for segment in segments] == [40, 40]


def test_an_old_spark_checkpoint_is_refused(
    spark: SparkSession, streams: Streams, files: _Files, new_checkpoint: Callable[[], str]
) -> None:
    name = streams.create()
    files.add(0)
    files.add(1)
    options = {"stream": name, "sinkId": name.replace("/", "-")}
    files.query(spark, streams, new_checkpoint(), **options).start().awaitTermination()
    before = streams.values(name)
    again = files.query(spark, streams, new_checkpoint(), **options).start()
    with pytest.raises(Exception, match="0 is older; another query uses this sink id"):
        again.awaitTermination()
    assert streams.values(name) == before


def test_a_batch_handed_to_a_function_is_written_once(
    spark: SparkSession, streams: Streams, files: _Files, new_checkpoint: Callable[[], str]
) -> None:
    name, checkpoint = streams.create(), new_checkpoint()
    expected = files.add(0)
    cluster, application = streams.cluster, name.replace("/", "-")

    def write(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            writer = frame.write.format("ledgerstream").mode("append").option("cluster", cluster)
            writer.options(stream=name, txnAppId=application, txnVersion=batch).save()

    reader = spark.readStream.format("text").load(str(files.directory))
    query = reader.writeStream.foreachBatch(write).trigger(availableNow=True)
    query.option("checkpointLocation", checkpoint).start().awaitTermination()
    assert streams.values(name) == expected


def test_ordinary_writers_and_a_query_share_a_stream(
    spark: SparkSession, streams: Streams, files: _Files, new_checkpoint: Callable[[], str]
) -> None:
    name = streams.create()
    expected = files.add(0)
    with streams.writer(name) as writer:
        writer.append(b"before")
        files.query(spark, streams, new_checkpoint(), stream=name).start().awaitTermination()
        writer.append(b"after")
    assert streams.values(name) == [b"before", *expected, b"after"]


def test_a_second_query_with_a_sink_id_is_refused_at_its_first_batch(
    spark: SparkSession, streams: Streams, files: _Files, new_checkpoint: Callable[[], str]
) -> None:
    name, own, shared = streams.create(), new_checkpoint(), new_checkpoint()
    sink = name.replace("/", "-")
    expected = files.add(0)
    first = files.query(spark, streams, own, stream=name, sinkId=sink).queryName("first").start()
    first.awaitTermination()
    # The second query comes to batch 1 with a sink of its own before.
    files.query(spark, streams, shared, stream=name, sinkId=f"{sink}-2").start().awaitTermination()
    expected += expected
    files.add(1)
    second = files.query(spark, streams, shared, stream=name, sinkId=sink).start()
    with pytest.raises(Exception, match="belongs to query") as caught:
        second.awaitTermination()
    message = str(caught.value)
    assert f"query {first.id} (name first, run {first.runId}, checkpoint {own})" in message
    assert f"batch 1 of query {second.id} (run {second.runId}, checkpoint {shared})" in message
    assert streams.values(name) == expected
    files.query(spark, streams, own, stream=name, sinkId=sink).start().awaitTermination()
    assert streams.values(name) == [*expected, *(b"1-%d" % line for line in range(5))]


def test_two_functions_of_queries_need_two_names(
    spark: SparkSession, streams: Streams, files: _Files, new_checkpoint: Callable[[], str]
) -> None:
    name = streams.create()
    cluster, application = streams.cluster, name.replace("/", "-")
    expected = files.add(0)

    def run(version_of: Callable[[int], int]) -> None:
        def write(frame: DataFrame, batch: int) -> None:
            writer = frame.write.format("ledgerstream").mode("append").option("cluster", cluster)
            given = {"txnAppId": application, "txnVersion": str(version_of(batch))}
            writer.options(stream=name, **given).save()

        reader = spark.readStream.format("text").load(str(files.directory))
        query = reader.writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", new_checkpoint()).start().awaitTermination()

    run(lambda batch: batch)
    for shift in (0, 5):
        with pytest.raises(Exception, match=r"another query|this one is of query|belongs to query"):
            run(lambda batch, shift=shift: batch + shift)  # type: ignore[misc]
    assert streams.values(name) == expected
