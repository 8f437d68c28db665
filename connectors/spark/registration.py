"""`register(spark)`: makes the format "ledgerstream" known to one session.

It also tells the Python processes that plan in this session how parallel Spark is and which cluster
is the default, and warns if they are another Python than this one, which is the commonest reason
why they cannot import us.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.spark.options.options import CLUSTER_VARIABLE, TASKS_VARIABLE, TERMINAL_VARIABLE
from connectors.spark.version import check_pyarrow, check_pyspark, check_version, is_remote

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the source and sink; again does no harm.

    Spark's default parallelism becomes the default of `minTasks`. Raises SparkTooOld if PySpark
    here, or the Spark that the session runs on, is older than 4.2.
    """
    check_pyspark()
    check_pyarrow()
    check_version("Spark", spark.version, "the session's version")
    from connectors.spark.datasource import LedgerstreamDataSource

    if not is_remote(spark):
        context = spark.sparkContext
        _check_python(context)
        context.environment[TASKS_VARIABLE] = str(context.defaultParallelism)
        if CLUSTER_VARIABLE in os.environ:
            # Spark's processes have the environment of when the session was made.
            context.environment[CLUSTER_VARIABLE] = os.environ[CLUSTER_VARIABLE]
        context.environment[TERMINAL_VARIABLE] = "1" if sys.stderr.isatty() else ""
    spark.dataSource.register(LedgerstreamDataSource)


def _check_python(context: SparkContext) -> None:
    named = context.pythonExec
    found = shutil.which(named)
    if found is None or not str(context.master).startswith("local"):
        return
    if Path(found).absolute() == Path(sys.executable).absolute():
        return
    if Path(found).resolve() == Path(sys.executable).resolve() and sys.prefix == sys.base_prefix:
        return
    warnings.warn(
        f"Spark runs its Python processes with {named!r}, which is {found}, and not with this "
        f"Python, {sys.executable}. If that one has no ledgerstream, set the environment variable "
        f"PYSPARK_PYTHON={sys.executable} before the session is made",
        RuntimeWarning,
        stacklevel=3,
    )
