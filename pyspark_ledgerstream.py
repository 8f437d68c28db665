"""Where Spark finds the format "ledgerstream" by itself: top-level modules named `pyspark_*`.

Spark imports every such module and takes its `DefaultSource`. A module that fails to import takes
all others with it, so that this one imports only what comes with PySpark and ledgerstream.
"""

from __future__ import annotations

try:
    from connectors.spark.datasource import LedgerstreamDataSource as DefaultSource
except ModuleNotFoundError:
    from ledgerstream_entry import require_own_packages

    require_own_packages("connectors")
    raise

__all__ = ["DefaultSource"]
