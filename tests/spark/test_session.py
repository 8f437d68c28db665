"""The fixtures of the suite: the session computes, and the cluster stores records."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.spark.streams import Streams


def test_the_session_runs_python_workers_of_this_checkout(spark: SparkSession) -> None:
    def home(rows: object) -> list[tuple[str, str, str]]:
        import sys

        import pyspark

        import tests.spark as package

        return [(sys.executable, str(package.__file__), str(pyspark.__file__))]

    import pyspark

    from tests import spark as package

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(home).collect()
    assert found == [(sys.executable, str(package.__file__), str(pyspark.__file__))]


def test_streams_hold_what_was_written(streams: Streams) -> None:
    name = streams.written([b"%d" % number for number in range(10)], segments=3)
    assert streams.values(name) == [b"%d" % number for number in range(10)]
    assert [row.position.segment for row in streams.rows(name)] == [1] * 4 + [2] * 4 + [3] * 2
