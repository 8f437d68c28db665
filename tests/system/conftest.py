"""Real clusters for the tests of this folder: processes, files, sockets.

Every cluster lives in a test's own temporary directory and is stopped at the end, whatever
happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.cluster import StandaloneCluster

StartCluster = Callable[..., StandaloneCluster]


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts clusters: `start_cluster(bookies=3, name=..., LEDGERSTREAM_X="...")`."""
    started: list[StandaloneCluster] = []

    def start(
        *options: str, bookies: int | None = None, name: str = "cluster", **variables: str
    ) -> StandaloneCluster:
        cluster = StandaloneCluster(tmp_path / name, bookies, options, variables)
        started.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Three bookies for all tests that stop nothing; each uses names of its own.

    They end with the tests of this folder: idle ones cost time, too.
    """
    cluster = StandaloneCluster(tmp_path_factory.mktemp("shared") / "cluster", None, ())
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(start_cluster: StartCluster) -> StandaloneCluster:
    """Three bookies, ready."""
    return start_cluster()
