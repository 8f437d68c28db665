"""What a request may stumble over in our own code: it costs that request, never the bookie.

Nothing that a peer sends may end the process, also not by way of a bug: then any peer could end
all bookies, one after the other. What was being done is given up where it was; nothing is
acknowledged by it, so nothing that was promised depends on it.
"""

from __future__ import annotations

import logging
import struct
import traceback

from ledger.errors import LedgerError

_log = logging.getLogger(__name__)

PROGRAMMING_ERRORS = (
    AssertionError,
    AttributeError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)
"""Not Exception: what ends a process on purpose must go on doing so."""


def log_connection_closed(peer: str, cause: BaseException) -> None:
    """That a connection ends, because of the peer or of the bookie, or because of a mistake."""
    if isinstance(cause, LedgerError):
        _log.warning("connection closed peer=%s cause=%s", peer, cause)
    else:
        log_internal_error(f"the connection of {peer} is closed", cause)


def log_internal_error(what: str, error: BaseException) -> None:
    """Tests fail for each of these that they did not expect."""
    # As text: whoever keeps the record must not keep what lay on the stack.
    told = "".join(traceback.format_exception(error))
    _log.error("a bug of this bookie, please report it: %s\n%s", what, told)
