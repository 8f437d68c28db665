"""What recovery asks of the world, and what the world answers.

Plain values between `ledger.core.recovery`, which decides, and `ledger.reading.opener`, which does.
`attempt` counts restarts after a conflict: answers to an older attempt mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.core.metadata import LedgerMetadata
from ledger.errors import Status

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ReadLast:
    """Fence `bookie` and read the last entry it holds."""

    attempt: int
    bookie: str


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read one entry; `is_fencing` ones make a "no" final: the old writer cannot add it later."""

    attempt: int
    bookie: str
    entry_id: int
    is_fencing: bool


@dataclass(frozen=True, slots=True)
class AddEntry:
    """Add `body`, bytes as the writer made them, with the recovery flag."""

    attempt: int
    bookie: str
    entry_id: int
    body: Buffer = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplaceBookie:
    """Choose a bookie for `index` of `ensemble`; none of `excluded`."""

    attempt: int
    index: int
    ensemble: tuple[str, ...]
    excluded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreClosed:
    """Store `closed` if the metadata is still what this attempt began with."""

    attempt: int
    closed: LedgerMetadata


Action = ReadLast | ReadEntry | AddEntry | ReplaceBookie | StoreClosed


@dataclass(frozen=True, slots=True)
class Answered:
    """A bookie answered. `body` is the entry as stored, if the status is OK."""

    action: ReadLast | ReadEntry | AddEntry
    status: Status
    body: Buffer | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer: a timeout, a broken connection. It may have happened all the same."""

    action: ReadLast | ReadEntry | AddEntry
    reason: str
    is_unauthorized: bool = field(default=False, repr=False)
    """It did not let us in: trying again with the same credentials will not help."""


@dataclass(frozen=True, slots=True)
class BookieChosen:
    """`bookie` is None if there is none left to choose."""

    action: ReplaceBookie
    bookie: str | None


@dataclass(frozen=True, slots=True)
class LedgerStored:
    action: StoreClosed


@dataclass(frozen=True, slots=True)
class LedgerConflicted:
    """Somebody else changed the metadata first, to `metadata`."""

    action: StoreClosed
    metadata: LedgerMetadata


Event = Answered | NoAnswer | BookieChosen | LedgerStored | LedgerConflicted
