"""A namespace on real bookies in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stream import Namespace
from tests.real_cluster import SMALL, real_cluster


@asynccontextmanager
async def a_namespace(tmp_path: Path, **policy: Any) -> AsyncIterator[Namespace]:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        namespace = Namespace(client, "demo")
        await namespace.ensure(**policy)
        yield namespace
