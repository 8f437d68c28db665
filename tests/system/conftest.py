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
    """Returns a function that starts clusters: `start_cluster(bookies=3, name=...,
    LEDGERSTREAM_X="...")`."""
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
    """A cluster of three bookies for all tests that stop no process; each test uses its own names.

    It ends with the tests of this folder, because idle bookies take time, too.
    """
    cluster = StandaloneCluster(tmp_path_factory.mktemp("shared") / "cluster", None, ())
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="package")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Four bookies that encrypt, authenticate and permit, for tests that stop no process."""
    directory = tmp_path_factory.mktemp("secure") / "cluster"
    # As talkative as it can be, for the test of what it says.
    variables = {
        "LEDGERSTREAM_LOG_LEVEL": "debug",
        "LEDGERSTREAM_AUDIT_FILE": str(directory.parent / "audit.log"),
    }
    cluster = StandaloneCluster(directory, 4, ("--secure",), variables)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(start_cluster: StartCluster) -> StandaloneCluster:
    """A cluster of three bookies that serve."""
    return start_cluster()
