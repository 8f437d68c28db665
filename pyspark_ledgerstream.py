"""Where Spark finds the format "ledgerstream" by itself: top-level modules named `pyspark_*`.

Spark imports every such module and takes its `DefaultSource`. One that fails to import would take
all others with it, so that this one imports only what comes with PySpark and ledgerstream.
"""

from __future__ import annotations

from connectors.spark.datasource import LedgerstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
