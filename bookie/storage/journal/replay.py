"""Replays the journals' frames after the marks into write caches and ledger states.

Each directory takes what is after its own mark and nothing else, as if the journal were its own: so
a ledger that was deleted and forgotten does not return with frames that are only kept for others.
Frames may still be replayed twice, and of deleted ledgers; both must do no harm. Of two frames of
one entry the first counts; only earlier releases wrote a second one.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from bookie.core.adds import Run, take_adds
from bookie.core.caches import WriteCache
from bookie.core.journal import JournalCorrupt, Mark, file_name
from bookie.core.journal_frames import ExplicitLacFrame, FenceFrame, decode_frame, iterate_frames
from bookie.core.ledger_state import LedgerState
from bookie.core.marks import DirectoryMap
from bookie.storage.index.key_value import IndexUnreadable
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.reader import reading_ahead
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.options import DirectoryDamaged
from ledger.errors import BookieIoError

_add_of = struct.Struct(">8x20sqqq").unpack_from
_add_head_of = struct.Struct(">iI20xq").unpack_from
_SEGMENT_BYTES = 4 << 20
"""The size of the cache's segments for what is replayed: large ones are reused."""


class ReplayTarget:
    """The caches into which the frames of one ledger directory are replayed."""

    __slots__ = ("cache", "frames", "states")

    def __init__(self, cache: WriteCache, states: LedgerStates) -> None:
        self.cache = cache
        self.states = states
        self.frames = 0
        """The number of frames replayed."""


async def replay_journal(
    journal: Journal,
    number: int,
    layout: DirectoryMap,
    marks: Mapping[int, Mark],
    targets: Sequence[ReplayTarget],
    on_progress: Callable[[int], Awaitable[None] | None],
) -> None:
    """Replays journal `number` from the least mark of the directories that depend on it.

    Args:
        targets: of all directories.
        on_progress: called with the directory after some of its frames, at most 4 MiB or
            one frame; what it returns is awaited before the next.

    Raises:
        JournalCorrupt: a file after the least mark is missing or damaged, or a mark is missing.
        BookieIoError: it is another journal's directory.
        DirectoryDamaged: the index of a directory cannot be read.
        FrameCorrupt, OSError.
    """
    before = min(marks.values())
    reader = journal.reader(before)
    async with reading_ahead() as nursery, aclosing(reader.payloads(nursery)) as payloads:
        async for payload in payloads:
            end = reader.position
            skipped = {d for d, mark in marks.items() if mark >= end}
            _check_between(marks, before, end)
            before = end
            if len(skipped) == len(marks):
                continue
            position = 0
            while position < len(payload):
                frame = next(iterate_frames(payload[position:]))
                own = decode_frame(frame)
                ledger_id: int = own.ledger_id if own is not None else _add_of(frame)[1]
                if ledger_id % layout.journals != number:
                    raise BookieIoError(
                        f"journal {number} (from 0) of {layout.journals} has a frame of ledger "
                        f"{ledger_id}, which belongs to journal {ledger_id % layout.journals}: "
                        "disks are mounted in each other's place. Cure: mount each where it was"
                    )
                directory = layout.directory_of(ledger_id)
                if directory in skipped:
                    position += len(frame)
                    continue
                target = targets[directory]
                stop = position
                if own is None:
                    stop = _take_stretch(payload, position, target, layout.journals, number)
                if stop == position:
                    _replay_frame(frame, own, ledger_id, target, directory)
                    target.frames += 1
                    stop += len(frame)
                position = stop
                waiting = on_progress(directory)
                if waiting is not None:
                    await waiting
    await journal.begin(reader)
    _check_between(marks, journal.mark, Mark(1 << 64, 0))


def _check_between(marks: Mapping[int, Mark], before: Mark, end: Mark) -> None:
    """Checks that no directory's mark is between `before` and `end`, the ends of two successive
    groups."""
    for directory, mark in marks.items():
        # A mark at the beginning of a file replaces a lost one: no group has to end there.
        if before < mark < end and mark.offset:
            raise JournalCorrupt(
                file_name(mark.file_id),
                mark.offset,
                0,
                f"no group ends at this mark of ledger directory {directory}; the last one found "
                f"before it ends at offset {before.offset} of {file_name(before.file_id)}",
            )


def _take_stretch(
    payload: memoryview, start: int, target: ReplayTarget, journals: int, journal: int
) -> int:
    """Takes ordinary adds of one shard from `start` on, as the add path does; returns where it
    stopped."""
    length, header, _ = _add_head_of(payload, start)
    cache = target.cache
    segment_no, offset, room = cache.reserve_own(4 + length, _SEGMENT_BYTES)
    runs: list[Run] = []
    stop = take_adds(
        payload,
        start,
        min(start + room, len(payload)),
        segment_no,
        header,
        len(payload),
        cache.active,
        target.states.held,
        runs,
        journals,
        journal,
        offset - start,
    )
    if stop > start:
        cache.put_own(payload[start:stop])
        target.frames += sum(last - first + 1 for _, first, last in runs)
    return stop


def _replay_frame(
    frame: memoryview,
    own: FenceFrame | ExplicitLacFrame | None,
    ledger_id: int,
    target: ReplayTarget,
    directory: int,
) -> None:
    """Raises DirectoryDamaged if the index of `directory`, whose target it is, cannot be read."""
    states = target.states
    try:
        known = states.get(ledger_id)
    except IndexUnreadable as error:
        raise DirectoryDamaged(directory, error) from error
    if own is not None:
        state = known or states.create(ledger_id, own.master_key)
        if not state.is_deleted:
            _replay_own(own, state)
            states.changed(state)
        return
    master_key, _, entry_id, lac = _add_of(frame)
    state = known or states.create(ledger_id, master_key)
    if not state.master_key:  # the index was rebuilt from entry logs, which have no keys
        state.master_key = master_key
        states.changed(state)
    if not state.is_deleted:
        states.begin_replay(state)
        if entry_id >= state.new_from or target.cache.get(ledger_id, entry_id) is None:
            target.cache.put_frame(frame)
            state.added(entry_id, entry_id)
        state.advance_lac(lac)


def _replay_own(own: FenceFrame | ExplicitLacFrame, state: LedgerState) -> None:
    match own:
        case FenceFrame():
            state.fence()
            state.is_fence_durable = True
        case ExplicitLacFrame():
            state.set_explicit_lac(own.lac, own.packet)
