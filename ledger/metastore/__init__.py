"""The cluster's metadata: which bookies there are, and what each ledger consists of.

This module opens the store that a cluster address names; it imports a driver on first use only, so
that importing it needs no driver's dependencies.

- `address`: the cluster address, parsed.
- `backup`: the metadata as lines of JSON, in both directions.
- `base`: the `MetadataStore` protocol, a versioned tree with sessions and watches.
- `bookies`: the registry of bookies and their cookies.
- `clients`: the ephemeral node of a client, by which others see that it lives.
- `cluster_secret`: the secrets of a cluster, from a file.
- `cookie`: the identity of a bookie's data.
- `decommissions`: which bookies are to be emptied, and how far that has come.
- `election`: who is the auditor, in one order with Apache's candidates.
- `layout`: where ledgers are stored below the root; the LAYOUT node.
- `ledger_ids`: generation of ledger ids.
- `ledgers`: metadata of ledgers, changed by compare-and-set.
- `locations`: where bookies are: the table that an operator keeps.
- `memory`: the driver for a tree in memory.
- `paths`: the form of paths and ids, and the limits of nodes.
- `permissions`: the grants of all users.
- `registration`: keeps one bookie registered.
- `restores`: histories that were lost when the store was put back to an older state.
- `underreplication`: which ledgers lack copies, and who copies them.
- `users`: who may authenticate with a password.
- `zookeeper_access`: the credentials for ZooKeeper, from a file.
- `sqlite/`, `zookeeper/`: the other drivers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ledger.errors import InvalidArgument, NoSuchCluster, NoSuchNode
from ledger.metastore.address import ClusterAddress
from ledger.metastore.base import MetadataStore
from ledger.options import ClientOptions

if TYPE_CHECKING:
    from ledger.metastore.zookeeper.access import ZooKeeperAccess
    from ledger.runtime.certificates import TlsContext

__all__ = [
    "ClusterAddress",
    "MetadataStore",
    "bind_to_cluster",
    "ledgers_root",
    "open_metadata",
    "open_store",
]


@asynccontextmanager
async def open_metadata(
    cluster: str | ClusterAddress, options: ClientOptions, *, may_create: bool = False
) -> AsyncIterator[MetadataStore]:
    """The store of a cluster as a client with these options opens it: encrypted if they say so,
    and as the user whom they or the environment name. `may_create` and errors are those of
    `open_store`; also InvalidArgument for files that cannot be used."""
    from ledger.metastore.zookeeper_access import load_access

    tls = None
    if options.metadata_tls:
        from ledger.runtime.certificates import client_tls

        tls = client_tls(options)
    access = load_access(options.zookeeper_acl, options.zookeeper_credentials_file, os.environ)
    async with open_store(cluster, may_create=may_create, tls=tls, access=access) as store:
        yield store


@asynccontextmanager
async def open_store(
    cluster: str | ClusterAddress,
    *,
    session_timeout_ms: int = 5000,
    root: str | None = None,
    may_create: bool = False,
    tls: TlsContext | None = None,
    access: ZooKeeperAccess | None = None,
) -> AsyncIterator[MetadataStore]:
    """The store at the address `cluster` with a session of its own, which ends with the block.

    There must be a cluster below `root` (default: that of the address), unless `may_create`, which
    is only for bookies with empty disks: they make clusters. Otherwise nothing is created, and a
    cluster that vanishes later is MetadataUnavailable (`MetadataStore.bind`).

    `tls` encrypts the connections to ZooKeeper; other stores have none.
    `access`: as whom a session with ZooKeeper acts; None: as the environment says.

    A process that dies loses its ephemeral nodes after at most about `session_timeout_ms`.
    Raises NoSuchCluster, InvalidArgument for an address that no driver can serve, MetadataCorrupt
    for a file that is not ours, MetadataUnavailable if the store cannot be reached.
    """
    address = ClusterAddress.parse(cluster) if isinstance(cluster, str) else cluster
    async with _open_driver(address, session_timeout_ms, may_create, tls, access) as store:
        if not may_create and not address.is_memory:
            await bind_to_cluster(store, address.root if root is None else root, address.uri)
        yield store


@asynccontextmanager
async def _open_driver(
    address: ClusterAddress,
    session_timeout_ms: int,
    may_create: bool,
    tls: TlsContext | None,
    access: ZooKeeperAccess | None,
) -> AsyncIterator[MetadataStore]:
    if address.sqlite_path is not None:
        from ledger.metastore.sqlite.store import open_sqlite

        async with open_sqlite(
            address.sqlite_path,
            session_timeout_ms=session_timeout_ms,
            uri=address.uri,
            may_create=may_create,
        ) as on_disk:
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
        from ledger.metastore.zookeeper_access import load_access

        async with open_zookeeper(
            address.zookeeper,
            session_timeout_ms=session_timeout_ms,
            tls=tls,
            access=access or load_access("", "", os.environ),
        ) as on_zookeeper:
            yield on_zookeeper
    else:
        from ledger.metastore.memory import MemoryStore, MemoryTree
        from ledger.metastore.sqlite.store import wall_clock_ms

        async with MemoryStore(MemoryTree(), wall_clock_ms) as in_memory:
            yield in_memory


async def bind_to_cluster(store: MetadataStore, root: str, uri: str) -> None:
    """Binds a session to the cluster below `root`. Raises NoSuchCluster if there is none.

    A cluster that has neither INSTANCEID nor LAYOUT, but a folder of bookies, exists too: other
    programs make such clusters. It has no mark by which its absence could be noticed.
    """
    for name in ("INSTANCEID", "LAYOUT"):
        path = f"{root}/{name}"
        try:
            store.bind(path, (await store.get(path)).data)
        except NoSuchNode:
            continue
        return
    try:
        await store.get(f"{root}/available")
    except NoSuchNode:
        raise NoSuchCluster(
            f"there is no cluster at {uri if uri.isprintable() else repr(uri)}: the metadata store "
            f"has no node {root!r} with INSTANCEID, LAYOUT or available. Cure: give the "
            "metadata_uri of its bookies; the first bookie of a new cluster makes the nodes"
        ) from None


def ledgers_root(uri: str) -> str:
    """Returns the node below which ledgers are stored at this address. Raises InvalidArgument."""
    return ClusterAddress.parse(uri).root
