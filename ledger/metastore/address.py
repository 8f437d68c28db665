"""ClusterAddress: the text that names a cluster, parsed once. Pure.

The forms are `sqlite:///var/lib/c.db` (the text after `sqlite://` is the path), `memory:` (a new,
empty tree) and `zk://host:2181/ledgers` (ZooKeeper). Importing this module must not need any
driver's dependencies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ledger.errors import InvalidArgument
from ledger.metastore.layout import Layout
from ledger.metastore.zookeeper.address import (
    USUAL_ROOT,
    ZooKeeperAddress,
    is_zookeeper,
    parse_address,
)
from ledger.shown_text import shown_address

_SERVERS = re.compile(r"([^:/,\s]+:\d+(?:,[^:/,\s]+:\d+)*)/?(\S*)", re.ASCII)
_FORMS = "sqlite:///path/cluster.db or zk://host:2181/ledgers"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster's metadata is stored: in an SQLite file, in ZooKeeper, or in memory."""

    uri: str
    sqlite_path: str | None = None
    """The file, if the store is one."""
    zookeeper: ZooKeeperAddress | None = None

    @classmethod
    def parse(cls, uri: str) -> ClusterAddress:
        """Raises InvalidArgument for an address that no driver can serve."""
        scheme, colon, rest = uri.partition(":")
        if not colon:
            raise InvalidArgument(
                f"cluster address {shown_address(uri)!r} has no scheme: use {_FORMS}{_meant(uri)}"
            )
        if scheme == "memory":
            if rest.strip("/"):
                raise InvalidArgument(
                    f"cluster address {shown_address(uri)!r}: memory: takes nothing after it"
                )
            return cls(uri)
        if scheme == "sqlite":
            return cls(uri, sqlite_path=_sqlite_path(uri))
        if is_zookeeper(uri):
            return cls(uri, zookeeper=parse_address(uri))
        raise InvalidArgument(
            f"cluster address {shown_address(uri)!r}: unknown scheme {scheme!r}: "
            f"use {_FORMS}{_meant(uri)}"
        )

    @property
    def is_memory(self) -> bool:
        """Whether the store is a tree in this process's memory, which no other process can see."""
        return self.sqlite_path is None and self.zookeeper is None

    @property
    def root(self) -> str:
        """The node below which ledgers and bookies are stored, for LedgerStore and
        BookieRegistry: "/ledgers", or the last component of a `zk://` address."""
        return USUAL_ROOT if self.zookeeper is None else self.zookeeper.root

    @property
    def layout(self) -> Layout | None:
        """The layout of ledgers that the address asks for; None: that of the cluster."""
        if self.zookeeper is None or self.zookeeper.manager is None:
            return None
        return Layout(self.zookeeper.manager)


def _meant(uri: str) -> str:
    """Returns "; did you mean ...?" for a server or a file that is named without a scheme."""
    if servers := _SERVERS.fullmatch(uri):
        return f"; did you mean zk://{servers[1]}/{servers[2] or 'ledgers'}?"
    if ":" not in uri and (uri.startswith(("/", "./")) or uri.endswith(".db")):
        return f"; did you mean sqlite://{uri}?"
    return ""


def _sqlite_path(uri: str) -> str:
    """Returns all text after the two slashes. Other programs write four slashes before an absolute
    path, of which SQLite would take the first name for a host."""
    if not uri.startswith("sqlite://"):
        raise InvalidArgument(f"cluster address {uri!r} must start with sqlite://")
    path = uri.removeprefix("sqlite://")
    if path.startswith("//"):
        path = f"/{path.lstrip('/')}"
    if "\0" in path:
        raise InvalidArgument(f"cluster address {uri!r} contains NUL, which no path can")
    if not path or path.endswith("/"):
        raise InvalidArgument(f"cluster address {uri!r} names no file: use {_FORMS}")
    return path
