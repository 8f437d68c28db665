"""Every error that a user of ledgers can get, and the status of a bookie's response.

There are three kinds: the caller can retry (`RetryableError`), a retry cannot help (`FinalError`),
or one side broke the protocol (`ProtocolError`). Bugs are assertions.
"""

from __future__ import annotations

import enum

INVALID_ENTRY_ID = -1
"""Entry id that means "none yet", and in a read the last entry that the bookie holds."""


class Status(enum.IntEnum):
    """The status of a bookie's response, in any wire version; the codecs map it to wire codes."""

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
    """Root of all errors of this package. `retry_is_safe` says whether the caller may retry."""

    retry_is_safe: bool = False


class RetryableError(LedgerError):
    """Something failed that may work later: the same call can be retried."""

    retry_is_safe = True


class NotEnoughBookies(RetryableError):
    """Fewer usable bookies than the quorum needs."""


class BookieUnavailable(RetryableError):
    """A bookie cannot be reached, or closed the connection."""


class TooManyRequests(RetryableError):
    """A bookie or a local limit refuses more work for now."""


class OperationTimeout(RetryableError):
    """No answer in time. For an add this means *unknown*, never "failed"."""


class MetadataUnavailable(RetryableError):
    """The metadata store cannot be reached or did not answer in time."""


class MetadataConflict(RetryableError):
    """Another process changed the same metadata first."""


class RecoveryIncomplete(RetryableError):
    """Recovery could not prove where the ledger ends; the ledger stays in recovery."""


class BookieIoError(RetryableError):
    """A bookie could not read or write its disk. It does not mean that the data is missing."""


class UnknownLedgerState(RetryableError):
    """A bookie may have lost entries of this ledger: they count as neither present nor absent."""


class BookieReadOnly(RetryableError):
    """A bookie accepts no new entries at the moment."""


class FinalError(LedgerError):
    """A retry cannot help."""


class LedgerFenced(FinalError):
    """Another client fenced this ledger: this writer may never add to it again."""


class LedgerClosed(FinalError):
    """The ledger (or this handle) is closed."""


class NoSuchLedger(FinalError):
    """The ledger is not in the metadata store, or not known to a bookie."""


class NoSuchCluster(FinalError):
    """There is no cluster at this address. Looking for one created nothing."""


class NoSuchEntry(FinalError):
    """Every replica that could hold the entry says explicitly that it does not hold it."""


class LedgerExists(FinalError):
    """A ledger with this id already exists."""


class DigestMismatch(FinalError):
    """The bytes that were read are not the bytes that were written."""


class Unauthorized(FinalError):
    """Wrong password (master key), or not authenticated."""


class InvalidArgument(FinalError, ValueError):
    """The caller passed a value that can never work: a size, a name, an option."""


class MetadataCorrupt(FinalError):
    """Stored metadata cannot be parsed."""


class NodeExists(FinalError):
    """A metadata node with this path already exists."""


class NoSuchNode(FinalError):
    """No metadata node with this path."""


class SessionLost(RetryableError):
    """The metadata session ended: its ephemeral nodes are gone and must be created again."""


class ProtocolError(LedgerError):
    """Bytes that do not follow the protocol."""


class LocalProtocolError(ProtocolError):
    """A message to be sent cannot be expressed in the protocol: a bug here or in the caller."""


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
    """Returns the error for a bookie's `status`; `what` names the request and the bookie."""
    assert status is not Status.OK, "OK is not an error"
    return _STATUS_ERROR[status](f"{what}: {status.name.lower().replace('_', ' ')}")
