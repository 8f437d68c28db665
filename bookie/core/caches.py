"""The memory of a bookie: the write cache (entries not yet in the entry log) and the read cache.

Neither may keep an object per entry: the write cache maps entry ids to plain ints that point into
the received bytes, the read cache holds blocks, each a stretch of one run of an entry log. Nothing
here is durable; the journal is.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from bookie.core.buffer_pool import SegmentPool
from bookie.core.capacity import DirectoryCapacity
from ledger.errors import InvalidArgument
from ledger.wire.v2 import ADD_BYTES_MIN, ADD_ENTRY_AT

Buffer = bytes | bytearray | memoryview
Half = dict[int, dict[int, int]]

OFFSET_MASK = 0xFFFFFFFF
OWN_SEGMENT_BYTES = 256 * 1024

_frame_length = struct.Struct(">i").unpack_from
_frame_ids = struct.Struct(">qq").unpack_from


class WriteCache:
    """Entries by ledger and entry id, in two halves: one takes adds while the other is flushed.

    A value is `segment_no << 32 | offset of the frame`. The add path writes `active[l][e]` itself
    and then calls `count`; between two awaits that is atomic with queueing for the journal.

    Memory: `nbytes` counts the frames of the active half; segments (receive buffers) are larger
    than the frames in them, and live until no half can point into them: a released segment is freed
    by the second `flushed()` after its last frame at the latest. So the memory used is at most two
    halves (`bytes_max` each, of frames or of released segments, whichever is full first) plus the
    segments that connections are filling. With several ledger directories a segment may be in
    several caches, see `SharedSegment`.
    """

    __slots__ = (
        "_active_last",
        "_capacity",
        "_flushing_last",
        "_next_segment_no",
        "_own_end",
        "_own_no",
        "_released",
        "_released_flushing",
        "_shared",
        "active",
        "bytes_max",
        "flushing",
        "nbytes",
        "released_bytes",
        "segments",
        "spares",
    )

    def __init__(
        self,
        bytes_max: int,
        spares: SegmentPool | None = None,
        capacity: DirectoryCapacity | None = None,
    ) -> None:
        """`bytes_max`: bytes of frames in one half. `spares`: where freed segments may go.
        `capacity`: where the cache reports whether its active half is full."""
        assert bytes_max > 0
        self.active: Half = {}
        self.flushing: Half | None = None
        self.segments: dict[int, memoryview] = {}
        self.nbytes = 0
        self.bytes_max = bytes_max
        self.released_bytes = 0
        """Total size of the segments released since the last swap: still in memory, but no longer
        filled."""
        self._capacity = capacity or DirectoryCapacity()
        self._released: list[int] = []
        self._released_flushing: list[int] = []
        self._shared: dict[int, SharedSegment] = {}
        self.spares = spares or SegmentPool()
        self._next_segment_no = 1
        self._own_no = 0
        self._own_end = 0
        # Ledger -> (keys seen, highest of them). Keys are only ever added, and a dict keeps the
        # order of insertion, so a look-up inspects only the new keys.
        self._active_last: dict[int, tuple[int, int]] = {}
        self._flushing_last: dict[int, tuple[int, int]] = {}

    @property
    def is_active_full(self) -> bool:
        """Whether the active half has reached its limit: time to swap, or to stop receiving."""
        return self.active_filled >= 1

    @property
    def active_filled(self) -> float:
        """The filled share of the active half; 1 is full."""
        return max(self.nbytes, self.released_bytes) / self.bytes_max

    @property
    def has_released(self) -> bool:
        """Whether a swap and a flush would free segments, if only those of a closed connection."""
        return bool(self._released)

    def count(self, nbytes: int) -> None:
        """Counts frames of `nbytes` bytes that the caller has put into the active half."""
        self.nbytes += nbytes
        if self.nbytes >= self.bytes_max:
            self._capacity.report_cache(True)

    def charge(self, nbytes: int) -> None:
        """Counts a segment of `nbytes` bytes that is no longer filled and cannot be freed before a
        flush."""
        self.released_bytes += nbytes
        if self.released_bytes >= self.bytes_max:
            self._capacity.report_cache(True)

    def add_segment(self, view: memoryview) -> int:
        """Registers a buffer that will hold frames, and returns its number for the values."""
        number = self._next_segment_no
        self._next_segment_no = number + 1
        self.segments[number] = view
        return number

    def release_segment(
        self, segment_no: int, *, is_unused: bool = False, shared: SharedSegment | None = None
    ) -> None:
        """Marks a segment as complete: no further frame will be put in it. `is_unused`: none ever
        was. `shared`: the same object for every cache that has frames in the segment."""
        view = self.segments[segment_no]
        if is_unused:
            del self.segments[segment_no]
            return
        self._released.append(segment_no)
        if shared is None:
            self.charge(view.nbytes)
        else:
            self._shared[segment_no] = shared
            shared.hold(self)

    def put_frame(self, frame: Buffer) -> None:
        """Copies one whole frame into the cache, for replay and for adds that did not arrive as v2
        frames.

        Raises InvalidArgument if `frame` is not one frame with at least an entry header.
        """
        size = len(frame)
        if size < ADD_BYTES_MIN or _frame_length(frame, 0)[0] != size - 4:
            raise InvalidArgument(
                f"a frame of {size} bytes: needs {ADD_BYTES_MIN} or more and its own length "
                "in the first four"
            )
        ledger_id, entry_id = _frame_ids(frame, ADD_ENTRY_AT)
        if ledger_id < 0 or entry_id < 0:
            raise InvalidArgument(f"entry {entry_id} of ledger {ledger_id}: ids are never negative")
        own_no, offset, _ = self.reserve_own(size, OWN_SEGMENT_BYTES)
        self.put_own(frame)
        self.active.setdefault(ledger_id, {})[entry_id] = own_no << 32 | offset

    def reserve_own(self, least: int, usual: int) -> tuple[int, int, int]:
        """Returns where `put_own` will put bytes: the number of a segment, an offset, and how many
        bytes fit there, `least` or more. `usual`: the size of a new segment."""
        segment = self.segments.get(self._own_no)
        if segment is None or segment.nbytes - self._own_end < least:
            if segment is not None:
                self.release_segment(self._own_no)
            size = max(least, min(usual, self.bytes_max))
            buffer = self.spares.take_segment(size)  # maybe slightly shorter than requested
            segment = memoryview(buffer if len(buffer) >= least else bytearray(size))
            self._own_no = self.add_segment(segment)
            self._own_end = 0
        return self._own_no, self._own_end, segment.nbytes - self._own_end

    def put_own(self, frames: Buffer) -> None:
        """Copies whole frames to the place that `reserve_own` returned; the caller records the
        entries."""
        end = self._own_end + len(frames)
        self.segments[self._own_no][self._own_end : end] = frames
        self._own_end = end
        self.count(len(frames))

    def get(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Returns the newest entry as stored (header, digest, payload), or None."""
        entries = self.active.get(ledger_id)
        place = None if entries is None else entries.get(entry_id)
        if place is None:
            if self.flushing is None:
                return None
            entries = self.flushing.get(ledger_id)
            place = None if entries is None else entries.get(entry_id)
            if place is None:
                return None
        segment = self.segments[place >> 32]
        offset = place & OFFSET_MASK
        return segment[offset + ADD_ENTRY_AT : offset + 4 + _frame_length(segment, offset)[0]]

    def holds(self, ledger_id: int) -> bool:
        """Returns whether either half has any entry of this ledger."""
        return ledger_id in self.active or (
            self.flushing is not None and ledger_id in self.flushing
        )

    def last_entry_id(self, ledger_id: int) -> int:
        """Returns the highest entry id in both halves, or -1. The cost is that of the entries added
        since the last call for the same ledger."""
        last = _last_of(self.active, self._active_last, ledger_id)
        if self.flushing is None:
            return last
        return max(last, _last_of(self.flushing, self._flushing_last, ledger_id))

    def swap(self) -> None:
        """Makes the active half the flushing one, and starts an empty active half."""
        assert self.flushing is None, "the previous half is still being flushed"
        if self._own_no in self.segments:
            self.release_segment(self._own_no)
            self._own_no = 0
        self.flushing, self.active = self.active, {}
        self._flushing_last, self._active_last = self._active_last, {}
        self._released_flushing, self._released = self._released, []
        self.nbytes = 0
        self.released_bytes = 0
        self._capacity.report_cache(False)
        if self._shared:
            for shared in self._shared.values():
                shared.release(self)
            self._shared = {}

    def flushed(self) -> list[memoryview]:
        """Forgets the flushing half, which can be read from the entry log now, and returns the
        segments that no half needs. Freeing many of them at once takes milliseconds.

        Segments released since the swap may hold frames of the new active half, so they are kept.
        """
        assert self.flushing is not None, "no half is being flushed"
        self.flushing = None
        self._flushing_last = {}
        freed = [self.segments.pop(segment_no) for segment_no in self._released_flushing]
        self._released_flushing = []
        return freed

    def drop_ledger(self, ledger_id: int) -> None:
        """Forgets a deleted ledger's entries in the active half. Not allowed during a flush."""
        assert self.flushing is None, "a flush would bring the ledger back"
        self.active.pop(ledger_id, None)
        self._active_last.pop(ledger_id, None)


