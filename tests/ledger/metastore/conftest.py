"""The drivers that pass the shared suite, and how several sessions on one tree are opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ledger.metastore.base import MetadataStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.sqlite import open_sqlite, wall_clock_ms

OpenSession = Callable[[], AbstractAsyncContextManager[MetadataStore]]


@pytest.fixture(params=["memory", "sqlite"])
def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> OpenSession:
    """Each call opens one more session on the same tree."""
    tree = MemoryTree()

    @asynccontextmanager
    async def in_memory() -> AsyncIterator[MetadataStore]:
        async with MemoryStore(tree, wall_clock_ms) as store:
            yield store

    @asynccontextmanager
    async def on_disk() -> AsyncIterator[MetadataStore]:
        async with open_sqlite(str(tmp_path / "cluster.db")) as store:
            yield store

    return in_memory if request.param == "memory" else on_disk
