"""Every error a ledger user can meet, and the version-free status a bookie answers with.

Three questions shape the tree: can the caller retry (`RetryableError`), is it gone for good
(`FinalError`), or did one side break the protocol (`ProtocolError`)? Bugs are assertions.
"""

from __future__ import annotations

import enum

INVALID_ENTRY_ID = -1
"""Entry id that means "none yet", and in a read "the last one you hold"."""


class Status(enum.IntEnum):
    """What a bookie answers, free of wire version. The codecs map it to wire codes."""

    OK = 0
    NO_SUCH_LEDGER = 1
    NO_SUCH_ENTRY = 2
    BAD_REQUEST = 3
    IO_ERROR = 4
    UNAUTHORIZED = 5
    BAD_VERSION = 6
    FENCED = 7
    READ_ONLY = 8
    TOO_MANY_REQUESTS = 9
    UNKNOWN_LEDGER_STATE = 10


class LedgerError(Exception):
    """Root of all errors of this package. `retry_is_safe` says what a caller may do."""

    retry_is_safe: bool = False


class RetryableError(LedgerError):
    """The world was in the way; the same call may succeed later."""

    retry_is_safe = True


class NotEnoughBookies(RetryableError):
    """Fewer usable bookies than the quorum needs."""


class BookieUnavailable(RetryableError):
    """A bookie cannot be reached, or closed the connection."""


class TooManyRequests(RetryableError):
    """A bookie or a local bound refused more work for now."""


class OperationTimeout(RetryableError):
    """No answer in time. For an add this means *unknown*, never "failed"."""


class MetadataUnavailable(RetryableError):
    """The metadata store cannot be reached or did not answer in time."""


class MetadataConflict(RetryableError):
    """Another process changed the same metadata first."""


class RecoveryIncomplete(RetryableError):
    """Recovery could not prove where the ledger ends; the ledger stays in recovery."""


class BookieIoError(RetryableError):
    """A bookie could not read or write its disk. Says nothing about whether data exists."""


class UnknownLedgerState(RetryableError):
    """A bookie may have forgotten entries of this ledger: neither present nor absent."""


class BookieReadOnly(RetryableError):
    """A bookie takes no new entries at the moment."""


class FinalError(LedgerError):
    """Trying again cannot help."""


class LedgerFenced(FinalError):
    """Another client fenced this ledger: this writer may never add to it again."""


class LedgerClosed(FinalError):
    """The ledger (or this handle) is closed."""


class NoSuchLedger(FinalError):
    """No such ledger in the metadata store, or a bookie never saw it."""


class NoSuchEntry(FinalError):
    """Every replica that could hold the entry says explicitly that it does not."""


class LedgerExists(FinalError):
    """A ledger with this id exists already."""


class DigestMismatch(FinalError):
    """Bytes that came back are not the bytes that were written."""


class Unauthorized(FinalError):
    """Wrong password (master key), or not authenticated."""


class InvalidArgument(FinalError, ValueError):
    """The caller passed something that can never work: a size, a name, an option."""


class MetadataCorrupt(FinalError):
    """Stored metadata cannot be parsed."""


class NodeExists(FinalError):
    """A metadata node with this path exists already."""


class NoSuchNode(FinalError):
    """No metadata node with this path."""


class SessionLost(RetryableError):
    """The metadata session ended: ephemeral nodes are gone and must be made again."""


class ProtocolError(LedgerError):
    """Bytes that are not the protocol."""


class LocalProtocolError(ProtocolError):
    """We were asked to send something the protocol cannot say: our bug or the caller's."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol does not allow."""


_STATUS_ERROR: dict[Status, type[LedgerError]] = {
    Status.NO_SUCH_LEDGER: NoSuchLedger,
    Status.NO_SUCH_ENTRY: NoSuchEntry,
    Status.BAD_REQUEST: LocalProtocolError,
    Status.IO_ERROR: BookieIoError,
    Status.UNAUTHORIZED: Unauthorized,
    Status.BAD_VERSION: RemoteProtocolError,
    Status.FENCED: LedgerFenced,
    Status.READ_ONLY: BookieReadOnly,
    Status.TOO_MANY_REQUESTS: TooManyRequests,
    Status.UNKNOWN_LEDGER_STATE: UnknownLedgerState,
}


def error_of_status(status: Status, what: str) -> LedgerError:
    """The error a client raises for a bookie's `status`; `what` names request and bookie."""
    assert status is not Status.OK, "OK is not an error"
    return _STATUS_ERROR[status](f"{what}: {status.name.lower().replace('_', ' ')}")
