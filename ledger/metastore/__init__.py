"""The cluster's metadata: which bookies there are, and what each ledger consists of.

This module opens the store that a cluster address names; it imports a driver on first use only, so
that importing it needs no driver's dependencies.

- `address`: the cluster address, parsed.
- `backup`: the metadata as lines of JSON, in both directions.
- `base`: the `MetadataStore` protocol, a versioned tree with sessions and watches.
- `bookies`: the registry of bookies and their cookies.
- `clients`: the ephemeral node of a client, by which others see that it lives.
- `cookie`: the identity of a bookie's data.
- `layout`: where ledgers are stored below the root; the LAYOUT node.
- `ledger_ids`: generation of ledger ids.
- `ledgers`: metadata of ledgers, changed by compare-and-set.
- `memory`: the driver for a tree in memory.
- `paths`: the form of paths and the limits of nodes.
- `registration`: keeps one bookie registered.
- `restores`: histories that were lost when the store was put back to an older state.
- `sqlite/`, `zookeeper/`: the other drivers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger.errors import InvalidArgument
from ledger.metastore.address import ClusterAddress
from ledger.metastore.base import MetadataStore

__all__ = ["ClusterAddress", "MetadataStore", "ledgers_root", "open_store"]


@asynccontextmanager
async def open_store(
    cluster: str | ClusterAddress, *, session_timeout_ms: int = 5000
) -> AsyncIterator[MetadataStore]:
    """The store at the address `cluster` with a session of its own, which ends with the block.

    A process that dies loses its ephemeral nodes after at most about `session_timeout_ms`.
    Raises InvalidArgument for an address that no driver can serve, MetadataCorrupt for a file that
    is not ours, MetadataUnavailable if the store cannot be reached.
    """
    address = ClusterAddress.parse(cluster) if isinstance(cluster, str) else cluster
    if address.sqlite_path is not None:
        from ledger.metastore.sqlite.store import open_sqlite

        path = address.sqlite_path
        async with open_sqlite(path, session_timeout_ms=session_timeout_ms) as on_disk:
            yield on_disk
    elif address.zookeeper is not None:
        try:
            from ledger.metastore.zookeeper.store import open_zookeeper
        except ModuleNotFoundError as error:
            if error.name != "kazoo":
                raise
            raise InvalidArgument(
                f"cluster address {address.uri!r} needs kazoo, which is not installed. Cure:"
                " pip install 'ledgerstream[zookeeper]'"
            ) from error
        zookeeper = address.zookeeper
        async with open_zookeeper(zookeeper, session_timeout_ms=session_timeout_ms) as on_zookeeper:
            yield on_zookeeper
    else:
        from ledger.metastore.memory import MemoryStore, MemoryTree
        from ledger.metastore.sqlite.store import wall_clock_ms

        async with MemoryStore(MemoryTree(), wall_clock_ms) as in_memory:
            yield in_memory


def ledgers_root(uri: str) -> str:
    """Returns the node below which ledgers are stored at this address. Raises InvalidArgument."""
    return ClusterAddress.parse(uri).root
