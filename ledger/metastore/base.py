"""The metadata door: a versioned tree with transactions, sessions and watches.

What ZooKeeper can do and we need, and no more. Drivers: `memory`, `sqlite`, `zookeeper`.
Paths are absolute ("/ledgers/00/0000/L0001"), components are non-empty, without "/" or NUL.
A node may have data *and* children. Parents are made as needed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

ANY_VERSION = -1


@dataclass(frozen=True, slots=True)
class Node:
    """Data of a node, its version (0 when created, +1 per put) and its creation time."""

    data: bytes
    version: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    """Fails with NodeExists. `is_ephemeral`: vanishes with the session of this store object.

    A store whose session was lost goes on with a new one; who must know watches the node.
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


class MetadataStore(Protocol):
    """All methods raise MetadataUnavailable when the store cannot be reached.

    A change that raised MetadataUnavailable or was cancelled may still have happened: callers
    read and decide again.
    """

    async def get(self, path: str) -> Node:
        """Raises NoSuchNode."""
        ...

    async def children(self, path: str) -> list[str]:
        """Names of the children, sorted; empty if the node does not exist."""
        ...

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        """Raises NodeExists."""
        ...

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Returns the new version. Raises NoSuchNode, MetadataConflict."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises NoSuchNode, MetadataConflict, InvalidArgument if it has children."""
        ...

    async def transaction(self, changes: Sequence[Change]) -> None:
        """All or nothing. Raises what the first failing change would raise."""
        ...

    async def next_id(self, path: str) -> int:
        """A number never returned before for this path, counting from 0. Gaps are legal.

        ZooKeeper counts per parent ("/a/ID-" and "/a/x" share numbers), and up to 2^31-1: what
        comes after is negative, and says that the numbers are used up.
        """
        ...

    def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        """Yields the node (None while it does not exist) at once and again after it changed.

        Intermediate values may be skipped; the last one is never missed. The caller closes
        the iterator (`async with aclosing(store.watch(p)) as nodes`).
        """
        ...

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        """Yields the sorted names of the children at once and again after they changed."""
        ...

    async def aclose(self) -> None:
        """Ends the session: ephemeral nodes vanish."""
        ...
