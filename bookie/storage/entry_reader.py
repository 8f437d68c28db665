"""Reads entries: from write cache, read cache, index and entry log, in this order.

Must never report an entry as absent if it may exist: whatever is wrong with stored bytes is a
BookieIoError. What comes from a disk is checked before it is served, by
`bookie.storage.read_check`. Between a miss in the caches and the look-up in the index there is no
await, because a checkpoint moves entries from the one to the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import trio

from bookie.core.caches import Block, ReadCache, WriteCache
from bookie.core.entry_log import entry_ends
from bookie.core.read_ahead import ReadAhead, ReuseTracker
from bookie.storage.disk.disk import Buffer
from bookie.storage.entry_log.entry_logs import EntryLogCut, EntryLogs
from bookie.storage.index.index import ENTRY_ID_MAX, Index, PlacedRun
from bookie.storage.metrics import ReadMetrics, timed
from bookie.storage.read_check import DamagedEntry, Part, Piece, ReadCheck, part_of
from ledger.errors import BookieIoError

_ENTRIES_PER_SLICE = 2000
"""After this number of entries a long batch yields to other tasks: all of it may come from
memory."""

_NOTHING_KNOWN: Final = range(ENTRY_ID_MAX, ENTRY_ID_MAX)
_PARTS_MAX: Final = 64
"""Runs that are read at once: each is found in the index, and checked by itself."""
_CHECKED_BYTES: Final = 256 * 1024
"""After this much other tasks run, such as those that take adds."""

BATCH_OVERHEAD_BYTES = 24 + 8 + 4
"""What Apache's bookie counts for the reply to a batch read before the first entry."""
BATCH_ENTRY_OVERHEAD_BYTES = 4


class _UnderWay:
    """A read in flight: callers that want one of its entries wait for it."""

    __slots__ = ("blocks", "end", "ended", "first", "generation")

    def __init__(self, first: int, end: int, generation: int) -> None:
        self.first = first
        self.end = end
        self.generation = generation
        self.blocks: list[Block] = []
        """Empty if the read failed: then each waiting caller tries by itself."""
        self.ended = trio.Event()

    def block_with(self, entry_id: int) -> Block | None:
        return next((one for one in self.blocks if one.first <= entry_id <= one.last), None)


