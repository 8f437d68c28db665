"""Filters that Spark pushes into a batch: fewer rows are read, and never too few."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.streams import Streams

pytestmark = pytest.mark.spark

PUSHING = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(PUSHING, "true")
    yield spark
    spark.conf.unset(PUSHING)


def read(spark: SparkSession, streams: Streams, name: str, **options: str) -> DataFrame:
    reader = spark.read.format("ledgerstream").option("cluster", streams.cluster)
    return reader.options(**options).load(name)


def ten_segments(streams: Streams) -> str:
    """Writes a stream of 100 records."""
    name = streams.create()
    for number in range(10):
        streams.append(name, [b"%d" % n for n in range(10 * number, 10 * number + 10)])
    return name


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def test_a_frame_that_is_reused_has_all_its_rows(pushing: SparkSession, streams: Streams) -> None:
    frame = read(pushing, streams, ten_segments(streams))
    assert sequences(frame.filter("sequence >= 10 AND sequence < 20")) == list(range(10, 20))
    assert sequences(frame) == list(range(100))
    assert sequences(frame.filter("sequence = 5 OR sequence = 50")) == [5, 50]


def test_accepted_filters_exclude_other_rows(pushing: SparkSession, streams: Streams) -> None:
    name = ten_segments(streams)

    def filtered(condition: str) -> DataFrame:
        options = {"pushFilters": "true", "minTasks": "10"}
        return read(pushing, streams, name, **options).filter(condition)

    assert sequences(filtered("sequence >= 13 AND sequence < 27")) == list(range(13, 27))
    assert filtered("sequence >= 990").count() == 0
    assert sequences(filtered("partition = 0 AND sequence IN (3, 70)")) == [3, 70]
    assert filtered(f"stream = '{name}'").count() == 100
    assert filtered("stream = 'tests/other'").count() == 0
    whole = read(pushing, streams, name, minTasks="10")
    assert whole.rdd.getNumPartitions() == 10
    assert filtered("sequence >= 13 AND sequence < 27").rdd.getNumPartitions() < 10
