"""Takes the adds of one connection from received bytes to write cache and journal, and acks them.

Adds go from their receive buffer directly to the caches (`bookie.core.adds`); the acks of all adds
in one journal commit are sent in one piece. Must do nothing per entry, except for the adds that
the hot loop leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from bookie.core.adds import Run, frames_ahead, take_adds
from bookie.core.caches import SharedSegment
from bookie.core.ledger_state import LedgerState
from bookie.server.request_metrics import RequestCounts
from bookie.storage.bookie_storage import BookieStorage, Shard
from bookie.storage.journal.journal import CommitGroup, Journal
from bookie.storage.ledger_storage import LedgerStorage
from ledger.wire import v2
from ledger.wire.connection import ReceiveBuffer

_ACK = v2.ADD_REPLY.pack
_RANGE_ACK = v2.RANGE_ACK.pack
_ACK_FLAGS = v2.RANGE_ACKS | v2.NO_POLLS


def encode_acks(runs: list[Run], flags: int, now_s: float) -> bytes:
    """Returns an ack for each entry of `runs`, or for each range of entries if `flags`, those of
    the adds, allow it. `runs` must not be empty. `now_s`: the clock of the loop."""
    if flags & v2.RANGE_ACKS:
        return _encode_range_acks(runs, flags & v2.NO_POLLS, now_s)
    header = v2.ADD_HEADER
    return b"".join(
        [
            _ACK(24, header, 0, state.ledger_id, entry_id)
            for state, first, last in runs
            for entry_id in range(first, last + 1)
        ]
    )


def _encode_range_acks(runs: list[Run], no_polls: int, now_s: float) -> bytes:
    """Returns range acks (docs/wire.md); adjacent runs of one ledger become one."""
    out: list[bytes] = []
    state, first, last = runs[0]
    for next_state, next_first, next_last in runs[1:]:
        if next_state is state and next_first == last + 1:
            last = next_last
            continue
        header = v2.RANGE_ACK_HEADER | (0 if state.is_read(now_s) else no_polls)
        out.append(_RANGE_ACK(32, header, 0, state.ledger_id, first, last))
        state, first, last = next_state, next_first, next_last
    header = v2.RANGE_ACK_HEADER | (0 if state.is_read(now_s) else no_polls)
    out.append(_RANGE_ACK(32, header, 0, state.ledger_id, first, last))
    return b"".join(out)


_NEW_LEDGERS_MAX = 200
"""Number of ledgers loaded in a row: each may read the index twice."""
_KNOWN_BETWEEN_MAX = 16
"""The search for new ledgers ends after this number of adds to known ones: it would not pay."""

MakeKnown = Callable[[int, int, bytes], bool]


class _Acks:
    """The adds of this connection in the open commit group of one journal."""

    __slots__ = ("flags", "group", "runs")

    def __init__(self) -> None:
        self.group: CommitGroup | None = None
        self.runs: list[Run] = []
        self.flags = 0
        """What the client understands in the acks (`_ACK_FLAGS`)."""


class ReceivedSegments:
    """The receive buffer, and the numbers by which the write caches know its current segment."""

    __slots__ = ("_directories", "_pinned_by", "_segment_nos", "buffer")

    def __init__(self, buffer: ReceiveBuffer, directories: Sequence[LedgerStorage]) -> None:
        self.buffer = buffer
        self._directories = directories
        self._segment_nos = [-1] * len(directories)
        self._pinned_by: list[int] = []

    def pin(self, shard: Shard) -> int:
        """Returns the number by which the directory's cache refers to the current segment."""
        buffer = self.buffer
        if not buffer.is_pinned:
            self.release()
            buffer.is_pinned = True
        segment_no = self._segment_nos[shard.directory_no]
        if segment_no < 0:
            # Each cache gets a view of its own, which it releases when it is done.
            view = buffer.view[:] if self._pinned_by else buffer.view
            segment_no = shard.directory.cache.add_segment(view)
            self._segment_nos[shard.directory_no] = segment_no
            self._pinned_by.append(shard.directory_no)
        return segment_no

    def release(self) -> None:
        """Releases the segment that was filled last: it gets no further frame."""
        pinned_by, self._pinned_by = self._pinned_by, []
        shared: SharedSegment | None = None
        for directory_no in pinned_by:
            cache = self._directories[directory_no].cache
            segment_no = self._segment_nos[directory_no]
            self._segment_nos[directory_no] = -1
            if len(pinned_by) > 1 and shared is None:
                shared = SharedSegment(cache.segments[segment_no].nbytes)
            cache.release_segment(segment_no, shared=shared)


