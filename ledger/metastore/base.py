"""The metadata store: a versioned tree with transactions, sessions and watches.

The part of ZooKeeper's functions that is needed here. Drivers: `memory`, `sqlite`, `zookeeper`.
Paths are absolute ("/ledgers/00/0000/L0001"); their components are non-empty, without "/" or NUL.
A node may have data *and* children. Missing parents are created.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ledger.errors import MetadataConflict, MetadataUnavailable, NodeExists, NoSuchNode

ANY_VERSION = -1
_TRIES_MAX = 100

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Node:
    """The data of a node, its version (0 when created, +1 per put) and its creation time."""

    data: bytes
    version: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    """Fails with NodeExists. `is_ephemeral`: the node ends with the session of this store object.

    A store whose session was lost continues with a new one; to notice that, watch the node.
    """

    path: str
    data: bytes
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Fails with NoSuchNode, or MetadataConflict if the version differs."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Fails with NoSuchNode, MetadataConflict (version), or InvalidArgument (has children)."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Succeeds if the node exists with this version (ANY_VERSION: if it exists)."""

    path: str
    version: int


Change = Create | Put | Delete | Check


def cluster_gone(path: str, other: bytes | None) -> MetadataUnavailable:
    """Returns the error for a session whose cluster is not in the store any more: the node `path`
    is missing, or has the data `other`."""
    now = "is gone" if other is None else f"has the data {other[:100]!r} of another cluster"
    return MetadataUnavailable(
        f"the node {path} of this cluster's metadata {now}: what else is missing there is unknown. "
        "Cure: restore the metadata, or restart this process if it was moved on purpose"
    )


class MetadataStore(Protocol):
    """One session on a metadata store.

    All methods raise MetadataUnavailable if the store cannot be reached. A change that raised it,
    or was cancelled, may still have taken effect: the caller reads and decides again.
    """

    def bind(self, path: str, data: bytes) -> None:
        """Declares that the session belongs to the cluster whose node `path` has this data.

        From then on, while that node is missing or has other data, absence is doubt: instead of
        NoSuchNode, an empty list, or the creation of missing parents there is MetadataUnavailable,
        and watches wait. The tree was deleted, or replaced by that of another cluster.
        """
        ...

    def commit_number(self) -> int | None:
        """Returns a number that changes with each change that any session commits, without asking
        the store; None if that cannot be known.

        It may change without one, too. While it is the same, everything that was read since it was
        returned for the first time is as it was.
        """
        ...

    async def get(self, path: str) -> Node:
        """Returns a node. Raises NoSuchNode."""
        ...

    async def children(self, path: str) -> list[str]:
        """Returns the names of the children, sorted; empty if the node does not exist."""
        ...

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        """Creates a node. Raises NodeExists."""
        ...

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Returns the new version. Raises NoSuchNode, MetadataConflict."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Deletes a node. Raises NoSuchNode, MetadataConflict, InvalidArgument (has children)."""
        ...

    async def transaction(self, changes: Sequence[Change]) -> None:
        """Applies all changes or none. Raises what the first failing change would raise."""
        ...

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        """Returns a number never returned before for this path, counting from 0. Gaps are legal.

        The number is greater than `beyond`, and so are all later ones. ZooKeeper counts there step
        by step, and raises InvalidArgument if that would be more than a million.
        ZooKeeper counts per parent ("/a/ID-" and "/a/x" share numbers), and up to 2^31-1: a
        negative number means that the numbers are exhausted.
        """
        ...

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        """Creates an ephemeral node and returns its path: `prefix` and a number of ten digits,
        greater than those of all nodes that were made in this way below the same parent before.

        `data` must differ from that of all nodes with this prefix: by it a create whose response
        was lost is found. A call makes at most one node. After MetadataUnavailable there may be
        one, also a while later: the caller looks for its data. ZooKeeper counts each child of the
        parent, and beyond 2^31-1 in negative numbers. Raises NodeExists if a node was made there
        by another call under that very name.
        """
        ...

    def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        """Yields the node (None while it does not exist) at once, and again after each change.

        Intermediate values may be skipped; the last one is never missed. The caller closes
        the iterator (`async with aclosing(store.watch(p)) as nodes`).
        """
        ...

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        """Yields the sorted names of the children at once, and again after they change."""
        ...

    async def aclose(self) -> None:
        """Ends the session: its ephemeral nodes are removed."""
        ...


async def update_node(
    store: MetadataStore,
    path: str,
    change: Callable[[Value], Value],
    *,
    none: Value,
    decode: Callable[[bytes], Value],
    encode: Callable[[Value], bytes],
) -> Value:
    """Changes one node by compare-and-set, again while others change it; returns what it then has.

    `none` is what a node that does not exist stands for. A change to what is there writes nothing.
    Raises MetadataConflict after 100 tries, MetadataUnavailable, and what the functions raise.
    """
    for _ in range(_TRIES_MAX):
        try:
            node = await store.get(path)
        except NoSuchNode:
            node = None
        present = none if node is None else decode(node.data)
        wanted = change(present)
        if wanted == present:
            return present
        try:
            if node is None:
                await store.create(path, encode(wanted))
            else:
                await store.put(path, encode(wanted), node.version)
        except (MetadataConflict, NodeExists, NoSuchNode):
            continue
        return wanted
    raise MetadataConflict(f"{path}: others changed it first {_TRIES_MAX} times")
