"""The oracle: what was written, confirmed, served and closed, and what may therefore be seen.

Told by the workload of everything it does and sees. Raises `Violation` the moment something
contradicts what was promised before. Names in brackets are the invariants of docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ledger.core.entry import Entry
from ledger.errors import LedgerError, LedgerFenced, NoSuchLedger


class Violation(AssertionError):
    """The product broke a promise."""


def payload_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    """What the one writer of a ledger puts into an entry: known without being kept."""
    text = b"%d/%d;" % (ledger_id, entry_id)
    return (text * (size // len(text) + 1))[:size]


@dataclass(slots=True)
class LedgerHistory:
    """All that is known of one ledger. `end` is (last entry id, length) once it is closed."""

    ledger_id: int
    quorums: tuple[int, int, int]
    sizes: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    confirmed: int = -1
    served: int = -1
    recoveries: int = 0
    end: tuple[int, int] | None = None
    is_being_deleted: bool = False
    is_orphaned: bool = False
    """The writer's process died or lost its session: readers may count copies themselves, and
    know more than it did."""
    is_closed_by_writer: bool = False

    def length_to(self, last: int) -> int:
        return self.lengths[last] if last >= 0 else 0


class Model:
    """Histories of all ledgers of one run."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self.ledgers: dict[int, LedgerHistory] = {}
        self.counts: dict[str, int] = {}
        self.forgetful: list[str] = []
        """Bookies that lost a ledger directory and continue without it."""
        self._fail = fail

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def created(self, ledger_id: int, quorums: tuple[int, int, int]) -> LedgerHistory:
        if ledger_id in self.ledgers:
            self.violated(f"[I2] ledger id {ledger_id} was given out twice")
        self.ledgers[ledger_id] = LedgerHistory(ledger_id, quorums)
        self.count("ledgers created")
        return self.ledgers[ledger_id]

    def pushed(self, history: LedgerHistory, entry_id: int, size: int) -> None:
        if entry_id != len(history.sizes):
            self.violated(f"{_name(history)}: entry {len(history.sizes)} got id {entry_id}")
        history.lengths.append(size + history.length_to(entry_id - 1))
        history.sizes.append(size)

    def confirmed(self, history: LedgerHistory, last: int) -> None:
        """Everything up to `last` was acknowledged to the writer."""
        if last <= history.confirmed:
            self.violated(f"[I7] {_name(history)}: confirmed {last} after {history.confirmed}")
        if last >= len(history.sizes):
            self.violated(f"[I7] {_name(history)}: confirmed {last}, which was never written")
        if history.end is not None and last > history.end[0]:
            self.violated(
                f"[I5] {_name(history)}: closed at {history.end[0]}, then {last} was confirmed"
            )
        self.count("entries confirmed", last - history.confirmed)
        history.confirmed = last

    def closed(self, history: LedgerHistory, last: int, length: int) -> None:
        """Somebody saw the ledger closed at `last`, with `length` bytes."""
        if history.end is not None and history.end != (last, length):
            self.violated(
                f"[I6] {_name(history)}: closed at (last, length) {history.end}, "
                f"later seen closed at {(last, length)}"
            )
        if last < history.confirmed:
            self.violated(
                f"[I1] {_name(history)}: closed at {last}, but {history.confirmed} was confirmed"
            )
        if last < history.served:
            self.violated(
                f"[I4] {_name(history)}: closed at {last}, but readers were promised "
                f"{history.served}"
            )
        if last >= len(history.sizes):
            self.violated(f"[I6] {_name(history)}: closed at {last}, which was never written")
        if length != history.length_to(last):
            self.violated(
                f"[I6] {_name(history)}: closed with length {length}, its entries up to {last} "
                f"have {history.length_to(last)}"
            )
        if history.end is None:
            self.count("ledgers closed")
        history.end = (last, length)

    def served_lac(self, history: LedgerHistory, lac: int, before: int) -> None:
        """A reader that knew of `before` learned that everything up to `lac` is confirmed."""
        if lac < before:
            self.violated(f"[I3] {_name(history)}: a reader's LAC went from {before} to {lac}")
        if lac >= len(history.sizes):
            self.violated(f"[I4] {_name(history)}: a LAC of {lac}, which was never written")
        is_known_by_writer = history.recoveries == 0 and not history.is_orphaned
        if is_known_by_writer and lac > history.confirmed:
            self.violated(
                f"[I4] {_name(history)}: a LAC of {lac}, the writer's is {history.confirmed}"
            )
        if history.end is not None and lac > history.end[0]:
            self.violated(f"[I6] {_name(history)}: a LAC of {lac}, closed at {history.end[0]}")
        history.served = max(history.served, lac)

    def read(self, history: LedgerHistory, first: int, entries: Sequence[Entry]) -> None:
        """A reader got `entries`, beginning with entry `first`."""
        for place, entry in enumerate(entries):
            entry_id = first + place
            if entry.entry_id != entry_id or entry.ledger_id != history.ledger_id:
                self.violated(
                    f"[I3] {_name(history)}: instead of entry {entry_id} a reader got entry "
                    f"{entry.entry_id} of ledger {entry.ledger_id}"
                )
            if entry_id >= len(history.sizes):
                self.violated(f"[I4] {_name(history)}: read {entry_id}, which was never written")
            size = history.sizes[entry_id]
            if bytes(entry.payload) != payload_of(history.ledger_id, entry_id, size):
                self.violated(f"[I2] {_name(history)}: entry {entry_id} has other bytes")
            if entry.length != history.length_to(entry_id):
                self.violated(f"[I2] {_name(history)}: entry {entry_id} has a wrong length")
        self.count("entries read", len(entries))

    def writer_failed(self, history: LedgerHistory, error: LedgerError) -> None:
        """The writer gave up with `error`: was there a reason?"""
        self.count(f"writer: {type(error).__name__}")
        if error.retry_is_safe:
            return
        is_fenced = isinstance(error, LedgerFenced | NoSuchLedger)
        # A bookie that may have forgotten a fence fences: see docs/adr/0024.
        is_in_limbo = any(f"at bookie {name}:" in str(error) for name in self.forgetful)
        if not (is_fenced and (history.recoveries or history.is_being_deleted or is_in_limbo)):
            self.violated(f"{_name(history)}: the writer failed without a reason: {error!r}")

    def refused(self, history: LedgerHistory, what: str, error: LedgerError) -> None:
        """Reading or opening failed with `error`: may it?"""
        self.count(f"{what}: {type(error).__name__}")
        if error.retry_is_safe or history.is_being_deleted:
            return
        self.violated(f"[I11] {_name(history)}: {what} failed for good: {error!r}")

    def violated(self, text: str) -> None:
        error = Violation(text)
        self._fail(error)
        raise error


def _name(history: LedgerHistory) -> str:
    return f"ledger {history.ledger_id} {history.quorums}"
