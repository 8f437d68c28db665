"""A namespace on a simulated cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from bookie.testing import SimCluster
from stream import Namespace, NamespaceSettings


@asynccontextmanager
async def sim_namespace(
    cluster: SimCluster, **settings: Unpack[NamespaceSettings]
) -> AsyncIterator[Namespace]:
    """Yields a new namespace "n" with a client of its own."""
    async with cluster.client() as client:
        namespace = Namespace(client, "n")
        await namespace.ensure(**settings)
        yield namespace
