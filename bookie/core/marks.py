"""The mark file of a ledger directory: where the replay of each of its journals begins.

The pure core of `bookie.storage.checkpoint`; the bytes are described in docs/formats.md. The file
also names the ledger directory it belongs to: two disks mounted in each other's place would make a
bookie deny the entries of all their ledgers.

It also maps a ledger to its journal and its ledger directory (`bookie.storage.bookie_storage`,
`bookie.storage.journal.trimmer`). Must never let a journal drop what one of the directories that
depend on it has not stored (Apache's #3329), nor let a mark move backwards (#4740).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.core.journal import BEGINNING, Mark

_MAGIC_1: Final = b"LSMARK\x00\x01"
_MAGIC: Final = b"LSMARK\x00\x02"
_VERSION_1: Final = struct.Struct(">8sQQQ")  # magic, file id, offset, number of the checkpoint
_HEAD: Final = struct.Struct(">8sQIIII")  # magic, checkpoint, directory, directories, journals, n
_MARK: Final = struct.Struct(">IQQ")  # journal, file id, offset
_CRC: Final = struct.Struct(">I")


class StoredMarks(NamedTuple):
    """The marks of the last checkpoint of a ledger directory."""

    checkpoint_no: int
    """The index has this checkpoint, or a later one."""
    marks: Mapping[int, Mark]
    """By journal: everything of this directory before the mark is in entry logs and index."""
    directory: int = 0
    """The number of this directory among the bookie's `directories`."""
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


@dataclass(frozen=True, slots=True)
class DirectoryMap:
    """A ledger goes to journal `id mod journals` and to directory `id mod directories`.

    A *shard* is what ledgers with the same journal and the same directory share: there are as many
    as the least common multiple of both counts, and a ledger's is `id mod shards`.
    """

    journals: int
    directories: int

    def __post_init__(self) -> None:
        assert self.journals > 0, self
        assert self.directories > 0, self

    @property
    def shards(self) -> int:
        return self.journals * self.directories // gcd(self.journals, self.directories)

    def journals_of(self, directory: int) -> tuple[int, ...]:
        """Returns the journals with frames of ledgers that are stored in `directory`, in order."""
        step = gcd(self.journals, self.directories)
        return tuple(range(directory % step, self.journals, step))

    def directories_of(self, journal: int) -> tuple[int, ...]:
        """Returns the directories whose ledgers have frames in `journal`, in order."""
        step = gcd(self.journals, self.directories)
        return tuple(range(journal % step, self.directories, step))


def first_of_last_files(file_ids: Iterable[int]) -> int:
    """Returns the first of the last files of a journal without a gap between them, or 0 if there
    are none. Older ones were trimmed and only wait to be written again, so whatever the marks were,
    all after them is in these."""
    first = 0
    for file_id in sorted(file_ids, reverse=True):
        if first and file_id != first - 1:
            break
        first = file_id
    return first


class MarkTable:
    """The stored marks of all directories of a bookie, for each journal they depend on."""

    def __init__(self, layout: DirectoryMap) -> None:
        self._marks: list[dict[int, Mark]] = [
            dict.fromkeys(layout.directories_of(journal), BEGINNING)
            for journal in range(layout.journals)
        ]

    def store(self, directory: int, marks: Mapping[int, Mark]) -> None:
        """Records that `directory` has durably stored these marks, by journal."""
        for journal, mark in marks.items():
            before = self._marks[journal][directory]
            assert mark >= before, f"mark of journal {journal} goes from {before} back to {mark}"
            self._marks[journal][directory] = mark

    def of(self, journal: int) -> Mapping[int, Mark]:
        """Returns the marks in `journal`, by directory that depends on it."""
        return self._marks[journal]

    def needed_from(self, journal: int) -> Mark:
        """Returns the mark before which no directory needs anything of `journal`."""
        return min(self._marks[journal].values())

    def holding_back(self, journal: int) -> list[int]:
        """Returns the directories that prevent another whole file of `journal` from being
        trimmed."""
        newest = max(self._marks[journal].values()).file_id
        return [d for d, mark in self._marks[journal].items() if mark.file_id < newest]
