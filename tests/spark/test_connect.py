"""Spark Connect: a client that speaks gRPC to a server has the same format, source and sink.

The server runs Python on its own machine: registering sends the class there by name, so that this
package must be installed there, too. The cluster is a secure one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark import connect_client
from tests.spark.conftest import skip_without_spark
from tests.spark.session import spark_environment
from tests.spark.streams import Streams

_TIMEOUT_S = 300.0


@pytest.mark.versions
def test_a_connect_client_reads_and_writes_batches_and_streams(
    secure_streams: Streams, admin: Path, tmp_path: Path, new_checkpoint: Callable[[], str]
) -> None:
    skip_without_spark()
    streams = secure_streams
    values = [b"%d" % number for number in range(1000)]
    source = streams.written(values, segments=2)
    by_batch, by_stream = streams.create("by-batch"), streams.create("by-stream")
    # In a separate process, because this one may not have a session of another kind.
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", connect_client.__name__,
            streams.cluster, admin, source, by_batch, by_stream, new_checkpoint(),
            str(tmp_path / "spark"),
        ],
        env=spark_environment(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SparkSession of pyspark.sql.connect.session" in done.stdout
    assert streams.values(by_batch) == values
    assert streams.values(by_stream) == values
    assert os.listdir(tmp_path / "spark")
