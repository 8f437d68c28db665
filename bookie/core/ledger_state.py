"""What a bookie knows of one ledger besides its entries, and what it therefore accepts.

The shell is `bookie.storage.ledger_storage`. At most one LedgerState per ledger id is alive in a
process, so that every connection sees a fence.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import count
from operator import itemgetter
from typing import Final

from bookie.core.journal_frames import MASTER_KEY_BYTES
from ledger.errors import Status

_STORED = struct.Struct(">BBqBH")
_STORED_VERSION = 1
ENTRY_ID_END = 2**63 - 2**32
"""The end of entry ids: a run of entries begins below it. The distance to the last int64 is more
than one chunk can hold, so the add path checks only the first entry of a run, and the index relies
on it."""
NEW_UNKNOWN = 2**63
"""`LedgerState.new_from` before it was looked up: no entry is certainly new."""
GAP_ENTRIES_MIN = 32
"""Shorter gaps are not remembered: in a ledger with stripes every entry leaves one."""
_GAPS_MAX = 8
EXPLICIT_LAC_BYTES_MAX = 64
"""A LAC packet has 16 bytes and a digest."""
_numbers: Final = count()
Watch = tuple[int, int, Callable[[], None]]
"""A watcher: the LAC that it waits to see passed, a number that no other has, and what is called.
"""
READER_EXPECTED_S: Final = 2.0
"""A reader that was answered is expected to ask again for this long, in seconds. A reader that
comes later is notified a little later (`ledger.writing.send_loop.IDLE_S`)."""
_FLAG_FENCED = 1
_FLAG_LIMBO = 2
_FLAG_REMOVED = 4


class LedgerState:
    """One ledger's key, fence, end, limbo flag and last add confirmed. Plain and mutable.

    A fence is permanent, the key never changes, and `lac` only grows. The key may be unknown: the
    index was rebuilt without it, or the metadata cannot be read. Then no client has it.
    """

    __slots__ = (
        "__weakref__",
        "_gaps",
        "_watchers",
        "end",
        "explicit_lac",
        "explicit_lac_id",
        "is_deleted",
        "is_fence_durable",
        "is_fenced",
        "is_leaving",
        "is_limbo",
        "is_removed",
        "is_stored",
        "lac",
        "ledger_id",
        "master_key",
        "new_from",
        "reader_expected_until",
    )

    def __init__(self, ledger_id: int, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.is_fenced = False
        self.is_fence_durable = False
        """The fence is in the journal or the index, so replies may reveal it."""
        self.is_limbo = False
        """Entries may have been lost: entries that are found are served, absent ones are
        "unknown"."""
        self.is_leaving = False
        """The entries are about to be removed, because metadata names other bookies: nothing is
        accepted now, and nothing is listed. Never stored. Implies `is_fenced`."""
        self.is_removed = False
        """They were removed: as in limbo, absent entries are "unknown"."""
        self.is_stored = False
        """The index has a record of the ledger; before that it has none of its entries either."""
        self.is_deleted = False
        """Its metadata is gone: nothing is served and nothing is accepted. Implies `is_fenced`."""
        self.new_from = NEW_UNKNOWN
        """No entry from this id on is here, so that none is searched for when one is added."""
        self._gaps: list[tuple[int, int]] | None = None
        self.end = ENTRY_ID_END
        """One past the last entry of a ledger that metadata reported to be closed."""
        self.lac = -1
        self.explicit_lac: bytes | None = None
        """The writer's LAC packet: ledger id, LAC, digest."""
        self.explicit_lac_id = -1
        """The LAC in that packet."""
        self.reader_expected_until = -math.inf
        """Until when, by the clock of the loop, a reader that got a LAC here is likely to ask for
        the next one. See `is_read`."""
        # No list until there is a watcher: with a million ledgers the garbage collector would have
        # to traverse a million empty lists. In order: thousands may wait for LACs that never come,
        # and end in any order.
        self._watchers: list[Watch] | None = None

    @property
    def is_absence_unknown(self) -> bool:
        """Whether it proves nothing that an entry is not here."""
        return self.is_limbo or self.is_removed

    @property
    def is_closed(self) -> bool:
        """Whether the bookie knows that the ledger is closed. If not, it may be closed all the
        same."""
        return self.end != ENTRY_ID_END

    @property
    def is_key_known(self) -> bool:
        return len(self.master_key) == MASTER_KEY_BYTES

    def _is_key(self, key: bytes | memoryview) -> bool:
        """An unknown key is empty, and a peer may send an empty key, too."""
        return key == self.master_key and self.is_key_known

    def check_add(self, master_key: bytes | memoryview, is_recovery: bool) -> Status:
        """Returns OK if an entry with this key may be added now.

        UNAUTHORIZED for another key than the first, or if that is unknown; FENCED for an ordinary
        add after a fence (also when deleted); NO_SUCH_LEDGER for a recovery add to a deleted
        ledger; READ_ONLY for one while the ledger is leaving, so that its sender tries again or
        takes another bookie.
        """
        if not self._is_key(master_key):
            return Status.UNAUTHORIZED
        if not self.is_fenced:
            return Status.OK
        if not is_recovery:
            return Status.FENCED
        if self.is_deleted:
            return Status.NO_SUCH_LEDGER
        return Status.READ_ONLY if self.is_leaving else Status.OK

    def check_end(self, entry_id: int) -> Status:
        """Returns FENCED for an entry behind the end of a closed ledger, of a recovery, too."""
        return Status.OK if entry_id < self.end else Status.FENCED

    def added(self, first: int, last: int) -> None:
        """Records that these entries were put into the write cache. The add path does the same
        itself for a run that leaves no gap worth remembering."""
        if self._gaps:
            self._gaps = [part for gap in self._gaps for part in _without(gap, first, last)]
        if last >= self.new_from:
            if first - self.new_from >= GAP_ENTRIES_MIN:
                self._gaps = [*(self._gaps or ())[1 - _GAPS_MAX :], (self.new_from, first)]
            self.new_from = last + 1

    @property
    def has_gaps(self) -> bool:
        """Whether `gap_end` may find one."""
        return bool(self._gaps)

    def gap_end(self, entry_id: int) -> int:
        """Returns the end of the gap of which this entry is: none of them is here, although later
        ones are, as when copies are sent from several bookies. 0 if no such gap is remembered."""
        for first, end in self._gaps or ():
            if first <= entry_id < end:
                return end
        return 0

    def forget_new(self) -> None:
        """Has the index looked up again before the next add."""
        self.new_from = NEW_UNKNOWN
        self._gaps = None

    def check_fence(self, master_key: bytes | memoryview | None) -> Status:
        """Returns OK if a client with this key may fence the ledger (again). No key is a wrong
        key."""
        if master_key is None or not self._is_key(master_key):
            return Status.UNAUTHORIZED
        return Status.NO_SUCH_LEDGER if self.is_deleted else Status.OK

    def check_write_lac(self, master_key: bytes | memoryview) -> Status:
        """Returns OK if an explicit LAC with this key may be stored; a fence does not forbid it."""
        if not self._is_key(master_key):
            return Status.UNAUTHORIZED
        return Status.NO_SUCH_LEDGER if self.is_deleted else Status.OK

    def advance_lac(self, lac: int) -> None:
        """Records a LAC that arrived with an entry or by itself; wakes the watchers of lesser ones.

        The add path compares `lac > state.lac` itself, once per run, before calling this.
        """
        if lac > self.lac:
            self.lac = lac
            watchers = self._watchers
            if watchers and watchers[0][0] < lac:
                end = bisect_left(watchers, lac, key=itemgetter(0))
                passed = watchers[:end]
                del watchers[:end]
                if not watchers:
                    self._watchers = None
                _call(passed)

    def set_explicit_lac(self, lac: int, packet: bytes | bytearray | memoryview) -> None:
        """Stores the writer's LAC packet, unless one with a higher LAC is stored already.

        A LAC of -1 says nothing: it only made the key known, which the journal has with it.
        """
        if lac < 0 or len(packet) > EXPLICIT_LAC_BYTES_MAX:
            return  # or no valid packet; from an old journal, or damage
        if lac >= self.explicit_lac_id:
            self.explicit_lac = bytes(packet)
            self.explicit_lac_id = lac
        self.advance_lac(lac)

    def fence(self) -> None:
        """From now on only recovery adds are accepted. The shell makes it durable."""
        if not self.is_fenced:
            self.is_fenced = True
            self.wake()

    def delete(self) -> None:
        """The ledger's metadata has been deleted permanently."""
        self.is_deleted = True
        self.is_fenced = True
        self.is_fence_durable = True
        self.wake()

    @property
    def is_watched(self) -> bool:
        """Whether there is a watcher."""
        return bool(self._watchers)

    def is_read(self, now_s: float) -> bool:
        """Returns whether a reader waits for the LAC, or has asked for it recently: one that
        was answered will ask again."""
        return bool(self._watchers) or now_s < self.reader_expected_until

    def expect_reader(self, now_s: float) -> None:
        """Records that a reader was answered, which will ask again."""
        self.reader_expected_until = now_s + READER_EXPECTED_S

    def watch(self, lac: int, watcher: Callable[[], None]) -> Watch:
        """Has `watcher` called once, when the LAC passes `lac`, or the ledger is fenced or deleted.
        Returns what `unwatch` takes."""
        watch = lac, next(_numbers), watcher
        if self._watchers is None:
            self._watchers = []
        insort(self._watchers, watch)
        return watch

    def wake(self) -> None:
        """Calls all watchers once. They may register again for the next time."""
        watchers, self._watchers = self._watchers, None
        _call(watchers or [])

    def unwatch(self, watch: Watch) -> None:
        """Removes a watcher that gave up; no error if it was called already."""
        watchers = self._watchers or []
        at = bisect_left(watchers, watch)
        if at < len(watchers) and watchers[at] is watch:
            del watchers[at]


