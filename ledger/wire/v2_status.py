"""The result codes of protocol v2, and the statuses they mean."""

from __future__ import annotations

from typing import Final

from ledger.errors import Status

_CODES: Final = {
    Status.OK: 0,
    Status.NO_SUCH_LEDGER: 1,
    Status.NO_SUCH_ENTRY: 2,
    Status.BAD_REQUEST: 100,
    Status.IO_ERROR: 101,
    Status.UNAUTHORIZED: 102,
    Status.BAD_VERSION: 103,
    Status.FENCED: 104,
    Status.READ_ONLY: 105,
    Status.TOO_MANY_REQUESTS: 106,
    # 107 exists, but Apache's v2 client does not map it and would lose the reply.
    Status.UNKNOWN_LEDGER_STATE: 101,
}
_STATUSES: Final = {
    **{code: status for status, code in _CODES.items() if code != 101},
    101: Status.IO_ERROR,
    107: Status.UNKNOWN_LEDGER_STATE,
}


def code_of_status(status: Status) -> int:
    """Returns the code for a reply. UNKNOWN_LEDGER_STATE is sent as an I/O error: no proof
    either."""
    return _CODES[status]


def status_of_code(code: int) -> Status:
    """Returns the status for a reply's code. An unknown code is an I/O error, which proves
    nothing."""
    return _STATUSES.get(code, Status.IO_ERROR)
