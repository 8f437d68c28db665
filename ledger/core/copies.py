"""Judges the copies of entries: whole, fewer than there should be, unverified, or damaged.

Pure. It runs once per span of entries if all copies are whole, otherwise once per entry. It must
never take silence for absence: an unreachable bookie, an I/O error and "I may have forgotten" leave
a copy unverified; only an explicit "no", or bytes other than those written, prove anything.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ledger.core.entry import Entry

FAULTS_MAX = 1000
"""Runs of faults that a report lists; further ones are only counted."""


class CopyState(enum.Enum):
    """One copy of one entry, at one bookie."""

    WHOLE = "whole"
    MISSING = "missing"
    """The bookie says explicitly that it does not have it."""
    CORRUPT = "corrupt"
    """The bookie returns other bytes than were written, or says that it has them: the digest does
    not match."""
    DIFFERS = "differs"
    """A valid copy whose bytes differ from the other copies, or from the receipt."""
    UNREADABLE = "unreadable"
    """The bookie answers but cannot return it, for instance after an I/O error."""
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    """The bookie may have forgotten entries of this ledger, and says so."""


DOUBTFUL = (CopyState.UNREADABLE, CopyState.UNREACHABLE, CopyState.UNKNOWN)


class CopyVerdict(enum.IntEnum):
    """Ordered: the verdict on a whole is the worst of its parts."""

    WHOLE = 0
    """All expected copies exist and are equal."""
    REDUCED = 1
    """An ack quorum of whole copies, but not all: the durability guarantee holds."""
    DOUBT = 2
    """Not all copies could be verified."""
    DAMAGE = 3
    """A copy is wrong, an entry has no ack quorum of copies, or a bookie lost what it
    acknowledged."""


@dataclass(frozen=True, slots=True)
class BadCopy:
    """A copy that is not whole. `detail` is for operators."""

    state: CopyState
    detail: str


Copy = Entry | BadCopy


@dataclass(frozen=True, slots=True)
class CopyFault:
    """A fault of the copies of entries first..last at one bookie; `detail` is that of the first.
    With striping not all ids between are stored there: `entries` counts those that are."""

    bookie: str
    state: CopyState
    first_entry: int
    last_entry: int
    entries: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """The copies of entries first_entry..last_entry of one ledger, as they were found.

    `copies` counts them by state. `lost_entries` have no whole copy, and none that is unverified.
    `doubts` are the reasons why not everything could be verified.
    """

    ledger_id: int
    is_closed: bool
    first_entry: int
    last_entry: int
    entries: int
    payload_bytes: int
    copies: Mapping[CopyState, int]
    verdicts: Mapping[CopyVerdict, int]
    lost_entries: int
    faults: tuple[CopyFault, ...]
    faults_left_out: int
    doubts: tuple[str, ...] = ()

    @property
    def verdict(self) -> CopyVerdict:
        """The worst verdict on any entry."""
        worst = max(self.verdicts, default=CopyVerdict.WHOLE)
        return max(worst, CopyVerdict.DOUBT) if self.doubts else worst

    @property
    def copies_expected(self) -> int:
        """How many copies there should be, counting each bookie once."""
        return sum(self.copies.values())


def judge(
    copies: Mapping[str, Copy], ack_quorum: int, acknowledged: Collection[str] = ()
) -> tuple[CopyVerdict, dict[str, BadCopy]]:
    """Returns the verdict on one entry, and its bad copies.

    Args:
        copies: by bookie, of all bookies that should have the entry.
        acknowledged: bookies known to have acknowledged that they fsynced it.
    """
    bad = {bookie: copy for bookie, copy in copies.items() if isinstance(copy, BadCopy)}
    bad |= _odd_ones({b: c for b, c in copies.items() if isinstance(c, Entry)})
    whole = len(copies) - len(bad)
    doubtful = sum(copy.state in DOUBTFUL for copy in bad.values())
    is_wrong = any(
        copy.state in (CopyState.CORRUPT, CopyState.DIFFERS)
        or (copy.state is CopyState.MISSING and bookie in acknowledged)
        for bookie, copy in bad.items()
    )
    # A closed ledger may name a bookie twice: that bookie has one copy nevertheless.
    if is_wrong or whole + doubtful < min(ack_quorum, len(copies)):
        return CopyVerdict.DAMAGE, bad
    if doubtful:
        return CopyVerdict.DOUBT, bad
    return (CopyVerdict.REDUCED if bad else CopyVerdict.WHOLE), bad


def _odd_ones(entries: Mapping[str, Entry]) -> dict[str, BadCopy]:
    """Returns the valid copies that differ from the majority; all of them if there is none."""
    groups: dict[Entry, list[str]] = {}
    for bookie, entry in entries.items():
        groups.setdefault(entry, []).append(bookie)
    if len(groups) < 2:
        return {}
    sizes = sorted(map(len, groups.values()))
    has_most = sizes[-1] > sizes[-2]
    kept = max(groups.values(), key=len) if has_most else []
    return {
        bookie: BadCopy(
            CopyState.DIFFERS,
            f"{len(entry.payload)} payload bytes, lac {entry.lac}, length {entry.length}: a valid "
            f"copy, but {len(entries)} bookies hold {len(groups)} different ones",
        )
        for bookie, entry in entries.items()
        if bookie not in kept
    }


class CopyTally:
    """Adds up the copies that were found, span by span in the order of entries.

    Args:
        gap_max: distance of ids up to which entries of one bookie are one run.
        acknowledged: as for `judge`.
    """

    def __init__(
        self, ack_quorum: int, *, gap_max: int = 1, acknowledged: Collection[str] = ()
    ) -> None:
        self.entries = 0
        self.payload_bytes = 0
        self._ack_quorum = ack_quorum
        self._gap_max = gap_max
        self._acknowledged = acknowledged
        self._copies: dict[CopyState, int] = {}
        self._verdicts: dict[CopyVerdict, int] = {}
        self._lost = 0
        self._runs: dict[tuple[str, CopyState], CopyFault] = {}
        self._faults: list[CopyFault] = []
        self._left_out = 0

    def add_equal(self, entries: Sequence[Entry], bookies: int) -> None:
        """Adds consecutive entries of which all `bookies` hold the same bytes."""
        count = len(entries)
        # Lengths are cumulative. Not in order if the writer chose the ids itself.
        nbytes = max(0, entries[-1].length - entries[0].length + len(entries[0].payload))
        self._count(count, nbytes, CopyVerdict.WHOLE, {CopyState.WHOLE: count * bookies})

    def add(self, entry_id: int, copies: Mapping[str, Copy]) -> CopyVerdict:
        """Adds one entry with all its copies by bookie, and returns the verdict."""
        verdict, bad = judge(copies, self._ack_quorum, self._acknowledged)
        states = [copy.state for copy in bad.values()]
        by_state = {state: states.count(state) for state in dict.fromkeys(states)}
        by_state[CopyState.WHOLE] = len(copies) - len(bad)
        sizes = [len(copy.payload) for copy in copies.values() if isinstance(copy, Entry)]
        self._count(1, max(sizes, default=0), verdict, by_state)
        if len(bad) == len(copies) and not any(state in DOUBTFUL for state in states):
            self._lost += 1
        for bookie, copy in bad.items():
            self._note(entry_id, bookie, copy)
        return verdict

    def _count(
        self, entries: int, nbytes: int, verdict: CopyVerdict, copies: Mapping[CopyState, int]
    ) -> None:
        self.entries += entries
        self.payload_bytes += nbytes
        self._verdicts[verdict] = self._verdicts.get(verdict, 0) + entries
        for state, count in copies.items():
            if count:
                self._copies[state] = self._copies.get(state, 0) + count

    def _note(self, entry_id: int, bookie: str, copy: BadCopy) -> None:
        key = bookie, copy.state
        run = self._runs.get(key)
        if run is not None and entry_id - run.last_entry <= self._gap_max:
            self._runs[key] = CopyFault(
                bookie, copy.state, run.first_entry, entry_id, run.entries + 1, run.detail
            )
            return
        if run is not None:
            self._keep(run)
        self._runs[key] = CopyFault(bookie, copy.state, entry_id, entry_id, 1, copy.detail)

    def _keep(self, run: CopyFault) -> None:
        if len(self._faults) < FAULTS_MAX:
            self._faults.append(run)
        else:
            self._left_out += 1

    def report(
        self,
        ledger_id: int,
        *,
        is_closed: bool,
        first_entry: int,
        last_entry: int,
        doubts: Sequence[str] = (),
    ) -> LedgerReport:
        """Returns the totals. Nothing may be added afterwards."""
        for run in self._runs.values():
            self._keep(run)
        self._runs.clear()
        return LedgerReport(
            ledger_id=ledger_id,
            is_closed=is_closed,
            first_entry=first_entry,
            last_entry=last_entry,
            entries=self.entries,
            payload_bytes=self.payload_bytes,
            copies={state: self._copies[state] for state in CopyState if state in self._copies},
            verdicts={v: self._verdicts[v] for v in CopyVerdict if v in self._verdicts},
            lost_entries=self._lost,
            faults=tuple(sorted(self._faults, key=lambda f: (f.first_entry, f.bookie))),
            faults_left_out=self._left_out,
            doubts=tuple(doubts),
        )
