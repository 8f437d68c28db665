"""Checks that the installed PySpark, pyarrow and Spark are versions that the connector supports."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ledger.errors import FinalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MIN = (4, 2)
_CURE = "pip install 'ledgerstream[spark]'"


class SparkTooOld(FinalError, ImportError):
    """PySpark is missing or older than 4.2, the first version where Python sources obey limits."""


def check_pyspark() -> None:
    """Raises SparkTooOld unless a supported PySpark is installed."""
    try:
        import pyspark
    except ModuleNotFoundError:
        raise SparkTooOld(
            f"connectors.spark needs PySpark {_text(SPARK_MIN)} or newer, which is not "
            f"installed. Cure: {_CURE}"
        ) from None
    check_version("PySpark", pyspark.__version__, str(pyspark.__file__))


def check_version(what: str, found: str, where: str) -> None:
    """Raises SparkTooOld for a version before 4.2, and for a text that is no version."""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < SPARK_MIN:
        raise SparkTooOld(
            f"connectors.spark needs {what} {_text(SPARK_MIN)} or newer, where Python sources "
            f"obey limits and AvailableNow; found {found} ({where}). Cure: {_CURE}, and use a "
            f"Spark of the same version"
        )


def check_pyarrow() -> None:
    """Raises SparkTooOld if pyarrow is missing: without it Spark reads no Python source."""
    try:
        version("pyarrow")
    except PackageNotFoundError:
        raise SparkTooOld(
            f"connectors.spark needs pyarrow, which is not installed. Cure: {_CURE}"
        ) from None


def is_remote(spark: SparkSession) -> bool:
    """Returns whether the session is a client of Spark Connect, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
