"""Makes the metadata of a cluster without any bookie, for tests that need none."""

from __future__ import annotations

import random

from ledger.metastore import ClusterAddress, open_store
from ledger.metastore.bookies import BookieRegistry


async def make_cluster(uri: str) -> str:
    """Makes what the first bookie of a cluster makes; returns the instance id."""
    async with open_store(uri, may_create=True) as store:
        registry = BookieRegistry(store, ClusterAddress.parse(uri).root)
        return await registry.init_cluster(random.Random(1))
