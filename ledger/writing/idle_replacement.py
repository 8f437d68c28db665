"""IdleReplacement: renews the ensembles of writers that are idle and lost a bookie. One per client.

An idle writer needs no bookie at once, and a bookie that is restarted is back in seconds. But
nobody else may change the last fragment of an open ledger whose writer lives: without this, the
entries there would have a copy less for as long as the writer is idle. So when the bookie is back,
the writer uses it again; when it stays away for `idle_replacement_delay_s`, the writer replaces it.

One task runs while there are such writers. It tries each failed bookie once in a while, however
many writers wait for it, and begins a bounded number of ensemble changes per second.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import trio

from ledger.connection.pool import BookiePool
from ledger.errors import LedgerError
from ledger.metastore.bookies import BookieRegistry
from ledger.options import ClientOptions

_LOOK_S = 2.0
_TRIED_MAX = 64
CHANGES_PER_S = 20
"""Ensemble changes of idle writers that one client begins in a second, at most."""


class IdleChange(Protocol):
    """The ensemble changes of one writer, as seen from here."""

    @property
    def wire_version(self) -> int: ...

    @property
    def failed_while_idle(self) -> tuple[str, ...]:
        """The failed bookies; none if the writer looks for replacements itself, or has ended."""
        ...

    def renew(self, usable: Collection[str], *, is_due: bool) -> bool:
        """Uses a bookie of `usable` again if it lacks nothing, and begins an ensemble change if one
        lacks something, or `is_due`; returns whether it began one."""
        ...


@dataclass(slots=True)
class _Wait:
    """`look_at`: before that it does not matter whether its bookie is back."""

    look_at: float
    due_at: float


class IdleReplacement:
    """The idle writers of one client that lost a bookie.

    Args:
        rng: spreads the changes of many writers that lost the same bookie.
    """

    def __init__(
        self, pool: BookiePool, bookies: BookieRegistry, options: ClientOptions, rng: random.Random
    ) -> None:
        self._pool = pool
        self._bookies = bookies
        self._delay_s = options.idle_replacement_delay_s
        self._rng = rng
        self._nursery: trio.Nursery | None = None
        self._waiting: dict[IdleChange, _Wait] = {}
        self._is_running = False

    def start(self, nursery: trio.Nursery) -> None:
        """The task runs in `nursery`, when it is needed."""
        self._nursery = nursery

    def add(self, change: IdleChange, *, is_repeated: bool = False) -> None:
        """An idle writer has failed bookies. `is_repeated`: it was renewed without success."""
        now_s = trio.current_time()
        delay_s = self._delay_s * (1 + self._rng.random() / 4)
        look_at = now_s + delay_s / 4 if is_repeated else now_s
        self._waiting.setdefault(change, _Wait(look_at, now_s + delay_s))
        if not self._is_running and self._nursery is not None:
            try:
                self._nursery.start_soon(self._run)
            except RuntimeError:
                return  # the client is closing
            self._is_running = True

    async def _run(self) -> None:
        try:
            while self._waiting:
                await trio.sleep(_LOOK_S * (0.75 + self._rng.random() / 2))
                await self._look()
        finally:
            self._is_running = False

    async def _look(self) -> None:
        failed: dict[IdleChange, tuple[str, ...]] = {}
        now_s = trio.current_time()
        for change, wait in list(self._waiting.items()):
            bookies = change.failed_while_idle
            if not bookies:
                del self._waiting[change]
            elif wait.look_at <= now_s:
                failed[change] = bookies
        usable = await self._usable(failed)
        if usable is None:
            return
        for change in failed:
            waiting = self._waiting.get(change)
            if waiting is None:
                continue
            found = {bookie for bookie, version in usable if version == change.wire_version}
            if change.renew(found, is_due=waiting.due_at <= trio.current_time()):
                self._waiting.pop(change, None)
                await trio.sleep(1 / CHANGES_PER_S)

    async def _usable(
        self, failed: dict[IdleChange, tuple[str, ...]]
    ) -> set[tuple[str, int]] | None:
        """Returns which failed bookies can be used again, in which wire version; None if that is
        unknown, as the metadata store does not answer."""
        wanted = {(b, change.wire_version): None for change, each in failed.items() for b in each}
        usable: set[tuple[str, int]] = set()
        if not wanted:
            return usable

        async def connect(bookie: str, version: int) -> None:
            try:
                await self._pool.wait_connected(bookie, version)
            except LedgerError:
                return
            usable.add((bookie, version))

        try:
            available = await self._bookies.available()
        except LedgerError:
            return None
        present = [one for one in wanted if one[0] in available]
        self._rng.shuffle(present)
        async with trio.open_nursery() as nursery:
            for bookie, version in present[:_TRIED_MAX]:
                nursery.start_soon(connect, bookie, version)
        return usable
