"""Transactions on ZooKeeper: all changes or none, including the creation of missing parents.

ZooKeeper creates no parents. The missing ones are looked up first and created in the same
transaction, so that a failed one leaves no trace. If another client created or removed a parent
meanwhile, everything is done again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo import exceptions as zk
from kazoo.client import KazooClient

from ledger.errors import InvalidArgument, LedgerError, MetadataConflict, NodeExists
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, Delete, Put
from ledger.metastore.paths import (
    TRANSACTION_CHANGES_MAX,
    ancestors_of,
    check_node,
    check_path,
)
from ledger.metastore.zookeeper.errors import translate
from ledger.metastore.zookeeper.session import ZooKeeperSession, synced

TRANSACTION_BYTES_MAX = 1_040_000
"""A request above 0xfffff bytes (ZooKeeper's jute.maxbuffer) ends the connection."""

CHANGE_BYTES = 48
"""Bytes of a create, the largest change, besides its path and data."""

TRIES_MAX = 100
"""Each lost try means that another client created or removed a parent meanwhile."""

_NOT_THE_CAUSE = (zk.RolledBackError, zk.RuntimeInconsistency)


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation of a try. `path` is the whole path; `is_parent`: a parent that is created."""

    change: Change
    path: str
    is_parent: bool = False


class Transactions:
    """The changes of a store. `whole` returns the path from ZooKeeper's root. `check_cluster` is
    awaited before missing parents are created, and may raise."""

    def __init__(
        self,
        session: ZooKeeperSession,
        whole: Callable[[str], str],
        check_cluster: Callable[[], Awaitable[None]],
    ) -> None:
        self._session = session
        self._whole = whole
        self._check_cluster = check_cluster

    async def apply(self, changes: Sequence[Change]) -> None:
        """Applies all changes. Raises what the first failing change raises; MetadataUnavailable."""
        wanted = [_Step(change, self._whole(change.path)) for change in check_changes(changes)]
        if not wanted:
            return
        steps = wanted
        for _ in range(TRIES_MAX):
            _check_size(steps, len(wanted))
            failed = await self._try(steps)
            if failed is None:
                return
            step, error = failed
            is_parent_missing = isinstance(step.change, Create) and isinstance(
                error, zk.NoNodeError
            )
            if not is_parent_missing and not (
                step.is_parent and isinstance(error, zk.NodeExistsError)
            ):
                raise await self.explain(error, step.change)
            if is_parent_missing:
                await self._check_cluster()
            steps = await self._with_parents(wanted)
        raise MetadataConflict(
            f"{wanted[0].change.path}: others created and removed its parents {TRIES_MAX} times"
        )

    async def make_parents(self, path: str) -> None:
        """Creates the parents of a whole path, without a transaction."""
        await self._check_cluster()
        for parent in ancestors_of(path):
            try:
                await self._session.call(
                    partial(
                        KazooClient.create_async,
                        path=parent,
                        value=b"",
                        acl=self._session.acl_of(parent),
                    ),
                    f"create {parent}",
                    is_change=True,
                )
            except zk.NodeExistsError:
                continue
            except zk.ZookeeperError as error:
                if isinstance(error, zk.NoAuthError) and (await self._exist([parent]))[parent]:
                    continue
                raise translate(error, parent) from error

    async def explain(self, error: BaseException, change: Change) -> LedgerError:
        """Returns the error for a failed `change`, with the present state of the node."""
        path = change.path
        # ZooKeeper looks whether the parent may be changed before it looks for the node.
        is_create_refused = isinstance(error, zk.NoAuthError) and isinstance(change, Create)
        if is_create_refused and await self.stat(path) is not None:
            return NodeExists(f"metadata node {path} already exists")
        if isinstance(error, zk.BadVersionError):
            assert isinstance(change, Put | Delete | Check), f"{change!r} has no version"
            stat = await self.stat(path)
            differs = stat is not None and stat.version != change.version
            now = f"has version {stat.version}" if differs else "had another version"
            return MetadataConflict(f"metadata node {path} {now}, expected {change.version}")
        if isinstance(error, zk.NotEmptyError):
            stat = await self.stat(path)
            count = stat.numChildren if stat is not None else "some"
            return InvalidArgument(f"{path} has {count} children: not deleted")
        return translate(error, path)

    async def stat(self, path: str) -> Any:
        """Returns the node's present stat, None if there is no node."""
        (stat,) = await self._stats([self._whole(path)])
        return stat

    async def _try(self, steps: Sequence[_Step]) -> tuple[_Step, BaseException] | None:
        made = [step.path for step in steps if isinstance(step.change, Create)]
        acls = {path: self._session.acl_of(path) for path in made}

        def issue(client: KazooClient) -> Any:
            transaction = client.transaction()
            for step in steps:
                _add(transaction, step, acls.get(step.path))
            return transaction.commit_async()

        first = steps[0].change.path
        what = f"a transaction of {len(steps)} changes that begins with {first}"
        try:
            results = await self._session.call(issue, what, is_change=True)
        except zk.ZookeeperError as error:
            raise translate(error, first) from error
        for step, result in zip(steps, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, _NOT_THE_CAUSE):
                return step, result
        failed = [result for result in results if isinstance(result, BaseException)]
        assert not failed, f"a transaction failed and no change of it is the cause: {failed}"
        return None

    async def _with_parents(self, wanted: Sequence[_Step]) -> list[_Step]:
        """Returns `wanted` with a Create for each parent that would be missing."""
        parents = [ancestors_of(s.path) for s in wanted if isinstance(s.change, Create)]
        exists = await self._exist(list(dict.fromkeys(p for each in parents for p in each)))
        steps: list[_Step] = []
        for step in wanted:
            if isinstance(step.change, Create):
                for parent in ancestors_of(step.path):
                    if not exists[parent]:
                        made = Create(parent, b"")
                        steps.append(_Step(made, parent, is_parent=True))
                        exists[parent] = True
                exists[step.path] = True
            elif isinstance(step.change, Delete):
                exists[step.path] = False
            steps.append(step)
        return steps

    async def _exist(self, paths: Sequence[str]) -> dict[str, bool]:
        """Returns which whole paths exist, in one burst of requests."""
        stats = await self._stats(paths) if paths else []
        return {path: stat is not None for path, stat in zip(paths, stats, strict=True)}

    async def _stats(self, paths: Sequence[str]) -> list[Any]:
        answers: list[Any] = []

        def issue(client: KazooClient) -> Any:
            answers[:] = [client.exists_async(path) for path in paths]
            return answers[-1]  # responses arrive in order

        try:
            await self._session.call(
                synced(paths[0], issue), f"look at {paths[-1]}", is_change=False
            )
            return [answer.get_nowait() for answer in answers]
        except zk.ZookeeperError as error:
            raise translate(error, paths[-1]) from error


def check_changes(changes: Sequence[Change]) -> list[Change]:
    """Raises InvalidArgument for changes that ZooKeeper would refuse or that would break the
    connection; leaves out those that always succeed."""
    if len(changes) > TRANSACTION_CHANGES_MAX:
        raise InvalidArgument(
            f"a transaction of {len(changes)} changes, {TRANSACTION_CHANGES_MAX} at most"
        )
    for change in changes:
        if isinstance(change, Check):
            check_path(change.path)
        else:
            check_node(change.path, _data_bytes(change))
    # The root exists, even while there is no node for it yet.
    return [c for c in changes if c != Check("/", ANY_VERSION)]


def _check_size(steps: Sequence[_Step], count: int) -> None:
    """Checks the size of the request, with whole paths and the parents to be created."""
    size = sum(len(s.path.encode()) + CHANGE_BYTES + _data_bytes(s.change) for s in steps)
    if size > TRANSACTION_BYTES_MAX:
        made = len(steps) - count
        raise InvalidArgument(
            f"a transaction of {count} changes{f' and {made} parents' if made else ''}, about"
            f" {size} bytes, {TRANSACTION_BYTES_MAX} at most with ZooKeeper"
        )


def _data_bytes(change: Change) -> int:
    return len(change.data) if isinstance(change, Create | Put) else 0


def _add(transaction: Any, step: _Step, acl: Any) -> None:
    change, path = step.change, step.path
    if isinstance(change, Create):
        transaction.create(path, bytes(change.data), acl, ephemeral=change.is_ephemeral)
    elif isinstance(change, Put):
        transaction.set_data(path, bytes(change.data), change.version)
    elif isinstance(change, Delete):
        transaction.delete(path, change.version)
    else:
        assert isinstance(change, Check), f"unknown change {change!r}"
        transaction.check(path, change.version)
