"""When a journal is synced for explicit LACs alone.

Their answers wait until they are durable. Nobody waits for those answers, and most often an add
comes soon: so a LAC goes with the next group that is synced anyway, and has a group to itself
only where none came for a while. All LACs of that while share it.
"""

from __future__ import annotations

from typing import Final

import trio

from bookie.storage.journal.journal import CommitGroup, Journal

LINGER_S: Final = 0.05
"""A stream with more than twenty entries in a second never has a sync for its LAC alone."""


class LacLinger:
    """`run` lives as long as the bookie."""

    def __init__(self) -> None:
        self._groups: dict[Journal, CommitGroup] = {}
        """The last group of each journal that a LAC was put in."""
        self._wanted = trio.Event()

    def soon(self, journal: Journal) -> None:
        """Its open group holds a LAC. Cheap; may be said often."""
        if not journal.open_group.is_kicked:
            self._groups[journal] = journal.open_group
            self._wanted.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await trio.sleep(LINGER_S)
            groups, self._groups = self._groups, {}
            for journal, group in groups.items():
                if journal.open_group is group:
                    journal.kick()
