"""What a directory has already: entries over which nothing is stored, and where ledgers end.

The first add of an entry counts (docs/adr/0037). Only an entry below the `new_from` of its ledger
costs a search, so ordinary adds cost none.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from bookie.core.ledger_state import ENTRY_ID_END, LedgerState
from bookie.core.repeated_adds import Presence, compare
from bookie.storage.disk.disk import Buffer
from bookie.storage.entry_reader import EntryReader
from bookie.storage.index.index import Index
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.read_check import DamagedEntry
from bookie.storage.yielding import yield_to_tasks


class History:
    """The history of the ledgers of one directory."""

    def __init__(
        self, states: LedgerStates, index: Index, reader: EntryReader, changes: IndexChanges
    ) -> None:
        self._states = states
        self._index = index
        self._reader = reader
        self._changes = changes

    def look_up(self, state: LedgerState) -> None:
        """See `LedgerStates.look_up`: needed before an add is checked."""
        self._states.look_up(state)

    def end_replay(self) -> None:
        """Must be called when all journals were replayed, before anything is added."""
        self._states.end_replay()

    async def closed(self, last_ids: Mapping[int, int]) -> None:
        """Records the last entries of ledgers that metadata reports to be closed: nothing is
        accepted behind these any more. Raises StorageFailed, and IndexUnreadable."""
        news: dict[int, int] = {}
        for number, (ledger_id, last_id) in enumerate(last_ids.items(), 1):
            end = min(last_id, ENTRY_ID_END - 2) + 1
            if self._index.end(ledger_id) != end:
                news[ledger_id] = end
            if number % Index.LOOKUPS_MAX == 0:
                await yield_to_tasks()
        every = iter(news)
        while step := list(islice(every, Index.LOOKUPS_MAX)):
            async with self._changes.making("recording where ledgers end"):
                # Not of a ledger that was deleted meanwhile: nothing would remove the record.
                found = [state for one in step if (state := self._states.get(one)) is not None]
                known = [state for state in found if not state.is_deleted]
                self._index.put_ends({one.ledger_id: news[one.ledger_id] for one in known})
            for state in known:
                state.end = news[state.ledger_id]
            await yield_to_tasks()

    def presence(self, state: LedgerState, entry_id: int, entry: Buffer) -> Presence:
        """Returns whether an entry that is being added is here already, after `look_up`. Only one
        below `new_from` costs a search. Raises IndexUnreadable."""
        if entry_id >= state.new_from:
            return Presence.ABSENT
        try:
            stored = self._reader.read_cached(state.ledger_id, entry_id)
        except DamagedEntry:
            return Presence.ABSENT
        if stored is not None:
            return compare(stored, entry)
        is_stored = self._index.find(state.ledger_id, entry_id) is not None
        return Presence.UNREAD if is_stored else Presence.ABSENT

    async def presence_on_disk(self, ledger_id: int, entry_id: int, entry: Buffer) -> Presence:
        """Returns what `presence` left open; never UNREAD. Raises BookieIoError if the entry that
        is here cannot be read now."""
        try:
            stored = await self._reader.read(ledger_id, entry_id)
        except DamagedEntry:
            return Presence.ABSENT
        return Presence.ABSENT if stored is None else compare(stored, entry)