class EntryReader:
    """Reads of one ledger directory. `None` means that the entry is certainly not stored here."""

    _ATTEMPTS_MAX = 3
    _NARROWER = 16
    """A piece that cannot be read is read again with a fraction of its entries: one in this number.
    A bad sector may take a disk seconds each time, so it is read three or four times for the entry
    before it, not once for each of the thousands in the piece."""

    def __init__(
        self,
        cache: WriteCache,
        read_cache: ReadCache,
        index: Index,
        logs: EntryLogs,
        *,
        read_ahead: ReadAhead,
    ) -> None:
        self._cache = cache
        self._blocks = read_cache
        self._index = index
        self._logs = logs
        self._ahead = read_ahead
        self._under_way: dict[int, list[_UnderWay]] = {}
        """By ledger; no more than the reads that are in flight."""
        self._reuse = ReuseTracker()
        self.metrics = ReadMetrics()
        self._check = ReadCheck(logs, self.metrics)
        self.disk_reads = 0
        """The number of reads that had to wait for the disk."""

    def read_cached(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Returns the entry if it is in memory. Raises DamagedEntry if a block holds wrong
        bytes."""
        entry = self._cache.get(ledger_id, entry_id)
        if entry is not None:
            self.metrics.write_cache_hits += 1
        else:
            block = self._blocks.find(ledger_id, entry_id)
            if block is None:
                return None
            entry = _checked(block, entry_id)
        self.metrics.entries += 1
        return entry

    async def read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Returns the entry as stored, or None. Raises BookieIoError if that cannot be decided."""
        entry = self._cache.get(ledger_id, entry_id)
        if entry is not None:
            self.metrics.write_cache_hits += 1
        else:
            block = await self._block_with(ledger_id, entry_id)
            if block is None:
                return None
            entry = _checked(block, entry_id)
        self.metrics.entries += 1
        return entry

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_max: int
    ) -> list[Buffer]:
        """Returns entries `first`, `first + 1`, ... while they are here and fit; [] if `first` is
        not.

        Args:
            count_max: the largest number of entries; 0 or less for no bound but `size_max`.
            size_max: bytes of the reply, counted as Apache's bookie does. The first entry
                is returned even if it alone is larger.

        Raises:
            BookieIoError: `first` could not be read. A later failure only ends the batch.
        """
        found: list[Buffer] = []
        room = size_max - BATCH_OVERHEAD_BYTES
        if count_max <= 0:
            count_max = ENTRY_ID_MAX
        rested_at = 0
        while len(found) < count_max and first + len(found) < ENTRY_ID_MAX:
            if len(found) - rested_at >= _ENTRIES_PER_SLICE:
                rested_at = len(found)
                await trio.lowlevel.checkpoint()
            entry_id = first + len(found)
            entry = self._cache.get(ledger_id, entry_id)
            if entry is not None:
                size = len(entry) + BATCH_ENTRY_OVERHEAD_BYTES
                if found and size > room:
                    break
                found.append(entry)
                self.metrics.write_cache_hits += 1
                room -= size
                continue
            try:
                block = await self._block_with(ledger_id, entry_id, room, count_max - len(found))
                if block is None:
                    break
                end = self._end_in_block(block, entry_id, count_max - len(found), room)
                if end == entry_id:
                    if found:
                        break
                    end += 1
                taken = _checked_entries(block, entry_id, end)
            except BookieIoError:
                if not found:
                    raise
                break
            found += taken
            room -= block.nbytes_of(entry_id, end) + BATCH_ENTRY_OVERHEAD_BYTES * len(taken)
        self.metrics.entries += len(found)
        return found

    def last_entry_id(self, ledger_id: int) -> int:
        """Returns the highest entry id stored, or -1."""
        return max(self._cache.last_entry_id(ledger_id), self._index.last_entry_id(ledger_id))

    def _end_in_block(self, block: Block, entry_id: int, count_max: int, room: int) -> int:
        """Returns one past the last entry to take from `block`, beginning with `entry_id`."""
        i = entry_id - block.first
        before = block.ends[i - 1] if i else 0
        fits = bisect_right(
            range(i, len(block.ends)),
            room,
            key=lambda j: block.ends[j] - before + BATCH_ENTRY_OVERHEAD_BYTES * (j - i + 1),
        )
        end = entry_id + min(fits, count_max)
        end = next((one for one in block.damaged if entry_id < one < end), end)
        if self._cache.holds(block.ledger_id):  # an entry that was added again is newer
            for held in range(entry_id, end):
                if self._cache.get(block.ledger_id, held) is not None:
                    return held
        return end

    async def _block_with(
        self, ledger_id: int, entry_id: int, wanted_bytes: int = 0, wanted_entries: int = 1
    ) -> Block | None:
        """Returns a block that holds the entry, read if necessary, with what follows it:
        `wanted_bytes` or `wanted_entries`, whichever is less, or what is read ahead."""
        for attempt in range(self._ATTEMPTS_MAX):
            block = self._blocks.find(ledger_id, entry_id)
            if block is not None:
                return block
            under_way = self._under_way_with(ledger_id, entry_id)
            if under_way is not None:
                await under_way.ended.wait()
                block = under_way.block_with(entry_id)
                if block is not None and self._blocks.is_current(ledger_id, under_way.generation):
                    return block
            run = self._index.find(ledger_id, entry_id)
            if run is None:
                return None
            generation = self._blocks.generation
            piece = self._piece(run, entry_id, wanted_bytes, wanted_entries)
            while True:
                try:
                    return await self._read_piece(piece, generation)
                except BookieIoError as error:
                    # The place may have changed during the read, and the log may be gone: look it
                    # up again.
                    is_same = self._blocks.is_current(
                        ledger_id, generation
                    ) and run == self._index.find(ledger_id, entry_id)
                    if not is_same and attempt < self._ATTEMPTS_MAX - 1:
                        break
                    entries = sum(len(part.ends) for part in piece)
                    if entries == 1:
                        if isinstance(error, EntryLogCut):
                            raise self._check.lost(run, entry_id, error) from error
                        raise
                    # What is wrong may be in what is read ahead.
                    piece = [
                        part_of(run, entry_id, piece[0].ends[: max(1, entries // self._NARROWER)])
                    ]
        raise AssertionError("unreachable")

    def _piece(
        self, run: PlacedRun, entry_id: int, wanted_bytes: int, wanted_entries: int
    ) -> list[Part]:
        """Returns what to read at once: the entry, and those after it that are wanted or read
        ahead, in its run and in the runs of the ledger that follow it in the log."""
        ahead = self._ahead
        ends = entry_ends(run.lengths[entry_id - run.first :])
        wanted_bytes = min(wanted_bytes, ends[-1] * wanted_entries // len(ends))
        piece_bytes = ahead.piece_bytes(
            run.ledger_id, entry_id, wanted_bytes, is_pressed=self._cache.is_active_full
        )
        known = self._next_known(run.ledger_id, entry_id + 1)
        entries_max = min(ahead.entries_max, known.start - entry_id)
        is_whole = ends[-1] <= piece_bytes and len(ends) <= entries_max
        del ends[max(1, min(bisect_right(ends, piece_bytes), entries_max)) :]
        parts = [part_of(run, entry_id, ends)]
        next_id = parts[0].stop
        if is_whole and ahead.may_span(piece_bytes):
            # What does not fit into the cache would be read again.
            bytes_max = min(piece_bytes, self._blocks.bytes_max // 2)
            next_id = self._add_following(parts, bytes_max, known.start)
        if next_id == known.start:
            next_id = known.stop  # this reader misses nothing before
        nbytes = sum(part.ends[-1] for part in parts)
        ahead.begins(run.ledger_id, entry_id, next_id, nbytes, piece_bytes)
        return parts

    def _add_following(self, parts: list[Part], bytes_max: int, next_known: int) -> int:
        """Adds the runs of the ledger that follow the first part in its log without a gap, before
        the entry `next_known`, and returns the first entry that is not added. Whole runs only: each
        is proved by one checksum."""
        last = parts[0]
        nbytes, entries = last.ends[-1], len(last.ends)
        if nbytes >= bytes_max:
            return last.stop
        try:
            for run in self._index.runs(last.run.ledger_id, last.stop):
                part = part_of(run, run.first, entry_ends(run.lengths))
                nbytes, entries = nbytes + part.ends[-1], entries + len(part.ends)
                if (
                    not part.follows(last)
                    or run.last >= next_known
                    or nbytes > bytes_max
                    or entries > self._ahead.entries_max
                    or len(parts) == _PARTS_MAX
                ):
                    return run.first
                parts.append(part)
                last = part
        except BookieIoError:
            pass  # it matters to reads of the run whose record is damaged
        return last.stop

    def _next_known(self, ledger_id: int, entry_id: int) -> range:
        """Returns the first entries from `entry_id` on that are in the read cache, or that a read
        in flight will return, such as the next one of a reader with several requests in flight."""
        known = self._blocks.next_entries(ledger_id, entry_id) or _NOTHING_KNOWN
        for one in self._under_way.get(ledger_id, ()):
            if one.end > entry_id and max(one.first, entry_id) < known.start:
                known = range(max(one.first, entry_id), one.end)
        return known

    async def _read_piece(self, piece: Sequence[Part], generation: int) -> Block:
        """Returns the block of the first part; the others are in the read cache then."""
        first, last = piece[0], piece[-1]
        run, log_id = first.run, first.run.log_id
        sizes = [after.begin - part.begin for part, after in pairwise(piece)]
        sizes.append(last.end - last.begin)
        is_once = not self._reuse.is_kept(log_id, first.offset, last.end - first.offset)
        if len(piece) == 1:
            cached = self._logs.read_nowait(log_id, first.begin, sizes[0], drops_cache=is_once)
            if cached is not None:
                return (await self._kept(piece, [cached], generation))[0]
        self.disk_reads += 1
        under_way = _UnderWay(first.first, last.stop, generation)
        others = self._under_way.setdefault(run.ledger_id, [])
        others.append(under_way)
        try:
            with timed(self.metrics.disk_seconds), self._ahead.reading(sum(sizes)):
                data = await self._logs.read_parts(log_id, first.begin, sizes, drops_cache=is_once)
            under_way.blocks = await self._kept(piece, data, generation)
            return under_way.blocks[0]
        finally:
            others.remove(under_way)
            if not others:
                del self._under_way[run.ledger_id]
            under_way.ended.set()

    async def _kept(
        self, piece: Sequence[Part], data: Sequence[bytes | bytearray], generation: int
    ) -> list[Block]:
        """Checks and caches what was read, in short steps."""
        self.metrics.block_read(
            sum(len(part.ends) for part in piece), sum(part.ends[-1] for part in piece)
        )
        blocks: list[Block] = []
        checked = 0
        for part, stretch in zip(piece, data, strict=True):
            if checked >= _CHECKED_BYTES:
                checked = 0
                await trio.lowlevel.checkpoint()
            view = memoryview(stretch)[: part.end - part.begin]
            stored = Piece(part.run, part.first, part.ends, view[part.head :], view[: part.head])
            damaged = await self._check.damaged(stored)
            block = Block(part.run.ledger_id, part.first, part.ends, stored.data, damaged)
            self._blocks.put(block, generation)
            blocks.append(block)
            checked += part.ends[-1]
        return blocks

    def _under_way_with(self, ledger_id: int, entry_id: int) -> _UnderWay | None:
        """Returns a read in flight that will return the entry, or None."""
        for one in self._under_way.get(ledger_id, ()):
            if one.first <= entry_id < one.end:
                return one
        return None


def _checked(block: Block, entry_id: int) -> memoryview:
    """Returns the entry in the block. Raises DamagedEntry."""
    return _checked_entries(block, entry_id, entry_id + 1)[0]


def _checked_entries(block: Block, entry_id: int, end: int) -> list[memoryview]:
    """Returns the entries from `entry_id` up to, not including, `end`. Raises DamagedEntry for the
    first that is not one."""
    if entry_id in block.damaged:
        raise DamagedEntry(
            f"entry {entry_id} of ledger {block.ledger_id}: other bytes are stored in its place in "
            "the entry log. Read it from another bookie; check the disk of this one",
            block.entry(entry_id),
        )
    data, ends, i = block.data, block.ends, entry_id - block.first
    begin = ends[i - 1] if i else 0
    entries: list[memoryview] = []
    for stop in ends[i : end - block.first]:
        entries.append(data[begin:stop])
        begin = stop
    return entries
