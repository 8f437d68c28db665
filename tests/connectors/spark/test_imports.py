"""What a process of Spark imports when it starts: each one does, and waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LOADED = """
import sys
import pyspark.sql.datasource, pyspark.sql.streaming.datasource, pyarrow
import {module}
print(*[name for name in {names} if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [
        # A task with a small result connects to nothing.
        ("connectors.spark.sink.sink", ("trio", "stream.sinks.sinks", "ledger.client")),
        ("connectors.spark.sink.task_writer", ("trio", "stream.sinks.sinks", "ledger.client")),
        ("connectors.spark.datasource", ("trio", "ledger.client")),
        # A connection is not the whole of `stream.blocking`.
        (
            "connectors.spark.client.client_cache",
            ("stream.namespace", "stream.retention.janitor", "stream.canary", "kazoo"),
        ),
    ],
)
def test_a_process_imports_only_what_it_needs(module: str, not_loaded: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(module=module, names=not_loaded)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
