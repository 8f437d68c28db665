"""Spark sessions for tests: small, quiet, and in a directory of their own.

A session costs a JVM and about ten seconds, so that tests share one. Must never leave a process
behind, nor a file outside of its directory.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.tidy.checkout import ROOT

JAVA_MIN = 17
_STOP_TIMEOUT_S = 60.0
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options for a JVM that does not live long enough for optimized code."""
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


class SparkMissing(Exception):
    """This machine cannot run Spark; the text has the reason."""


def require_spark() -> None:
    """Raises SparkMissing without PySpark or a Java that runs it."""
    try:
        version("pyspark")
    except PackageNotFoundError:
        raise SparkMissing("PySpark is not installed: pip install 'ledgerstream[spark]'") from None
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise SparkMissing(f"Spark needs Java {JAVA_MIN} or newer, and there is no `java`")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_MIN:
        raise SparkMissing(f"Spark needs Java {JAVA_MIN} or newer, and {java} says {said.strip()}")


def settings(directory: Path) -> dict[str, str]:
    """Returns the settings of every session of the tests."""
    return {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={directory}/log4j2.properties "
            f"-Djava.io.tmpdir={directory} -Dderby.system.home={directory} "
            f"{_SHORT_LIVED} -Dspark.testing.reservedMemory=0"
        ),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # A failed test shows the whole error of a Python worker, with all causes.
        "spark.sql.pyspark.jvmStacktrace.enabled": "true",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }


def quiet_log(directory: Path) -> None:
    """Writes a configuration that sends Spark's log to `directory`/spark.log."""
    (directory / "log4j2.properties").write_text(_LOG4J.format(log=directory / "spark.log"))


def spark_environment(**more: str) -> dict[str, str]:
    """Returns variables for the JVM and its Python processes, which run this checkout's code."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LEDGERSTREAM_", "SPARK_"))}
    path = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **kept,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": _SHORT_LIVED,
        **more,
    }


def spark_home(directory: Path) -> Path:
    """Makes a Spark home of links, also for local clusters, which write to it.

    It leaves out the archive from which each Python process would import PySpark: the archive has
    no compiled modules, so that a process would take three times as long to start.
    """
    home = directory / "spark-home"
    if not home.exists():
        home.mkdir(parents=True)
        installed = importlib.util.find_spec("pyspark")
        assert installed is not None
        assert installed.origin is not None
        for part in ("bin", "sbin", "jars", "data", "licenses", "conf"):
            source = Path(installed.origin).parent / part
            if source.exists():
                (home / part).symlink_to(source)
    return home


@contextmanager
def _process_environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def spark_session(
    directory: Path,
    more: Mapping[str, str] | None = None,
    *,
    master: str | Callable[[Any, Path], str] = "local[2]",
) -> Iterator[SparkSession]:
    """Runs a new session with `more` settings and its log in `directory`/spark.log; ends its JVM.

    There must be no other session in this process.

    Args:
        master: a URL, or a function that starts a master, given the gateway of the session's JVM
            and `directory`.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    directory.mkdir(parents=True, exist_ok=True)
    quiet_log(directory)
    chosen: dict[str, str | float | bool | None] = {**settings(directory), **(more or {})}
    with _process_environment(spark_environment(SPARK_HOME=str(spark_home(directory)))):
        if callable(master):
            conf = SparkConf(loadDefaults=False).setAll([(k, str(v)) for k, v in chosen.items()])
            SparkContext._ensure_initialized(conf=conf)
            master = master(SparkContext._gateway, directory)
        builder = SparkSession.builder.master(master).appName(directory.name)
        spark = builder.config(map=chosen).getOrCreate()
    try:
        yield spark
    finally:
        end_session(spark)


def end_session(spark: SparkSession) -> None:
    """Stops the session and its JVM, in whatever state they are."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    try:
        spark.stop()
    finally:
        SparkContext._gateway = None
        SparkContext._jvm = None
        if gateway is not None:
            _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    try:
        gateway.shutdown()
    finally:
        process = gateway.proc
        process.stdin.close()  # the JVM watches it
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
