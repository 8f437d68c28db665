"""The clusters that the tests of this folder attack, and share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.attackers import Attacker, may_open_many_files
from tests.attacks.clusters import AttackedCluster


@pytest.fixture(scope="package")
def open_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedCluster]:
    yield from _running(AttackedCluster(tmp_path_factory.mktemp("open") / "c", is_secured=False))


@pytest.fixture(scope="package")
def secured_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedCluster]:
    yield from _running(AttackedCluster(tmp_path_factory.mktemp("secured") / "c", is_secured=True))


def _running(cluster: AttackedCluster) -> Iterator[AttackedCluster]:
    may_open_many_files()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.processes.stop()


@pytest.fixture(params=["open", "secured"])
def target(request: pytest.FixtureRequest) -> AttackedCluster:
    """A cluster that serves everybody, and a secured one."""
    cluster: AttackedCluster = request.getfixturevalue(f"{request.param}_cluster")
    return cluster


@pytest.fixture
def attacker(request: pytest.FixtureRequest) -> Attacker:
    kind: str = request.param
    name = "open_cluster" if kind == "open" else "secured_cluster"
    return Attacker(request.getfixturevalue(name), kind)
