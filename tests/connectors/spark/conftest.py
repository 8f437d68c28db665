"""A cluster of real processes, for those tests of the connector that need no Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.spark.client import client_cache
from tests.spark.streams import Streams, connected
from tests.system.cluster import StandaloneCluster


@pytest.fixture(scope="package")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    """Streams of three bookies; `streams.cluster` is what the option `cluster` takes."""
    cluster = StandaloneCluster(tmp_path_factory.mktemp("connectors") / "cluster", None, ())
    try:
        cluster.start()
        with connected(cluster.uri) as streams:
            yield streams
    finally:
        cluster.stop()


@pytest.fixture(scope="package", autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    """What is kept for the life of a process would keep the background loop going under the tests
    of other folders."""
    yield
    for cluster in list(client_cache._clusters.values()):
        cluster.disconnect()
