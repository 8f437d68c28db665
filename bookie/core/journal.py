"""The bytes of the journal and its decisions; `bookie.storage.journal` has the files and tasks.

It defines the layout of files and groups (docs/formats.md, "Journal") and when a group is
committed; `journal_scan` reads groups back, `journal_frames` decodes what is in them. Must never
take stale bytes of a recycled file, or bytes that a client sent, for a group: every group carries
its file's id and a salt drawn when the file was begun.

The file `END` notes how far the journal has acknowledged. A journal that is cut off between two
groups looks like one that was never written any further; this file proves that it was.

A journal that acknowledges before it syncs does sync, often and little at a time: a disk that gets
seconds of writes at once is busy for seconds, and every other request waits behind them.
"""

from __future__ import annotations

import enum
import math
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from ledger.errors import FinalError

Buffer = bytes | bytearray | memoryview

BLOCK_BYTES: Final = 4096
"""Groups begin and end at multiples of this. It is one page, so no page is read in order to be
written, and no sync touches a sector of a group that is durable already. May never change."""

FIRST_GROUP_OFFSET: Final = BLOCK_BYTES
"""The file header has the first block for itself."""

_FILE_MAGIC: Final = b"LSTRJRNL"
_FILE_VERSION: Final = 1
_FILE_HEADER: Final = struct.Struct(">8sIIQQQ")  # magic, version, crc, file id, salt, sequence
_GROUP_MAGIC: Final = 0x4C534752  # "LSGR"
# magic, payload bytes, file id, salt, sequence, frames, crc of payload; then crc of these 40
_GROUP_HEADER: Final = struct.Struct(">IIQQQII")
_CRC: Final = struct.Struct(">I")
GROUP_HEADER_BYTES: Final = _GROUP_HEADER.size + _CRC.size
_LATE_GROUP_MAGIC: Final = 0x4C534755  # "LSGU"
_SYNCED_SEQUENCE: Final = struct.Struct(">Q")  # between the 40 bytes and their crc, which covers it
_LATE_GROUP_HEADER_BYTES: Final = GROUP_HEADER_BYTES + _SYNCED_SEQUENCE.size
PAYLOAD_BYTES_MAX: Final = 0xFFFF_FFFF


class JournalFailed(FinalError):
    """A journal write or sync failed. What is on disk is unknown, so nothing more is acknowledged;
    the process must exit and replay. A failed sync is never repeated."""


class JournalCorrupt(FinalError):
    """The journal lacks groups that were durable: damage, not a write cut short by a crash.

    `file`, `offset` and `sequence` are the place; the text names the cure.
    """

    def __init__(self, file: str, offset: int, sequence: int, what: str) -> None:
        super().__init__(
            f"journal file {file} at offset {offset}, group {sequence}: {what}. "
            "Acknowledged entries may be missing. Cure: restore the file as it was; or set "
            "this bookie's journal and ledger directories aside, start it empty under a new "
            "id, and let the other copies be replicated. Nothing was changed."
        )
        self.file = file
        self.offset = offset
        self.sequence = sequence


class Mark(NamedTuple):
    """A position in the journal: the end of a group. Marks are ordered."""

    file_id: int
    offset: int


BEGINNING: Final = Mark(0, 0)
"""The mark of a journal without any checkpoint. File ids begin at 1."""


def file_name(file_id: int) -> str:
    return f"{file_id:016x}.journal"


def file_id_of(name: str) -> int | None:
    """Returns the id in a journal file's name, or None if it is another name."""
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
    """Drawn each time the file is begun, so that no client can predict a valid group."""
    first_sequence: int
    """The sequence number of its first group. It shows whether the file before lost its tail."""


def encode_file_header(header: FileHeader) -> bytes:
    """Returns one block. It fits in one sector, so a crash leaves the old header or the new one."""
    fields = (header.file_id, header.salt, header.first_sequence)
    crc = crc32c(_FILE_HEADER.pack(_FILE_MAGIC, _FILE_VERSION, 0, *fields))
    packed = _FILE_HEADER.pack(_FILE_MAGIC, _FILE_VERSION, crc, *fields)
    return packed.ljust(BLOCK_BYTES, b"\0")


