"""The metadata tree in memory: for tests, for the simulator, for a cluster in one process.

`MemoryTree` is the shared state, `MemoryStore` one session on it. A change happens between two
checkpoints, so it is atomic; all iteration is in insertion or sorted order, so that the same seed
leads to the same run. Nothing is ever written to disk.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import trio

from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import (
    ANY_VERSION,
    Change,
    Check,
    Create,
    Delete,
    Node,
    Put,
    cluster_gone,
)
from ledger.metastore.paths import (
    TRANSACTION_CHANGES_MAX,
    ancestors_of,
    check_node,
    check_path,
    counter_of,
    name_of,
    numbered,
    parent_of,
)

T = TypeVar("T")


_WatchKey = tuple[str, bool]
"""A path, and whether its children are watched rather than the node."""


@dataclass(slots=True, eq=False)
class _Session:
    ephemerals: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _TreeNode:
    node: Node
    owner: _Session | None
    children: dict[str, None] = field(default_factory=dict)


class _Watcher:
    """One waiting iterator, compared by identity."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = trio.Event()


@dataclass(frozen=True, slots=True)
class TreeBackup:
    """A copy of a `MemoryTree`."""

    nodes: dict[str, Node]
    ids: dict[str, int]


class MemoryTree:
    """The tree that several `MemoryStore`s share; it is used only through them."""

    def __init__(self) -> None:
        self._nodes: dict[str, _TreeNode] = {"/": _TreeNode(Node(b"", 0, 0), None)}
        self._ids: dict[str, int] = {}
        self._watchers: dict[_WatchKey, dict[_Watcher, None]] = {}
        self.commits = 0
        """Changes so far."""

    # Reading.

    def get(self, path: str) -> Node | None:
        found = self._nodes.get(path)
        return found.node if found is not None else None

    def children(self, path: str) -> list[str]:
        found = self._nodes.get(path)
        return sorted(found.children) if found is not None else []

    def take_id(self, path: str, beyond: int = -1) -> int:
        taken = max(self._ids.get(path, 0), beyond + 1)
        self._ids[path] = taken + 1
        return taken

    # Copies.

    def backup(self) -> TreeBackup:
        """Returns a copy of all nodes that belong to no session, and of the counters."""
        kept = {path: each.node for path, each in self._nodes.items() if each.owner is None}
        return TreeBackup(kept, dict(self._ids))

    def put_back(self, backup: TreeBackup) -> None:
        """Replaces everything by a copy, as if the store had been restored while it was stopped:
        sessions continue without their nodes."""
        watched = list(self._watchers)
        for found in self._nodes.values():
            if found.owner is not None:
                found.owner.ephemerals = {}
        self._ids = dict(backup.ids)
        self._nodes = {path: _TreeNode(node, None) for path, node in backup.nodes.items()}
        for path in self._nodes:
            if path != "/":
                self._nodes[parent_of(path)].children[name_of(path)] = None
        self._wake(watched)

    # Changing: all changes or none, then the watchers are woken.

    def apply(self, changes: Sequence[Change], session: _Session, now_ms: int) -> None:
        undo: list[Callable[[], None]] = []
        touched: list[_WatchKey] = []
        try:
            for change in changes:
                self._apply_one(change, session, now_ms, undo, touched)
        except BaseException:
            for step in reversed(undo):
                step()
            raise
        self._wake(touched)

    def drop_ephemerals(self, session: _Session) -> None:
        touched: list[_WatchKey] = []
        for path in session.ephemerals:
            del self._nodes[path]
            parent = parent_of(path)
            del self._nodes[parent].children[name_of(path)]
            touched += ((path, False), (parent, True))
        session.ephemerals = {}
        self._wake(touched)

    def _apply_one(
        self,
        change: Change,
        session: _Session,
        now_ms: int,
        undo: list[Callable[[], None]],
        touched: list[_WatchKey],
    ) -> None:
        path = change.path
        if isinstance(change, Create):
            check_node(path, len(change.data))
            if path in self._nodes:
                raise NodeExists(f"metadata node {path} already exists")
            for missing in ancestors_of(path):
                if missing not in self._nodes:
                    self._insert(missing, Node(b"", 0, now_ms), None, undo, touched)
            owner = session if change.is_ephemeral else None
            self._insert(path, Node(bytes(change.data), 0, now_ms), owner, undo, touched)
            return
        found = self._expect(check_path(path), change.version)
        if isinstance(change, Put):
            check_node(path, len(change.data))
            old = found.node
            found.node = Node(bytes(change.data), old.version + 1, old.created_ms)
            undo.append(lambda: setattr(found, "node", old))
            touched.append((path, False))
        elif isinstance(change, Delete):
            check_node(path, 0)
            if found.children:
                raise InvalidArgument(f"{path} has {len(found.children)} children: not deleted")
            self._remove(path, found, undo, touched)
        else:
            assert isinstance(change, Check), f"unknown change {change!r}"

    def _expect(self, path: str, version: int) -> _TreeNode:
        found = self._nodes.get(path)
        if found is None:
            raise NoSuchNode(f"no metadata node {path}")
        if version not in (ANY_VERSION, found.node.version):
            raise MetadataConflict(
                f"metadata node {path} has version {found.node.version}, expected {version}"
            )
        return found

    def _insert(
        self,
        path: str,
        node: Node,
        owner: _Session | None,
        undo: list[Callable[[], None]],
        touched: list[_WatchKey],
    ) -> None:
        parent = self._nodes[parent_of(path)]
        if parent.owner is not None:
            raise InvalidArgument(f"{parent_of(path)} is ephemeral and cannot have children")
        self._nodes[path] = _TreeNode(node, owner)
        parent.children[name_of(path)] = None
        if owner is not None:
            owner.ephemerals[path] = None

        def undo_insert() -> None:
            del self._nodes[path]
            del parent.children[name_of(path)]
            if owner is not None:
                del owner.ephemerals[path]

        undo.append(undo_insert)
        touched += ((path, False), (parent_of(path), True))

    def _remove(
        self, path: str, found: _TreeNode, undo: list[Callable[[], None]], touched: list[_WatchKey]
    ) -> None:
        parent = self._nodes[parent_of(path)]
        del self._nodes[path]
        del parent.children[name_of(path)]
        if found.owner is not None:
            del found.owner.ephemerals[path]

        def undo_remove() -> None:
            self._nodes[path] = found
            parent.children[name_of(path)] = None
            if found.owner is not None:
                found.owner.ephemerals[path] = None

        undo.append(undo_remove)
        touched += ((path, False), (parent_of(path), True))

    # Watching.

    def add_watcher(self, key: _WatchKey, watcher: _Watcher) -> _Watcher:
        self._watchers.setdefault(key, {})[watcher] = None
        return watcher

    def remove_watcher(self, key: _WatchKey, watcher: _Watcher) -> None:
        watchers = self._watchers[key]
        del watchers[watcher]
        if not watchers:
            del self._watchers[key]

    def _wake(self, keys: list[_WatchKey]) -> None:
        self.commits += 1
        for key in dict.fromkeys(keys):
            for watcher in self._watchers.get(key, ()):
                watcher.event.set()


