"""Protocol v3: Apache's bytes, round trips of all messages, and responses to invalid requests."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import HEADER
from ledger.errors import LocalProtocolError, RemoteProtocolError, Status
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import messages as m
from ledger.wire import v3
from ledger.wire.messages import RequestRefused
from tests.golden import apache
from tests.ledger.wire.strategies import V3_REQUESTS, V3_RESPONSES, damaged

KEY = bytes(range(20))
ENTRY = HEADER.pack(1, 2, 1, 30) + b"digest and payload"


def body_of(frame: bytes) -> memoryview:
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    return memoryview(frame)[4:]


def request_message(operation: pb.OperationType.ValueType, txn_id: int = 5) -> pb.Request:
    message = pb.Request()
    message.header.version = pb.VERSION_THREE
    message.header.operation = operation
    message.header.txnId = txn_id
    return message


def refusal_of(frame: bytes) -> m.Response:
    """Returns the response that the decoder suggests, after a round trip through the codec."""
    with pytest.raises(RequestRefused) as caught:
        v3.decode_request(frame)
    return v3.decode_response(body_of(v3.encode_response(caught.value.response)))


LONG = 300_000
PARTS = {
    "empty contexts": bytes.fromhex("c20c00"),
    "contexts": bytes.fromhex("c20c040a001200"),
    "an operation's own message again": bytes.fromhex("aa0600"),
    "unknown numbers": bytes.fromhex("e01200"),
    "headers": bytes.fromhex("0a02180a"),
    "groups that do not end": bytes.fromhex("e312"),
}


@pytest.mark.parametrize("part", list(PARTS.values()), ids=list(PARTS))
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_long_frame_of_many_parts_is_not_parsed(part: bytes, is_nested: bool) -> None:
    """Each part of two bytes may be an object of sixty."""
    parts = part * (LONG // len(part))
    if is_nested:
        parts = bytes.fromhex("aa06e0a712") + parts[:LONG].ljust(LONG, b"\0")
    frame = request_message(pb.READ_LAC).SerializeToString() + parts
    with pytest.raises(RemoteProtocolError, match="not those of one value"):
        v3.decode_request(frame)


@given(
    st.integers(0, 200_000),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.text(), st.text()), max_size=5),
)
def test_long_frames_with_one_value_are_parsed(
    size: int, is_recovery: bool, is_high_priority: bool, contexts: list[tuple[str, str]]
) -> None:
    add = m.AddRequest(
        1, 2, KEY, ENTRY + bytes(size), is_recovery=is_recovery, is_high_priority=is_high_priority
    )
    for body in (add, m.AuthRequest("plugin", bytes(size))):
        frame = v3.encode_request(m.Request(3, 7, body))[4:]
        for key, value in contexts:
            message = pb.Request()
            message.ParseFromString(frame)
            message.requestContext.add(key=key, value=value)
            frame = message.SerializeToString()
        assert v3.decode_request(frame).body == body
    found = m.ReadResponse(Status.OK, 1, 2, ENTRY + bytes(size), 1)
    answer = m.Response(3, 7, found)
    assert v3.decode_response(v3.encode_response(answer)[4:]) == answer


@pytest.mark.parametrize(
    ("sample", "request_"),
    [
        (
            "v3_long_poll_body",
            m.Request(
                3, 7, m.ReadRequest(1, -1, is_piggyback=True, previous_lac=3, timeout_ms=1000)
            ),
        ),
        ("v3_start_tls_body", m.Request(3, 1, m.StartTlsRequest())),
    ],
)
def test_requests_are_apaches_bytes(sample: str, request_: m.Request) -> None:
    assert body_of(v3.encode_request(request_)) == apache(sample)
    assert v3.decode_request(apache(sample)) == request_


@given(V3_REQUESTS)
def test_requests_are_decoded_as_they_were_encoded(request: m.Request) -> None:
    frame = v3.encode_request(request)
    assert frame[4] == 0x0A, "the first byte distinguishes v3 from v2"
    assert v3.decode_request(body_of(frame)) == request


@given(V3_RESPONSES)
def test_responses_are_decoded_as_they_were_encoded(response: m.Response) -> None:
    frame = v3.encode_response(response)
    assert frame[4] == 0x0A
    assert v3.decode_response(body_of(frame)) == response


@given(V3_REQUESTS, st.data())
def test_damaged_requests_are_protocol_errors(request: m.Request, draw: st.DataObject) -> None:
    with contextlib.suppress(RemoteProtocolError):
        v3.decode_request(draw.draw(damaged(v3.encode_request(request)[4:])))


@given(V3_RESPONSES, st.data())
def test_damaged_responses_are_protocol_errors(response: m.Response, draw: st.DataObject) -> None:
    with contextlib.suppress(RemoteProtocolError):
        v3.decode_response(draw.draw(damaged(v3.encode_response(response)[4:])))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in (v3.decode_request, v3.decode_response):
        for frame in (data, apache("v3_start_tls_body")[:8] + data):
            with contextlib.suppress(RemoteProtocolError):
                decode(frame)


@given(V3_RESPONSES)
def test_the_status_is_in_the_message_and_in_the_response(response: m.Response) -> None:
    message = pb.Response()
    message.ParseFromString(v3.encode_response(response)[4:])
    assert message.header.version == pb.VERSION_THREE
    for field, part in message.ListFields():
        if field.name not in ("header", "status", "authResponse", "startTLSResponse"):
            assert part.status == message.status


def test_unknown_fields_and_context_are_ignored() -> None:
    message = request_message(pb.READ_LAC)
    message.readLacRequest.ledgerId = 9
    message.requestContext.add(key="trace", value="1")
    frame = message.SerializeToString() + b"\xf8\x3f\x01"
    assert v3.decode_request(frame) == m.Request(3, 5, m.ReadLacRequest(9))


@pytest.mark.parametrize("version", [1, 2, 4])
def test_another_version_is_answered_with_bad_version(version: int) -> None:
    frame = v3.encode_request(m.Request(3, 5, m.ReadLacRequest(9)))[4:]
    frame = frame.replace(b"\x08\x03", bytes([8, version]), 1)
    assert refusal_of(frame) == m.Response(3, 5, m.ReadLacResponse(Status.BAD_VERSION, 9))


@pytest.mark.parametrize("operation", pb.OperationType.values())
def test_a_request_without_its_message_is_answered_with_bad_request(
    operation: pb.OperationType.ValueType,
) -> None:
    frame = request_message(operation).SerializeToString()
    assert refusal_of(frame) == m.Response(3, 5, m.ErrorResponse(Status.BAD_REQUEST, operation))


def test_a_request_with_half_its_message_is_answered_with_bad_request() -> None:
    message = request_message(pb.READ_ENTRY)
    message.readRequest.ledgerId = 9
    assert refusal_of(message.SerializePartialToString()).body == m.ErrorResponse(
        Status.BAD_REQUEST, m.Operation.READ_ENTRY
    )


@pytest.mark.parametrize("body", [ENTRY[:31], HEADER.pack(1, 3, 1, 30), HEADER.pack(2, 2, 1, 30)])
def test_an_invalid_add_is_answered_with_bad_request(body: bytes) -> None:
    message = request_message(pb.ADD_ENTRY)
    message.addRequest.CopyFrom(pb.AddRequest(ledgerId=1, entryId=2, masterKey=KEY, body=body))
    assert refusal_of(message.SerializeToString()).body == m.AddResponse(
        Status.BAD_REQUEST, 1, 2, 2
    )


@pytest.mark.parametrize("key", [b"", b"short", bytes(21)])
def test_a_key_of_any_length_is_decoded(key: bytes) -> None:
    """The ledger decides whether the key is the right one."""
    message = request_message(pb.ADD_ENTRY)
    message.addRequest.CopyFrom(pb.AddRequest(ledgerId=1, entryId=2, masterKey=key, body=ENTRY))
    assert v3.decode_request(message.SerializeToString()).body == m.AddRequest(1, 2, key, ENTRY)


@pytest.mark.parametrize(
    "body",
    [m.StartTlsResponse(Status.BAD_REQUEST), m.AuthResponse(Status.UNAUTHORIZED, "plugin", b"")],
)
def test_a_refusal_has_no_message_without_a_status(body: m.ResponseBody) -> None:
    frame = v3.encode_response(m.Response(3, 5, body))
    message = pb.Response()
    message.ParseFromString(frame[4:])
    assert [field.name for field, _ in message.ListFields()] == ["header", "status"]
    heard = v3.decode_response(frame[4:]).body
    assert isinstance(heard, m.ErrorResponse)
    assert heard.status is body.status


@pytest.mark.parametrize(
    "header", [b"\x08\x03\x18\x05", b"\x08\x03\x10\x63\x18\x05", b"\x08\x03\x10\x01"]
)
def test_nothing_can_be_answered_without_operation_and_transaction(header: bytes) -> None:
    frame = b"\x0a" + bytes([len(header)]) + header
    with pytest.raises(RemoteProtocolError, match="known operation or a transaction") as caught:
        v3.decode_request(frame)
    assert not isinstance(caught.value, RequestRefused)


def test_the_master_key_of_a_read_counts_only_with_a_fence() -> None:
    plain = m.ReadRequest(1, 2, master_key=KEY)
    assert v3.decode_request(v3.encode_request(m.Request(3, 1, plain))[4:]).body == m.ReadRequest(
        1, 2
    )


def test_high_priority_is_what_apaches_client_sends() -> None:
    frame = v3.encode_request(m.Request(3, 1, m.ReadRequest(1, 2, is_high_priority=True)))
    message = pb.Request()
    message.ParseFromString(frame[4:])
    assert message.header.priority == 100
    message.header.priority = 1
    assert v3.decode_request(message.SerializeToString()).body == m.ReadRequest(
        1, 2, is_high_priority=True
    )


@pytest.mark.parametrize(
    "body",
    [
        m.BatchReadRequest(1, 0, 1, 1),
        m.ReadRequest(1, -1, is_fencing=True, is_piggyback=True, previous_lac=1, master_key=KEY),
        m.ReadRequest(1, -1, is_piggyback=True),
        m.ReadRequest(1, -1, timeout_ms=5),
        m.ReadRequest(1, -1, is_fencing=True),
        m.ReadRequest(1, -1, is_fencing=True, master_key=b"short"),
        m.ReadRequest(2**63, 0),
        m.AddRequest(1, 3, KEY, ENTRY),
        m.AddRequest(1, 2, KEY, ENTRY[:31]),
        m.AddRequest(1, 2, b"", ENTRY),
        m.WriteLacRequest(1, 2, b"", b""),
        m.AuthRequest("\ud800", b""),
    ],
)
def test_a_request_that_v3_cannot_express_is_an_error_of_the_caller(body: m.RequestBody) -> None:
    with pytest.raises(LocalProtocolError):
        v3.encode_request(m.Request(3, 1, body))


@pytest.mark.parametrize(
    "body",
    [
        m.AddResponse(Status.OK, 1, 2, 3),
        m.BatchReadResponse(Status.OK, 1, 2),
        m.ForceLedgerResponse(Status.OK, 2**63),
        m.ErrorResponse(Status.BAD_REQUEST, 99),
    ],
)
def test_a_response_that_v3_does_not_have_is_an_error_of_the_caller(body: m.ResponseBody) -> None:
    with pytest.raises(LocalProtocolError):
        v3.encode_response(m.Response(3, 1, body))


def test_ok_without_its_message_is_a_protocol_error() -> None:
    message = pb.Response(status=pb.EOK)
    message.header.CopyFrom(request_message(pb.READ_ENTRY).header)
    with pytest.raises(RemoteProtocolError, match="readResponse is missing or incomplete"):
        v3.decode_response(message.SerializeToString())


def test_the_status_of_the_message_counts_when_the_outer_one_is_ok() -> None:
    message = pb.Response(status=pb.EOK)
    message.header.CopyFrom(request_message(pb.FORCE_LEDGER).header)
    message.forceLedgerResponse.status = pb.EIO
    message.forceLedgerResponse.ledgerId = 4
    assert v3.decode_response(message.SerializeToString()).body == m.ForceLedgerResponse(
        Status.IO_ERROR, 4
    )


def test_an_unknown_status_proves_nothing() -> None:
    message = pb.Response(status=pb.ENOENTRY)
    message.header.CopyFrom(request_message(pb.READ_ENTRY).header)
    frame = message.SerializeToString().replace(b"\x10\x93\x03", b"\x10\xf7\x06")
    assert frame != message.SerializeToString()
    assert v3.decode_response(frame).body == m.ErrorResponse(
        Status.IO_ERROR, m.Operation.READ_ENTRY
    )


def test_a_response_of_another_version_is_a_protocol_error() -> None:
    frame = v3.encode_response(m.Response(3, 5, m.ForceLedgerResponse(Status.OK, 1)))[4:]
    with pytest.raises(RemoteProtocolError, match="version 2 in the header"):
        v3.decode_response(frame.replace(b"\x08\x03", b"\x08\x02", 1))


def test_a_name_that_is_not_text_is_refused() -> None:
    good = v3.encode_request(m.Request(3, 5, m.AuthRequest("plugin", b"x")))[4:]
    assert refusal_of(good.replace(b"plugin", b"plug\xffn")).body == m.ErrorResponse(
        Status.BAD_REQUEST, m.Operation.AUTH
    )