def decode_file_header(data: Buffer) -> FileHeader | None:
    """Returns None if `data` does not begin with a whole header of this version."""
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
    synced_sequence: int
    """The last group that was durable when this one was written: the one before it, unless the
    journal acknowledges before it syncs. Then groups are *late*."""

    @property
    def is_late(self) -> bool:
        return self.synced_sequence != self.sequence - 1

    @property
    def header_bytes(self) -> int:
        return _LATE_GROUP_HEADER_BYTES if self.is_late else GROUP_HEADER_BYTES

    @property
    def size(self) -> int:
        """The size of the whole group, with header and padding."""
        return group_bytes(self.payload_bytes, is_late=self.is_late)


def group_bytes(payload_bytes: int, *, is_late: bool = False) -> int:
    """Returns the size of a group in the file, with header and padding."""
    whole = (_LATE_GROUP_HEADER_BYTES if is_late else GROUP_HEADER_BYTES) + payload_bytes
    return whole + -whole % BLOCK_BYTES


def encode_group_header(header: GroupHeader) -> bytes:
    return _encode_group_header(*header)


def _encode_group_header(
    payload_bytes: int,
    file_id: int,
    salt: int,
    sequence: int,
    frames: int,
    payload_crc: int,
    synced_sequence: int,
) -> bytes:
    is_late = synced_sequence != sequence - 1
    magic = _LATE_GROUP_MAGIC if is_late else _GROUP_MAGIC
    packed = _GROUP_HEADER.pack(magic, payload_bytes, file_id, salt, sequence, frames, payload_crc)
    if is_late:
        assert synced_sequence < sequence, f"group {sequence} follows group {synced_sequence}"
        packed += _SYNCED_SEQUENCE.pack(synced_sequence)
    return packed + _CRC.pack(crc32c(packed))


def decode_group_header(data: Buffer, position: int) -> GroupHeader | None:
    """Returns None if no whole group header, of any file, is at `position`."""
    if len(data) - position < GROUP_HEADER_BYTES:
        return None
    magic, *fields = _GROUP_HEADER.unpack_from(data, position)
    end = position + _GROUP_HEADER.size
    synced_sequence: int = fields[3] - 1
    if magic == _LATE_GROUP_MAGIC:
        if len(data) - position < _LATE_GROUP_HEADER_BYTES:
            return None
        (synced_sequence,) = _SYNCED_SEQUENCE.unpack_from(data, end)
        end += _SYNCED_SEQUENCE.size
    elif magic != _GROUP_MAGIC:
        return None
    (crc,) = _CRC.unpack_from(data, end)
    if crc != crc32c(memoryview(data)[position:end]):
        return None
    payload_bytes, file_id, salt, sequence, frames, payload_crc = fields
    return GroupHeader(payload_bytes, file_id, salt, sequence, frames, payload_crc, synced_sequence)


KEEP_INTERPRETER: Final = 0
"""An argument of crc32c, which by default releases the interpreter for 32 KiB and more. The
checksum takes a microsecond, but other threads may then keep the interpreter for a hundred."""

_ZEROS: Final = bytes(BLOCK_BYTES)


def group_views(
    file: FileHeader,
    sequence: int,
    frames: int,
    views: list[Buffer],
    synced_sequence: int | None = None,
) -> list[Buffer]:
    """Returns the group of `views` as buffers to write at a block boundary; copies no payload.
    `synced_sequence`: of the last durable group, if that is not the one before."""
    crc = 0
    nbytes = 0
    for view in views:
        crc = crc32c(view, crc, KEEP_INTERPRETER)
        nbytes += len(view)
    assert nbytes <= PAYLOAD_BYTES_MAX, f"a group of {nbytes} bytes"
    synced = sequence - 1 if synced_sequence is None else synced_sequence
    encoded = _encode_group_header(nbytes, file.file_id, file.salt, sequence, frames, crc, synced)
    padding = -(len(encoded) + nbytes) % BLOCK_BYTES
    return [encoded, *views, memoryview(_ZEROS)[:padding]]


# --- when to commit

