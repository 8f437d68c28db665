"""What a bookie holds in memory: the write cache (not yet in the entry log) and the read cache.

Neither may keep an object per entry: the write cache maps entry ids to plain ints that point
into the received bytes, the read cache holds blocks, each a stretch of one run of an entry log.
Nothing here is durable; the journal is.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from ledger.errors import InvalidArgument

Buffer = bytes | bytearray | memoryview
Half = dict[int, dict[int, int]]

ENTRY_OFFSET = 28
"""Where the entry begins in a frame: after length (4), packet header (4), master key (20)."""
FRAME_BYTES_MIN = ENTRY_OFFSET + 32
"""A frame whose entry has its 32-byte header and nothing else."""
OFFSET_MASK = 0xFFFFFFFF
OWN_SEGMENT_BYTES = 256 * 1024
_SPARE_BYTES_MIN = 1024 * 1024
_SPARE_SHRINKS_MAX = 64 * 1024
"""A spare loses a byte each time it is used again."""
_SPARES_MAX = 8

_frame_length = struct.Struct(">i").unpack_from
_frame_ids = struct.Struct(">qq").unpack_from


class WriteCache:
    """Entries by ledger and entry id, in two halves: one takes adds while the other is flushed.

    A value is `segment_no << 32 | offset of the frame`. The add path writes `active[l][e]`
    and `nbytes` itself; between two awaits that is atomic with queueing for the journal.

    Memory: `nbytes` counts the frames of the active half; segments (receive buffers) are
    larger than the frames in them, and live until no half can point into them: a released
    segment is freed by the second `flushed()` after its last frame at the latest. So the
    memory held is at most two halves (`bytes_max` each, of frames or of released segments,
    whichever is full first) plus the segments that connections are filling right now.
    """

    __slots__ = (
        "_active_last",
        "_flushing_last",
        "_next_segment_no",
        "_own_end",
        "_own_no",
        "_released",
        "_released_flushing",
        "_spares",
        "active",
        "bytes_max",
        "flushing",
        "nbytes",
        "released_bytes",
        "segments",
    )

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: bytes of frames in one half."""
        assert bytes_max > 0
        self.active: Half = {}
        self.flushing: Half | None = None
        self.segments: dict[int, memoryview] = {}
        self.nbytes = 0
        self.bytes_max = bytes_max
        self.released_bytes = 0
        """Sizes of the segments released since the last swap: held, but no longer filled."""
        self._released: list[int] = []
        self._released_flushing: list[int] = []
        self._spares: list[bytearray] = []
        self._next_segment_no = 1
        self._own_no = 0
        self._own_end = 0
        # Ledger -> (keys seen, highest of them). Keys are only ever added, and a dict keeps
        # the order of insertion, so a look-up inspects just the keys that are new.
        self._active_last: dict[int, tuple[int, int]] = {}
        self._flushing_last: dict[int, tuple[int, int]] = {}

    @property
    def is_active_full(self) -> bool:
        """The active half holds as much as it may: time to swap, or to stop receiving."""
        return self.nbytes >= self.bytes_max or self.released_bytes >= self.bytes_max

    def add_segment(self, view: memoryview) -> int:
        """Registers a buffer that frames will lie in; returns its number for the values."""
        number = self._next_segment_no
        self._next_segment_no = number + 1
        self.segments[number] = view
        return number

    def release_segment(self, segment_no: int, *, is_unused: bool = False) -> None:
        """No further frame will be put in this segment. `is_unused`: none ever was."""
        view = self.segments[segment_no]
        if is_unused:
            del self.segments[segment_no]
            return
        self._released.append(segment_no)
        self.released_bytes += view.nbytes

    def put_frame(self, frame: Buffer) -> None:
        """Copies one whole frame in; for adds that did not arrive as v2 frames, and replay.

        Raises InvalidArgument if `frame` is not one frame with at least an entry header.
        """
        size = len(frame)
        if size < FRAME_BYTES_MIN or _frame_length(frame, 0)[0] != size - 4:
            raise InvalidArgument(
                f"a frame of {size} bytes: needs {FRAME_BYTES_MIN} or more and its own length "
                "in the first four"
            )
        ledger_id, entry_id = _frame_ids(frame, ENTRY_OFFSET)
        if ledger_id < 0 or entry_id < 0:
            raise InvalidArgument(f"entry {entry_id} of ledger {ledger_id}: ids are never negative")
        segment = self.segments.get(self._own_no)
        if segment is None or segment.nbytes - self._own_end < size:
            if segment is not None:
                self.release_segment(self._own_no)
            segment = memoryview(bytearray(max(size, min(OWN_SEGMENT_BYTES, self.bytes_max))))
            self._own_no = self.add_segment(segment)
            self._own_end = 0
        offset = self._own_end
        segment[offset : offset + size] = frame
        self._own_end = offset + size
        self.active.setdefault(ledger_id, {})[entry_id] = self._own_no << 32 | offset
        self.nbytes += size

    def get(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """The entry as stored (header, digest, payload), newest first, or None."""
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
        return segment[offset + ENTRY_OFFSET : offset + 4 + _frame_length(segment, offset)[0]]

    def holds(self, ledger_id: int) -> bool:
        """Is there any entry of this ledger in either half?"""
        return ledger_id in self.active or (
            self.flushing is not None and ledger_id in self.flushing
        )

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id in both halves, or -1. Costs only the entries added since the
        last call for the same ledger."""
        last = _last_of(self.active, self._active_last, ledger_id)
        if self.flushing is None:
            return last
        return max(last, _last_of(self.flushing, self._flushing_last, ledger_id))

    def swap(self) -> None:
        """Makes the active half the flushing one, and begins an empty half."""
        assert self.flushing is None, "the previous half is still being flushed"
        if self._own_no in self.segments:
            self.release_segment(self._own_no)
            self._own_no = 0
        self.flushing, self.active = self.active, {}
        self._flushing_last, self._active_last = self._active_last, {}
        self._released_flushing, self._released = self._released, []
        self.nbytes = 0
        self.released_bytes = 0

    def flushed(self) -> list[memoryview]:
        """The flushing half can be read from the entry log: forgets it, and returns the
        segments nobody needs any more. Giving back many at once takes milliseconds.

        Segments released since the swap may hold frames of the new active half, so they wait.
        """
        assert self.flushing is not None, "no half is being flushed"
        self.flushing = None
        self._flushing_last = {}
        freed = [self.segments.pop(segment_no) for segment_no in self._released_flushing]
        self._released_flushing = []
        return freed

    def take_segment(self, size: int) -> bytearray:
        """A buffer of `size` bytes or a few less, zeros or old bytes: to receive into."""
        for index, spare in enumerate(self._spares):
            if size - _SPARE_SHRINKS_MAX <= len(spare) <= size:
                return self._spares.pop(index)
        return bytearray(size)

    def give_back(self, segment: memoryview) -> None:
        """Keeps a freed segment for `take_segment`, if nobody looks at it any more: new ones
        cost a page fault for every 4 KiB."""
        buffer = segment.obj
        assert isinstance(buffer, bytearray), "segments are receive buffers"
        segment.release()
        if len(buffer) < _SPARE_BYTES_MIN:
            return
        try:
            # A bytearray refuses to be resized while anybody holds a view of it: a journal
            # group that is being written, a reply that is being sent.
            buffer.pop()
        except BufferError:
            return
        self._spares.append(buffer)
        if len(self._spares) > _SPARES_MAX:
            # The large ones are worth most, and a busy connection asks for no others.
            sizes = list(map(len, self._spares))
            del self._spares[sizes.index(min(sizes))]

    def drop_ledger(self, ledger_id: int) -> None:
        """Forgets a deleted ledger's entries in the active half. Not while a flush runs."""
        assert self.flushing is None, "a flush would bring the ledger back"
        self.active.pop(ledger_id, None)
        self._active_last.pop(ledger_id, None)


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
    """A stretch of one run: `ends[i]` is where entry `first + i` ends in `data`."""

    __slots__ = ("data", "ends", "first", "ledger_id")

    def __init__(
        self, ledger_id: int, first: int, ends: Sequence[int], data: bytes | bytearray
    ) -> None:
        assert ends
        assert ends[-1] == len(data), f"{len(data)} bytes for entries ending at {ends[-1]}"
        self.ledger_id = ledger_id
        self.first = first
        self.ends = ends
        self.data = memoryview(data)

    @property
    def last(self) -> int:
        return self.first + len(self.ends) - 1

    def nbytes_of(self, first: int, end: int) -> int:
        """Bytes of the entries from `first` up to, not including, `end`."""
        i = first - self.first
        return self.ends[end - self.first - 1] - (self.ends[i - 1] if i else 0)

    def entry(self, entry_id: int) -> memoryview:
        i = entry_id - self.first
        return self.data[self.ends[i - 1] if i else 0 : self.ends[i]]


class ReadCache:
    """Blocks read from entry logs, least recently used first out, bounded by bytes.

    `generation` changes whenever blocks became wrong (a ledger deleted, entries overwritten):
    a read that began under another generation must not be put in.
    """

    # What a block costs beside its data: offsets of entries, objects, places in the maps.
    _BLOCK_OVERHEAD_BYTES = 400
    _ENTRY_OVERHEAD_BYTES = 40

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.nbytes = 0
        self.generation = 0
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}

    def find(self, ledger_id: int, entry_id: int) -> Block | None:
        """The block that holds the entry, now the most recently used one."""
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

    def put(self, block: Block, generation: int) -> None:
        """Keeps a block whose read began at `generation`; blocks larger than all are not kept."""
        size = self._size_of(block)
        if generation != self.generation or size > self.bytes_max:
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
