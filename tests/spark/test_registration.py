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
