"""Errors that mean a bug of this bookie: each costs one request or connection, never the bookie.

Nothing that a peer sends may end the process, not even through a bug: any peer could then end all
bookies, one after the other. The operation that failed is abandoned where it was. It has
acknowledged nothing, so no promise depends on it. Not so a commit of the journal, which may run
in the stack of a connection: its errors end the journal, and do not get here.
"""

from __future__ import annotations

import logging
import struct
import traceback

from ledger.errors import LedgerError
from ledger.runtime.logs import OF_PEER

_log = logging.getLogger(__name__)

PROGRAMMING_ERRORS = (
    AssertionError,
    AttributeError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""Not Exception: errors that end the process on purpose must still end it."""
REQUEST_ERRORS = (*PROGRAMMING_ERRORS, MemoryError)
"""What may be raised for one request or connection, and must cost no more than that. Memory that
is short is no bug."""


def log_connection_closed(peer: str, cause: BaseException) -> None:
    """Logs that a connection ends, with its cause: an error of the ledger protocol or of storage,
    or a bug."""
    if isinstance(cause, LedgerError):
        _log.warning("connection closed peer=%s cause=%s", peer, cause, extra=OF_PEER)
    elif is_shortage(cause):
        _log.warning("connection closed peer=%s cause=no memory is left", peer, extra=OF_PEER)
    else:
        log_internal_error(f"the connection of {peer} is closed", cause)


def is_shortage(error: BaseException) -> bool:
    """Returns whether an error, or each in a group, is that memory is short."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(MemoryError)[1] is None
    return isinstance(error, MemoryError)


def log_internal_error(what: str, error: BaseException) -> None:
    """Logs a bug with its traceback, or that memory is short. A test fails for each bug that it did
    not expect."""
    if is_shortage(error):
        _log.warning("%s cause=no memory is left", what, extra=OF_PEER)
        return
    # As text: a log handler that keeps the record must not keep the objects on the stack.
    text = "".join(traceback.format_exception(error))
    _log.error("a bug of this bookie, please report it: %s\n%s", what, text, extra=OF_PEER)
