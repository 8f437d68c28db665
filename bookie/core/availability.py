"""Which entries of a ledger a bookie holds, as Apache's auditor wants to be told.

Entries in a row are a *sequence*; sequences of one size at one distance are a *group*, so that
a striped ledger costs 24 bytes and not 24 per entry. Layout: docs/wire.md, "List of entries".
Must never name an entry that was not put in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ledger.errors import RemoteProtocolError

HEADER_BYTES = 64
_HEADER = struct.Struct(">ii")
_GROUP = struct.Struct(">qqii")
_VERSION = 0
_INT32_MAX = 2**31 - 1


class EntriesHeld:
    """A set of entry ids, put in by ascending ranges."""

    def __init__(self) -> None:
        self._groups: list[tuple[int, int, int, int]] = []
        """First start, last start, size, period: closed ones."""
        self._group: tuple[int, int, int, int] | None = None
        self._first = 0
        self._end = 0
        """The open sequence; empty at the beginning only."""

    @property
    def nbytes(self) -> int:
        """What `encode` gives at most."""
        return HEADER_BYTES + _GROUP.size * (len(self._groups) + 2)

    def add(self, first: int, last: int) -> None:
        """Entries `first` to `last`; `first` is not below that of any call before."""
        assert 0 <= first <= last
        if last < self._end:
            return
        if self._end and first <= self._end:
            if last - self._first < _INT32_MAX:
                self._end = last + 1
                return
            first = self._end  # the sequence is full: the rest begins another
        self._close_sequence()
        while last - first >= _INT32_MAX:
            self._first, self._end = first, first + _INT32_MAX
            self._close_sequence()
            first += _INT32_MAX
        self._first, self._end = first, last + 1

    def _close_sequence(self) -> None:
        if not self._end:
            return
        start, size = self._first, self._end - self._first
        if self._group is not None:
            first_start, last_start, group_size, period = self._group
            distance = start - last_start
            if size == group_size and distance <= _INT32_MAX and period in (0, distance):
                self._group = first_start, start, size, distance
                return
            self._groups.append(self._group)
        self._group = start, start, size, 0

    def encode(self) -> bytes:
        """The bytes Apache's client understands. Nothing may be added afterwards."""
        self._close_sequence()
        self._end = 0
        groups = [*self._groups, self._group] if self._group is not None else self._groups
        header = _HEADER.pack(_VERSION, len(groups)).ljust(HEADER_BYTES, b"\0")
        return header + b"".join(_GROUP.pack(*group) for group in groups)


def decode_entries_held(data: bytes) -> Iterator[tuple[int, int]]:
    """Ranges (first, last) of entries in the order of their groups.

    Raises RemoteProtocolError, before the first range, if the bytes are none of `encode` or of
    Apache.
    """
    if len(data) < HEADER_BYTES:
        raise RemoteProtocolError(f"a list of entries of {len(data)} bytes has no whole header")
    version, count = _HEADER.unpack_from(data)
    if version != _VERSION or count < 0 or len(data) < HEADER_BYTES + count * _GROUP.size:
        raise RemoteProtocolError(
            f"a list of entries of version {version} and {len(data)} bytes for {count} groups"
        )
    groups = list(_GROUP.iter_unpack(data[HEADER_BYTES : HEADER_BYTES + count * _GROUP.size]))
    for first, last, size, period in groups:
        if first < 0 or last < first or size <= 0 or (period <= 0 and last != first):
            raise RemoteProtocolError(f"entries {first}..{last} by {size} with period {period}")
    return _ranges(groups)


def _ranges(groups: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int]]:
    for first, last, size, period in groups:
        for start in range(first, last + 1, period or 1):
            yield start, start + size - 1
