"""Which ledger directory each ledger is in, when the list of directories has changed.

The list can grow, and lose directories, but a ledger that the bookie has stays where it is. So the
ids are divided into ranges, each with a table: ledger `l` of a range is in the directory that the
table has at `l mod` its length. Where a ledger is depends on its id alone, at all times: nothing is
searched, and nothing has to be remembered for a single ledger. A bookie whose list never changed
has one range, with its directories in order.

Every directory has a permanent *number*, from 0 in the order in which they were added; the number
of one that was dropped is not used again. The bytes of the file are described in docs/formats.md.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from bookie.core.journal import Mark

RANGES_MAX: Final = 1000
SLOTS_MAX: Final = 4096
"""The largest table: further drops then spread ledgers less evenly."""
LAYOUTS_MAX: Final = 2
"""A file has the layout in force, and the one before or the next."""
_LAST_LEDGER: Final = 2**63 - 1
_MAGIC: Final = b"ledgerstream directories 1"


class LedgerRange(NamedTuple):
    """Ledgers from `first` up to the next range; the first range has all before, too."""

    first: int
    slots: tuple[int, ...]
    """The number of the directory of ledger `l`, at `l mod len(slots)`."""


Ranges = tuple[LedgerRange, ...]


def range_of(ranges: Ranges, ledger_id: int) -> LedgerRange:
    return ranges[max(0, bisect_right(ranges, ledger_id, key=lambda one: one.first) - 1)]


def number_in(ranges: Ranges, ledger_id: int) -> int:
    """Returns the number of the directory in which the ledger is."""
    slots = range_of(ranges, ledger_id).slots
    return slots[ledger_id % len(slots)]


def pairs_in(ranges: Ranges, journals: int) -> Iterator[tuple[int, int]]:
    """Yields pairs of a journal and the number of a directory that a ledger may have; some come
    several times."""
    for slots in dict.fromkeys(one.slots for one in ranges):
        for at in range(lcm(journals, len(slots))):
            yield at % journals, slots[at % len(slots)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLayout:
    """The ledger directories of a bookie, and which ledgers are in each."""

    generation: int = 0
    """Grows with each change; 0 of a list that was never changed."""
    journals: int
    paths: tuple[str, ...]
    """The directories in use, as in the settings."""
    numbers: tuple[int, ...]
    """Their numbers, in the same order."""
    counts: tuple[int, ...]
    """After each change, how many directories there had been, with those that were dropped."""
    ranges: Ranges
    marks: Mapping[int, Mapping[int, Mark]] = field(default_factory=dict)
    """By number and journal: where the replay begins for a directory that has not stored a mark of
    that journal. Only of journals that it did not depend on before a change."""
    unsettled: Ranges = ()
    """The ranges before directories were dropped, until all ledgers that were in them are in
    limbo."""

    @classmethod
    def original(cls, journals: int, paths: Sequence[str]) -> DirectoryLayout:
        """Returns the layout of a list that was never changed."""
        numbers = tuple(range(len(paths)))
        return cls(
            journals=journals,
            paths=tuple(paths),
            numbers=numbers,
            counts=(len(paths),),
            ranges=(LedgerRange(0, numbers),),
        )

    def number_of(self, ledger_id: int) -> int:
        """Returns the number of the directory in which the ledger is."""
        return number_in(self.ranges, ledger_id)

    def may_lack(self, ledger_id: int) -> bool:
        """Returns whether the ledger was in a directory that was dropped, and may not be in limbo
        yet."""
        return bool(self.unsettled) and number_in(self.unsettled, ledger_id) not in self.numbers

    def settled(self) -> DirectoryLayout:
        """Returns the layout after all ledgers of dropped directories were put in limbo."""
        return replace(self, generation=self.generation + 1, unsettled=())

    def expanded(
        self, paths: Sequence[str], held: Collection[int], next_ledger: int, ends: Sequence[Mark]
    ) -> DirectoryLayout:
        """Returns the layout with more directories, at the end.

        Args:
            paths: the new directories.
            held: every ledger that the bookie has, or remembers as deleted. Those below
                `next_ledger` may be missing.
            next_ledger: the cluster has generated no id from this one on.
            ends: the end of each journal, all of which is in the old directories.

        Ledgers below `next_ledger` stay. A ledger above has an id that an application chose: from
        the least such ledger to the greatest all stay. Raises ValueError after too many changes.
        """
        assert not self.unsettled, "ledgers of a dropped directory are not in limbo yet"
        total = self.counts[-1]
        numbers = (*self.numbers, *range(total, total + len(paths)))
        chosen = sorted(one for one in held if one >= next_ledger)
        ranges = [one for one in self.ranges if one.first < next_ledger]
        if not chosen or chosen[0] > next_ledger:
            ranges.append(LedgerRange(next_ledger, numbers))
        if chosen:
            first, last = chosen[0], chosen[-1]
            ranges.append(LedgerRange(first, range_of(self.ranges, first).slots))
            ranges += [one for one in self.ranges if first < one.first <= last]
            if last < _LAST_LEDGER:
                ranges.append(LedgerRange(last + 1, numbers))
        return self._changed(
            paths=(*self.paths, *paths),
            numbers=numbers,
            counts=(*self.counts, total + len(paths)),
            ranges=tuple(ranges),
            begin=ends,
        )

    def dropped(self, paths: Collection[str], begin: Sequence[Mark]) -> DirectoryLayout:
        """Returns the layout without the directories `paths`, whose ledgers are spread over the
        others. `begin`: of each journal, where the oldest file begins that it still has."""
        left = [one for one in self.paths if one not in paths]
        assert len(left) + len(paths) == len(self.paths), f"{paths} of {self.paths}"
        if not left:
            raise ValueError("the last ledger directory cannot be dropped")
        numbers = tuple(self.numbers[self.paths.index(one)] for one in left)
        gone = frozenset(self.numbers) - frozenset(numbers)
        changed = self._changed(
            paths=tuple(left),
            numbers=numbers,
            counts=self.counts,
            ranges=tuple(
                one._replace(slots=_without(one.slots, gone, numbers)) for one in self.ranges
            ),
            begin=begin,
        )
        kept = {number: marks for number, marks in changed.marks.items() if number in numbers}
        return replace(changed, marks=kept, unsettled=self.unsettled or self.ranges)

    def _changed(
        self,
        *,
        paths: tuple[str, ...],
        numbers: tuple[int, ...],
        counts: tuple[int, ...],
        ranges: Ranges,
        begin: Sequence[Mark],
    ) -> DirectoryLayout:
        if len(ranges) > RANGES_MAX:
            raise ValueError(f"the list of directories was changed too often: {len(ranges)} ranges")
        marks = {number: dict(each) for number, each in self.marks.items()}
        known = frozenset(pairs_in(self.ranges, self.journals))
        for journal, number in sorted(frozenset(pairs_in(ranges, self.journals)) - known):
            marks.setdefault(number, {})[journal] = begin[journal]
        return replace(
            self,
            generation=self.generation + 1,
            paths=paths,
            numbers=numbers,
            counts=counts,
            ranges=ranges,
            marks=marks,
        )


def _without(slots: tuple[int, ...], gone: Collection[int], left: Sequence[int]) -> tuple[int, ...]:
    """Returns a table in which directories that are `left` take the places of those `gone`."""
    if not any(one in gone for one in slots):
        return slots
    times = len(left) if len(slots) * len(left) <= SLOTS_MAX else 1
    found: list[int] = []
    turn = 0
    for one in slots * times:
        if one in gone:
            one, turn = left[turn % len(left)], turn + 1
        found.append(one)
    return tuple(found)


# ---- the file


def encode_layouts(layouts: Sequence[DirectoryLayout]) -> bytes:
    """Returns the content of the file."""
    body = json.dumps([_object_of(one) for one in layouts], separators=(",", ":")).encode()
    return b"%s %08x\n%s\n" % (_MAGIC, crc32c(body), body)


def decode_layouts(data: bytes) -> list[DirectoryLayout]:
    """Returns the layouts in a file. Raises ValueError if it is damaged."""
    head, _, body = data.partition(b"\n")
    body = body.removesuffix(b"\n")
    if head != b"%s %08x" % (_MAGIC, crc32c(body)):
        raise ValueError(f"{len(data)} bytes that are no list of directories of this version")
    try:
        found = [_layout_of(one) for one in json.loads(body)]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"its list of directories cannot be read: {error!r}") from error
    if not 1 <= len(found) <= LAYOUTS_MAX:
        raise ValueError(f"it has {len(found)} lists of directories, expected 1 or {LAYOUTS_MAX}")
    return found


def _object_of(layout: DirectoryLayout) -> dict[str, Any]:
    return {
        "generation": layout.generation,
        "journals": layout.journals,
        "directories": [list(one) for one in zip(layout.numbers, layout.paths, strict=True)],
        "counts": list(layout.counts),
        "ranges": [[one.first, list(one.slots)] for one in layout.ranges],
        "marks": [
            [number, journal, *mark]
            for number, each in sorted(layout.marks.items())
            for journal, mark in sorted(each.items())
        ],
        "unsettled": [[one.first, list(one.slots)] for one in layout.unsettled],
    }


def _layout_of(found: dict[str, Any]) -> DirectoryLayout:
    marks: dict[int, dict[int, Mark]] = {}
    for number, journal, file_id, offset in found["marks"]:
        marks.setdefault(int(number), {})[int(journal)] = Mark(int(file_id), int(offset))
    layout = DirectoryLayout(
        generation=int(found["generation"]),
        journals=int(found["journals"]),
        paths=tuple(str(path) for _, path in found["directories"]),
        numbers=tuple(int(number) for number, _ in found["directories"]),
        counts=tuple(int(one) for one in found["counts"]),
        ranges=_ranges_of(found["ranges"]),
        marks=marks,
        unsettled=_ranges_of(found["unsettled"]),
    )
    _check(layout)
    return layout


def _ranges_of(found: list[tuple[int, list[int]]]) -> Ranges:
    return tuple(LedgerRange(int(first), tuple(map(int, slots))) for first, slots in found)


def _check(layout: DirectoryLayout) -> None:
    """Raises ValueError unless every ledger is in a directory that there is."""
    numbers = frozenset(layout.numbers)
    slots = {one for each in layout.ranges for one in each.slots}
    firsts = [one.first for one in layout.ranges]
    if not (
        layout.generation >= 0
        and layout.journals > 0
        and 0 < len(layout.numbers) == len(numbers)
        and layout.counts
        and max(numbers) < layout.counts[-1]
        and 0 < len(firsts) <= RANGES_MAX
        and firsts == sorted(frozenset(firsts))
        and all(0 < len(each.slots) <= SLOTS_MAX for each in (*layout.ranges, *layout.unsettled))
        and slots <= numbers
    ):
        raise ValueError("its list of directories contradicts itself")
