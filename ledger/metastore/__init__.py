"""Opens the metadata store a cluster address names; drivers are imported on demand.

Addresses: `sqlite:///var/lib/c.db` (the text after `sqlite://` is the path), `memory:` (a new,
empty tree of its own), `zk://host:2181/ledgers` (ZooKeeper). Importing this package must not
need any driver's dependencies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger.errors import InvalidArgument
from ledger.metastore.base import MetadataStore
from ledger.metastore.zookeeper.address import is_zookeeper, parse_address

__all__ = ["MetadataStore", "ledgers_root", "open_store"]

_FORMS = "sqlite:///path/cluster.db, zk://host:2181/ledgers or memory:"


@asynccontextmanager
async def open_store(uri: str, *, session_timeout_ms: int = 5000) -> AsyncIterator[MetadataStore]:
    """The store behind `uri` with a session of its own, which ends with the block.

    A process that dies loses its ephemeral nodes after at most about `session_timeout_ms`.
    Raises InvalidArgument for an address nobody can serve, MetadataCorrupt for a file that is
    not ours, MetadataUnavailable if the store cannot be reached.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon:
        raise InvalidArgument(f"cluster address {uri!r} has no scheme: use {_FORMS}")
    if scheme == "memory":
        if rest.strip("/"):
            raise InvalidArgument(f"cluster address {uri!r}: memory: takes nothing after it")
        from ledger.metastore.memory import MemoryStore, MemoryTree
        from ledger.metastore.sqlite.store import wall_clock_ms

        async with MemoryStore(MemoryTree(), wall_clock_ms) as in_memory:
            yield in_memory
    elif scheme == "sqlite":
        from ledger.metastore.sqlite.store import open_sqlite

        path = sqlite_path(uri)
        async with open_sqlite(path, session_timeout_ms=session_timeout_ms) as on_disk:
            yield on_disk
    elif is_zookeeper(uri):
        try:
            from ledger.metastore.zookeeper.store import open_zookeeper
        except ModuleNotFoundError as error:
            if error.name != "kazoo":
                raise
            raise InvalidArgument(
                f"cluster address {uri!r} needs kazoo, which is not installed. Cure:"
                " pip install 'ledgerstream[zookeeper]'"
            ) from error
        async with open_zookeeper(uri, session_timeout_ms=session_timeout_ms) as on_zookeeper:
            yield on_zookeeper
    else:
        raise InvalidArgument(f"cluster address {uri!r}: unknown scheme {scheme!r}: use {_FORMS}")


def ledgers_root(uri: str) -> str:
    """Where ledgers lie in the store behind `uri`: for LedgerStore and BookieRegistry.

    "/ledgers", or the last component of a `zk://` address. Raises InvalidArgument.
    """
    return parse_address(uri).root if is_zookeeper(uri) else "/ledgers"


def sqlite_path(uri: str) -> str:
    """The file a `sqlite://` address names: all text after the two slashes. Other programs write
    four before an absolute path, which SQLite would take for the name of a host."""
    if not uri.startswith("sqlite://"):
        raise InvalidArgument(f"cluster address {uri!r} must start with sqlite://")
    path = uri.removeprefix("sqlite://")
    if path.startswith("//"):
        path = f"/{path.lstrip('/')}"
    if not path or path.endswith("/"):
        raise InvalidArgument(f"cluster address {uri!r} names no file: use {_FORMS}")
    return path