def _nothing(*_: object) -> bool:
    return False


class AddIntake:
    """Takes the adds of one connection, by protocol v2."""

    def __init__(
        self,
        storage: BookieStorage,
        counts: RequestCounts,
        send: Callable[[bytes], None],
        may_take: Callable[[int], bool],
        make_known: MakeKnown,
        states: Sequence[dict[int, LedgerState]] | None = None,
    ) -> None:
        """Args:
        send: sends acks to the peer.
        may_take: returns, while `is_careful`, whether adds of a shard are taken many at a time.
        make_known: `Requests.make_known`.
        states: of each directory, the ledgers to which adds are taken many at a time; None: all
            that are in memory.
        """
        self.is_careful = False
        """`may_take` decides about each stretch of adds, because some capacity is short."""
        self.takes_new = False
        """There is capacity for all new ledgers that one chunk may contain."""
        self._shards, self._shard_of = storage.shards, storage.shard_of
        self._journals = len(storage.journals)
        self._counts = counts
        self._send = send
        self._may_take = may_take
        self._make_ledger_known = make_known
        self._states = [one.states for one in storage.directories] if states is None else states
        self._header = 0
        self._ack_flags = 0
        self._acks = [_Acks() for _ in storage.journals]
        self._queued: list[Journal] = []
        """Journals that were given adds of this chunk."""

    def forget(self) -> None:
        """Takes nothing any more; acks of what was taken are still sent."""
        self._may_take = self._make_ledger_known = _nothing

    def take_many(self, received: ReceivedSegments) -> int:
        """Takes the adds at the front of the buffer that have the expected header, one stretch per
        shard (hot). Returns the number of ledgers that had to be loaded, each as expensive as
        dozens of adds."""
        made_known = 0
        header = self._header
        if not header:
            return made_known
        buffer, shards = received.buffer, self._shards
        count, journals, shard_of = len(shards), self._journals, self._shard_of
        while buffer.end - buffer.start >= v2.ADD_BYTES_MIN:
            start = buffer.start
            number = 0 if count == 1 else shard_of(v2.ledger_of_add(buffer.segment, start))
            if self.is_careful and not self._may_take(number):
                break
            shard = shards[number]
            directory, states = shard.directory, self._states[shard.directory_no]
            segment_no = received.pin(shard)
            acks = self._open_acks(shard)
            runs = acks.runs
            before = len(runs)
            stop = take_adds(
                buffer.segment,
                start,
                buffer.end,
                segment_no,
                header,
                buffer.frame_bytes_max,
                directory.cache.active,
                states,
                runs,
                journals,
                shard.journal_no,
            )
            if stop == start:
                stop = self._fill_gap(buffer, shard, segment_no, states, runs)
            if stop == start:
                if made_known >= _NEW_LEDGERS_MAX or not self.takes_new:
                    break
                new = self._make_known(buffer)
                if not new:
                    break
                made_known += new
                continue
            buffer.start = stop
            entries = 0
            for i in range(before, len(runs)):
                _, first, last = runs[i]
                entries += last - first + 1
            self._queue(shard, acks, buffer.view[start:stop], entries)
            if count == 1 and (stop == buffer.end or not self._may_be_new(buffer, states)):
                break
        return made_known

    @staticmethod
    def _may_be_new(buffer: ReceiveBuffer, states: Mapping[int, LedgerState]) -> bool:
        """Returns whether the stretch may have ended at an add to a ledger that is not in `states`,
        or into a gap."""
        start = buffer.start
        if buffer.end - start < v2.ADD_BYTES_MIN:
            return False
        state = states.get(v2.ledger_of_add(buffer.segment, start))
        return state is None or state.has_gaps

    def _fill_gap(
        self,
        buffer: ReceiveBuffer,
        shard: Shard,
        segment_no: int,
        states: dict[int, LedgerState],
        runs: list[Run],
    ) -> int:
        """Takes the adds at the front that are all of one gap (`LedgerState.gap_end`), so that none
        has to be searched for, as `take_adds` takes those behind the last entry. Returns where it
        stopped."""
        start = end = buffer.start
        state = states.get(v2.ledger_of_add(buffer.segment, start))
        if state is None or not state.has_gaps:
            return start
        ahead = frames_ahead(
            buffer.segment, start, buffer.end, self._header, buffer.frame_bytes_max
        )
        began = gap_end = 0
        for ledger_id, entry_id, _, after in ahead:
            if end == start:
                began, gap_end = entry_id, state.gap_end(entry_id)
            if ledger_id != state.ledger_id or not began <= entry_id < gap_end:
                break
            end = after
        if not gap_end or end == start:
            return start
        before, new_from = len(runs), state.new_from
        state.new_from = began
        stop = take_adds(
            buffer.segment,
            start,
            end,
            segment_no,
            self._header,
            buffer.frame_bytes_max,
            shard.directory.cache.active,
            states,
            runs,
            self._journals,
            shard.journal_no,
        )
        state.new_from = new_from
        for _, first, last in runs[before:]:
            state.added(first, last)
        return stop

    def _make_known(self, buffer: ReceiveBuffer) -> int:
        """Loads the ledgers of the adds at the front that are not in memory, up to the first whose
        add is not taken. Returns their number: 0 if the first add needs another treatment."""
        shards, shard_of, states = self._shards, self._shard_of, self._states
        new = known = 0
        for ledger_id, entry_id, key, _ in frames_ahead(
            buffer.segment, buffer.start, buffer.end, self._header, buffer.frame_bytes_max
        ):
            if ledger_id not in states[shards[shard_of(ledger_id)].directory_no]:
                if not self._make_ledger_known(ledger_id, entry_id, key):
                    break
                new += 1
                known = 0
                if new == _NEW_LEDGERS_MAX:
                    break
            else:
                known += 1
                if not new or known > _KNOWN_BETWEEN_MAX:
                    break
        return new

    def expect(self, header: int) -> None:
        """Sets the packet header of the adds that the hot loop takes from now on: ordinary adds, or
        those of a recovery."""
        self._ack_flags = header & _ACK_FLAGS
        self._header = header

    def take_one(
        self, received: ReceivedSegments, at: int, size: int, ledger_id: int, entry_id: int
    ) -> None:
        """Takes a checked add of a new entry that the hot loop left, such as the first of a ledger.
        Its frame has `size` bytes, from offset `at` of the segment."""
        shard = self._shards[self._shard_of(ledger_id)]
        segment_no = received.pin(shard)
        state = shard.directory.states[ledger_id]
        active = shard.directory.cache.active
        active.setdefault(ledger_id, {})[entry_id] = segment_no << 32 | at
        state.added(entry_id, entry_id)
        frame = received.buffer.view[at : at + size]
        lac = v2.lac_of_add(frame)
        if lac > state.lac:
            state.advance_lac(lac)
        acks = self._open_acks(shard)
        acks.runs.append((state, entry_id, entry_id))
        self._queue(shard, acks, frame, 1)

    def _open_acks(self, shard: Shard) -> _Acks:
        acks = self._acks[shard.journal_no]
        group = shard.journal.open_group
        if group is not acks.group or acks.flags != self._ack_flags:
            acks.group = None  # until something is queued
            acks.runs = []
            acks.flags = self._ack_flags
        return acks

    def _queue(self, shard: Shard, acks: _Acks, frames: memoryview, entries: int) -> None:
        size = len(frames)
        counts = self._counts
        counts.adds += entries
        counts.add_bytes += size
        shard.directory.cache.count(size)
        journal, on_accepted = shard.journal, None
        if acks.group is None:
            acks.group = journal.open_group
            on_accepted = partial(self._acknowledge, acks, acks.runs, acks.flags)
        if journal not in self._queued:
            self._queued.append(journal)
        journal.queue(frames, entries, on_accepted, is_urgent=False)

    def commit(self) -> None:
        """Has the journals write what was queued. Called once at the end of each chunk."""
        queued = self._queued
        while queued:
            queued.pop().commit()

    def _acknowledge(self, acks: _Acks, runs: list[Run], flags: int) -> None:
        """Sends all acks of `runs` in one piece: the journal has synced them, if it syncs."""
        if acks.runs is runs:
            # The group holds views of the receive buffers of all peers; this peer may be idle now.
            acks.group = None
            acks.runs = []
        if runs:
            self._send(encode_acks(runs, flags, trio.current_time()))
