"""Streams in Spark: `spark.read.format("ledgerstream")`, `readStream`, `write`, `writeStream`.

Call `register(spark)` once per session. Spark also finds the source by itself where
`ledgerstream[spark]` is installed. Importing this package does not import PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledgerstream_entry import require_own_packages

require_own_packages("ledger", "stream")

from connectors.spark.schema import COLUMNS  # noqa: E402 - it imports the packages just checked

if TYPE_CHECKING:
    from connectors.spark.datasource import LedgerstreamDataSource as LedgerstreamDataSource
    from connectors.spark.monitoring.lag import LagListener as LagListener
    from connectors.spark.monitoring.lag import lag_of as lag_of
    from connectors.spark.monitoring.progress import watching as watching
    from connectors.spark.registration import register as register

_HOME = {
    "LedgerstreamDataSource": "connectors.spark.datasource",
    "LagListener": "connectors.spark.monitoring.lag",
    "lag_of": "connectors.spark.monitoring.lag",
    "watching": "connectors.spark.monitoring.progress",
    "register": "connectors.spark.registration",
}

__all__ = ["COLUMNS", "LagListener", "LedgerstreamDataSource", "lag_of", "register", "watching"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from connectors.spark.version import check_pyspark

    check_pyspark()
    return getattr(importlib.import_module(_HOME[name]), name)
