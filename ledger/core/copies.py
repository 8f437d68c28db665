"""What the copies of entries come to: whole, fewer than there should be, in doubt, damaged.

Pure judgement, once per span of entries where all is well and once per entry where it is not.
Must never take silence for absence: a bookie out of reach, an I/O error and "I may have
forgotten" are doubt; only an explicit "no", or bytes that are not those written, prove something.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ledger.core.entry import Entry

FAULTS_MAX = 1000
"""Runs of faults a report lists; more are only counted."""


class CopyState(enum.Enum):
    """One copy of one entry, at one bookie."""

    WHOLE = "whole"
    MISSING = "missing"
    """The bookie says that it does not have it."""
    CORRUPT = "corrupt"
    """What the bookie gives is not what was written: its digest does not fit."""
    DIFFERS = "differs"
    """A valid copy with other bytes than the others, or than the receipt says."""
    UNREADABLE = "unreadable"
    """The bookie answers, and cannot give it (an I/O error, say)."""
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    """The bookie may have forgotten entries of this ledger, and says so."""


DOUBTFUL = (CopyState.UNREADABLE, CopyState.UNREACHABLE, CopyState.UNKNOWN)


class CopyVerdict(enum.IntEnum):
    """Ordered: the worst of its parts is that of the whole."""

    WHOLE = 0
    """All copies there should be are there, and equal."""
    REDUCED = 1
    """An ack quorum of whole copies, but not all: what was promised holds."""
    DOUBT = 2
    """Not all copies could be looked at."""
    DAMAGE = 3
    """A copy is wrong, an entry has no ack quorum of copies, or a bookie lost what it
    acknowledged."""


@dataclass(frozen=True, slots=True)
class BadCopy:
    """Anything but a whole copy. `detail` is for people."""

    state: CopyState
    detail: str


Copy = Entry | BadCopy


@dataclass(frozen=True, slots=True)
class CopyFault:
    """What is wrong with the copies of entries first..last at one bookie; `detail` is that of
    the first. With striping not all ids between are its own: `entries` counts them."""

    bookie: str
    state: CopyState
    first_entry: int
    last_entry: int
    entries: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """The copies of entries first_entry..last_entry of one ledger, as they were found.

    `copies` counts them by state. `lost_entries` have no whole copy, and none in doubt.
    `doubts` are reasons why not everything could be looked at.
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
        """The worst of all entries."""
        worst = max(self.verdicts, default=CopyVerdict.WHOLE)
        return max(worst, CopyVerdict.DOUBT) if self.doubts else worst

    @property
    def copies_expected(self) -> int:
        """Copies there should be, counting each bookie once."""
        return sum(self.copies.values())


def judge(
    copies: Mapping[str, Copy], ack_quorum: int, acknowledged: Collection[str] = ()
) -> tuple[CopyVerdict, dict[str, BadCopy]]:
    """The verdict on one entry, and what is wrong with which copy.

    Args:
        copies: by bookie, of all that should have it.
        acknowledged: bookies known to have said that they fsynced it.
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
    # A closed ledger may name a bookie twice: it has one copy all the same.
    if is_wrong or whole + doubtful < min(ack_quorum, len(copies)):
        return CopyVerdict.DAMAGE, bad
    if doubtful:
        return CopyVerdict.DOUBT, bad
    return (CopyVerdict.REDUCED if bad else CopyVerdict.WHOLE), bad


def _odd_ones(entries: Mapping[str, Entry]) -> dict[str, BadCopy]:
    """Valid copies that are not as most of them are; all, if no bytes have most."""
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
            f"copy, but {len(groups)} different ones are held by {len(entries)} bookies",
        )
        for bookie, entry in entries.items()
        if bookie not in kept
    }


class CopyTally:
    """Adds up what was found, span by span in the order of entries.

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
        """Entries in a row of which so many bookies hold the same bytes, as they all should."""
        count = len(entries)
        # Lengths are cumulative. Not in order if the writer chose the ids itself.
        nbytes = max(0, entries[-1].length - entries[0].length + len(entries[0].payload))
        self._count(count, nbytes, CopyVerdict.WHOLE, {CopyState.WHOLE: count * bookies})

    def add(self, entry_id: int, copies: Mapping[str, Copy]) -> CopyVerdict:
        """One entry with all its copies by bookie."""
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
        """What has been added up. Nothing may be added afterwards."""
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
