"""Fixtures of the Spark suite: one Spark session and one cluster for all tests of a run.

A session takes ten seconds to start, so that tests share it and use streams of their own names.
All tests in this folder have the marker `spark`. They are skipped, with the reason, where Java or
PySpark is missing, except in CI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import skip_here
from tests.spark.session import SparkMissing, require_spark, spark_session
from tests.spark.streams import Streams, connected
from tests.system.cluster import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


def skip_without_spark() -> None:
    try:
        require_spark()
    except SparkMissing as error:
        skip_here(str(error))


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with `local[2]` and the format "ledgerstream". Tests must not stop it."""
    skip_without_spark()
    from connectors.spark import register

    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        register(session)
        yield session


@pytest.fixture(autouse=True)
def _no_query_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stops queries that a failed test has left running."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Three bookies with SQLite metadata; a test that kills one restarts it."""
    skip_without_spark()
    cluster = StandaloneCluster(tmp_path_factory.mktemp("spark-cluster") / "cluster", None, ())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="package")
def secure_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Bookies that encrypt, authenticate and permit; the credentials of the admin and others are in
    its folder `security`."""
    skip_without_spark()
    directory = tmp_path_factory.mktemp("spark-secure") / "cluster"
    cluster = StandaloneCluster(directory, None, ("--secure",))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="package")
def admin(secure_cluster: StandaloneCluster) -> Path:
    """The credentials of the admin of the secure cluster."""
    return secure_cluster.directory / "security" / "admin.toml"


@pytest.fixture(scope="package")
def secure_streams(secure_cluster: StandaloneCluster, admin: Path) -> Iterator[Streams]:
    """Streams of the secure cluster, for its admin."""
    with connected(secure_cluster.uri, admin) as streams:
        yield streams


@pytest.fixture(scope="package")
def streams(cluster: StandaloneCluster) -> Iterator[Streams]:
    """Streams of the cluster, for ordinary clients: `streams.written([b"one", b"two"])`."""
    with connected(cluster.uri) as streams:
        yield streams


@pytest.fixture
def new_checkpoint(tmp_path: Path) -> Callable[[], str]:
    """Returns new directories for Spark checkpoints."""
    numbers = iter(range(1, 1000))
    return lambda: str(tmp_path / f"spark-checkpoint-{next(numbers)}")
