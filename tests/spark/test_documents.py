"""The commands and snippets of README and docs/spark.md work, in their order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.session import spark_environment, spark_home
from tests.spark.streams import Streams
from tests.tidy.checkout import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT_S = 600
_SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)


def program() -> str:
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    begin = "import sys\ncheckpoint = sys.argv[1]\n"
    return begin + "".join(_SNIPPET.findall(text)) + "spark.stop()\n"


def test_the_snippets_run_one_after_the_other(streams: Streams, tmp_path: Path) -> None:
    streams.namespace("demo")
    script = tmp_path / "snippets.py"
    script.write_text(program(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "checkpoint")],
        env=spark_environment(
            LEDGERSTREAM_CLUSTER=streams.cluster, SPARK_HOME=str(spark_home(tmp_path))
        ),
        cwd=tmp_path, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shown, lag = done.stdout.splitlines()
    assert shown.count("Row(sequence=") == 10
    assert "Row(sequence=999, value='click 999')" in shown
    assert lag.startswith("Lag(records=0, nbytes=0, ")
    expected = sorted((b"user-%d" % (n % 7), b"CLICK %d" % n) for n in range(1000))
    found = streams.rows("demo/counts")
    assert sorted((row.key or b"", row.value) for row in found) == expected
    for name in ("demo/a", "demo/b"):
        assert sorted(streams.values(name)) == sorted(b"click %d" % n for n in range(1000))


def test_the_readme_shouts(spark: SparkSession, streams: Streams, tmp_path: Path) -> None:
    clicks = streams.namespace("demo")
    clicks.ensure_stream("clicks")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (snippet,) = [each for each in _SNIPPET.findall(text) if "register(spark)" in each]
    code = snippet.replace('"checkpoint"', repr(str(tmp_path / "spark-checkpoint")))
    names: dict[str, Any] = {"spark": spark, "cluster": streams.cluster}
    exec(code, names)
    query = names["query"]
    query.processAllAvailable()  # it begins at the end
    streams.append("demo/clicks", [b"hello"])
    query.processAllAvailable()
    query.stop()
    assert streams.values("demo/shouts") == [b"HELLO"]