class SharedSegment:
    """A segment with frames of several ledger directories. It is charged to one of their caches at
    a time, and to the next one when that begins to flush. So a directory with a few frames in many
    segments is flushed before they fill the memory, and all caches together stay within their
    bounds."""

    __slots__ = ("_holders", "_nbytes")

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._holders: list[WriteCache] = []

    def hold(self, cache: WriteCache) -> None:
        """Records that `cache` has released the segment; its frames there are in its active
        half."""
        self._holders.append(cache)
        if len(self._holders) == 1:
            cache.charge(self._nbytes)

    def release(self, cache: WriteCache) -> None:
        """Records that `cache` has swapped its halves: its frames are being flushed."""
        was_charged = self._holders[0] is cache
        self._holders.remove(cache)
        if was_charged and self._holders:
            self._holders[0].charge(self._nbytes)


def _last_of(half: Half, known: dict[int, tuple[int, int]], ledger_id: int) -> int:
    entries = half.get(ledger_id)
    if not entries:
        return -1
    count, last = known.get(ledger_id, (0, -1))
    if count != len(entries):
        last = max(last, max(islice(reversed(entries), len(entries) - count)))
        known[ledger_id] = (len(entries), last)
    return last


class Block:
    """A stretch of one run: `ends[i]` is where entry `first + i` ends in `data`. `damaged`: the
    ascending ids of the entries in it whose bytes are not those that were added."""

    __slots__ = ("damaged", "data", "ends", "first", "ledger_id")

    def __init__(
        self,
        ledger_id: int,
        first: int,
        ends: Sequence[int],
        data: Buffer,
        damaged: Sequence[int] = (),
    ) -> None:
        assert ends
        assert ends[-1] == len(data), f"{len(data)} bytes for entries ending at {ends[-1]}"
        self.ledger_id = ledger_id
        self.first = first
        self.ends = ends
        self.data = memoryview(data)
        self.damaged = damaged

    @property
    def last(self) -> int:
        return self.first + len(self.ends) - 1

    def nbytes_of(self, first: int, end: int) -> int:
        """Returns the bytes of the entries from `first` up to, not including, `end`."""
        i = first - self.first
        return self.ends[end - self.first - 1] - (self.ends[i - 1] if i else 0)

    def entry(self, entry_id: int) -> memoryview:
        i = entry_id - self.first
        return self.data[self.ends[i - 1] if i else 0 : self.ends[i]]


