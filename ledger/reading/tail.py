"""Follows a ledger: what is confirmed is read by ranges, what comes next by long poll.

Delivers every entry once and in order, and never one that its reader does not know to be
confirmed; ends only when the ledger is closed and all of it was delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ledger.core.entry import Entry
from ledger.errors import LedgerError
from ledger.reading.read_ahead import EntryRange

if TYPE_CHECKING:
    from ledger.reading.reader import LedgerReader


class Tail:
    """Entries of a ledger from `first` on, made by `LedgerReader.tail`.

    Args:
        read_range: reads entries first..last, both confirmed.
        on_entry: told the last entry of each list before the list is handed out.
        long_poll_s: how long one wait for the next entry may take.
    """

    def __init__(
        self,
        reader: LedgerReader,
        first: int,
        *,
        read_range: Callable[[int, int], EntryRange],
        on_entry: Callable[[Entry], None],
        long_poll_s: float,
    ) -> None:
        self._reader = reader
        self._next = first
        self._read_range = read_range
        self._on_entry = on_entry
        self._long_poll_s = long_poll_s
        self._range: EntryRange | None = None

    def __aiter__(self) -> Tail:
        return self

    @property
    def is_behind(self) -> bool:
        """Whether more is known to be confirmed than was delivered."""
        return self._next <= self._reader.last_add_confirmed

    async def __anext__(self) -> list[Entry]:
        """The next entries, at least one; StopAsyncIteration at the end of a closed ledger."""
        return await self.take(may_wait=True)

    async def take(self, *, may_wait: bool) -> list[Entry]:
        """As `__anext__`; but unless it `may_wait`, none when all that is known to be confirmed
        was delivered."""
        reader = self._reader
        while True:
            entries = await self._confirmed()
            if entries:
                self._next += len(entries)
                self._on_entry(entries[-1])
                return entries
            if self._next > reader.last_add_confirmed:
                if reader.is_closed:
                    raise StopAsyncIteration
                if not may_wait:
                    return []
                await reader.wait_lac_after(self._next - 1, self._long_poll_s)

    async def aclose(self) -> None:
        if self._range is not None:
            await self._range.aclose()

    async def _confirmed(self) -> list[Entry]:
        """Entries that are confirmed already; none when all were delivered."""
        if self._range is not None:
            try:
                return await self._range.__anext__()
            except StopAsyncIteration:
                self._range = None
            except LedgerError:
                self._range = None  # whoever goes on after an error begins where it stopped
                raise
        reader = self._reader
        if self._next > reader.last_add_confirmed:
            return []
        entry = reader.take_piggybacked(self._next)
        if entry is not None:
            return [entry]
        self._range = self._read_range(self._next, reader.last_add_confirmed)
        return await self._range.__anext__()
