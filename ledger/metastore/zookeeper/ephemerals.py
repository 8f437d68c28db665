"""Finds out whether an ephemeral create whose answer was lost has happened.

A node that belongs to our own session was made by us; a call may have it that looks for it
first, if no other call of this store was told so. Else the outcome stays unknown to the caller.
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
    """The ephemeral nodes of the link's present session that its store made, and maybe more:
    what is taken for ours can at worst leave an outcome unknown."""

    def __init__(self, link: ZooKeeperSession) -> None:
        self._link = link
        self._session_id: int | None = None
        self._made: set[str] = set()

    async def create(
        self,
        path: str,
        create: Callable[[], Awaitable[None]],
        look: Callable[[], Awaitable[Any]],
    ) -> None:
        """Calls `create`, whose errors leave, until its outcome is known.

        `look` gives the node's stat, or None if there is none.
        """
        is_unknown = False
        for is_last in [False] * TRIES_MAX + [True]:
            try:
                await create()
                break
            except NodeExists:
                # A server that stood still may carry out what it had in its buffers though it
                # answered a later connection first: then it is the one before that exists.
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
        # Of two calls that find the node, the first is told that it made it.
        self._made.add(path)

    def expect(self, changes: Sequence[Change]) -> None:
        """The store is about to try `changes`."""
        self._forget_old_session()
        self._made.update(c.path for c in changes if isinstance(c, Create) and c.is_ephemeral)

    def forget(self, changes: Sequence[Change]) -> None:
        """The store has done `changes`: what they removed is not ours any more."""
        last = {c.path: c for c in changes if isinstance(c, Create | Delete)}
        self._made.difference_update(p for p, c in last.items() if isinstance(c, Delete))

    def _is_by_this_call(self, path: str, stat: Any) -> bool:
        self._forget_old_session()
        return stat.ephemeralOwner == self._link.session_id and path not in self._made

    def _forget_old_session(self) -> None:
        if self._session_id != self._link.session_id:
            self._session_id = self._link.session_id
            self._made.clear()
