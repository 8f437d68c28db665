"""A cluster of real processes, for tests of the connector without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.spark.client import client_cache
from tests.spark.streams import Streams, connected
from tests.system.cluster import StandaloneCluster


@pytest.fixture(scope="package")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    """Streams on three bookies; `streams.cluster` is the value of the option `cluster`."""
    cluster = StandaloneCluster(tmp_path_factory.mktemp("connectors") / "cluster", None, ())
    try:
        cluster.start()
        with connected(cluster.uri) as streams:
            yield streams
    finally:
        cluster.stop()


@pytest.fixture(scope="package", autouse=True)
def _disconnect_cached_clients() -> Iterator[None]:
    """Closes cached clients, which would keep the background loop alive for other tests."""
    yield
    for cluster in list(client_cache._clusters.values()):
        cluster.disconnect()
