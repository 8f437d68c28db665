"""Decides how much is read ahead for a reader, so that every reader finds its piece in the cache.

A reader that continues where its last piece ended gets a larger one each time; one that begins, or
reads here and there, gets nothing but what costs the disk no more than the entry alone. A reader is
identified by the entry at which it will continue.

With a cache of two pieces and three readers in turn, each piece read ahead would evict the one
whose reader comes next, and the disk would read everything many times. So the more readers, the
smaller the pieces. They are small, too, while much is being read already, or adds wait for the
disk: the sync of a journal would wait behind all of it.

It also finds which parts of entry logs deserve the page cache. Most of what is read from a disk is
read once, in order, by a reader that catches up: caching it would cost more than reading it
(docs/adr/0013). What several readers read one after the other is cheaper from the page cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

_PIECE_BYTES_MIN: Final = 16 * 1024
"""The least that is read ahead, unless the cache is tiny: a disk operation costs more."""
_PIECES_MIN: Final = 64
"""The number of pieces in a tiny cache."""
_GROWTH: Final = 4
"""A piece is at most this many times as large as the one before it."""
_STRIDE_MAX: Final = 8
"""A bookie may hold every third entry of a ledger only: a reader continues where it meets its piece
within this number of entries."""
IN_FLIGHT_BYTES_MAX: Final = 4 << 20
"""Bytes of one directory that are being read at the same time; beyond it pieces are small."""
CROWDED_BYTES_MAX: Final = 256 * 1024
"""The largest piece while that much is in flight already, or adds wait for the disk."""


class _Reader(NamedTuple):
    begun_at: int
    """Bytes read in all when its last piece began."""
    piece_bytes: int
    """How large that piece could have been."""
    is_continuing: bool
    """Whether it continued an earlier one."""


class ReadAhead:
    """The read-ahead of one read cache of `cache_bytes`; consulted once per read of an entry log.

    A reader counts until as much was read ahead as the cache holds without it reading on: by then
    its piece was evicted. So at most as many are remembered as there are pieces in the cache. Those
    that continue share half of the cache, and the small pieces of all others are the other half.
    """

    def __init__(self, cache_bytes: int, *, bytes_max: int, entries_max: int) -> None:
        """At most `bytes_max` bytes and `entries_max` entries are read along with the requested
        one."""
        self.entries_max = entries_max
        self.in_flight = 0
        """Bytes that are being read from the disk now."""
        self._cache_bytes = cache_bytes
        self._bytes_max = bytes_max
        self._bytes_min = min(_PIECE_BYTES_MIN, max(cache_bytes // _PIECES_MIN, 1))
        # With more of them pieces would be no smaller.
        self._readers_max = cache_bytes // (2 * self._bytes_min) + 1
        self._read_bytes = 0
        self._continuing = 0
        # By ledger and next entry; the one that read longest ago is the first.
        self._readers: OrderedDict[tuple[int, int], _Reader] = OrderedDict()

    @property
    def readers(self) -> int:
        return len(self._readers)

    def piece_bytes(
        self, ledger_id: int, entry_id: int, wanted_bytes: int = 0, *, is_pressed: bool = False
    ) -> int:
        """Returns how much to read for a reader that misses this entry now.

        `wanted_bytes` were requested. `is_pressed`: adds wait for the disk.
        """
        self._forget_old()
        key = self._key(ledger_id, entry_id)
        nbytes = self._bytes_min
        if key is not None and not is_pressed:
            reader = self._readers[key]
            sharing = self._continuing + (not reader.is_continuing)
            # Half of the cache: blocks cost more than their bytes, and the last block of the piece
            # before is still in the cache.
            share = self._cache_bytes // (2 * sharing)
            nbytes = max(nbytes, min(share, _GROWTH * reader.piece_bytes))
        free = 0 if is_pressed else IN_FLIGHT_BYTES_MAX - self.in_flight
        return min(max(min(nbytes, self._bytes_max), wanted_bytes), max(free, CROWDED_BYTES_MAX))

    def may_span(self, piece_bytes: int) -> bool:
        """Returns whether a piece of this size is worth the search for what follows the run of the
        requested entry."""
        return piece_bytes > self._bytes_min

    def begins(
        self, ledger_id: int, entry_id: int, next_id: int, nbytes: int, piece_bytes: int
    ) -> None:
        """Records that `nbytes` of the `piece_bytes` that are allowed are being read for a reader
        that missed `entry_id`; it will continue with `next_id`, perhaps before the disk has
        answered."""
        key = self._key(ledger_id, entry_id)
        is_continuing = key is not None
        if key is not None:
            self._forget(key)
        self._read_bytes += nbytes
        key = ledger_id, next_id
        if key in self._readers:
            self._forget(key)
        self._continuing += is_continuing
        self._readers[key] = _Reader(self._read_bytes, piece_bytes, is_continuing)
        self._forget_old()

    @contextmanager
    def reading(self, nbytes: int) -> Iterator[None]:
        """Counts `nbytes` as in flight meanwhile."""
        self.in_flight += nbytes
        try:
            yield
        finally:
            self.in_flight -= nbytes

    def _key(self, ledger_id: int, entry_id: int) -> tuple[int, int] | None:
        """Returns the key of the reader that continues with this entry, or None."""
        for expected in range(entry_id, max(entry_id - _STRIDE_MAX, -1), -1):
            if (ledger_id, expected) in self._readers:
                return ledger_id, expected
        return None

    def _forget(self, key: tuple[int, int]) -> None:
        self._continuing -= self._readers.pop(key).is_continuing

    def _forget_old(self) -> None:
        readers = self._readers
        while readers:
            key, reader = next(iter(readers.items()))
            is_recent = self._read_bytes - reader.begun_at <= self._cache_bytes
            if is_recent and len(readers) <= self._readers_max:
                return
            self._forget(key)


STRETCH_BYTES: Final = 1 << 20
"""The size of the stretches of a log that are tracked."""
FOLLOW_BYTES: Final = 256 << 20
"""A reader that comes later counts as there until this much was read since its last piece."""
FOLLOWER_BYTES_MIN: Final = 64 * 1024
"""The least piece of a reader that comes later: single entries are read again for other reasons."""
_LOGS_MAX: Final = 256
_Spans: TypeAlias = tuple[tuple[int, int], ...]
_REUSED: Final[_Spans] = ((0, 1 << 63),)
_SPANS_MAX: Final = 8
"""Parts of one stretch that are remembered, as of several ledgers; the last ones."""
_GAP_BYTES: Final = 16 * 1024
"""What is at most between pieces of one ledger, as heads and checksums of its runs."""


class ReuseTracker:
    """Remembers what of the last stretches was read, in some 200 bytes each or, of many ledgers,
    a kilobyte, and the logs in which one reader comes after another."""

    def __init__(self, stretches_max: int = 16_384) -> None:
        assert stretches_max > 0
        self._stretches_max = stretches_max
        self._stretches: OrderedDict[tuple[int, int], _Spans] = OrderedDict()
        """Per log and stretch: offset and end of what was read; or _REUSED."""
        self._followed: OrderedDict[int, int] = OrderedDict()
        """Per log: the bytes read in all when a large piece of it was last read again."""
        self._read_bytes = 0

    def is_kept(self, log_id: int, offset: int, size: int) -> bool:
        """Records a read of `size` bytes, and returns whether it goes through the page cache.

        It does if some of it was read before. The stretches of that count as reused until they are
        forgotten. It also does where nothing was read before, if another reader comes after this
        one: large pieces of the same log are being read again.
        """
        self._read_bytes += size
        if self._is_reused(log_id, offset, size):
            if size >= FOLLOWER_BYTES_MIN:
                self._followed[log_id] = self._read_bytes
                self._followed.move_to_end(log_id)
                if len(self._followed) > _LOGS_MAX:
                    self._followed.popitem(last=False)
            return True
        followed_at = self._followed.get(log_id)
        return followed_at is not None and self._read_bytes - followed_at <= FOLLOW_BYTES

    def _is_reused(self, log_id: int, offset: int, size: int) -> bool:
        stretches, end = self._stretches, offset + size
        is_any_reused = False
        for stretch in range(offset // STRETCH_BYTES, (end - 1) // STRETCH_BYTES + 1):
            key = (log_id, stretch)
            stretches[key] = spans = _with(stretches.pop(key, ()), offset, end)
            is_any_reused = is_any_reused or spans is _REUSED
        while len(stretches) > self._stretches_max:
            stretches.popitem(last=False)
        return is_any_reused


def _with(spans: _Spans, offset: int, end: int) -> _Spans:
    """Returns what was read of a stretch with another piece; _REUSED if some was read before."""
    others: list[tuple[int, int]] = []
    begun, read_to = offset, end
    for span in spans:
        if span[0] < end and offset < span[1]:
            return _REUSED
        if 0 <= offset - span[1] <= _GAP_BYTES or 0 <= span[0] - end <= _GAP_BYTES:
            begun, read_to = min(begun, span[0]), max(read_to, span[1])
        else:
            others.append(span)
    return (*others[1 - _SPANS_MAX :], (begun, read_to))
