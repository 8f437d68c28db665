"""The metadata store on ZooKeeper, for clusters of several machines; shared with Apache's programs.

The store's tree begins at the parent of the ledgers root, so that our own nodes are beside the
ledgers (their name differs between roots with the same parent), and clusters in one ZooKeeper are
separate. It uses threads, so it must never be used in the simulator.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from kazoo import exceptions as zk
from kazoo.client import KazooClient

from ledger.errors import InvalidArgument, LedgerError, MetadataUnavailable, NoSuchNode
from ledger.metastore.base import (
    ANY_VERSION,
    Change,
    Create,
    Delete,
    Node,
    Put,
    cluster_gone,
)
from ledger.metastore.paths import check_node, check_path, name_of, numbered, parent_of
from ledger.metastore.zookeeper.access import OPEN_ACCESS, ZooKeeperAccess
from ledger.metastore.zookeeper.address import OWN, ZooKeeperAddress, parse_address
from ledger.metastore.zookeeper.ephemerals import Ephemerals
from ledger.metastore.zookeeper.errors import OutcomeUnknown, translate
from ledger.metastore.zookeeper.session import Issue, ZooKeeperSession, synced
from ledger.metastore.zookeeper.transactions import Transactions
from ledger.metastore.zookeeper.watches import Watcher, Watches
from ledger.runtime.background import open_background
from ledger.runtime.certificates import TlsContext

SESSION_TIMEOUT_MS_MIN = 100
_ROOT = Node(b"", 0, 0)
_SKIPPED_MAX = 1_000_000
_BOUND_RETRY_S = 1.0
"""How often a watch whose node is absent looks whether the cluster is there again."""


@asynccontextmanager
async def open_zookeeper(
    cluster: str | ZooKeeperAddress,
    *,
    session_timeout_ms: int = 5000,
    tls: TlsContext | None = None,
    access: ZooKeeperAccess = OPEN_ACCESS,
) -> AsyncIterator[ZooKeeperStore]:
    """Opens a session with the ZooKeeper of a cluster; it ends with the block.

    `tls` encrypts it; the certificate must be for the server's name in the address. The server
    bounds `session_timeout_ms` (by default 2 to 20 of its ticks). Raises
    InvalidArgument, and MetadataUnavailable if no server is reached within that time.
    """
    address = parse_address(cluster) if isinstance(cluster, str) else cluster
    if session_timeout_ms < SESSION_TIMEOUT_MS_MIN:
        raise InvalidArgument(
            f"session timeout of {session_timeout_ms} ms, {SESSION_TIMEOUT_MS_MIN} at least"
        )
    session = ZooKeeperSession(address, session_timeout_ms, tls, access)
    try:
        async with open_background() as nursery:
            nursery.start_soon(session.run)
            give_up_at = trio.current_time() + session.patience_s
            await session.wait_connected(give_up_at, f"open {address.uri}")
            yield ZooKeeperStore(session)
    finally:
        await session.aclose()


class ZooKeeperStore:
    """A `MetadataStore`; made by `open_zookeeper`, which owns its tasks."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._chroot = session.address.chroot
        self._bound: tuple[str, bytes] | None = None
        self._changes = Transactions(session, self._whole, self._check_bound)
        self._ephemerals = Ephemerals(session)
        self._watches = Watches(session)

    @property
    def session(self) -> ZooKeeperSession:
        """The session that the store uses."""
        return self._session

    def bind(self, path: str, data: bytes) -> None:
        self._bound = (check_path(path), data)

    def commit_number(self) -> int | None:
        return None  # a server would have to be asked

    async def get(self, path: str) -> Node:
        whole = self._whole(check_path(path))
        try:
            data, stat = await self._read(whole, lambda client: client.get_async(whole), path)
        except NoSuchNode:
            if path == "/":
                return _ROOT
            await self._check_bound()
            raise
        return _node(data, stat)

    async def children(self, path: str) -> list[str]:
        whole = self._whole(check_path(path))
        try:
            names = await self._read(whole, lambda client: client.get_children_async(whole), path)
        except NoSuchNode:
            names = []
        if not names:
            await self._check_bound()
        return sorted(names)

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        check_node(path, len(data))
        change = Create(path, bytes(data), is_ephemeral)
        if not is_ephemeral:
            await self._create(change)
            return
        await self._ephemerals.create(
            path, lambda: self._create(change), lambda: self._changes.stat(path)
        )

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        change = Put(path, data, version)
        check_node(path, len(data))
        whole, content = self._whole(path), bytes(data)
        try:
            stat = await self._session.call(
                lambda client: client.set_async(whole, content, version),
                f"put {path}",
                is_change=True,
            )
        except zk.ZookeeperError as error:
            raise await self._explained(error, change) from error
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_node(path, 0)
        whole = self._whole(path)
        change = Delete(path, version)
        try:
            await self._session.call(
                lambda client: client.delete_async(whole, version),
                f"delete {path}",
                is_change=True,
            )
        except zk.ZookeeperError as error:
            raise await self._explained(error, change) from error
        self._ephemerals.forget([change])

    async def transaction(self, changes: Sequence[Change]) -> None:
        self._ephemerals.expect(changes)
        try:
            await self._changes.apply(changes)
        except NoSuchNode:
            await self._check_bound()
            raise
        self._ephemerals.forget(changes)

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        """Returns the next number of ZooKeeper, which counts per parent node in signed 32 bits.

        After 2^31-1 comes -2^31: a negative number means that the ids of `path` are exhausted.
        Nothing sets the counter: it is moved behind `beyond` by taking numbers.
        """
        counted = await self._next_id(path)
        if beyond - counted > _SKIPPED_MAX:
            raise InvalidArgument(
                f"the counter {path} is at {counted}, and ZooKeeper cannot move it behind {beyond}:"
                f" at most {_SKIPPED_MAX} numbers are skipped"
            )
        while 0 <= counted <= beyond:
            counted = await self._next_id(path)
        return counted

    async def _next_id(self, path: str) -> int:
        check_node(path, 0)
        whole = self._whole(path)
        while True:
            try:
                made = await self._make_numbered(whole)
            except zk.NoNodeError:
                await self._changes.make_parents(whole)
            except OutcomeUnknown:
                continue  # a gap is legal, and the node ends with the session
            except zk.ZookeeperError as error:
                raise translate(error, path) from error
            else:
                return int(made.removeprefix(whole))

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        check_node(numbered(prefix, 0), len(data))
        whole = self._whole(prefix)
        while True:
            try:
                made = await self._make_kept(whole, bytes(data))
            except zk.NoNodeError:
                await self._changes.make_parents(whole)
            except OutcomeUnknown as unknown:
                # It is not repeated: the lost one may be carried out later, and there would be two.
                try:
                    found = await self._find_numbered(prefix, data)
                except MetadataUnavailable:
                    raise unknown from None
                if found is None:
                    raise
                return found
            except zk.ZookeeperError as error:
                raise translate(error, prefix) from error
            else:
                return prefix + made.removeprefix(whole)

    def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        check_path(path)

        async def read(watcher: Watcher, is_patient: bool) -> tuple[object, Node | None]:
            while True:
                try:
                    data, stat = await self._read(
                        watcher.path,
                        lambda client: client.get_async(watcher.path, watch=watcher),
                        path,
                        is_patient,
                    )
                except NoSuchNode:
                    if await self._is_absent(watcher, path, is_patient):
                        return None, _ROOT if path == "/" else None
                else:
                    return (stat.czxid, stat.mzxid), _node(data, stat)

        return self._watches.follow(self._whole(path), read)

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        check_path(path)

        async def read(watcher: Watcher, is_patient: bool) -> tuple[object, list[str]]:
            while True:
                try:
                    names, stat = await self._read(
                        watcher.path,
                        lambda client: client.get_children_async(
                            watcher.path, watch=watcher, include_data=True
                        ),
                        path,
                        is_patient,
                    )
                except NoSuchNode:
                    if await self._is_absent(watcher, path, is_patient):
                        return None, []
                else:
                    if names or await self._is_bound(is_patient):
                        return (stat.czxid, stat.pzxid), sorted(names)

        return self._watches.follow(self._whole(path), read)

    async def aclose(self) -> None:
        await self._session.aclose()

    async def _create(self, change: Create) -> None:
        whole = self._whole(change.path)
        acl = self._session.acl_of(whole)
        try:
            await self._session.call(
                lambda client: client.create_async(
                    whole, change.data, acl, ephemeral=change.is_ephemeral
                ),
                f"create {change.path}",
                is_change=True,
            )
        except zk.NoNodeError:
            await self._changes.apply([change])
        except zk.ZookeeperError as error:
            raise await self._changes.explain(error, change) from error

    async def _make_numbered(self, whole: str) -> str:
        acl = self._session.acl_of(whole)

        def issue(client: KazooClient) -> Any:
            answer = client.create_async(whole, b"", acl, ephemeral=True, sequence=True)
            answer.rawlink(lambda made: self._session.completions.put(partial(self._unmake, made)))
            return answer

        made: str = await self._session.call(issue, f"take an id of {whole}", is_change=True)
        return made

    async def _make_kept(self, whole: str, data: bytes) -> str:
        sent: list[Any] = []
        acl = self._session.acl_of(whole)

        def issue(client: KazooClient) -> Any:
            sent.append(client.create_async(whole, data, acl, ephemeral=True, sequence=True))
            return sent[-1]

        try:
            made: str = await self._session.call(issue, f"create {whole}", is_change=True)
        except trio.Cancelled:
            for answer in sent:
                answer.rawlink(
                    lambda made: self._session.completions.put(partial(self._unmake, made))
                )
            raise
        return made

    async def _find_numbered(self, prefix: str, data: bytes) -> str | None:
        """Returns the node with this prefix and data that the present session has made."""
        parent, start = parent_of(prefix), name_of(prefix)
        names = [name for name in await self.children(parent) if name.startswith(start)]
        for name in reversed(names):  # the newest first
            path = prefix + name.removeprefix(start)
            whole = self._whole(path)
            try:
                found, stat = await self._read(
                    whole, partial(KazooClient.get_async, path=whole), path
                )
            except NoSuchNode:
                continue
            if (found or b"") == data and stat.ephemeralOwner == self._session.session_id:
                return path
        return None

    def _unmake(self, made: Any) -> None:
        """Deletes the node, also after a cancellation: nodes would accumulate in the session."""
        if made.exception is None:
            self._session.post(lambda client: client.delete_async(made.value))

    async def _explained(self, error: BaseException, change: Change) -> LedgerError:
        explained = await self._changes.explain(error, change)
        if isinstance(explained, NoSuchNode):
            await self._check_bound()
        return explained

    async def _check_bound(self) -> None:
        """Raises MetadataUnavailable if the node by which the cluster is known is not there."""
        if self._bound is None:
            return
        path, data = self._bound
        whole = self._whole(path)
        try:
            found, _ = await self._read(whole, lambda client: client.get_async(whole), path)
        except NoSuchNode:
            raise cluster_gone(path, None) from None
        if (found or b"") != data:
            raise cluster_gone(path, found or b"")

    async def _is_absent(self, watcher: Watcher, path: str, is_patient: bool) -> bool:
        """Sets the watch that fires when the node is created. Returns when its absence counts."""
        stat = await self._read(
            watcher.path,
            lambda client: client.exists_async(watcher.path, watch=watcher),
            path,
            is_patient,
        )
        return stat is None and await self._is_bound(is_patient)

    async def _is_bound(self, is_patient: bool) -> bool:
        """Whether the cluster is there. If it is not, raises MetadataUnavailable, or returns False
        after a while."""
        try:
            await self._check_bound()
        except MetadataUnavailable:
            if not is_patient:
                raise
            await trio.sleep(_BOUND_RETRY_S)
            return False
        return True

    async def _read(self, whole: str, issue: Issue, path: str, is_patient: bool = False) -> Any:
        """Reads a state that is never older than one that any client has seen before. Decisions
        depend on it, like deleting the entries of a missing ledger, and a server may lag behind."""
        try:
            return await self._session.call(
                synced(whole, issue), f"read {path}", is_change=False, patient=is_patient
            )
        except zk.ZookeeperError as error:
            raise translate(error, path) from error

    def whole_path(self, path: str) -> str:
        """Returns the path of a node from ZooKeeper's root."""
        return self._whole(path)

    def _whole(self, path: str) -> str:
        if path == "/":
            return self._chroot or "/"
        if path == OWN or path.startswith(f"{OWN}/"):
            path = self._session.address.own + path.removeprefix(OWN)
        return self._chroot + path


def _node(data: bytes | None, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.ctime)
