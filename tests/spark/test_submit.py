"""A job in more than one process, started by spark-submit as docs/spark.md says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.spark.conftest import skip_without_spark
from tests.spark.streams import Streams
from tests.tidy.checkout import ROOT

PATIENCE_S = 900


def test_a_submitted_job_reads_and_writes_on_executors(streams: Streams, tmp_path: Path) -> None:
    skip_without_spark()
    home = Path(pyspark.__file__).parent
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]",
            "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2",
            "--conf", "spark.driver.host=127.0.0.1", "--conf", f"spark.local.dir={tmp_path}",
            "--conf", f"spark.executorEnv.PYTHONPATH={path}",
            ROOT / "examples" / "spark_job.py", streams.cluster,
        ],
        env={
            **os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True, cwd=tmp_path, timeout=PATIENCE_S, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == ["written: 1000", "copied: 1000"]