class MemoryStore:
    """One session on a `MemoryTree`; a `MetadataStore`.

    `now_ms` is the wall clock in milliseconds, used for the creation time of nodes.
    """

    def __init__(self, tree: MemoryTree, now_ms: Callable[[], int]) -> None:
        self._tree = tree
        self._now_ms = now_ms
        self._session = _Session()
        self._watchers: dict[_Watcher, None] = {}
        self._is_closed = False
        self._bound: tuple[str, bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def bind(self, path: str, data: bytes) -> None:
        self._bound = (check_path(path), data)

    def commit_number(self) -> int | None:
        return None if self._is_closed else self._tree.commits

    async def get(self, path: str) -> Node:
        await self._begin()
        node = self._tree.get(check_path(path))
        if node is None:
            self._check_bound()
            raise NoSuchNode(f"no metadata node {path}")
        return node

    async def children(self, path: str) -> list[str]:
        await self._begin()
        names = self._tree.children(check_path(path))
        if not names:
            self._check_bound()
        return names

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        await self.transaction([Create(path, data, is_ephemeral)])

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        await self.transaction([Put(path, data, version)])
        node = self._tree.get(path)  # nothing ran since the change
        assert node is not None, f"{path} vanished while it was put"
        return node.version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.transaction([Delete(path, version)])

    async def transaction(self, changes: Sequence[Change]) -> None:
        await self._begin()
        if len(changes) > TRANSACTION_CHANGES_MAX:
            raise InvalidArgument(
                f"a transaction of {len(changes)} changes, {TRANSACTION_CHANGES_MAX} at most"
            )
        self.apply(changes)

    def apply(self, changes: Sequence[Change]) -> None:
        """Applies a transaction without a checkpoint."""
        if any(
            isinstance(c, Create) and self._tree.get(parent_of(c.path)) is None for c in changes
        ):
            self._check_bound()
        try:
            self._tree.apply(changes, self._session, self._now_ms())
        except NoSuchNode:
            self._check_bound()
            raise

    @property
    def session(self) -> object:
        """The present session; another object after the session was lost."""
        return self._session

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        await self._begin()
        self._check_bound()
        return self._tree.take_id(check_path(path), beyond)

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        await self._begin()
        return self.apply_numbered(prefix, data)

    def apply_numbered(self, prefix: str, data: bytes) -> str:
        """Creates a numbered node without a checkpoint."""
        check_node(numbered(prefix, 0), len(data))
        self._check_bound()
        path = numbered(prefix, self._tree.take_id(counter_of(prefix)))
        self.apply([Create(path, data, is_ephemeral=True)])
        return path

    def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        return self._watch((check_path(path), False), self._tree.get)

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        return self._watch((check_path(path), True), self._tree.children)

    async def aclose(self) -> None:
        self._close()
        await trio.lowlevel.checkpoint()

    def expire_session(self) -> None:
        """Ends the session as a lost connection would: ephemeral nodes are removed at once."""
        ended = self._session
        if not self._is_closed:
            self._session = _Session()
        self._tree.drop_ephemerals(ended)

    def _close(self) -> None:
        self._is_closed = True
        self.expire_session()
        for watcher in self._watchers:
            watcher.event.set()

    async def _watch(self, key: _WatchKey, read: Callable[[str], T]) -> AsyncGenerator[T, None]:
        watcher = self._tree.add_watcher(key, _Watcher())
        self._watchers[watcher] = None
        is_first = True
        try:
            while True:
                await self._begin()
                watcher.event = trio.Event()
                value = read(key[0])
                if not value and is_first:
                    self._check_bound()
                if value or self._doubt() is None:
                    yield value
                    is_first = False
                    await watcher.event.wait()
                else:
                    await self._wait_bound(watcher.event)
        finally:
            self._tree.remove_watcher(key, watcher)
            del self._watchers[watcher]

    async def _wait_bound(self, event: trio.Event) -> None:
        """Waits for `event`, or for a change of the node by which the cluster is known."""
        assert self._bound is not None
        mark = (self._bound[0], False)
        other = self._tree.add_watcher(mark, _Watcher())
        other.event = event
        try:
            await event.wait()
        finally:
            self._tree.remove_watcher(mark, other)

    def _doubt(self) -> MetadataUnavailable | None:
        """Returns the error if the cluster to which this session is bound is not there."""
        if self._bound is None:
            return None
        path, data = self._bound
        node = self._tree.get(path)
        found = None if node is None else node.data
        return None if found == data else cluster_gone(path, found)

    def _check_bound(self) -> None:
        if (doubt := self._doubt()) is not None:
            raise doubt

    async def _begin(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            raise MetadataUnavailable("this metadata store is closed")
