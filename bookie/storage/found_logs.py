"""The entry logs that a start finds: those the index knows, those it misses, and those left over.

What is left over was written by a checkpoint that did not finish, or is half removed; the journal
has all of it. Must never remove a log because the index is not the right one.
"""

from __future__ import annotations

from bookie.storage.entry_log import EntryLogs
from bookie.storage.index import Index


class FoundLogs:
    """`find`, then `remove_strays` when the journals were replayed."""

    def __init__(self, logs: EntryLogs, index: Index) -> None:
        self._logs = logs
        self._index = index
        self._strays: list[int] = []
        self.missing = 0
        """The index points into so many that are not there."""

    async def find(self, *, is_marked: bool) -> None:
        """`is_marked`: a mark file says that this is the index. Raises OSError."""
        found = await self._logs.start()
        indexed = self._index.log_ids()
        self._strays = [log_id for log_id in found if log_id not in indexed]
        self.missing = sum(log_id not in found for log_id in indexed)
        if indexed:
            self._logs.skip_ids(indexed[-1])
        if is_marked:
            await self.remove_strays()
        # Without a mark a wrong index is found out by the replay, which needs the journal from its
        # first file on and refuses. Then these logs are all there is.

    async def remove_strays(self) -> None:
        """What the index does not know, and did not when it was found. Raises OSError."""
        while self._strays:
            await self._logs.remove(self._strays.pop())
