"""Follows a ledger: reads confirmed entries by ranges, and waits for further ones by long polls.

Delivers every entry once and in order. It must never deliver one that is not known to be confirmed,
and ends only when the ledger is closed and all of it was delivered.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.core.entry import Entry
from ledger.errors import LedgerError, NoSuchEntry
from ledger.reading.last_confirmed import LastConfirmed
from ledger.reading.read_ahead import EntryRange


class Tail:
    """Entries of a ledger from `first` on; made by `LedgerReader.tail`.

    Args:
        confirmed: the reader's last add confirmed; it receives the last entry of each list before
            the list is delivered.
        read_range: reads entries first..last, both confirmed.
        long_poll_s: how long one wait for the next entry may take.
    """

    def __init__(
        self,
        confirmed: LastConfirmed,
        first: int,
        *,
        read_range: Callable[[int, int], EntryRange],
        long_poll_s: float,
    ) -> None:
        self._confirmed = confirmed
        self._next = first
        self._read_range = read_range
        self._long_poll_s = long_poll_s
        self._range: EntryRange | None = None

    def __aiter__(self) -> Tail:
        return self

    @property
    def is_behind(self) -> bool:
        """Whether more entries are known to be confirmed than were delivered."""
        return self._next <= self._confirmed.entry_id

    async def __anext__(self) -> list[Entry]:
        """The next entries, at least one; StopAsyncIteration at the end of a closed ledger."""
        return await self.take(may_wait=True)

    async def take(self, *, may_wait: bool) -> list[Entry]:
        """Like `__anext__`, but unless it `may_wait` returns an empty list when all entries known
        to be confirmed were delivered."""
        confirmed = self._confirmed
        while True:
            entries = await self._read_confirmed()
            if entries:
                self._next += len(entries)
                confirmed.note_entry(entries[-1])
                return entries
            if self._next > confirmed.entry_id:
                if confirmed.is_final:
                    raise StopAsyncIteration
                if not may_wait:
                    return []
                await confirmed.wait_after(self._next - 1, self._long_poll_s)

    async def aclose(self) -> None:
        if self._range is not None:
            await self._range.aclose()

    async def _read_confirmed(self) -> list[Entry]:
        """Returns entries that are confirmed already; none if all were delivered."""
        if self._range is not None:
            try:
                return await self._range.__anext__()
            except StopAsyncIteration:
                self._range = None
            except NoSuchEntry:
                self._range = None
                if self._confirmed.refute(self._next):
                    return []
                raise
            except LedgerError:
                self._range = None  # a caller that continues after an error retries from here
                raise
        confirmed = self._confirmed
        if self._next > confirmed.entry_id:
            return []
        entry = confirmed.take_piggybacked(self._next)
        if entry is not None:
            return [entry]
        self._range = self._read_range(self._next, confirmed.entry_id)
        return await self._read_confirmed()
