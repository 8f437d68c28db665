"""Every kind of node in the metadata store, and what clients of streams may do to it.

The ACLs of ZooKeeper's nodes, docs/permissions.md and the tests of access are made from this table.
A node without a row cannot be made where the table is enforced. It has two identities: the owners
(bookies, auto-recovery, janitors, administrators), who may do everything, and clients. As in
ZooKeeper, whether a node may be created or deleted is a right on its parent.

Paths are those of a `MetadataStore`; `{root}` stands for the ledgers root.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ledger.errors import InvalidArgument, NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore


class Right(enum.IntFlag):
    """Rights on a node; the values are ZooKeeper's."""

    READ = 1
    """Its data and the names of its children."""
    WRITE = 2
    """Its data."""
    CREATE = 4
    """Children."""
    DELETE = 8
    """Children."""
    ADMIN = 16
    """Its ACL."""


NOTHING: Final = Right(0)
READ: Final = Right.READ
SHARED: Final = Right.READ | Right.WRITE | Right.CREATE | Right.DELETE
ALL: Final = SHARED | Right.ADMIN


@dataclass(frozen=True, slots=True)
class NodeKind:
    """One kind of node.

    Attributes:
        name: what it is, for documents.
        sample: the path of one, or of its folder.
        pattern: a regular expression for the paths of all, with `{root}`.
        clients: what clients may do to it.
    """

    name: str
    sample: str
    pattern: str
    clients: Right


_ID = r"[^/]+"
_BELOW = r"(/.*)?"
_OF_OPERATORS = (
    f"(decommissions|renames|empty-starts|bookies)(/{_ID})?"
    f"|restores|locations|janitor|autorecovery(/audit|/workers(/{_ID})?)?"
)

NODE_KINDS: Final = (
    # Without the right to delete, so that clients cannot remove LAYOUT or INSTANCEID.
    NodeKind("root of the ledgers", "{root}", "{root}", Right.READ | Right.CREATE),
    NodeKind("layout", "{root}/LAYOUT", "{root}/LAYOUT", READ),
    NodeKind("id of the cluster", "{root}/INSTANCEID", "{root}/INSTANCEID", READ),
    NodeKind("registrations", "{root}/available", "{root}/available(/readonly)?", READ),
    NodeKind(
        "registration", "{root}/available/b:3181", f"{{root}}/available(/readonly)?/{_ID}", READ
    ),
    NodeKind("cookies", "{root}/cookies", "{root}/cookies", READ),
    NodeKind("cookie", "{root}/cookies/b:3181", f"{{root}}/cookies/{_ID}", READ),
    NodeKind("ledgers", "{root}/00", "{root}(/[0-9]{{2,4}})+", SHARED),
    NodeKind(
        "metadata of a ledger", "{root}/00/0000/L0001", "{root}(/[0-9]{{2,4}})*/L[0-9]+", SHARED
    ),
    NodeKind(
        "counter of ledger ids",
        "{root}/idgen",
        "{root}/(idgen(/.*)?|idgen-long(/.*)?|ID-[0-9]*)",
        SHARED,
    ),
    NodeKind("auto-recovery", "{root}/underreplication", "{root}/underreplication", READ),
    NodeKind(
        "mark of a ledger without copies",
        "{root}/underreplication/ledgers",
        "{root}/underreplication/ledgers" + _BELOW,
        SHARED,
    ),
    NodeKind(
        "election, locks and settings of auto-recovery",
        "{root}/underreplication/locks",
        "{root}/underreplication/(locks(/.*)?|auditorelection(/.*)?|LAYOUT|disable"
        "|lostBookieRecoveryDelay|checkallledgersctime|replicascheckctime"
        "|placementpolicycheckctime)",
        READ,
    ),
    NodeKind("own root", "/ledgerstream", "/ledgerstream", READ),
    NodeKind("users", "/ledgerstream/users", "/ledgerstream/users", NOTHING),
    NodeKind("user", "/ledgerstream/users/ann", f"/ledgerstream/users/{_ID}", NOTHING),
    NodeKind(
        "secret of authentication",
        "/ledgerstream/authentication",
        "/ledgerstream/authentication",
        NOTHING,
    ),
    NodeKind("permissions", "/ledgerstream/permissions", "/ledgerstream/permissions", NOTHING),
    NodeKind(
        "state of bookies, restores, locations, the janitor's clock",
        "/ledgerstream/locations",
        f"/ledgerstream/({_OF_OPERATORS})",
        READ,
    ),
    NodeKind(
        "segments of streams that are gone",
        "/ledgerstream/gone-segments",
        "/ledgerstream/gone-segments",
        Right.READ | Right.WRITE,
    ),
    NodeKind("clients", "/ledgerstream/clients", f"/ledgerstream/clients(/{_ID})?", SHARED),
    NodeKind(
        "namespaces, streams, cursors, groups",
        "/ledgerstream/namespaces",
        "/ledgerstream/namespaces" + _BELOW,
        SHARED,
    ),
    NodeKind("sinks", "/ledgerstream/sinks", f"/ledgerstream/sinks(/{_ID})?", SHARED),
)
"""The first row whose pattern matches holds."""


def kind_of(path: str, root: str = "/ledgers") -> NodeKind | None:
    """Returns the kind of the node at `path`; None if it has no row.

    Nodes above the ledgers root have none either. Raises nothing.
    """
    for kind, pattern in _patterns(root):
        if pattern.fullmatch(path):
            return kind
    return None


def rights_of_clients(path: str, root: str = "/ledgers") -> Right:
    """Returns what clients may do to the node at `path`. Raises InvalidArgument for a node without
    a row in the table."""
    if path == "/" or root.startswith(f"{path}/"):
        return READ
    kind = kind_of(path, root)
    if kind is None:
        raise InvalidArgument(
            f"{path} has no row in the table of metadata nodes (ledger.metastore.node_kinds), so "
            "that nobody knows who may use it"
        )
    return kind.clients


async def make_shared_folders(store: MetadataStore, root: str) -> None:
    """Makes the nodes in which clients work and which they may not make, if they are missing.

    Raises MetadataUnavailable.
    """
    from ledger.metastore.underreplication_nodes import encode_layout  # slow to import

    folders = {
        f"{root}/idgen": b"",
        f"{root}/underreplication/LAYOUT": encode_layout(),
        f"{root}/underreplication/ledgers": b"",
        "/ledgerstream/gone-segments": b"1",
        "/ledgerstream/clients": b"",
        "/ledgerstream/namespaces": b"",
        "/ledgerstream/sinks": b"",
    }
    for path, data in folders.items():
        try:
            await store.get(path)
        except NoSuchNode:
            try:
                await store.create(path, data)
            except NodeExists:
                continue


@lru_cache(maxsize=16)
def _patterns(root: str) -> tuple[tuple[NodeKind, re.Pattern[str]], ...]:
    return tuple(
        (kind, re.compile(kind.pattern.format(root=re.escape(root)))) for kind in NODE_KINDS
    )