class ReadCache:
    """Blocks read from entry logs, bounded by bytes; the least recently used is dropped first.

    `generation` changes whenever blocks became invalid (a ledger was deleted, entries were
    overwritten): bytes of that ledger that were read under an earlier generation must not be put
    in, see `is_current`.
    """

    DROPS_MAX = 1000
    """The number of drops that are remembered. A read that took longer than these is not cached."""

    # What a block costs besides its data: offsets of entries, objects, places in the maps.
    _BLOCK_OVERHEAD_BYTES = 400
    _ENTRY_OVERHEAD_BYTES = 40

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.nbytes = 0
        self.generation = 0
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}
        # The last ledgers dropped, and the generation that each began; the oldest first.
        self._drops: OrderedDict[int, int] = OrderedDict()
        self._remembered_from = 0

    def is_current(self, ledger_id: int, generation: int) -> bool:
        """Returns whether bytes of the ledger that were read under this generation are still valid.
        Drops of other ledgers do not matter: otherwise nothing would be cached while many are
        deleted."""
        is_remembered = generation >= self._remembered_from
        return is_remembered and self._drops.get(ledger_id, 0) <= generation

    def find(self, ledger_id: int, entry_id: int) -> Block | None:
        """Returns the block that holds the entry, and makes it the most recently used one."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        i = bisect_right(firsts, entry_id)
        if i == 0:
            return None
        key = (ledger_id, firsts[i - 1])
        block = self._blocks[key]
        if entry_id > block.last:
            return None
        self._blocks.move_to_end(key)
        return block

    def next_entries(self, ledger_id: int, entry_id: int) -> range:
        """Returns the entries from `entry_id` on of the first block that has any; that does not
        count as a use of it."""
        firsts = self._firsts.get(ledger_id, ())
        i = bisect_right(firsts, entry_id)
        if i and entry_id <= (last := self._blocks[ledger_id, firsts[i - 1]].last):
            return range(entry_id, last + 1)
        if i < len(firsts):
            return range(firsts[i], self._blocks[ledger_id, firsts[i]].last + 1)
        return range(0)

    def put(self, block: Block, generation: int) -> None:
        """Caches a block whose read began at `generation`, unless it is larger than the whole
        cache."""
        size = self._size_of(block)
        if size > self.bytes_max or not self.is_current(block.ledger_id, generation):
            return
        key = (block.ledger_id, block.first)
        old = self._blocks.pop(key, None)
        if old is None:
            insort(self._firsts.setdefault(block.ledger_id, []), block.first)
        else:
            self.nbytes -= self._size_of(old)
        self._blocks[key] = block
        self.nbytes += size
        while self.nbytes > self.bytes_max:
            _, oldest = self._blocks.popitem(last=False)
            self.nbytes -= self._size_of(oldest)
            self._forget_first(oldest)

    def drop_ledger(self, ledger_id: int) -> None:
        """Drops all blocks of a ledger whose stored entries changed."""
        self.generation += 1
        self._drops[ledger_id] = self.generation
        self._drops.move_to_end(ledger_id)
        if len(self._drops) > self.DROPS_MAX:
            _, self._remembered_from = self._drops.popitem(last=False)
        for first in self._firsts.pop(ledger_id, ()):
            self.nbytes -= self._size_of(self._blocks.pop((ledger_id, first)))

    def _forget_first(self, block: Block) -> None:
        firsts = self._firsts[block.ledger_id]
        del firsts[bisect_right(firsts, block.first) - 1]
        if not firsts:
            del self._firsts[block.ledger_id]

    def _size_of(self, block: Block) -> int:
        entries_bytes = len(block.ends) * self._ENTRY_OVERHEAD_BYTES
        return block.data.nbytes + entries_bytes + self._BLOCK_OVERHEAD_BYTES
