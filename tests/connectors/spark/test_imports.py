"""What a process of Spark imports when it starts: each one does, and waits for it."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from connectors.spark.options.options import ReadOptions
from connectors.spark.schema import read_schema
from connectors.spark.source.batch_reader import FilteringReader, LedgerstreamReader
from connectors.spark.source.stream_reader import LedgerstreamStreamReader

_LOADED = """
import sys
import importlib
import pyspark.sql.datasource, pyspark.sql.streaming.datasource, pyarrow
for module in {modules}:
    importlib.import_module(module)
    print(*[f"{{module}} imports {{name}}" for name in {names} if name in sys.modules])
"""
_NEVER = ("stream.namespace", "stream.retention.janitor", "stream.canary", "kazoo")
_OF_WRITERS = ("ledger.writing.writer", "ledger.recovery", "ledger.missed.recovered")


@pytest.mark.parametrize(
    ("modules", "not_loaded"),
    [
        # A task with a small result connects to nothing.
        (
            (
                "connectors.spark.datasource", "connectors.spark.sink.sink",
                "connectors.spark.sink.task_writer",
            ),
            ("trio", "stream.sinks.sinks", "ledger.client"),
        ),
        # A task that reads plans nothing, and needs no metadata of streams.
        (
            ("connectors.spark.source.input_partitions",),
            (
                *_NEVER, *_OF_WRITERS, "connectors.spark.options.options",
                "connectors.spark.source.batch_reader", "connectors.spark.source.stream_index",
                "stream.core.metadata.streams", "stream.store.streams", "stream.reading.seek",
            ),
        ),
        # The source of a query reads neither merged streams nor, as a rule, the trash.
        (
            ("connectors.spark.source.stream_reader",),
            (
                *_NEVER, *_OF_WRITERS, "stream.reading.merged_feeds", "stream.retention.trash",
                "connectors.spark.source.checkpoint_cursors",
            ),
        ),
    ],
)  # fmt: skip
def test_a_process_imports_only_what_it_needs(
    modules: tuple[str, ...], not_loaded: tuple[str, ...]
) -> None:
    """Several modules are imported one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(modules=modules, names=not_loaded)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_a_task_gets_no_reader_that_plans() -> None:
    """Otherwise it would import what plans, only to unpickle it."""
    given = {"cluster": "sqlite:///nowhere/cluster.db", "stream": "demo/clicks"}
    batch = ReadOptions.parse(given, {}, is_streaming=False)
    streaming = ReadOptions.parse(given, {}, is_streaming=True)
    schema = read_schema(None)
    for reader in (
        LedgerstreamReader(batch, schema),
        FilteringReader(batch, schema),
        LedgerstreamStreamReader(streaming, schema),
    ):
        pickled = pickle.dumps(reader)
        assert b"connectors.spark.source.input_partitions" in pickled
        for name in (b"batch_reader", b"stream_reader", b"options"):
            assert name not in pickled
