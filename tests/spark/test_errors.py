"""Errors are explained in the first line that Spark shows, on the driver and before any task."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def name(streams: Streams) -> str:
    return streams.written([b"one", b"two"], word="errors")


def first_line(action: Callable[[], object]) -> str:
    """Returns the first line that Spark shows, without its prefix."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    text = str(caught.value)
    assert "Traceback" not in text, text
    return next(line for line in text.splitlines() if "exception was thrown from" not in line)


def read(spark: SparkSession, streams: Streams, **options: str) -> DataFrame:
    given = {"cluster": streams.cluster, **options}
    return spark.read.format("ledgerstream").options(**given).load()


def query_error(
    spark: SparkSession, streams: Streams, checkpoint: str, schema: str = "", **options: str
) -> str:
    source = spark.readStream.format("ledgerstream")
    if schema:
        source = source.schema(schema)

    def run() -> None:
        frame = source.options(**{"cluster": streams.cluster, **options}).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    return first_line(run)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, ["'startingoffset'", "did you mean startingPosition?"]),
        ({"maxBytesPerTask": "many"}, ["maxBytesPerTask='many'", "not a size", "64m"]),
        ({"columns": "vaule"}, ["no column 'vaule'", "did you mean value?"]),
        ({"streamPattern": "tests/*"}, ["stream and streamPattern are given"]),
        ({"stream": "tests/eror"}, ["no stream 'tests/eror'", "similar names", "stream create"]),
        ({"stream": "test/errors"}, ["no namespace 'test'", "similar names: tests"]),
    ],
)
def test_load_fails_at_once(
    spark: SparkSession, streams: Streams, name: str, options: dict[str, str], words: list[str]
) -> None:
    """The error is raised at once, not when the rows are requested."""
    line = first_line(lambda: read(spark, streams, **{"stream": name, **options}))
    assert [word for word in words if word not in line] == [], line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxRecordsPerTrigger": "5"}, ["maxRecordsPerTrigger='5'", "only in readStream"]),
        ({"startingPosition": "latest"}, ["would read nothing", "end=N"]),
        ({"stream": "", "streamPattern": "tests/no-*"}, ["no stream matches tests/no-*"]),
    ],
)
def test_what_is_wrong_with_a_batch_only(
    spark: SparkSession, streams: Streams, name: str, options: dict[str, str], words: list[str]
) -> None:
    chosen = {"stream": name, **options}
    given = {key: chosen[key] for key in chosen if chosen[key]}
    line = first_line(lambda: read(spark, streams, **given).collect())
    assert [word for word in words if word not in line] == [], line


def test_a_schema_that_streams_do_not_have(
    spark: SparkSession, streams: Streams, name: str
) -> None:
    source = spark.read.format("ledgerstream").schema("value string")
    frame = source.option("cluster", streams.cluster).option("stream", name).load()
    line = first_line(frame.collect)
    assert "column value is binary, not string" in line
    assert "col('value').cast('string')" in line


def test_a_cluster_that_is_not_reached(spark: SparkSession, streams: Streams, name: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"zk://127.0.0.1:{closed.getsockname()[1]}/ledgers"
        line = first_line(lambda: read(spark, streams, cluster=address, stream=name))
    assert f"cluster {address} cannot be reached from the driver, tried for" in line
    assert "refused" in line
    line = first_line(lambda: read(spark, streams, cluster="sqlite:///no/where.db", stream=name))
    assert "there is no cluster at sqlite:///no/where.db: the directory /no does not" in line


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        (
            {"endingPosition": "end=1"},
            "",
            ["endingPosition='end=1'", "only in read", "availableNow"],
        ),
        ({"endingPosition": "end=1"}, "value binary", ["endingPosition='end=1'", "only in read"]),
        ({"stream": "tests/eror"}, "value binary", ["tests/eror"]),
        ({"cluster": "zk://"}, "value binary", ["zk://"]),
    ],
)
def test_a_query_fails_when_it_starts(
    spark: SparkSession,
    streams: Streams,
    name: str,
    new_checkpoint: Callable[[], str],
    options: dict[str, str],
    schema: str,
    words: list[str],
) -> None:
    """PySpark itself would lose the error of a reader that cannot be created."""
    chosen = {"stream": name, **options}
    line = query_error(spark, streams, new_checkpoint(), schema, **chosen)
    assert [word for word in words if word not in line] == [], line


def write(frame: DataFrame, streams: Streams, mode: str = "append", **options: Any) -> None:
    given = {"cluster": streams.cluster, **options}
    frame.write.format("ledgerstream").mode(mode).options(**given).save()


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("'v' AS value", {"stream": "tests/eror"}, ["no stream 'tests/eror'", "similar names"]),
        ("'v' AS value", {"sinkid": "a"}, ["sinkId='a'", "only in writeStream", "txnAppId"]),
        ("'v' AS value", {"txnAppId": "a"}, ["txnAppId='a'", "without txnVersion"]),
        ("'v' AS value", {"strem": "tests/x"}, ["'strem'", "did you mean stream?"]),
        ("'v' AS value, 1 AS other", {}, ["'other'", "to_json"]),
        ("'v' AS key", {}, ["no column 'value'"]),
        ("1 AS value", {}, ["'value' is int", "binary or string"]),
    ],
)
def test_a_write_fails_before_its_tasks(
    spark: SparkSession, streams: Streams, name: str, columns: str, options: dict[str, str],
    words: list[str],
) -> None:  # fmt: skip
    line = first_line(
        lambda: write(spark.sql(f"SELECT {columns}"), streams, **{"stream": name, **options})
    )
    assert [word for word in words if word not in line] == [], line


def test_only_append_is_supported(
    spark: SparkSession, streams: Streams, name: str, new_checkpoint: Callable[[], str]
) -> None:
    frame = spark.sql("SELECT 'v' AS value")
    line = first_line(lambda: write(frame, streams, mode="overwrite", stream=name))
    assert 'mode("append")' in line
    assert "never overwritten" in line
    # Spark itself refuses other modes, and names append.
    assert '"Append"' in first_line(lambda: write(frame, streams, "errorifexists", stream=name))
    counts = spark.readStream.format("rate").load().groupBy("value").count().select("value")
    writer = counts.selectExpr("CAST(value AS STRING) AS value").writeStream.format("ledgerstream")
    writer = writer.option("cluster", streams.cluster).option("stream", name)
    writer = writer.option("checkpointLocation", new_checkpoint()).outputMode("complete")

    def run() -> None:
        query = writer.start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    assert 'outputMode("complete")' in first_line(run)
    assert streams.values(name) == [b"one", b"two"]


def test_other_errors_keep_their_traceback(spark: SparkSession) -> None:
    """Errors of other code in the processes of Spark are not hidden."""
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    broken = udf(lambda value: 1 // value, "int")
    with pytest.raises(PySparkException, match="Traceback"):
        spark.range(1).select(broken("id")).collect()  # divides by zero
