"""How Spark finds the format, and what a session passes to the processes that plan in it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.spark import register, watching
from connectors.spark.options.options import TASKS_VARIABLE
from tests.spark.session import spark_environment
from tests.spark.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT_S = 600

# A session without registration: Spark searches `pyspark_*` modules for an unknown format.
_UNTOLD = """
import json, sys
from pyspark.sql import SparkSession
settings = json.loads(sys.argv[2])
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
options = "stream '" + sys.argv[1] + "', progress 'true'"
spark.sql("CREATE TEMPORARY VIEW records USING ledgerstream OPTIONS (" + options + ")")
rows = spark.sql("SELECT CAST(value AS STRING) AS value FROM records ORDER BY sequence").collect()
print(json.dumps([row.value for row in rows]))
spark.stop()
"""


def test_spark_finds_the_format_by_itself_also_for_sql(streams: Streams, tmp_path: Path) -> None:
    name = streams.written([b"one", b"two"])
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    done = subprocess.run(
        [sys.executable, "-c", _UNTOLD, name, json.dumps(settings)],
        env=spark_environment(LEDGERSTREAM_CLUSTER=streams.cluster), cwd=tmp_path,
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == ["one", "two"]
    assert "ledgerstream: 1 stream, 1 segment, " in done.stderr
    assert f" in 1 task: {name}" in done.stderr


# A session with registration, a batch and a query: the query runs in a copy of the session. The
# cluster is set only when the JVM runs already.
_REGISTERED = """
import json, os, sys
from pyspark.sql import SparkSession
from connectors.spark import register
spark = SparkSession.builder.master("local[3]").config(map=json.loads(sys.argv[3])).getOrCreate()
os.environ["LEDGERSTREAM_CLUSTER"] = sys.argv[4]
register(spark)
register(spark)
register(spark.newSession())
source = spark.readStream.format("ledgerstream").option("startingPosition", "earliest")
rows = source.load(sys.argv[1]).selectExpr("value AS VALUE")
sink = rows.writeStream.format("ledgerstream").option("stream", sys.argv[2])
sink = sink.option("createStreams", "true").option("checkpointLocation", "checkpoint")
sink.trigger(availableNow=True).start().awaitTermination()
frame = spark.read.format("ledgerstream").schema("Value BINARY").load(sys.argv[2])
print(frame.columns, [bytes(row.Value) for row in frame.collect()])
print(spark.read.format("ledgerstream").load(sys.argv[1]).rdd.getNumPartitions())
spark.stop()
"""


def test_registration_is_silent_where_spark_finds_the_format(
    streams: Streams, tmp_path: Path
) -> None:
    """What the session passes on arrives nevertheless: the cluster and the default of minTasks.

    The names of columns, in a sink and in a schema, are found without regard to case.
    """
    name = streams.create()
    with streams.writer(name) as writer:
        for number in range(8):  # an entry each
            writer.append(b"%d" % number)
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    done = subprocess.run(
        [sys.executable, "-c", _REGISTERED, name, f"{name}-copy", json.dumps(settings),
         streams.cluster],
        env=spark_environment(), cwd=tmp_path,
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    values = [b"%d" % number for number in range(8)]
    assert done.stdout.splitlines() == [f"['Value'] {values}", "3"]
    assert "DataSourceManager" not in done.stderr


def test_sparks_parallelism_is_the_default_of_min_tasks(
    spark: SparkSession, streams: Streams
) -> None:
    """Holds within one segment, too. Registering again is harmless."""
    name = streams.create()
    with streams.writer(name) as writer:
        for number in range(8):  # an entry each
            writer.append(b"%d" % number)
    register(spark)
    assert spark.sparkContext.environment[TASKS_VARIABLE] == "2"
    source = spark.read.format("ledgerstream").option("cluster", streams.cluster)
    frame = source.load(name)
    assert frame.rdd.getNumPartitions() == 2
    assert source.option("minTasks", "5").load(name).rdd.getNumPartitions() == 5
    shown = io.StringIO()
    with watching(spark, progress=True, file=shown) as watch:
        rows = frame.collect()
    assert sorted(bytes(row.value) for row in rows) == [b"%d" % n for n in range(8)]
    assert watch.tasks_done <= watch.tasks
    assert shown.getvalue().startswith(f"{watch.tasks_done} task")


def test_only_the_named_columns_are_read(spark: SparkSession, streams: Streams) -> None:
    name = streams.written([b"one"])
    source = spark.read.format("ledgerstream").option("cluster", streams.cluster)
    assert source.option("columns", "sequence, value").load(name).columns == ["sequence", "value"]
    chosen = source.schema("value BINARY, partition INT").load(name)
    assert [(bytes(row.value), row.partition) for row in chosen.collect()] == [(b"one", 0)]
