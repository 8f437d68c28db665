"""Random requests and responses of both protocol versions, for the tests of the codecs."""

from __future__ import annotations

from hypothesis import strategies as st

from ledger.core.entry import HEADER
from ledger.errors import Status
from ledger.wire import messages as m

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
UINT64 = st.integers(0, 2**64 - 1)
KEYS = st.binary(min_size=20, max_size=20)
DATA = st.binary(max_size=60)
NAMES = st.text(max_size=10)
STATUSES = st.sampled_from(Status)
V2_STATUSES = st.sampled_from([s for s in Status if s is not Status.UNKNOWN_LEDGER_STATE])


@st.composite
def adds(draw: st.DrawFn, version: int) -> m.AddRequest:
    ledger_id, entry_id = draw(INT64), draw(INT64)
    has_flags = version > 0
    return m.AddRequest(
        ledger_id,
        entry_id,
        draw(KEYS),
        HEADER.pack(ledger_id, entry_id, draw(INT64), draw(INT64)) + draw(DATA),
        is_recovery=has_flags and draw(st.booleans()),
        is_high_priority=has_flags and draw(st.booleans()),
        is_deferred_sync=version == 3 and draw(st.booleans()),
        takes_range_acks=version in (1, 2) and draw(st.booleans()),
    )


@st.composite
def reads(draw: st.DrawFn, version: int) -> m.ReadRequest:
    is_fencing = version >= 2 and draw(st.booleans())
    previous_lac = draw(st.none() | INT64) if version == 3 else None
    can_wait = previous_lac is not None
    return m.ReadRequest(
        draw(INT64),
        draw(INT64),
        master_key=draw(KEYS) if is_fencing else None,
        is_fencing=is_fencing,
        is_high_priority=version > 0 and draw(st.booleans()),
        is_piggyback=can_wait and not is_fencing and draw(st.booleans()),
        previous_lac=previous_lac,
        timeout_ms=draw(st.none() | INT64) if can_wait else None,
    )


@st.composite
def batch_reads(draw: st.DrawFn, version: int) -> m.BatchReadRequest:
    is_fencing = version >= 2 and draw(st.booleans())
    return m.BatchReadRequest(
        draw(INT64),
        draw(INT64),
        draw(INT32),
        draw(INT64),
        master_key=draw(KEYS) if is_fencing else None,
        is_fencing=is_fencing,
    )


@st.composite
def v2_requests(draw: st.DrawFn) -> m.Request:
    version = draw(st.integers(0, 2))
    body: m.RequestBody = draw(
        st.one_of(
            adds(version),
            reads(version),
            batch_reads(version),
            st.builds(m.AuthRequest, NAMES, DATA),
        )
    )
    txn_id = draw(INT64) if isinstance(body, m.BatchReadRequest) else 0
    return m.Request(version, txn_id, body)


@st.composite
def v2_responses(draw: st.DrawFn) -> m.Response:
    version, status = draw(st.integers(0, 2)), draw(V2_STATUSES)
    ledger_id, entry_id, txn_id = draw(INT64), draw(INT64), 0
    body: m.ResponseBody
    kind = draw(st.integers(0, 3))
    if kind == 0:
        last = draw(st.integers(entry_id, 2**63 - 1)) if version > 0 else entry_id
        body = m.AddResponse(status, ledger_id, entry_id, last)
    elif kind == 1:
        data = draw(DATA) if status is Status.OK else b""
        body = m.ReadResponse(status, ledger_id, entry_id, data or None)
    elif kind == 2:
        txn_id = draw(INT64)
        bodies = tuple(draw(st.lists(DATA, max_size=4)))
        body = m.BatchReadResponse(status, ledger_id, entry_id, bodies)
    else:
        version = 2  # for any version of the request
        body = m.AuthResponse(Status.OK, draw(NAMES), draw(DATA))
    return m.Response(version, txn_id, body)


V3_REQUESTS = st.builds(
    m.Request,
    st.just(3),
    UINT64,
    st.one_of(
        adds(3),
        reads(3),
        st.builds(m.AuthRequest, NAMES, DATA),
        st.builds(m.WriteLacRequest, INT64, INT64, KEYS, DATA),
        st.builds(m.ReadLacRequest, INT64),
        st.builds(m.GetBookieInfoRequest, INT64),
        st.builds(m.StartTlsRequest),
        st.builds(m.ForceLedgerRequest, INT64),
        st.builds(m.ListEntriesRequest, INT64),
    ),
)


def one_entry_ack(status: Status, ledger_id: int, entry_id: int) -> m.AddResponse:
    return m.AddResponse(status, ledger_id, entry_id, entry_id)


_MAYBE_DATA = st.none() | DATA
_MAYBE_INT = st.none() | INT64

V3_RESPONSES = st.builds(
    m.Response,
    st.just(3),
    UINT64,
    st.one_of(
        st.builds(one_entry_ack, STATUSES, INT64, INT64),
        st.builds(m.ReadResponse, STATUSES, INT64, INT64, _MAYBE_DATA, _MAYBE_INT, _MAYBE_INT),
        st.builds(m.AuthResponse, st.just(Status.OK), NAMES, DATA),
        st.builds(m.WriteLacResponse, STATUSES, INT64),
        st.builds(m.ReadLacResponse, STATUSES, INT64, _MAYBE_DATA, _MAYBE_DATA),
        st.builds(m.GetBookieInfoResponse, STATUSES, _MAYBE_INT, _MAYBE_INT),
        st.builds(m.StartTlsResponse, st.just(Status.OK)),
        st.builds(m.ForceLedgerResponse, STATUSES, INT64),
        st.builds(m.ListEntriesResponse, STATUSES, INT64, _MAYBE_DATA),
        st.builds(
            m.ErrorResponse,
            STATUSES.filter(lambda status: status is not Status.OK),
            st.sampled_from([int(operation) for operation in m.Operation]),
        ),
    ),
)


@st.composite
def damaged(draw: st.DrawFn, frame: bytes) -> bytes:
    """Draws a frame that is truncated, or that has up to three changed bytes."""
    if draw(st.booleans()):
        return frame[: draw(st.integers(0, len(frame)))]
    data = bytearray(frame)
    for _ in range(draw(st.integers(1, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)
