"""Every operation of a bookie, and the role that it needs: over the wire and over HTTP.

The server and the HTTP interface enforce this table and no other; docs/permissions.md and the tests
of permissions are made from it. An operation without a row cannot be served: `operation_of` and
`http_operation` know only rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger.core.permissions import Role
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)


@dataclass(frozen=True, slots=True)
class WireOperation:
    """A request of the protocol. `needs` READ or WRITE is a role on the namespace of its ledger,
    or LEDGER if that belongs to none; None is open to everyone. `versions` of the protocol have
    it."""

    name: str
    needs: Role | None
    versions: tuple[int, ...]
    meaning: str


@dataclass(frozen=True, slots=True)
class HttpOperation:
    """A request over HTTP. `needs` is a role on the cluster; None is open to everyone."""

    method: str
    path: str
    needs: Role | None


ADD: Final = WireOperation("add", Role.WRITE, (2, 3), "adds an entry")
RECOVERY_ADD: Final = WireOperation(
    "recovery add", Role.WRITE, (2, 3), "adds an entry again, in a recovery or as a further copy"
)
READ: Final = WireOperation("read", Role.READ, (2, 3), "reads an entry")
FENCING_READ: Final = WireOperation(
    "fencing read", Role.WRITE, (2, 3), "reads an entry and refuses the ledger's writer from then"
)
LONG_POLL: Final = WireOperation("long poll", Role.READ, (3,), "waits for a newer LAC or entry")
BATCH_READ: Final = WireOperation("batch read", Role.READ, (2,), "reads several entries")
FENCING_BATCH_READ: Final = WireOperation(
    "fencing batch read", Role.WRITE, (2,), "the same, and refuses the ledger's writer"
)
WRITE_LAC: Final = WireOperation("write LAC", Role.WRITE, (3,), "stores an explicit LAC")
READ_LAC: Final = WireOperation("read LAC", Role.READ, (3,), "reads the LAC and the last entry")
FORCE_LEDGER: Final = WireOperation(
    "force ledger", Role.WRITE, (3,), "waits until deferred adds are durable"
)
LIST_ENTRIES: Final = WireOperation(
    "list of entries", Role.READ, (3,), "which entries of a ledger are here"
)
BOOKIE_INFO: Final = WireOperation(
    "bookie info", Role.OPERATE, (3,), "total and free space of the disks"
)
AUTH: Final = WireOperation("auth", None, (2, 3), "authenticates the connection")
START_TLS: Final = WireOperation("start TLS", None, (3,), "encrypts the connection")

WIRE_OPERATIONS: Final = (
    READ,
    LONG_POLL,
    BATCH_READ,
    READ_LAC,
    LIST_ENTRIES,
    ADD,
    RECOVERY_ADD,
    FENCING_READ,
    FENCING_BATCH_READ,
    WRITE_LAC,
    FORCE_LEDGER,
    BOOKIE_INFO,
    AUTH,
    START_TLS,
)

_SIMPLE: Final[dict[type[RequestBody], WireOperation]] = {
    WriteLacRequest: WRITE_LAC,
    ReadLacRequest: READ_LAC,
    ForceLedgerRequest: FORCE_LEDGER,
    ListEntriesRequest: LIST_ENTRIES,
    GetBookieInfoRequest: BOOKIE_INFO,
    AuthRequest: AUTH,
    StartTlsRequest: START_TLS,
}

_BOOKIE: Final = "/api/v1/bookie"
_AUTORECOVERY: Final = "/api/v1/autorecovery"

HTTP_OPERATIONS: Final = (
    HttpOperation("GET", "/heartbeat", None),
    HttpOperation("GET", "/healthz", None),
    HttpOperation("GET", f"{_BOOKIE}/is_ready", None),
    HttpOperation("GET", "/metrics", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/report", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/state", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/state/readonly", Role.OPERATE),
    HttpOperation("PUT", f"{_BOOKIE}/state/readonly", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/info", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/gc", Role.OPERATE),
    HttpOperation("PUT", f"{_BOOKIE}/gc", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/gc_details", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/gc/suspend_compaction", Role.OPERATE),
    HttpOperation("PUT", f"{_BOOKIE}/gc/suspend_compaction", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/gc/resume_compaction", Role.OPERATE),
    HttpOperation("PUT", f"{_BOOKIE}/gc/resume_compaction", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/last_log_mark", Role.OPERATE),
    HttpOperation("GET", f"{_BOOKIE}/list_disk_file", Role.OPERATE),
    HttpOperation("PUT", f"{_BOOKIE}/expand_storage", Role.OPERATE),
    HttpOperation("GET", "/api/v1/config/server_config", Role.OPERATE),
    HttpOperation("GET", f"{_AUTORECOVERY}/status", Role.OPERATE),
    HttpOperation("PUT", f"{_AUTORECOVERY}/status", Role.ADMIN),
    HttpOperation("GET", f"{_AUTORECOVERY}/who_is_auditor", Role.OPERATE),
    HttpOperation("GET", f"{_AUTORECOVERY}/list_under_replicated_ledger", Role.OPERATE),
    HttpOperation("GET", f"{_AUTORECOVERY}/lost_bookie_recovery_delay", Role.OPERATE),
    HttpOperation("PUT", f"{_AUTORECOVERY}/lost_bookie_recovery_delay", Role.ADMIN),
    HttpOperation("PUT", f"{_AUTORECOVERY}/trigger_audit", Role.ADMIN),
    HttpOperation("PUT", f"{_AUTORECOVERY}/decommission", Role.ADMIN),
    HttpOperation("PUT", f"{_AUTORECOVERY}/bookie", Role.ADMIN),
)
_HTTP_ROWS: Final = {(one.method, one.path): one for one in HTTP_OPERATIONS}


def operation_of(body: RequestBody) -> WireOperation:
    """Returns the row of a request."""
    if isinstance(body, AddRequest):
        return RECOVERY_ADD if body.is_recovery else ADD
    if isinstance(body, ReadRequest):
        if body.is_fencing:
            return FENCING_READ
        return READ if body.previous_lac is None else LONG_POLL
    if isinstance(body, BatchReadRequest):
        return FENCING_BATCH_READ if body.is_fencing else BATCH_READ
    return _SIMPLE[type(body)]


def http_operation(method: str, path: str) -> HttpOperation:
    """Returns the row of a route; HEAD is a GET without a body. Raises KeyError without one."""
    return _HTTP_ROWS["GET" if method == "HEAD" else method, path]


def needed_role(operation: WireOperation, namespace: str | None) -> Role | None:
    """Returns the role that an operation needs on a ledger of `namespace`, None: without one."""
    needs = operation.needs
    if namespace is None and needs in (Role.READ, Role.WRITE):
        return Role.LEDGER
    return needs
