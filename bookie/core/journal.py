"""The journal's bytes and decisions; its twin with files and tasks is `storage/journal.py`.

Answers for the layout of files, groups and frames (docs/formats.md, "Journal"), for telling
a torn tail from corruption, and for when a group is committed. Must never take stale bytes
of a recycled file, or bytes a client sent, for a group: every group carries its file's id
and a salt drawn when the file was begun.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from ledger.errors import FinalError

Buffer = bytes | bytearray | memoryview

BLOCK_BYTES: Final = 4096
"""Groups begin and end at multiples of this: one page, so no page is read to be written, and
no sync touches a sector of a group that is durable already. May never change."""

FIRST_GROUP_OFFSET: Final = BLOCK_BYTES
"""The file header has the first block to itself."""

_FILE_MAGIC: Final = b"LSTRJRNL"
_FILE_VERSION: Final = 1
_FILE_HEADER: Final = struct.Struct(">8sIIQQQ")  # magic, version, crc, file id, salt, sequence
_GROUP_MAGIC: Final = 0x4C534752  # "LSGR"
# magic, payload bytes, file id, salt, sequence, frames, crc of payload; then crc of these 40
_GROUP_HEADER: Final = struct.Struct(">IIQQQII")
_CRC: Final = struct.Struct(">I")
GROUP_HEADER_BYTES: Final = _GROUP_HEADER.size + _CRC.size
PAYLOAD_BYTES_MAX: Final = 0xFFFF_FFFF

_READ_BYTES: Final = 1 << 20


class JournalFailed(FinalError):
    """A journal write or sync failed. What is on disk is unknown, so nothing more is
    acknowledged; the process must exit and replay. A failed sync is never repeated."""


class JournalCorrupt(FinalError):
    """The journal lacks groups that were durable: damage, not a write cut short by a crash.

    `file`, `offset` and `sequence` say where; the text says what to do.
    """

    def __init__(self, file: str, offset: int, sequence: int, what: str) -> None:
        super().__init__(
            f"journal file {file} at offset {offset}, group {sequence}: {what}. "
            "Acknowledged entries may be missing. Cure: bring the file back as it was; or set "
            "this bookie's journal and ledger directories aside, start it empty under a new "
            "id, and let the other copies be replicated. Nothing was changed."
        )
        self.file = file
        self.offset = offset
        self.sequence = sequence


class Mark(NamedTuple):
    """A place in the journal: the end of a group. Marks are ordered."""

    file_id: int
    offset: int


BEGINNING: Final = Mark(0, 0)
"""The mark of a journal of which nothing was ever checkpointed. File ids begin at 1."""


def file_name(file_id: int) -> str:
    return f"{file_id:016x}.journal"


def file_id_of(name: str) -> int | None:
    """The id in a journal file's name, or None if it is no such name."""
    stem, dot, suffix = name.partition(".")
    if not dot or suffix != "journal" or len(stem) != 16:
        return None
    try:
        file_id = int(stem, 16)
    except ValueError:
        return None
    return file_id if file_name(file_id) == name else None


# --- file and group headers


class FileHeader(NamedTuple):
    file_id: int
    salt: int
    """Chosen anew each time the file is begun, so that nobody can foresee a valid group."""
    first_sequence: int
    """Sequence number its first group will have: a lost tail of the file before shows."""


def encode_file_header(header: FileHeader) -> bytes:
    """One block. Fits in one sector, so a crash leaves the old header or the new one."""
    fields = (header.file_id, header.salt, header.first_sequence)
    crc = crc32c(_FILE_HEADER.pack(_FILE_MAGIC, _FILE_VERSION, 0, *fields))
    packed = _FILE_HEADER.pack(_FILE_MAGIC, _FILE_VERSION, crc, *fields)
    return packed.ljust(BLOCK_BYTES, b"\0")


