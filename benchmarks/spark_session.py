"""A Spark session for benchmarks: `local[2]` and Spark's defaults, except what disturbs timing.

Ends its JVM with the session. Measures nothing itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).resolve().parents[1]
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


@contextmanager
def spark_session(
    directory: Path, more: Mapping[str, Any] | None = None, *, cores: int = 2
) -> Iterator[SparkSession]:
    """Runs a session with the format "ledgerstream" and all its files in `directory`."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from connectors.spark import register

    directory.mkdir(parents=True, exist_ok=True)
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=directory / "spark.log"))
    path = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log4j} -Dderby.system.home={directory}"
        ),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.files.maxPartitionBytes": str(1 << 30),
        **(more or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("benchmark")
    spark = builder.config(map=settings).getOrCreate()
    try:
        register(spark)
        yield spark
    finally:
        gateway = SparkContext._gateway
        spark.stop()
        SparkContext._gateway = SparkContext._jvm = None
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()  # the JVM watches it
            gateway.proc.wait()