def _call(watches: list[Watch]) -> None:
    for _, _, watcher in watches:
        watcher()


def _without(gap: tuple[int, int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yields what is left of a gap when these entries were added."""
    start, end = gap
    for part in ((start, min(end, first)), (max(start, last + 1), end)):
        if part[1] - part[0] >= GAP_ENTRIES_MIN:
            yield part


def encode_ledger_state(state: LedgerState) -> bytes:
    """Returns the stored form (docs/formats.md, "Index"): what must outlive the process."""
    flags = (_FLAG_FENCED if state.is_fenced else 0) | (_FLAG_LIMBO if state.is_limbo else 0)
    flags |= _FLAG_REMOVED if state.is_removed else 0
    packet = state.explicit_lac or b""
    head = _STORED.pack(_STORED_VERSION, flags, state.lac, len(state.master_key), len(packet))
    return head + state.master_key + packet


def decode_ledger_state(ledger_id: int, data: bytes) -> LedgerState:
    """Raises ValueError if `data` is not a stored ledger state."""
    if len(data) < _STORED.size:
        raise ValueError(f"ledger {ledger_id}: stored state of {len(data)} bytes is too short")
    version, flags, lac, key_size, packet_size = _STORED.unpack_from(data)
    if version != _STORED_VERSION or len(data) != _STORED.size + key_size + packet_size:
        raise ValueError(
            f"ledger {ledger_id}: stored state of version {version} and {len(data)} bytes, "
            f"expected version {_STORED_VERSION} and {_STORED.size + key_size + packet_size} bytes"
        )
    state = LedgerState(ledger_id, data[_STORED.size : _STORED.size + key_size])
    state.is_fenced = state.is_fence_durable = bool(flags & _FLAG_FENCED)
    state.is_limbo = bool(flags & _FLAG_LIMBO)
    state.is_removed = bool(flags & _FLAG_REMOVED)
    state.is_stored = True
    state.lac = lac
    if packet_size:
        state.explicit_lac = data[_STORED.size + key_size :]
        state.explicit_lac_id = int.from_bytes(state.explicit_lac[8:16], "big", signed=True)
    return state
