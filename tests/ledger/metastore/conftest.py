"""Fixtures: the drivers that run the shared suite, and several sessions on one tree."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ledger.metastore import open_store
from ledger.metastore.base import MetadataStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.sqlite.store import open_sqlite, wall_clock_ms
from tests.zookeeper import RunningZooKeeper

OpenSession = Callable[[], AbstractAsyncContextManager[MetadataStore]]

_numbers = itertools.count()
DRIVERS = ["memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]


@pytest.fixture
def zookeeper_uri(shared_zookeeper: RunningZooKeeper) -> str:
    """Returns the address of a cluster of the test's own, of which not even the parents exist."""
    return f"zk://{shared_zookeeper.address}/test{next(_numbers)}/cluster/ledgers"


@pytest.fixture(params=DRIVERS)
def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> OpenSession:
    """Returns a function whose calls each open one more session on the same tree."""
    tree = MemoryTree()

    @asynccontextmanager
    async def in_memory() -> AsyncIterator[MetadataStore]:
        async with MemoryStore(tree, wall_clock_ms) as store:
            yield store

    @asynccontextmanager
    async def on_disk() -> AsyncIterator[MetadataStore]:
        async with open_sqlite(str(tmp_path / "cluster.db")) as store:
            yield store

    if request.param == "zookeeper":
        uri = request.getfixturevalue("zookeeper_uri")
        return lambda: open_store(uri, session_timeout_ms=20_000, may_create=True)
    return in_memory if request.param == "memory" else on_disk
