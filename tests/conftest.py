"""Fixtures that several suites share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.zookeeper_server import ZooKeeperMissing, find_jars, find_java
from tests.zookeeper import RunningZooKeeper, running_zookeeper


def skip_without_zookeeper() -> None:
    try:
        find_java()
        find_jars()
    except ZooKeeperMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    """One server for all tests that leave it running; each uses paths of its own."""
    skip_without_zookeeper()
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_server(tmp_path: Path) -> Iterator[RunningZooKeeper]:
    """A server of the test's own, to kill and pause."""
    skip_without_zookeeper()
    with running_zookeeper(tmp_path / "zookeeper") as server:
        yield server
