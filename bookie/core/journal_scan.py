"""Reads journal files: whole groups in order, and whether the end of a file is a torn tail or
damage.

A write cut short by a crash (a torn tail) must never stop a bookie from starting; damage to groups
that were durable must never pass for a torn tail. The rules are in docs/formats.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.core.journal import (
    BLOCK_BYTES,
    FIRST_GROUP_OFFSET,
    Buffer,
    GroupHeader,
    JournalCorrupt,
    decode_file_header,
    decode_group_header,
    file_name,
)

_READ_BYTES: Final = 4 << 20
SEQUENCE_UNKNOWN: Final = 1 << 62
"""The sequence from which a journal continues if all of it is damaged, but only before the mark. No
group has it."""


class Group(NamedTuple):
    """A whole group found in a file. `payload` is its frames one after the other, `whole` all
    bytes."""

    offset: int
    end: int
    sequence: int
    frames: int
    payload: memoryview
    whole: memoryview
    synced_sequence: int
    """The last group that was durable when this one was written."""


class _Phase(enum.Enum):
    HEADER = enum.auto()
    GROUPS = enum.auto()
    SEARCH = enum.auto()
    """Past the last whole group: nothing of this file may follow."""
    DONE = enum.auto()


class FileScanner:
    """Reads one journal file piece by piece: `wanted` names the next piece, and `feed` gets it.

    A bad group is a *torn tail* unless a later whole group shows that it was durable: the scan ends
    there, cleanly. Each group names the last one that was durable when it was written. Whether the
    file *should* have ended there is shown by the next file's header, by its first sequence number:
    pass `last_sequence` on from file to file. Holds one read at a time: 4 MiB, or a group if that
    is longer.
    """

    def __init__(
        self,
        name: str,
        file_id: int,
        size: int,
        *,
        last_sequence: int | None,
        start: int = 0,
        is_next: bool = False,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        """`last_sequence`: of the last group before this file, None if unknown. `start`: the offset
        of the mark if it is in this file; groups before it are only counted. `is_next`: the file
        before this one was read, and gave `last_sequence`. `read_bytes`: usual size of a read, a
        multiple of BLOCK_BYTES."""
        assert read_bytes > 0, read_bytes
        assert read_bytes % BLOCK_BYTES == 0, read_bytes
        self.name = name
        self.file_id = file_id
        self.size = size
        self.start = max(start, FIRST_GROUP_OFFSET)
        self.is_marked = start > 0
        self.last_sequence = last_sequence
        self._is_next = is_next
        self.end = 0
        """The end of the last whole group, 0 if there is none."""
        self._phase = _Phase.HEADER
        self._offset = 0
        self._want_bytes = 2 * BLOCK_BYTES
        self._salt = 0
        self._read_bytes = read_bytes
        if start % BLOCK_BYTES:
            self._corrupt(start, "the mark does not lie between two groups")
        if start > size:
            self._corrupt(size, f"the file ends here, before the mark at {start}")

    @property
    def wanted(self) -> tuple[int, int] | None:
        """The offset and size of the read to `feed` next; None at the end of the file."""
        if self._phase is _Phase.DONE:
            return None
        return self._offset, min(self._want_bytes, max(self.size - self._offset, 0))

    def feed(self, data: Buffer) -> list[Group]:
        """Returns the whole groups in the requested bytes. Raises JournalCorrupt."""
        if self._phase is _Phase.HEADER:
            self._take_header(data)
            return []
        if self._phase is _Phase.GROUPS:
            return self._take_groups(memoryview(data))
        self._search(data)
        return []

    def _corrupt(self, offset: int, what: str) -> None:
        sequence = 0 if self.last_sequence is None else self.last_sequence + 1
        raise JournalCorrupt(self.name, offset, sequence, what)

    def _take_header(self, data: Buffer) -> None:
        header = decode_file_header(data)
        if header is None or header.file_id != self.file_id:
            # A crash between naming the file and syncing its header leaves this, and then no group.
            # A client's bytes are never stored in the place of the first group, in any use of the
            # file, so what is there can be trusted without the salt.
            first = decode_group_header(data, FIRST_GROUP_OFFSET)
            if self.is_marked or (first is not None and first.file_id == self.file_id):
                self._corrupt(0, "the file header is damaged")
            self._phase = _Phase.DONE
            return
        self._check_joins(header.first_sequence)
        self.last_sequence = header.first_sequence - 1
        self._salt = header.salt
        self._go(_Phase.GROUPS, FIRST_GROUP_OFFSET)

    def _check_joins(self, first_sequence: int) -> None:
        if self.last_sequence is not None and first_sequence != self.last_sequence + 1:
            self._corrupt(
                FIRST_GROUP_OFFSET,
                f"the file begins with group {first_sequence}, but the files before it end "
                f"with group {self.last_sequence}; their end is lost",
            )
        is_known = (
            first_sequence != SEQUENCE_UNKNOWN + 1
        )  # else an earlier start continued without it
        if self.last_sequence is None and self._is_next and is_known:
            # It is damaged before the mark, which would do no harm, and nothing follows it.
            self._corrupt(
                FIRST_GROUP_OFFSET,
                f"the file begins with group {first_sequence}, but the one before it is damaged up "
                "to the mark, and nothing whole is after the mark: its end may be lost",
            )

    def _go(self, phase: _Phase, offset: int, want_bytes: int = 0) -> None:
        self._phase = phase
        self._offset = offset
        self._want_bytes = max(want_bytes, self._read_bytes)
        if offset >= self.size:
            self._phase = _Phase.DONE

    def _take_groups(self, data: memoryview) -> list[Group]:
        groups: list[Group] = []
        base = self._offset
        position = 0
        if not data:  # the file has shrunk meanwhile
            self._end_of_groups(base)
            return groups
        while position < len(data):
            head = self._own_header(data, position)
            if head is None or base + position + head.size > self.size:
                self._end_of_groups(base + position)
                return groups
            payload = position + head.header_bytes
            payload_end = payload + head.payload_bytes
            if position + head.size > len(data):
                if (
                    position == 0 and self._want_bytes >= head.size
                ):  # a short read: the file has shrunk
                    self._end_of_groups(base)
                    return groups
                self._go(_Phase.GROUPS, base + position, head.size)
                return groups
            if not self._follows(head, base + position) or (
                crc32c(data[payload:payload_end]) != head.payload_crc
            ):
                self._end_of_groups(base + position)
                return groups
            self.last_sequence = head.sequence
            offset, position = position, position + head.size
            self.end = base + position
            if base + offset >= self.start:
                view, whole = data[payload:payload_end], data[offset:position]
                place = base + offset, self.end, head.sequence, head.frames
                groups.append(Group(*place, view, whole, head.synced_sequence))
            elif self.end > self.start:
                self._corrupt(self.start, "the mark does not lie between two groups")
        self._go(_Phase.GROUPS, base + position)
        return groups

    def _own_header(self, data: Buffer, position: int) -> GroupHeader | None:
        head = decode_group_header(data, position)
        if head is None or head.file_id != self.file_id or head.salt != self._salt:
            return None
        return head

    def _follows(self, head: GroupHeader, offset: int) -> bool:
        if self.last_sequence is None or head.sequence == self.last_sequence + 1:
            return True
        if offset >= self.start:
            self._corrupt(offset, f"found group {head.sequence} in its place")
        return False

    def _end_of_groups(self, offset: int) -> None:
        if offset < self.start:
            # Damage before the mark: all that was there is checkpointed. Continue at the mark.
            self.last_sequence = None
            self.end = self.start
            self._go(_Phase.GROUPS, self.start)
        else:
            self._go(_Phase.SEARCH, offset + BLOCK_BYTES)

    def _search(self, data: Buffer) -> None:
        for position in range(0, len(data), BLOCK_BYTES):
            head = self._own_header(data, position)
            if head is not None and self._proves_loss(head):
                self._corrupt(
                    max(self.end, self.start),
                    f"damaged or missing, but group {head.sequence} after it, at offset "
                    f"{self._offset + position}, is there",
                )
        if not len(data):
            self._phase = _Phase.DONE
        else:
            self._go(_Phase.SEARCH, self._offset + len(data))

    def _proves_loss(self, later: GroupHeader) -> bool:
        """Returns whether the missing group was durable when this later one was written. A later
        group that does not prove it was written before that: then power was lost, and the disk had
        kept the later of two unsynced groups (docs/adr/0021)."""
        return self.last_sequence is None or later.synced_sequence > self.last_sequence


def scan(
    file_id: int,
    data: Buffer,
    *,
    last_sequence: int | None = None,
    start: int = 0,
    name: str | None = None,
) -> Iterator[Group]:
    """Yields the groups of one whole file in memory. Raises JournalCorrupt; a torn tail just ends
    it."""
    scanner = FileScanner(
        name or file_name(file_id), file_id, len(data), last_sequence=last_sequence, start=start
    )
    view = memoryview(data)
    while (wanted := scanner.wanted) is not None:
        offset, size = wanted
        yield from scanner.feed(view[offset : offset + size])
