"""Which journal and which ledger directory a ledger belongs to, and what that means for marks.

Twins with files: `storage/bookie_storage.py` and `storage/journal_release.py`. Must never let a
journal forget what one of the directories that depend on it has not stored (Apache's #3329), nor
let a mark go backwards (#4740).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from bookie.core.journal import BEGINNING, Mark


@dataclass(frozen=True, slots=True)
class DirectoryMap:
    """A ledger goes to journal `id mod journals` and to directory `id mod directories`.

    A *lane* is what ledgers with the same journal and the same directory share: there are as many
    as the least common multiple of both counts, and a ledger's is `id mod lanes`.
    """

    journals: int
    directories: int

    def __post_init__(self) -> None:
        assert self.journals > 0, self
        assert self.directories > 0, self

    @property
    def lanes(self) -> int:
        return self.journals * self.directories // gcd(self.journals, self.directories)

    def journals_of(self, directory: int) -> tuple[int, ...]:
        """The journals with frames of ledgers that lie in `directory`, in order."""
        step = gcd(self.journals, self.directories)
        return tuple(range(directory % step, self.journals, step))

    def directories_of(self, journal: int) -> tuple[int, ...]:
        """The directories whose ledgers have frames in `journal`, in order."""
        step = gcd(self.journals, self.directories)
        return tuple(range(journal % step, self.directories, step))


class MarkTable:
    """The stored marks of all directories of a bookie, for each journal they depend on."""

    def __init__(self, layout: DirectoryMap) -> None:
        self._marks: list[dict[int, Mark]] = [
            dict.fromkeys(layout.directories_of(journal), BEGINNING)
            for journal in range(layout.journals)
        ]

    def store(self, directory: int, marks: Mapping[int, Mark]) -> None:
        """`directory` has durably stored these marks, by journal."""
        for journal, mark in marks.items():
            before = self._marks[journal][directory]
            assert mark >= before, f"mark of journal {journal} goes from {before} back to {mark}"
            self._marks[journal][directory] = mark

    def of(self, journal: int) -> Mapping[int, Mark]:
        """The marks in `journal`, by directory that depends on it."""
        return self._marks[journal]

    def needed_from(self, journal: int) -> Mark:
        """What lies in `journal` before this mark, no directory needs any more."""
        return min(self._marks[journal].values())

    def holding_back(self, journal: int) -> list[int]:
        """Directories without which a whole file more of `journal` could go."""
        newest = max(self._marks[journal].values()).file_id
        return [d for d, mark in self._marks[journal].items() if mark.file_id < newest]