def decode_file_header(data: Buffer) -> FileHeader | None:
    """None if `data` does not begin with a whole header of this version."""
    if len(data) < _FILE_HEADER.size:
        return None
    magic, version, crc, *fields = _FILE_HEADER.unpack_from(data)
    if magic != _FILE_MAGIC or version != _FILE_VERSION:
        return None
    if crc != crc32c(_FILE_HEADER.pack(magic, version, 0, *fields)):
        return None
    return FileHeader(*fields)


class GroupHeader(NamedTuple):
    payload_bytes: int
    file_id: int
    salt: int
    sequence: int
    frames: int
    payload_crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole group with header and padding."""
        return group_bytes(self.payload_bytes)


def group_bytes(payload_bytes: int) -> int:
    """Bytes a group takes in the file, with header and padding."""
    whole = GROUP_HEADER_BYTES + payload_bytes
    return whole + -whole % BLOCK_BYTES


def encode_group_header(header: GroupHeader) -> bytes:
    packed = _GROUP_HEADER.pack(_GROUP_MAGIC, *header)
    return packed + _CRC.pack(crc32c(packed))


def decode_group_header(data: Buffer, position: int) -> GroupHeader | None:
    """None if no whole group header, of any file, is at `position`."""
    if len(data) - position < GROUP_HEADER_BYTES:
        return None
    magic, *fields = _GROUP_HEADER.unpack_from(data, position)
    if magic != _GROUP_MAGIC:
        return None
    (crc,) = _CRC.unpack_from(data, position + _GROUP_HEADER.size)
    if crc != crc32c(memoryview(data)[position : position + _GROUP_HEADER.size]):
        return None
    return GroupHeader(*fields)


class Group(NamedTuple):
    """A whole group found in a file. `payload` is frames one after the other."""

    offset: int
    end: int
    sequence: int
    frames: int
    payload: memoryview


_ZEROS: Final = bytes(BLOCK_BYTES)


def group_views(file: FileHeader, sequence: int, frames: int, views: list[Buffer]) -> list[Buffer]:
    """The group of `views` as buffers to write at a block boundary; copies no payload."""
    crc = 0
    nbytes = 0
    for view in views:
        crc = crc32c(view, crc)
        nbytes += len(view)
    assert nbytes <= PAYLOAD_BYTES_MAX, f"a group of {nbytes} bytes"
    head = GroupHeader(nbytes, file.file_id, file.salt, sequence, frames, crc)
    padding = -(GROUP_HEADER_BYTES + nbytes) % BLOCK_BYTES
    return [encode_group_header(head), *views, memoryview(_ZEROS)[:padding]]


# --- reading back


class _Phase(enum.Enum):
    HEADER = enum.auto()
    GROUPS = enum.auto()
    SEARCH = enum.auto()
    """Past the last whole group: nothing of this file may follow."""
    DONE = enum.auto()


class FileScanner:
    """Reads one journal file piece by piece: asks by `wanted`, is answered by `feed`.

    A bad group that nothing whole follows is a *torn tail*: the scan ends there, cleanly. It
    was never durable, because a group is handed to the disk only after the one before it is.
    Whether the file *should* have ended there, the next file's header tells by its first
    sequence number: pass `last_sequence` on from file to file. Holds one read at a time: a
    mebibyte, or a group if that is longer.
    """

    def __init__(
        self,
        name: str,
        file_id: int,
        size: int,
        *,
        last_sequence: int | None,
        start: int = 0,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        """`last_sequence`: of the last group before this file, None if not known. `start`:
        offset of the mark if it lies in this file; groups before it are only counted.
        `read_bytes`: usual size of a read, a multiple of BLOCK_BYTES."""
        assert read_bytes > 0, read_bytes
        assert read_bytes % BLOCK_BYTES == 0, read_bytes
        self.name = name
        self.file_id = file_id
        self.size = size
        self.start = max(start, FIRST_GROUP_OFFSET)
        self.is_marked = start > 0
        self.last_sequence = last_sequence
        self.end = 0
        """End of the last whole group, 0 if there is none."""
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
        """Offset and size of the read to `feed` next; None when the file is done."""
        if self._phase is _Phase.DONE:
            return None
        return self._offset, min(self._want_bytes, max(self.size - self._offset, 0))

    def feed(self, data: Buffer) -> list[Group]:
        """The whole groups in the bytes asked for. Raises JournalCorrupt."""
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
            # A crash between naming the file and syncing its header leaves this, and then no
            # group. The first group's place never holds a client's bytes, in any use of the
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
        if not data:  # the file shrank under us
            self._end_of_groups(base)
            return groups
        while position < len(data):
            head = self._own_header(data, position)
            if head is None or base + position + head.size > self.size:
                self._end_of_groups(base + position)
                return groups
            payload = position + GROUP_HEADER_BYTES
            payload_end = payload + head.payload_bytes
            if position + head.size > len(data):
                if position == 0 and self._want_bytes >= head.size:  # short read: file shrank
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
                view = data[payload:payload_end]
                groups.append(Group(base + offset, self.end, head.sequence, head.frames, view))
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
            # Damage before the mark: all that was there is checkpointed. Go on at the mark.
            self.last_sequence = None
            self.end = self.start
            self._go(_Phase.GROUPS, self.start)
        else:
            self._go(_Phase.SEARCH, offset + BLOCK_BYTES)

    def _search(self, data: Buffer) -> None:
        for position in range(0, len(data), BLOCK_BYTES):
            head = self._own_header(data, position)
            if head is not None:
                self._corrupt(
                    max(self.end, self.start),
                    f"damaged or missing, but group {head.sequence} after it, at offset "
                    f"{self._offset + position}, is there",
                )
        if not len(data):
            self._phase = _Phase.DONE
        else:
            self._go(_Phase.SEARCH, self._offset + len(data))


def scan(
    file_id: int,
    data: Buffer,
    *,
    last_sequence: int | None = None,
    start: int = 0,
    name: str | None = None,
) -> Iterator[Group]:
    """The groups of one whole file in memory. Raises JournalCorrupt; a torn tail just ends it."""
    scanner = FileScanner(
        name or file_name(file_id), file_id, len(data), last_sequence=last_sequence, start=start
    )
    view = memoryview(data)
    while (wanted := scanner.wanted) is not None:
        offset, size = wanted
        yield from scanner.feed(view[offset : offset + size])


# --- when to commit

COMMIT_NOW: Final = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """When the gathered group goes to the disk. Any of four triggers is enough.

    A group gathers anyway while the one before it is being synced, so waiting longer pays
    only for disks with few syncs per second.
    """

    group_wait_ms: float = 2.0
    """The oldest queued frame has waited this long."""
    group_bytes_max: int = 512 * 1024
    """The group has this many bytes. A trigger, not a bound."""
    group_entries_max: int = 0
    """The group has this many entries. 0 is off."""
    flush_when_queue_empty: bool = True
    """Nothing more is waiting to join the group."""

    def __post_init__(self) -> None:
        if self.group_wait_ms < 0 or not math.isfinite(self.group_wait_ms):
            raise ValueError(f"group_wait_ms {self.group_wait_ms}: give 0 or more milliseconds")
        if self.group_bytes_max < 1:
            raise ValueError(f"group_bytes_max {self.group_bytes_max}: give 1 or more bytes")
        if self.group_entries_max < 0:
            raise ValueError(f"group_entries_max {self.group_entries_max}: give 0 (off) or more")

    def decide(
        self,
        now: float,
        oldest_queued_at: float,
        nbytes: int,
        entries: int,
        is_queue_empty: bool,
    ) -> float:
        """COMMIT_NOW, or the time (seconds, the clock of `now`) to wait for."""
        if (is_queue_empty and self.flush_when_queue_empty) or self.is_full(nbytes, entries):
            return COMMIT_NOW
        until = oldest_queued_at + self.group_wait_ms / 1000
        return COMMIT_NOW if until <= now else until

    def is_full(self, nbytes: int, entries: int) -> bool:
        """One of the two triggers by size."""
        return nbytes >= self.group_bytes_max or 0 < self.group_entries_max <= entries
