"""One small cluster for the benchmarks that can share it, and a calibration that takes no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import calibration
from benchmarks.cluster import RunningCluster, start_cluster, stop_cluster

TINY = calibration.Workload(additions=20_000, pieces=4, syncs=3)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    started = start_cluster(tmp_path_factory.mktemp("cluster"), 3)
    try:
        yield started
        assert started.ended_bookies() == []
    finally:
        stop_cluster(started)
