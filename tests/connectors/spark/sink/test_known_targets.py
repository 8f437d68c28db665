"""What a writer that is sent to tasks knows of its targets, and how often that is asked for."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from connectors.spark.client import client_cache
from connectors.spark.options.options import WriteOptions
from connectors.spark.sink import task_writer
from connectors.spark.sink.routing import Target, TargetStream
from connectors.spark.sink.sink import LedgerstreamStreamWriter, LedgerstreamWriter
from stream.core.metadata.namespaces import NamespaceMetadata

_SCHEMA = StructType().add("value", "binary")
_TARGET = Target("n", "s")


class _Cluster:
    """A cluster with one stream, and the time of a process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = TargetStream(NamespaceMetadata(name="n", created_ms=0))
        self.look_ups = 0
        self.now_s = 1000.0
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(client_cache, "cached_cluster", lambda _: self)
        monkeypatch.setattr(task_writer, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.enter_process({})

    def enter_process(self, looked_up: dict[object, object]) -> None:
        """Has the process run that knows this."""
        self._monkeypatch.setattr(task_writer, "_looked_up", looked_up)

    def run(self, _look_up: object, target: Target, *, may_be_missing: bool) -> TargetStream:
        assert target == _TARGET
        assert not may_be_missing
        self.look_ups += 1
        return self.stream


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    return _Cluster(monkeypatch)


def _options(*, is_streaming: bool) -> WriteOptions:
    given = {"cluster": "sqlite:///nowhere.db", "stream": "n/s"}
    return WriteOptions.parse(given, {}, is_streaming=is_streaming)


def _sent(writer: object) -> LedgerstreamWriter:
    return pickle.loads(pickle.dumps(writer))  # type: ignore[no-any-return]


def test_a_batch_write_asks_once_and_all_of_its_tasks_know_the_same(cluster: _Cluster) -> None:
    writer = LedgerstreamWriter(_options(is_streaming=False), _SCHEMA, False)
    known = []
    for partitions in (4, 8):  # Spark pickles it for the job, and for the commit
        cluster.stream = replace(cluster.stream, partitions=partitions)
        known.append(_sent(writer)._known_targets[_TARGET].partitions)
    assert known == [4, 4]
    assert cluster.look_ups == 1


@pytest.mark.parametrize(("every_s", "look_ups"), [(1, 1), (9, 2), (15, 4)])
def test_a_query_asks_for_a_plain_stream_every_ten_seconds(
    cluster: _Cluster, every_s: int, look_ups: int
) -> None:
    for _ in range(4):
        # Spark makes a writer for each micro-batch.
        writer = LedgerstreamStreamWriter(_options(is_streaming=True), _SCHEMA, False)
        assert _sent(writer)._known_targets == {_TARGET: cluster.stream}
        cluster.now_s += every_s
    assert cluster.look_ups == look_ups


def test_keys_never_go_back_to_a_partition_whatever_process_looks(cluster: _Cluster) -> None:
    options = _options(is_streaming=True)
    processes: list[dict[object, object]] = [{}, {}]
    known = []
    for number, partitions in enumerate((8, 12, 12, 12)):
        cluster.stream = replace(cluster.stream, partitions=partitions)
        cluster.enter_process(processes[number % 2])
        found = task_writer._target_stream(options, _TARGET, may_be_missing=False)
        known.append(found.partitions)
        cluster.now_s += 1
    assert known == [8, 12, 12, 12]


@pytest.mark.parametrize("is_there", [True, False])
def test_tasks_write_ledgers_if_the_driver_lacks_the_library_of_the_compression(
    cluster: _Cluster, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.stream = TargetStream(replace(cluster.stream.policy, compression="lz4"))
    if not is_there:
        monkeypatch.setitem(sys.modules, "lz4.block", None)
    writer = LedgerstreamStreamWriter(_options(is_streaming=True), _SCHEMA, False)
    assert _sent(writer).options.small_result_bytes == (1 << 20 if is_there else 0)
