"""Finds out whether an ephemeral create whose response was lost has happened.

A node of our own session was made by us; the first call that looks for it may claim it, unless
another call of this store was reported as its creator. Otherwise the outcome stays unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ledger.errors import NodeExists
from ledger.metastore.base import Change, Create, Delete
from ledger.metastore.zookeeper.errors import OutcomeUnknown
from ledger.metastore.zookeeper.session import ZooKeeperSession

TRIES_MAX = 5


class Ephemerals:
    """The ephemeral nodes that the store made in the present session, and possibly more: a node
    that is listed wrongly can at worst leave an outcome unknown."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._session_id: int | None = None
        self._made: set[str] = set()

    async def create(
        self,
        path: str,
        create: Callable[[], Awaitable[None]],
        look: Callable[[], Awaitable[Any]],
    ) -> None:
        """Calls `create` until its outcome is known; other errors of it are raised.

        `look` returns the node's stat, or None if there is no node.
        """
        is_unknown = False
        for is_last in [False] * TRIES_MAX + [True]:
            try:
                await create()
                break
            except NodeExists:
                # A server that was stopped may execute buffered requests after it has answered a
                # later connection: then the node of the earlier attempt exists.
                stat = await look() if is_unknown else None
                if stat is None or not self._is_by_this_call(path, stat):
                    raise
                break
            except OutcomeUnknown:
                is_unknown = True
                stat = await look()
                if is_last or (stat is not None and not self._is_by_this_call(path, stat)):
                    raise
                if stat is not None:
                    break
        self._forget_old_session()
        # Of two calls that find the node, the first counts as its creator.
        self._made.add(path)

    def expect(self, changes: Sequence[Change]) -> None:
        """Records that the store is about to try `changes`."""
        self._forget_old_session()
        self._made.update(c.path for c in changes if isinstance(c, Create) and c.is_ephemeral)

    def forget(self, changes: Sequence[Change]) -> None:
        """Records that the store has done `changes`: nodes they removed are no longer ours."""
        last = {c.path: c for c in changes if isinstance(c, Create | Delete)}
        self._made.difference_update(p for p, c in last.items() if isinstance(c, Delete))

    def _is_by_this_call(self, path: str, stat: Any) -> bool:
        self._forget_old_session()
        return stat.ephemeralOwner == self._session.session_id and path not in self._made

    def _forget_old_session(self) -> None:
        if self._session_id != self._session.session_id:
            self._session_id = self._session.session_id
            self._made.clear()
