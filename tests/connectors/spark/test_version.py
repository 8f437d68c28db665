"""Supported versions of PySpark are accepted; others are reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from connectors.spark.version import SparkTooOld, check_pyarrow, check_pyspark, check_version
from tests.tidy.checkout import ROOT


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1.dev0", "4.10.0", "5.0.0"])
def test_new_enough(version: str) -> None:
    check_version("Spark", version, "here")


@pytest.mark.parametrize("version", ["4.1.9", "3.5.1", "four", ""])
def test_too_old(version: str) -> None:
    with pytest.raises(SparkTooOld) as caught:
        check_version("Spark", version, "the session's version")
    words = ["Spark 4.2 or newer", f"found {version}", "the session's version", "pip install"]
    assert [word for word in words if word not in str(caught.value)] == []
    assert isinstance(caught.value, ImportError)


def test_the_installed_version_is_supported() -> None:
    check_pyspark()
    check_pyarrow()


def test_an_old_version_is_reported_with_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.2")
    with pytest.raises(SparkTooOld, match=r"found 4\.0\.2 \(.*pyspark"):
        check_pyspark()


def test_without_pyspark(tmp_path: Path) -> None:
    """The package can be imported, and reports the missing PySpark on first use."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import connectors.spark as c\n"
        "print(c.COLUMNS[0])\n"
        "for name in ('register', 'LedgerstreamDataSource', 'nonsense'):\n"
        "    try: getattr(c, name)\n"
        "    except (ImportError, AttributeError) as e: print(type(e).__name__, e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "stream"
    assert all("SparkTooOld connectors.spark needs PySpark 4.2" in line for line in lines[1:3])
    assert lines[3].startswith("AttributeError")


def test_no_pyspark_is_imported_before_it_is_needed() -> None:
    program = "import sys, connectors.spark; print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "False"