COMMIT_NOW: Final = -math.inf


class Trigger(enum.Enum):
    """The reason why a group was sent to the disk."""

    BYTES = "bytes"
    ENTRIES = "entries"
    QUEUE_EMPTY = "queue_empty"
    MAX_WAIT = "max_wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """When the open group is committed. Any of four triggers is enough.

    A group gathers frames anyway while the one before it is being synced, so a longer wait pays
    only for disks with few syncs per second.
    """

    group_wait_ms: float = 2.0
    """The oldest queued frame has waited this long, in milliseconds."""
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
        """Returns COMMIT_NOW, or the time (seconds, by the clock of `now`) to wait for."""
        if (is_queue_empty and self.flush_when_queue_empty) or self.is_full(nbytes, entries):
            return COMMIT_NOW
        until = oldest_queued_at + self.group_wait_ms / 1000
        return COMMIT_NOW if until <= now else until

    def is_full(self, nbytes: int, entries: int) -> bool:
        """Returns whether one of the two triggers by size applies."""
        return nbytes >= self.group_bytes_max or 0 < self.group_entries_max <= entries

    def trigger(self, nbytes: int, entries: int) -> Trigger:
        """Returns why a group of this size, which is due, is sent now."""
        if nbytes >= self.group_bytes_max:
            return Trigger.BYTES
        if 0 < self.group_entries_max <= entries:
            return Trigger.ENTRIES
        return Trigger.QUEUE_EMPTY if self.flush_when_queue_empty else Trigger.MAX_WAIT


_MAGIC: Final = 0x4C534A454E440001  # "LSJEND", version 1
_FIELDS: Final = struct.Struct(">QQQ")
END_BYTES: Final = _FIELDS.size + _CRC.size
"""It fits in one sector: a crash leaves these bytes or those before."""


def encode_end(end: Mark) -> bytes:
    fields = _FIELDS.pack(_MAGIC, end.file_id, end.offset)
    return fields + _CRC.pack(crc32c(fields))


def decode_end(data: Buffer) -> Mark | None:
    """Returns None if the bytes are damaged: then nothing is known, as if the file did not
    exist."""
    if len(data) < END_BYTES:
        return None
    fields = data[: _FIELDS.size]
    magic, file_id, offset = _FIELDS.unpack(fields)
    (crc,) = _CRC.unpack(data[_FIELDS.size : END_BYTES])
    if magic != _MAGIC or crc != crc32c(fields):
        return None
    return Mark(file_id, offset)


FLUSH_NOW: Final = -math.inf
UNSYNCED_FACTOR: Final = 8
"""Groups wait for the disk once this many times `flush_bytes` are unsynced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """When the page cache is synced. Any of three reasons is enough."""

    flush_interval_ms: float = 1000.0
    """The age of the oldest unsynced group, in milliseconds: what a loss of power can cost."""
    flush_bytes: int = 4 << 20
    """The number of unsynced bytes. Small, so that no sync keeps a slow disk busy for long."""

    def __post_init__(self) -> None:
        if not 0 <= self.flush_interval_ms < math.inf:
            raise ValueError(
                f"flush_interval_ms {self.flush_interval_ms}: give 0 or more milliseconds"
            )
        if self.flush_bytes < 1:
            raise ValueError(f"flush_bytes {self.flush_bytes}: give 1 or more bytes")

    def decide(self, now: float, oldest_at: float, unsynced_bytes: int, is_asked: bool) -> float:
        """Returns FLUSH_NOW, or the time (seconds, by the clock of `now`) to wait for.

        `oldest_at`: when the oldest unsynced group was written. `is_asked`: a caller waits until
        what is written is durable.
        """
        if is_asked or unsynced_bytes >= self.flush_bytes:
            return FLUSH_NOW
        until = oldest_at + self.flush_interval_ms / 1000
        return FLUSH_NOW if until <= now else until

    def must_wait(self, unsynced_bytes: int) -> bool:
        """Returns whether no group may be written before a sync has ended: otherwise memory would
        be the only bound on how far the disk is behind."""
        return unsynced_bytes >= self.flush_bytes * UNSYNCED_FACTOR
