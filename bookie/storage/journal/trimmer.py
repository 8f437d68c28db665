"""Trims journal files that no ledger directory needs any more; `bookie.core.marks` decides.

Every directory reports here the marks that it has durably stored. A journal file is trimmed only
before the least mark of all directories that depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bookie.core.journal import Mark
from bookie.core.marks import DirectoryMap, MarkTable
from bookie.storage.journal.journal import Journal


class JournalTrimmer:
    """Trims all journals of a bookie."""

    def __init__(self, layout: DirectoryMap, journals: Sequence[Journal]) -> None:
        assert len(journals) == layout.journals, f"{len(journals)} journals for {layout}"
        self.layout = layout
        self.journals = journals
        self._marks = MarkTable(layout)
        self._ask_checkpoint: dict[int, Callable[[], None]] = {}

    def marks_of(self, journal: int) -> Mapping[int, Mark]:
        """Returns where replay begins, by directory that depends on `journal`."""
        return self._marks.of(journal)

    def join(self, directory: int, ask_checkpoint: Callable[[], None]) -> None:
        """`ask_checkpoint` is called when the directory prevents a whole file of a journal from
        being trimmed."""
        self._ask_checkpoint[directory] = ask_checkpoint

    def loaded(self, directory: int, marks: Mapping[int, Mark]) -> None:
        """Records the marks that `directory` had when the process began. Nothing is trimmed."""
        self._marks.store(directory, marks)

    async def stored(self, directory: int, marks: Mapping[int, Mark]) -> None:
        """Records that `marks` are durable in `directory`, and trims what is not needed any more.
        Raises OSError."""
        self._marks.store(directory, marks)
        for journal in marks:
            # A directory with few entries or none would pin the journal until its interval is over.
            # This asks at most once for each file that another directory does not need any more.
            for other in self._marks.holding_back(journal):
                self._ask_checkpoint[other]()
        for journal in marks:
            # Several directories may run this at once. Each least mark was true when it was taken,
            # and marks only grow.
            await self.journals[journal].trim_before(self._marks.needed_from(journal))
