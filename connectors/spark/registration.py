"""`register(spark)`: registers the format "ledgerstream" with one session.

It also passes Spark's default parallelism and the default cluster to the Python processes that
plan in this session. It warns if those processes run a different Python than this one, which is
the most common reason why they cannot import this package.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.spark.options.options import (
    TASKS_VARIABLE,
    TERMINAL_VARIABLE,
    ZONE_VARIABLE,
)
from connectors.spark.options.security import CLUSTER_VARIABLE
from connectors.spark.options.values import time_zone
from connectors.spark.version import check_pyarrow, check_pyspark, check_version, is_remote
from ledger.credentials import CREDENTIALS_VARIABLE, METADATA_TLS_VARIABLE, TLS_VARIABLES
from ledger.errors import InvalidArgument
from ledger.metastore.cluster_secret import SECRET_FILE_VARIABLE
from ledger.metastore.zookeeper_access import ACL_VARIABLE
from ledger.metastore.zookeeper_access import (
    CREDENTIALS_VARIABLE as ZOOKEEPER_CREDENTIALS_VARIABLE,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_FORMAT = "ledgerstream"
_FILE_VARIABLES = (
    CREDENTIALS_VARIABLE, *TLS_VARIABLES, METADATA_TLS_VARIABLE, SECRET_FILE_VARIABLE,
    ZOOKEEPER_CREDENTIALS_VARIABLE, ACL_VARIABLE,
)  # fmt: skip
"""Variables that name files, which must be on every machine, or say how they are used. Those with
secrets are not passed on: Spark would keep them in its plans."""


def register(spark: SparkSession) -> None:
    """Registers the source and the sink. A second call is harmless.

    Spark's default parallelism becomes the default of `minTasks`, and the session's time zone that
    of `timeZone`: call it again after `spark.sql.session.timeZone` was changed. Raises SparkTooOld
    if the local PySpark or the Spark of the session is older than 4.2.
    """
    check_pyspark()
    check_pyarrow()
    check_version("Spark", spark.version, "the session's version")
    from connectors.spark.datasource import LedgerstreamDataSource

    if not is_remote(spark):
        context = spark.sparkContext
        _check_python(context)
        context.environment[TASKS_VARIABLE] = str(context.defaultParallelism)
        context.environment[ZONE_VARIABLE] = _named_zone(spark)
        if CLUSTER_VARIABLE in os.environ:
            # Spark's processes have the environment as it was when the session was created.
            context.environment[CLUSTER_VARIABLE] = os.environ[CLUSTER_VARIABLE]
        for name in _FILE_VARIABLES:
            # Executors may have been given another path of their own.
            if name in os.environ and not context.getConf().contains(f"spark.executorEnv.{name}"):
                context.environment[name] = os.environ[name]
        context.environment[TERMINAL_VARIABLE] = "1" if sys.stderr.isatty() else ""
        _let_threads_write()
        if _set_environment(spark, LedgerstreamDataSource.name()):
            return
    spark.dataSource.register(LedgerstreamDataSource)


def _let_threads_write() -> None:
    """Has the writers of PySpark make their session the active one of the thread that names our
    format.

    Spark looks for a format in the active session of the calling thread. A thread that did not make
    the session has none, so that Spark would report that there is no such format.
    """
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for writer in (DataFrameWriter, DataStreamWriter):
        if not hasattr(writer.format, _ACTIVATES):
            writer.format = _activating(writer.format)  # type: ignore[method-assign, assignment]


_ACTIVATES = "_ledgerstream_activates"


def _activating(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    @functools.wraps(original)
    def format_in_session(self: Any, source: str) -> Any:
        if str(source).lower() == _FORMAT:
            spark = self._df.sparkSession
            active = type(spark)._get_j_spark_session_class(spark._jvm)
            active.setActiveSession(spark._jsparkSession)
        return original(self, source)

    setattr(format_in_session, _ACTIVATES, True)
    return format_in_session


def _named_zone(spark: SparkSession) -> str:
    """Returns the session's time zone; "" if Python does not know it."""
    name = spark.conf.get("spark.sql.session.timeZone") or ""
    try:
        time_zone(name)
    except InvalidArgument:
        return ""
    return name


def _set_environment(spark: SparkSession, name: str) -> bool:
    """Gives the processes of a format that the session has already the context's environment.

    Spark has it by `pyspark_ledgerstream`, or by an earlier call. Registering it again would log a
    warning for each session and each query. Returns whether the format needs no registration.
    """
    context = spark.sparkContext
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    if not manager.dataSourceExists(name):
        return False
    found = manager.lookupDataSource(name).dataSourceCls()
    # What Spark has found by itself lacks files of --py-files and addPyFile.
    if list(found.pythonIncludes()) != list(context._python_includes or ()):
        return False
    if found.pythonExec() != context.pythonExec:
        return False
    for variable, value in context.environment.items():
        found.envVars().put(variable, value)
    return True


def _check_python(context: SparkContext) -> None:
    configured = context.pythonExec
    found = shutil.which(configured)
    if found is None or not str(context.master).startswith("local"):
        return
    if Path(found).absolute() == Path(sys.executable).absolute():
        return
    if Path(found).resolve() == Path(sys.executable).resolve() and sys.prefix == sys.base_prefix:
        return
    warnings.warn(
        f"Spark runs its Python processes with {configured!r}, which is {found}, and not with "
        f"this Python, {sys.executable}. If ledgerstream is not installed there, set the "
        f"environment variable PYSPARK_PYTHON={sys.executable} before the session is created",
        RuntimeWarning,
        stacklevel=3,
    )
