"""Decides how much is read ahead for a reader, so that every reader finds its piece in the cache.

With a cache of two pieces and three readers in turn, each piece read ahead would evict the one
whose reader comes next, and the disk would read everything many times. So the more readers, the
smaller the pieces. A reader is identified by the entry at which it will continue.

It also finds which parts of entry logs are read more than once, and so deserve the page cache. Most
of what is read from a disk is read once, in order, by a reader that catches up: caching it would
cost more than reading it (docs/adr/0013). What several readers read, or one that begins from
scratch, is cheaper from the page cache.
"""

from __future__ import annotations

from collections import OrderedDict

_PIECE_BYTES_MIN = 16 * 1024
"""The least that is read ahead, unless the cache is tiny: a disk operation costs more."""
_PIECES_MIN = 64
"""The number of pieces in a tiny cache."""


class ReadAhead:
    """The read-ahead of one read cache of `cache_bytes`; consulted once per read of an entry log.

    A reader counts until as much was read ahead as the cache holds without it reading on: by then
    its piece was evicted. So at most as many are remembered as there are pieces in the cache.
    """

    def __init__(self, cache_bytes: int, *, bytes_max: int, entries_max: int) -> None:
        """At most `bytes_max` bytes and `entries_max` entries are read along with the requested
        one."""
        self.entries_max = entries_max
        self._cache_bytes = cache_bytes
        self._bytes_max = bytes_max
        self._bytes_min = min(_PIECE_BYTES_MIN, max(cache_bytes // _PIECES_MIN, 1))
        # With more of them pieces would be no smaller.
        self._readers_max = cache_bytes // (2 * self._bytes_min) + 1
        self._read_bytes = 0
        # Ledger and next entry -> bytes read in all when it began; the oldest first.
        self._readers: OrderedDict[tuple[int, int], int] = OrderedDict()

    @property
    def readers(self) -> int:
        return len(self._readers)

    def piece_bytes(self, ledger_id: int, entry_id: int) -> int:
        """Returns how much to read for a reader that misses this entry now."""
        self._forget_old()
        others = len(self._readers) - ((ledger_id, entry_id) in self._readers)
        # Half of the cache: blocks cost more than their bytes, and the last block of the piece
        # before is still in the cache.
        share = self._cache_bytes // (2 * (others + 1))
        return min(self._bytes_max, max(share, self._bytes_min))

    def has_read(self, ledger_id: int, entry_id: int, next_id: int, nbytes: int) -> None:
        """Records that `nbytes` were read for a reader that missed `entry_id`; it will continue
        with `next_id`."""
        self._readers.pop((ledger_id, entry_id), None)
        self._read_bytes += nbytes
        self._readers[ledger_id, next_id] = self._read_bytes
        self._readers.move_to_end((ledger_id, next_id))
        self._forget_old()

    def _forget_old(self) -> None:
        readers = self._readers
        while readers:
            key, began = next(iter(readers.items()))
            is_recent = self._read_bytes - began <= self._cache_bytes
            if is_recent and len(readers) <= self._readers_max:
                return
            del readers[key]


STRETCH_BYTES = 1 << 20
"""The size of the stretches of a log that are tracked."""
_REUSED = 1 << 63


class ReuseTracker:
    """Remembers up to where the last stretches were read, in some 200 bytes each."""

    def __init__(self, stretches_max: int = 16_384) -> None:
        assert stretches_max > 0
        self._stretches_max = stretches_max
        self._ends: OrderedDict[tuple[int, int], int] = OrderedDict()
        """Per log and stretch: the offset up to which it was read, or _REUSED."""

    def is_reused(self, log_id: int, offset: int, size: int) -> bool:
        """Records a read of `size` bytes, and returns whether it begins before the end of an
        earlier one in a stretch that it touches. Such a stretch counts as reused until it is
        forgotten."""
        ends, end = self._ends, offset + size
        is_any_reused = False
        for stretch in range(offset // STRETCH_BYTES, (end - 1) // STRETCH_BYTES + 1):
            key = (log_id, stretch)
            read_to = ends.pop(key, 0)
            is_reused = offset < read_to
            is_any_reused = is_any_reused or is_reused
            ends[key] = _REUSED if is_reused else end
        while len(ends) > self._stretches_max:
            ends.popitem(last=False)
        return is_any_reused
