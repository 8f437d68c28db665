"""Takes ADD frames from a received chunk into the write cache: the innermost loop of a bookie.

Nothing is copied and no object is made per entry: the cache keeps the place of each frame in the
segment, the journal gets one view of the whole stretch, and the reply needs only runs of entry ids.
Anything that is not an add to a known ledger with the right key ends the stretch, and so does an
ordinary add to a fenced ledger, an add to a closed one, and an entry that may be here already
(`bookie.core.repeated_adds`); `bookie.server.connection` then handles that one frame in the
ordinary way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bookie.core.ledger_state import ENTRY_ID_END, GAP_ENTRIES_MIN, LedgerState
from ledger.wire.v2 import ADD_BYTES_MIN, RECOVERY_ADD, lac_of_add

_FRAME = struct.Struct(">iI20sqq").unpack_from

Run = tuple[LedgerState, int, int]
"""A ledger and the first and last of consecutive entry ids."""


def take_adds(
    segment: bytearray | memoryview,
    start: int,
    end: int,
    segment_no: int,
    header: int,
    frame_bytes_max: int,
    active: dict[int, dict[int, int]],
    states: dict[int, LedgerState],
    runs: list[Run],
    journals: int = 1,
    journal: int = 0,
    shift: int = 0,
) -> int:
    """Takes whole ADD frames from `segment[start:end]` and returns where it stopped. Everything
    before that place was put in `active`, belongs to one of `runs`, and must now be journaled.

    All frames have the packet header `header`, of ordinary adds or of a recovery's, and are of
    ledgers in `states` (of one ledger directory) whose frames are in `journal` (of `journals`, see
    `bookie.core.marks`). Their LACs may wake long polls. `shift`: by how much they will be moved.
    """
    unpack, place, is_recovery = _FRAME, (segment_no << 32) + shift, header & RECOVERY_ADD
    ledger = began = first = last = -1
    state: LedgerState | None = None
    key, entries = b"", dict[int, int]()
    p = last_at = start
    while end - p >= ADD_BYTES_MIN:
        length, head, k, ledger_id, entry_id = unpack(segment, p)
        q = p + 4 + length
        if head != header or not 56 <= length <= frame_bytes_max or q > end:
            break
        if ledger_id != ledger:
            found = states.get(ledger_id)
            if found is None or k != found.master_key or found.end != ENTRY_ID_END:
                break
            if found.is_fenced and (found.is_deleted or not is_recovery):
                break
            if ledger_id % journals != journal or not found.new_from <= entry_id < ENTRY_ID_END:
                break
            if state is not None:
                _close_run(runs, state, began, first, last, segment, last_at)
            state, key, ledger = found, found.master_key, ledger_id
            entries = active.setdefault(ledger_id, {})
            began = first = entry_id
            last = entry_id - 1
        elif k != key:
            break
        last += 1
        if entry_id != last:
            last -= 1
            if not last < entry_id < ENTRY_ID_END or entry_id - last > GAP_ENTRIES_MIN:
                break
            assert state is not None
            runs.append((state, first, last))
            first = last = entry_id
        entries[entry_id] = place + p
        last_at, p = p, q
    if state is not None:
        _close_run(runs, state, began, first, last, segment, last_at)
    return p


def frames_ahead(
    segment: bytearray | memoryview, start: int, end: int, header: int, frame_bytes_max: int
) -> Iterator[tuple[int, int, bytes, int]]:
    """Yields ledger, entry, key and end of the whole ADD frames that `take_adds` would examine."""
    p = start
    while end - p >= ADD_BYTES_MIN:
        length, head, key, ledger_id, entry_id = _FRAME(segment, p)
        q = p + 4 + length
        if head != header or not 56 <= length <= frame_bytes_max or q > end:
            return
        yield ledger_id, entry_id, key, q
        p = q


def _close_run(
    runs: list[Run],
    state: LedgerState,
    began: int,
    first: int,
    last: int,
    segment: bytearray | memoryview,
    last_at: int,
) -> None:
    """Ends the last of the runs of a ledger that began with entry `began`."""
    runs.append((state, first, last))
    if began - state.new_from < GAP_ENTRIES_MIN:
        state.new_from = last + 1  # all entries of the runs were new
    else:
        state.added(began, last)
    lac = lac_of_add(segment, last_at)
    if lac > state.lac:
        state.advance_lac(lac)
