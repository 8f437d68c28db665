"""Protocol v2: Apache's bytes, round trips of all messages, and protocol errors for garbage."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import LocalProtocolError, RemoteProtocolError, Status
from ledger.wire import messages as m
from ledger.wire import v2
from ledger.wire.messages import RequestRefused
from tests.golden import apache
from tests.ledger.wire.strategies import DATA, damaged, v2_requests, v2_responses

KEY = master_key(b"")


def entry(ledger_id: int = 1, entry_id: int = 0) -> bytes:
    head, payload = Digest(DigestType.CRC32C).encode_entry(ledger_id, entry_id, -1, 5, b"hello")
    return head + bytes(payload)


def body_of(frame: bytes) -> memoryview:
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    return memoryview(frame)[4:]


@pytest.mark.parametrize(
    ("sample", "request_body"),
    [
        ("v2_add", m.AddRequest(1, 0, KEY, entry())),
        ("v2_read", m.ReadRequest(1, 0)),
        ("v2_fencing_read", m.ReadRequest(1, -1, master_key=KEY, is_fencing=True)),
    ],
)
def test_requests_are_apaches_bytes(sample: str, request_body: m.RequestBody) -> None:
    request = m.Request(2, 0, request_body)
    assert v2.encode_request(request) == apache(sample)
    assert v2.decode_request(body_of(apache(sample))) == request


def test_the_add_reply_is_apaches_bytes() -> None:
    response = m.Response(2, 0, m.AddResponse(Status.OK, 1, 0, 0))
    assert v2.encode_response(response) == apache("v2_add_reply")
    assert v2.decode_response(body_of(apache("v2_add_reply"))) == response


@given(v2_requests())
def test_requests_are_decoded_as_they_were_encoded(request: m.Request) -> None:
    frame = v2.encode_request(request)
    assert v2.decode_request(body_of(frame)) == request
    assert v2.decode_request(bytearray(frame[4:])) == request


@given(v2_responses())
def test_responses_are_decoded_as_they_were_encoded(response: m.Response) -> None:
    assert v2.decode_response(body_of(v2.encode_response(response))) == response


@given(v2_requests(), st.data())
def test_damaged_requests_are_protocol_errors(request: m.Request, draw: st.DataObject) -> None:
    with contextlib.suppress(RemoteProtocolError):
        v2.decode_request(draw.draw(damaged(v2.encode_request(request)[4:])))


@given(v2_responses(), st.data())
def test_damaged_responses_are_protocol_errors(response: m.Response, draw: st.DataObject) -> None:
    with contextlib.suppress(RemoteProtocolError):
        v2.decode_response(draw.draw(damaged(v2.encode_response(response)[4:])))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in (v2.decode_request, v2.decode_response):
        with contextlib.suppress(RemoteProtocolError):
            decode(data)


@given(v2_requests(), DATA)
def test_bytes_after_a_read_are_ignored(request: m.Request, more: bytes) -> None:
    if isinstance(request.body, m.ReadRequest | m.BatchReadRequest):
        assert v2.decode_request(v2.encode_request(request)[4:] + more) == request


def test_the_constants_of_the_add_path_are_what_the_codec_writes() -> None:
    frame = v2.encode_request(m.Request(2, 0, m.AddRequest(1, 0, KEY, entry())))
    assert frame[:28] == v2.ADD_START.pack(len(frame) - 4, v2.ADD_HEADER, KEY)
    assert (v2.ADD_HEADER, v2.RANGE_ACKS, v2.NO_POLLS) == (0x02010000, 0x4000, 0x2000)
    ack = v2.encode_response(m.Response(2, 0, m.AddResponse(Status.OK, 1, 5, 5)))
    assert ack == v2.ADD_REPLY.pack(24, v2.ADD_HEADER, 0, 1, 5)
    acks = v2.encode_response(m.Response(2, 0, m.AddResponse(Status.OK, 1, 5, 9)))
    assert acks == v2.RANGE_ACK.pack(32, v2.RANGE_ACK_HEADER, 0, 1, 5, 9)


def test_in_version_0_the_whole_header_is_the_operation() -> None:
    frame = v2.encode_request(m.Request(0, 0, m.ReadRequest(1, 2)))
    assert frame[4:8] == b"\0\0\0\2"
    with pytest.raises(RemoteProtocolError, match="operation 65538"):
        v2.decode_request(b"\0\1\0\2" + frame[8:])
    reply = v2.encode_response(m.Response(0, 0, m.AddResponse(Status.OK, 1, 2, 2)))
    assert reply[4:8] == b"\0\0\0\1"


def test_before_version_2_a_fencing_read_has_no_key() -> None:
    frame = bytes.fromhex("01020001") + bytes(16)
    request = v2.decode_request(frame)
    assert request.body == m.ReadRequest(0, 0, master_key=None, is_fencing=True)
    with pytest.raises(RemoteProtocolError, match="fencing read takes at least 40"):
        v2.decode_request(bytes.fromhex("02020001") + bytes(16))


@pytest.mark.parametrize(
    ("frame", "answer"),
    [
        (
            bytes.fromhex("05010000") + bytes(20) + entry(7, 8),
            m.AddResponse(Status.BAD_VERSION, 7, 8, 8),
        ),
        (
            bytes.fromhex("ff020000") + struct.pack(">qq", 7, 8),
            m.ReadResponse(Status.BAD_VERSION, 7, 8),
        ),
        (
            bytes.fromhex("03070000") + struct.pack(">qqqiq", 7, 8, 9, 1, 1),
            m.BatchReadResponse(Status.BAD_VERSION, 7, 8),
        ),
    ],
)
def test_an_unknown_version_is_refused_with_a_response(
    frame: bytes, answer: m.ResponseBody
) -> None:
    with pytest.raises(RequestRefused) as caught:
        v2.decode_request(frame)
    assert caught.value.response.body == answer
    reply = v2.encode_response(caught.value.response)
    assert reply[4:6] == frame[:2], "the reply must repeat version and operation"
    assert reply[8:12] == (103).to_bytes(4, "big")


def test_an_add_without_its_header_is_refused_with_a_response() -> None:
    frame = bytes.fromhex("02010000") + bytes(20) + entry(7, 8)[:31]
    with pytest.raises(RequestRefused) as caught:
        v2.decode_request(frame)
    assert caught.value.response.body == m.AddResponse(Status.BAD_REQUEST, 7, 8, 8)


def test_the_answer_to_an_auth_is_always_version_2() -> None:
    answer = v2.encode_response(m.Response(1, 0, m.AuthResponse(Status.OK, "plugin", b"")))
    assert answer[4:8] == bytes.fromhex("02030000")


@pytest.mark.parametrize("operation", [0, 4, 5, 6, 8, 255])
def test_operations_v2_does_not_have_are_protocol_errors(operation: int) -> None:
    with pytest.raises(RemoteProtocolError, match="operation"):
        v2.decode_request(bytes([2, operation, 0, 0]) + bytes(60))


@pytest.mark.parametrize(
    "body",
    [
        m.ReadLacRequest(1),
        m.StartTlsRequest(),
        m.ReadRequest(1, -1, previous_lac=3),
        m.ReadRequest(1, -1, is_piggyback=True),
        m.ReadRequest(1, -1, is_fencing=True),
        m.ReadRequest(1, -1, is_fencing=True, master_key=b"short"),
        m.ReadRequest(2**63, 0),
        m.BatchReadRequest(1, 0, 2**31, 0),
        m.AddRequest(1, 0, KEY, entry(), is_deferred_sync=True),
        m.AddRequest(1, 1, KEY, entry()),
        m.AddRequest(1, 0, KEY, entry()[:31]),
        m.AddRequest(1, 0, b"", entry()),
        m.AuthRequest("\ud800", b""),
    ],
)
def test_a_request_that_v2_cannot_express_is_an_error_of_the_caller(body: m.RequestBody) -> None:
    with pytest.raises(LocalProtocolError):
        v2.encode_request(m.Request(2, 0, body))


def test_flags_need_a_version_that_has_them() -> None:
    with pytest.raises(LocalProtocolError, match="version 0 has no flags"):
        v2.encode_request(m.Request(0, 0, m.ReadRequest(1, 0, is_high_priority=True)))
    for version in (-1, 3):
        with pytest.raises(LocalProtocolError, match="has versions 0 to 2"):
            v2.encode_request(m.Request(version, 0, m.ReadRequest(1, 0)))


@pytest.mark.parametrize(
    "body",
    [
        m.ReadLacResponse(Status.OK, 1),
        m.ErrorResponse(Status.BAD_REQUEST, 6),
        m.AuthResponse(Status.UNAUTHORIZED, "plugin", b""),
        m.AddResponse(Status.OK, 1, 5, 4),
        m.AddResponse(Status.OK, 2**63, 5, 5),
    ],
)
def test_a_response_that_v2_does_not_have_is_an_error_of_the_caller(body: m.ResponseBody) -> None:
    with pytest.raises(LocalProtocolError):
        v2.encode_response(m.Response(2, 0, body))


def test_a_read_reply_drops_fields_that_v2_does_not_have() -> None:
    sent = m.ReadResponse(Status.OK, 1, 2, entry(1, 2), max_lac=9, lac_update_ms=10)
    frame = v2.encode_response(m.Response(2, 0, sent))
    heard = v2.decode_response(body_of(frame)).body
    assert heard == m.ReadResponse(Status.OK, 1, 2, entry(1, 2))


@pytest.mark.parametrize("status", Status)
def test_every_status_has_a_code(status: Status) -> None:
    heard = v2.status_of_code(v2.code_of_status(status))
    assert heard is (Status.IO_ERROR if status is Status.UNKNOWN_LEDGER_STATE else status)


def test_codes_that_our_bookies_do_not_send_prove_nothing() -> None:
    assert v2.status_of_code(107) is Status.UNKNOWN_LEDGER_STATE
    assert v2.status_of_code(9999) is Status.IO_ERROR
    assert v2.code_of_status(Status.UNKNOWN_LEDGER_STATE) == 101


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        (b"\0\0\0", "ends in 3 stray bytes"),
        (struct.pack(">i", 5) + b"abcd", "entry of 5 bytes announced .*, 4 are left"),
        (struct.pack(">i", -1), "entry of -1 bytes announced"),
    ],
)
def test_lengths_inside_a_batch_are_bounded(tail: bytes, cause: str) -> None:
    frame = v2.encode_response(m.Response(2, 7, m.BatchReadResponse(Status.OK, 1, 2, (b"one",))))
    with pytest.raises(RemoteProtocolError, match=cause):
        v2.decode_response(frame[4:] + tail)


def test_a_range_ack_does_not_run_backwards() -> None:
    frame = v2.RANGE_ACK.pack(32, v2.RANGE_ACK_HEADER, 0, 1, 5, 4)
    with pytest.raises(RemoteProtocolError, match=r"range ack of entries 5\.\.4"):
        v2.decode_response(frame[4:])


def test_a_reply_in_a_version_that_was_not_requested_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="reply in version 3"):
        v2.decode_response(b"\x03\x01\0\0" + bytes(20))
