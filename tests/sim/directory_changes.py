"""Bookies that gain ledger directories, or continue without one that they lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from bookie.startup.change_directories import DirectoriesKept
from bookie.testing.cluster import SimCluster
from bookie.testing.disk import CrashKind

_DIRECTORIES_MAX = 6
_TRIES_MAX = 100


class DirectoryChanges:
    """Changes of lists of ledger directories; the processes that make them are killed at times.

    Args:
        crash_kinds: how they are killed.
        restart: starts a bookie that is down, after a time in seconds.
        dropped: gets the bookies that lost a ledger directory and continue without it.
    """

    def __init__(
        self,
        cluster: SimCluster,
        crash_kinds: Sequence[CrashKind],
        restart: Callable[[str, float], Awaitable[None]],
        dropped: list[str],
    ) -> None:
        self._cluster = cluster
        self._crash_kinds = crash_kinds
        self._restart = restart
        self._chance = cluster.simulation.chance("new directories")
        self.dropped = dropped
        self.gained = self._named = 0
        self.operator = trio.Lock()
        """Held while directories of a bookie are lost or changed: one thing at a time."""

    @property
    def counts(self) -> dict[str, int]:
        return {"directories dropped": len(self.dropped), "directories gained": self.gained}

    async def drop(self, name: str, lost: str) -> None:
        """Repeated until it is done: the metadata or the other disks may fail. The caller holds
        `operator`."""
        self.dropped.append(name)
        await self._repeat(name, lambda: self._cluster.drop_directories(name, lost))
        await self._restart(name, 0.0)

    async def run(self) -> None:
        """Gives bookies more ledger directories, one after the other, until cancelled."""
        chance, cluster = self._chance, self._cluster
        while True:
            await trio.sleep(chance.expovariate(0.5))
            async with self.operator:
                name = chance.choice(cluster.bookies)
                known = cluster.config(name).ledger_directories
                self._named += 1
                new = [f"/more-{self._named}-{n}" for n in range(chance.choice((1, 1, 2)))]
                if len(known) + len(new) <= _DIRECTORIES_MAX:
                    # Calm would come between, and it stay half done.
                    with trio.CancelScope(shield=True):
                        await self._gain(name, new)

    async def _gain(self, name: str, new: Sequence[str]) -> None:
        try:
            await self._repeat(name, lambda: self._cluster.expand_storage(name, *new))
        except DirectoriesKept as error:
            # It must start first, and look for what it may have lost.
            if "may have lost entries" not in str(error):
                raise
        else:
            self.gained += 1
        if name in self._cluster.bookies:
            await self._restart(name, 0.0)

    async def _repeat(self, name: str, change: Callable[[], Awaitable[bool]]) -> None:
        chance, cluster = self._chance, self._cluster
        for _ in range(_TRIES_MAX):
            while cluster.is_up(name):  # another task may start it meanwhile
                await cluster.kill_bookie(name, chance.choice(self._crash_kinds))
            if chance.random() < 0.3:
                self._kill_at(name, chance.randint(1, 60))
            try:
                if await change():
                    return
            finally:
                cluster.disk(name).on_operation = None
            await trio.sleep(0.2)
        raise AssertionError(f"{name}: the change of directories did not end")

    def _kill_at(self, name: str, operations: int) -> None:
        """Kills what uses the disk of a bookie, at one of its next operations."""
        disk, kind = self._cluster.disk(name), self._chance.choice(self._crash_kinds)

        def count(_kind: str, _path: str) -> None:
            nonlocal operations
            operations -= 1
            if operations <= 0:
                disk.on_operation = None
                self._cluster.kill_bookie_now(name, kind)

        disk.on_operation = count
