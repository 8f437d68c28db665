"""The actions and events of a recovery.

Plain values between `ledger.core.recovery`, which decides, and `ledger.recovery`, which acts.
`attempt` counts restarts after a conflict: answers to an earlier attempt are ignored.
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
    """Read one entry; with `is_fencing` a "no" is final: the writer cannot add the entry later.

    With `is_check` the answer decides about a claim, not about the end."""

    attempt: int
    bookie: str
    entry_id: int
    is_fencing: bool
    is_check: bool = False


@dataclass(frozen=True, slots=True)
class AddEntry:
    """Add `body`, bytes as the writer made them, with the recovery flag."""

    attempt: int
    bookie: str
    entry_id: int
    body: Buffer = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplaceBookie:
    """Choose a bookie for `index` of `ensemble` that is not in `excluded`."""

    attempt: int
    index: int
    ensemble: tuple[str, ...]
    excluded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreClosed:
    """Store `closed` if the metadata is still that with which this attempt began."""

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
    """No answer came (a timeout, a broken connection). The action may have taken effect."""

    action: ReadLast | ReadEntry | AddEntry
    reason: str
    is_unauthorized: bool = field(default=False, repr=False)
    """The bookie refused the client's credentials: a retry with the same ones will not help."""


@dataclass(frozen=True, slots=True)
class BookieChosen:
    """The replacement of a bookie; `bookie` is None if there is none."""

    action: ReplaceBookie
    bookie: str | None


@dataclass(frozen=True, slots=True)
class LedgerStored:
    """The closed metadata was stored."""

    action: StoreClosed


@dataclass(frozen=True, slots=True)
class LedgerConflicted:
    """Another client changed the metadata first, to `metadata`."""

    action: StoreClosed
    metadata: LedgerMetadata


Event = Answered | NoAnswer | BookieChosen | LedgerStored | LedgerConflicted
