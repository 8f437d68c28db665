"""A process is killed at each named point of a batch, and the query started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.kills.injection import EXPECTED
from tests.spark.kills.killable_source import (
    ABORT_POINTS,
    COMMIT_POINTS,
    FIRST_POINTS,
    PLAN_POINTS,
    SOURCE_POINTS,
    START_POINTS,
    TASK_POINTS,
    MortalDataSource,
)
from tests.spark.kills.orders import Order, Orders
from tests.spark.kills.pipeline import QuerySpec, rows_of
from tests.spark.streams import Streams

pytestmark = pytest.mark.versions

VALUES = [b"%d" % number for number in range(200)]
# All of them are passed by a query that reads two batches and ends.
POINTS = [
    Order(point, "kill")
    for points in (
        FIRST_POINTS,
        START_POINTS,
        SOURCE_POINTS,
        PLAN_POINTS,
        TASK_POINTS,
        COMMIT_POINTS,
    )
    for point in points
] + [Order(point, "kill", provoked_by="commit, after") for point in ABORT_POINTS]
FAILURES = [Order(point, "raise") for point in COMMIT_POINTS]


class Pipeline:
    """A stream of two segments, copied by a query of the shared session."""

    def __init__(self, spark: SparkSession, streams: Streams, directory: Path) -> None:
        spark.dataSource.register(MortalDataSource)
        self._spark = spark
        self._streams = streams
        self._directory = directory
        self.orders = Orders(directory / "orders")
        source = streams.written(VALUES, segments=2)
        self.target = streams.create("copy")
        both = {"cluster": streams.cluster, "orders": str(directory / "orders")}
        read = {
            **both, "stream": source, "startingPosition": "earliest",
            "maxRecordsPerTrigger": "150", "minTasks": "2", "rowsPerBatch": "20",
        }  # fmt: skip
        self._read = read
        self._write = {**both, "stream": self.target}

    def start(self, **options: str) -> StreamingQuery:
        spec = QuerySpec("copy", "plain", "", self.target, self._read, self._write | options)
        writer = rows_of(self._spark, spec).writeStream.format("mortal").options(**spec.write)
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def run(self, **options: str) -> None:
        """Copies all there is. Raises what the query ended by, unless Spark did not wait for a
        process that a busy machine starts."""
        for tries_left in reversed(range(5)):
            try:
                self.start(**options).awaitTermination()
            except StreamingQueryException as error:
                if tries_left == 0 or "failed to connect back" not in str(error):
                    raise
            else:
                return

    def run_into_death(self, order: Order, **options: str) -> None:
        """Obeys the order; the query may survive it."""
        self.orders.give(order)
        try:
            self.run(**options)
        except Exception as error:
            if not any(known in repr(error) + str(error) for known in EXPECTED):
                raise
        assert self.orders.taken() is not None, f"nobody came to {order.point}"

    def values(self) -> list[bytes]:
        return self._streams.values(self.target)


@pytest.fixture
def pipeline(spark: SparkSession, streams: Streams, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, streams, tmp_path)


@pytest.mark.parametrize("order", POINTS + FAILURES, ids=lambda order: f"{order.way} {order.point}")
def test_after_a_death_the_output_is_the_input(pipeline: Pipeline, order: Order) -> None:
    pipeline.run_into_death(order)
    pipeline.run()
    assert pipeline.values() == VALUES


def doubled(pipeline: Pipeline) -> None:
    pipeline.run_into_death(Order("commit, after", "raise"), bug="forgets")
    pipeline.run(bug="forgets")


def lost(pipeline: Pipeline) -> None:
    pipeline.run(bug="loses")


@pytest.mark.parametrize("misdo", [doubled, lost])
def test_a_sink_that_is_wrong_is_found_out(
    pipeline: Pipeline, misdo: Callable[[Pipeline], None]
) -> None:
    misdo(pipeline)
    values = pipeline.values()
    assert values != VALUES
    assert set(values) <= set(VALUES)
