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
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.core.directories import DirectoryLayout, LedgerRange, Ranges, pairs_in
from bookie.core.journal import BEGINNING, Mark

_MAGIC_1: Final = b"LSMARK\x00\x01"
_MAGIC: Final = b"LSMARK\x00\x02"
_MAGIC_3: Final = b"LSMARK\x00\x03"
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
    """How many there have been."""
    journals: int = 1
    is_list_changed: bool = False
    """The list of directories was changed before: version 3, which older versions refuse."""


def encode_marks(stored: StoredMarks) -> bytes:
    number, marks, directory, directories, journals, is_list_changed = stored
    magic = _MAGIC_3 if is_list_changed else _MAGIC
    packed = [_HEAD.pack(magic, number, directory, directories, journals, len(marks))]
    packed += [_MARK.pack(journal, *marks[journal]) for journal in sorted(marks)]
    whole = b"".join(packed)
    return whole + _CRC.pack(crc32c(whole))


def decode_marks(data: bytes) -> StoredMarks:
    """Raises ValueError if `data` is not a whole mark file of version 1 to 3."""
    if data[:8] not in (_MAGIC_3, _MAGIC, _MAGIC_1) or len(data) < _VERSION_1.size + _CRC.size:
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
    magic, number, directory, directories, journals, count = _HEAD.unpack_from(whole)
    if len(whole) != _HEAD.size + count * _MARK.size:
        raise ValueError(f"{len(data)} bytes cannot be {count} marks")
    marks = {
        journal: Mark(file_id, offset)
        for journal, file_id, offset in _MARK.iter_unpack(whole[_HEAD.size :])
    }
    if len(marks) != count:
        raise ValueError("two marks of one journal")
    return StoredMarks(number, marks, directory, directories, journals, magic == _MAGIC_3)


@dataclass(frozen=True, slots=True)
class DirectoryMap:
    """A ledger goes to journal `id mod journals`, and to the directory that the layout says: `id
    mod directories`, if the list was never changed.

    Journals and directories are counted from 0, in the order of the settings. A *shard* is what
    ledgers with the same journal and the same directory share: there are as many as pairs that
    occur, and without a change a ledger's is `id mod shards`.

    Args:
        layout: of a list of directories that was changed; None: it never was.
    """

    journals: int
    directories: int
    layout: DirectoryLayout | None = None
    pairs: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    """The journal and the directory of each shard."""
    _firsts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _tables: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _newest_first: int = field(init=False, repr=False, compare=False)
    _newest: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.journals > 0, self
        assert self.directories > 0, self
        numbers = tuple(range(self.directories))
        ranges: Ranges = (LedgerRange(0, numbers),)
        if self.layout is not None:
            numbers, ranges = self.layout.numbers, self.layout.ranges
            place = self.layout.journals, len(numbers)
            assert place == (self.journals, self.directories), self
        positions = {number: at for at, number in enumerate(numbers)}
        shards: dict[tuple[int, int], int] = {}
        for journal, number in pairs_in(ranges, self.journals):
            shards.setdefault((journal, positions[number]), len(shards))
        table_of = {
            slots: tuple(
                shards[at % self.journals, positions[slots[at % len(slots)]]]
                for at in range(lcm(self.journals, len(slots)))
            )
            for slots in dict.fromkeys(one.slots for one in ranges)
        }
        tables = [table_of[one.slots] for one in ranges]
        computed = {
            "pairs": tuple(shards),
            "_firsts": tuple(one.first for one in ranges),
            "_tables": tuple(tables),
            # All before, too, if there is no other: broken clients send negative ids.
            "_newest_first": ranges[-1].first if len(ranges) > 1 else -(1 << 63),
            "_newest": tables[-1],
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    @property
    def shards(self) -> int:
        return len(self.pairs)

    def shard_of(self, ledger_id: int) -> int:
        table = self._newest
        if ledger_id < self._newest_first:
            table = self._tables[max(0, bisect_right(self._firsts, ledger_id) - 1)]
        return table[ledger_id % len(table)]

    def directory_of(self, ledger_id: int) -> int:
        return self.pairs[self.shard_of(ledger_id)][1]

    def may_lack(self, ledger_id: int) -> bool:
        """See `DirectoryLayout.may_lack`."""
        return self.layout is not None and self.layout.may_lack(ledger_id)

    def journals_of(self, directory: int) -> tuple[int, ...]:
        """Returns the journals with frames of ledgers that are stored in `directory`, in order."""
        return tuple(sorted(j for j, d in self.pairs if d == directory))

    def directories_of(self, journal: int) -> tuple[int, ...]:
        """Returns the directories whose ledgers have frames in `journal`, in order."""
        return tuple(sorted(d for j, d in self.pairs if j == journal))

    # --- mark files

    def number_of(self, directory: int) -> int:
        """Returns the number by which the mark file names a directory permanently."""
        return directory if self.layout is None else self.layout.numbers[directory]

    def to_store(
        self, directory: int, checkpoint_no: int, marks: Mapping[int, Mark]
    ) -> StoredMarks:
        """Returns the content of the mark file of `directory`."""
        number = self.number_of(directory)
        if self.layout is None:
            return StoredMarks(checkpoint_no, marks, number, self.directories, self.journals)
        total = self.layout.counts[-1]
        return StoredMarks(checkpoint_no, marks, number, total, self.journals, True)

    def first_marks(self, directory: int) -> dict[int, Mark]:
        """Returns where the replay begins for a directory without a mark file, by journal."""
        added = {} if self.layout is None else self.layout.marks.get(self.number_of(directory), {})
        return {no: added.get(no, BEGINNING) for no in self.journals_of(directory)}

    def check_marks(self, directory: int, found: StoredMarks) -> StoredMarks:
        """Returns the marks of the mark file that is in `directory`, complete. Raises ValueError
        if it is another's."""
        if found.is_list_changed and self.layout is None:
            raise ValueError(
                "it is of a bookie whose list of ledger directories was changed, and the file "
                "DIRECTORIES, which has the changes, is in none of its directories. Cure: restore "
                "that file from a backup of any of them"
            )
        own, journals = self.to_store(directory, 0, {}), self.journals_of(directory)
        counts = (self.directories,) if self.layout is None else self.layout.counts
        added = {} if self.layout is None else self.layout.marks.get(own.directory, {})
        is_older = found.directories != own.directories
        if (
            (found.directory, found.journals) != (own.directory, own.journals)
            or found.directories not in counts
            or any(no not in found.marks and no not in added for no in journals)
            or not (is_older or frozenset(found.marks) <= frozenset(journals))
        ):
            raise ValueError(
                f"it is of ledger directory {found.directory} (from 0) of {found.directories} "
                f"with {found.journals} journals, but here it is number {own.directory} of "
                f"{own.directories} with {own.journals}: disks are mounted in each other's place. "
                "Cure: mount each where it was"
            )
        marks = {no: found.marks[no] if no in found.marks else added[no] for no in journals}
        return self.to_store(directory, found.checkpoint_no, marks)


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
