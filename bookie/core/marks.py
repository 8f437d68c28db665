"""The mark file of a ledger directory: where the replay of each of its journals begins.

Pure twin of `storage/checkpoint.py`; the bytes are described in docs/formats.md. The file also says
which of the bookie's directories it lies in: two disks mounted in each other's place would make a
bookie deny the entries of all their ledgers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.core.journal import Mark

_MAGIC_1: Final = b"LSMARK\x00\x01"
_MAGIC: Final = b"LSMARK\x00\x02"
_VERSION_1: Final = struct.Struct(">8sQQQ")  # magic, file id, offset, number of the checkpoint
_HEAD: Final = struct.Struct(">8sQIIII")  # magic, checkpoint, directory, directories, journals, n
_MARK: Final = struct.Struct(">IQQ")  # journal, file id, offset
_CRC: Final = struct.Struct(">I")


class StoredMarks(NamedTuple):
    """What a ledger directory knows of the checkpoint it made last."""

    checkpoint_no: int
    """The index has this checkpoint, or a later one."""
    marks: Mapping[int, Mark]
    """By journal: everything of this directory before the mark is in entry logs and index."""
    directory: int = 0
    """Which of the bookie's `directories` it is; the bookie has so many `journals`."""
    directories: int = 1
    journals: int = 1


def encode_marks(stored: StoredMarks) -> bytes:
    number, marks, *place = stored
    packed = [_HEAD.pack(_MAGIC, number, *place, len(marks))]
    packed += [_MARK.pack(journal, *marks[journal]) for journal in sorted(marks)]
    whole = b"".join(packed)
    return whole + _CRC.pack(crc32c(whole))


def decode_marks(data: bytes) -> StoredMarks:
    """Raises ValueError if `data` is not a whole mark file of version 1 or 2."""
    if data[:8] not in (_MAGIC, _MAGIC_1) or len(data) < _VERSION_1.size + _CRC.size:
        raise ValueError(f"{len(data)} bytes that are no mark file of this version")
    whole = data[: -_CRC.size]
    if _CRC.unpack_from(data, len(whole))[0] != crc32c(whole):
        raise ValueError("wrong checksum")
    if data[:8] == _MAGIC_1:
        # From bookies that had one journal and one ledger directory each.
        if len(whole) != _VERSION_1.size:
            raise ValueError(f"{len(data)} bytes are no mark file of version 1")
        _, file_id, offset, number = _VERSION_1.unpack(whole)
        return StoredMarks(number, {0: Mark(file_id, offset)})
    _, number, *place, count = _HEAD.unpack_from(whole)
    if len(whole) != _HEAD.size + count * _MARK.size:
        raise ValueError(f"{len(data)} bytes cannot be {count} marks")
    marks = {
        journal: Mark(file_id, offset)
        for journal, file_id, offset in _MARK.iter_unpack(whole[_HEAD.size :])
    }
    if len(marks) != count:
        raise ValueError("two marks of one journal")
    return StoredMarks(number, marks, *place)
