"""The table of operations is complete, and is the one that was decided."""

from __future__ import annotations

from typing import get_args

import pytest

from bookie.core.operations import (
    HTTP_OPERATIONS,
    WIRE_OPERATIONS,
    http_operation,
    needed_role,
    operation_of,
)
from ledger.core.permissions import Role
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    Operation,
    ReadLacRequest,
    ReadRequest,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)

KEY = b"k" * 20
BODIES: dict[str, RequestBody] = {
    "add": AddRequest(1, 0, KEY, b""),
    "recovery add": AddRequest(1, 0, KEY, b"", is_recovery=True),
    "read": ReadRequest(1, 0),
    "long poll": ReadRequest(1, -1, previous_lac=0, timeout_ms=10, is_piggyback=True),
    "fencing read": ReadRequest(1, 0, KEY, is_fencing=True),
    "batch read": BatchReadRequest(1, 0, 10, 10),
    "fencing batch read": BatchReadRequest(1, 0, 10, 10, KEY, is_fencing=True),
    "write LAC": WriteLacRequest(1, 0, KEY, b""),
    "read LAC": ReadLacRequest(1),
    "force ledger": ForceLedgerRequest(1),
    "list of entries": ListEntriesRequest(1),
    "bookie info": GetBookieInfoRequest(3),
    "auth": AuthRequest("sasl", b""),
    "start TLS": StartTlsRequest(),
}
# Decided by hand, so that a change of the table is noticed. It is no copy of the code: what each
# operation needs on a ledger with a namespace, and on one without.
DECIDED = {
    "add": ("write", "ledger"),
    "recovery add": ("write", "ledger"),
    "read": ("read", "ledger"),
    "long poll": ("read", "ledger"),
    "fencing read": ("write", "ledger"),
    "batch read": ("read", "ledger"),
    "fencing batch read": ("write", "ledger"),
    "write LAC": ("write", "ledger"),
    "read LAC": ("read", "ledger"),
    "force ledger": ("write", "ledger"),
    "list of entries": ("read", "ledger"),
    "bookie info": ("operate", "operate"),
    "auth": (None, None),
    "start TLS": (None, None),
}


def value_of(role: Role | None) -> str | None:
    return None if role is None else role.value


def test_every_request_of_the_protocol_has_a_row() -> None:
    assert {type(body) for body in BODIES.values()} == set(get_args(RequestBody))
    assert len({type(body) for body in BODIES.values()}) == len(Operation)
    assert {one.name for one in WIRE_OPERATIONS} == set(BODIES) == set(DECIDED)


@pytest.mark.parametrize("name", list(BODIES))
def test_each_request_needs_what_was_decided(name: str) -> None:
    operation = operation_of(BODIES[name])
    assert operation.name == name
    needs = (
        value_of(needed_role(operation, "demo")),
        value_of(needed_role(operation, None)),
    )
    assert needs == DECIDED[name]


def test_only_probes_are_open_over_http_and_what_changes_the_cluster_needs_admin() -> None:
    rows = {(one.method, one.path): one.needs for one in HTTP_OPERATIONS}
    assert len(rows) == len(HTTP_OPERATIONS)
    assert {path for (_, path), needs in rows.items() if needs is None} == {
        "/heartbeat",
        "/healthz",
        "/api/v1/bookie/is_ready",
    }
    assert {key for key, needs in rows.items() if needs is Role.ADMIN} == {
        ("PUT", f"/api/v1/autorecovery/{name}")
        for name in (
            "status",
            "lost_bookie_recovery_delay",
            "trigger_audit",
            "decommission",
            "bookie",
        )
    }
    assert set(rows.values()) == {None, Role.OPERATE, Role.ADMIN}


def test_a_route_without_a_row_is_an_error() -> None:
    assert http_operation("HEAD", "/metrics") is http_operation("GET", "/metrics")
    for method, path in (("DELETE", "/metrics"), ("GET", "/metrics/"), ("GET", "/new")):
        with pytest.raises(KeyError):
            http_operation(method, path)
