"""Ends authenticated connections with what they rest on: passwords, tokens, certificates.

One watch of the metadata for all users, which are read again only after a change, and only those
with open sessions; one timer for everything that expires. Nothing is done per request, nor while
nothing changes. The decisions are in `bookie.core.sessions`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

import trio

from bookie.core.peers import Peer
from bookie.core.sessions import Proof, SessionEnd, expired, outdated, with_passwords
from bookie.server.users import LOOKUPS_MAX, Users, secrets_of
from ledger.errors import LedgerError, MetadataCorrupt, MetadataUnavailable

_log = logging.getLogger(__name__)

CLOCK_S_MAX: Final = 60.0
"""While anything can expire the wall clock is looked at this often: it may be set."""
_RETRY_S: Final = 1.0

Sessions = Callable[[], Iterable[tuple[Peer, Proof]]]
"""Returns the sessions that are open now."""


class SessionWatch:
    """The watch over the sessions of one bookie; `run` runs as long as the server.

    Args:
        users: those of the cluster.
        now_ms: the wall clock, in milliseconds since 1970.
        sessions: returns those that are open.
        end: ends sessions.
    """

    def __init__(
        self,
        users: Users,
        now_ms: Callable[[], int],
        sessions: Sessions,
        end: Callable[[Sequence[SessionEnd[Peer]]], None],
    ) -> None:
        self._users = users
        self._now_ms = now_ms
        self._sessions = sessions
        self._end = end
        self._mark: object = self  # no mark of the store is this
        self._doubtful: dict[str, None] = {}
        """Users that are to be read again: they may have changed since a session began."""
        self._doubted = trio.Event()
        self._next_at_s = math.inf
        self._sooner = trio.Event()

    async def run(self) -> None:
        """Watches until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._look_again)
            nursery.start_soon(self._expire)

    def begun(self, proof: Proof) -> None:
        """Must be called when a session begins."""
        if proof.secret is not None and proof.generation != self._users.generation:
            self._doubt([proof.user])  # it was changed between the read and now
        if proof.expires_at_s < self._next_at_s:
            self._next_at_s = proof.expires_at_s
            self._sooner.set()

    # ---- users

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._users.watch()) as marks:
                    async for mark in marks:
                        if mark != self._mark:
                            self._mark = mark
                            self._users.generation += 1
                            self._doubt(with_passwords(self._sessions()))
            except LedgerError as error:
                _log.warning("changes of users are not followed cause=%s", error)
            await trio.sleep(_RETRY_S)

    def _doubt(self, users: Iterable[str]) -> None:
        self._doubtful.update(dict.fromkeys(users))
        if self._doubtful:
            self._doubted.set()

    async def _look_again(self) -> None:
        while True:
            await self._doubted.wait()
            self._doubted = trio.Event()
            users, self._doubtful = self._doubtful, {}
            by_user = with_passwords(self._sessions())
            waiting = iter([(user, by_user[user]) for user in users if user in by_user])
            async with trio.open_nursery() as nursery:
                for _ in range(LOOKUPS_MAX):
                    nursery.start_soon(self._look_at_users, waiting)
            if self._doubtful:
                await trio.sleep(_RETRY_S)

    async def _look_at_users(self, waiting: Iterator[tuple[str, list[tuple[Peer, Proof]]]]) -> None:
        for name, sessions in waiting:
            try:
                found = (await self._users.read_again(name)).user
            except MetadataUnavailable:
                self._doubt([name])
            except MetadataCorrupt as error:
                _log.error("sessions continue user=%s cause=%s", name, error)
            else:
                self._end(list(outdated(sessions, None if found is None else secrets_of(found))))

    # ---- time

    async def _expire(self) -> None:
        while True:
            now_s = self._now_ms() / 1000
            if self._next_at_s <= now_s:
                ends, self._next_at_s = expired(self._sessions(), now_s)
                self._end(ends)
            with trio.move_on_after(min(self._next_at_s - now_s, CLOCK_S_MAX)) as timer:
                if self._next_at_s == math.inf:
                    timer.deadline = math.inf
                await self._sooner.wait()
            self._sooner = trio.Event()
