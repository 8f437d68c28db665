"""Protocol v3: protobuf. Translates requests and responses to bytes and back.

Frames given to `decode_*` are without their 4-byte length, results of `encode_*` with it. Bytes
from the peer can only cause RemoteProtocolError; if the peer can be answered, that is a
RequestRefused with the response. Fields and conventions are Apache's (docs/wire.md). The two tables
of `v3_forms` do most of the translation; this module does what a table cannot express.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from ledger.errors import LocalProtocolError, RemoteProtocolError, Status
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import messages as m
from ledger.wire.messages import (
    Buffer,
    Request,
    RequestBody,
    RequestRefused,
    Response,
    ResponseBody,
)
from ledger.wire.v3_forms import (
    REQUEST_OF_OPERATION,
    REQUEST_OF_TYPE,
    RESPONSE_OF_OPERATION,
    RESPONSE_OF_TYPE,
    Form,
)

VERSION: Final = 3
HIGH_PRIORITY: Final = 100
"""The value that Apache's client sends; any value above 0 counts."""
DEFERRED_SYNC: Final = 1
MASTER_KEY_BYTES: Final = 20
ENTRY_HEADER_BYTES: Final = 32

_PARSED_BYTES_MAX: Final = 64 * 1024
"""Bytes of a frame beside one long value, such as an entry: each two of them may be an object."""
_FIELDS_MAX: Final = 100
"""Fields before the long value, in a message or its part."""
_LENGTH = struct.Struct(">i")
_IDS = struct.Struct(">qq")
_FENCE = pb.ReadRequest.FENCE_LEDGER
_PIGGYBACK = pb.ReadRequest.ENTRY_PIGGYBACK
_RECOVERY = pb.AddRequest.RECOVERY_ADD

_CODES: Final = {
    Status.OK: pb.EOK,
    Status.NO_SUCH_LEDGER: pb.ENOLEDGER,
    Status.NO_SUCH_ENTRY: pb.ENOENTRY,
    Status.BAD_REQUEST: pb.EBADREQ,
    Status.IO_ERROR: pb.EIO,
    Status.UNAUTHORIZED: pb.EUA,
    Status.BAD_VERSION: pb.EBADVERSION,
    Status.FENCED: pb.EFENCED,
    Status.READ_ONLY: pb.EREADONLY,
    Status.TOO_MANY_REQUESTS: pb.ETOOMANYREQUESTS,
    Status.UNKNOWN_LEDGER_STATE: pb.EUNKNOWNLEDGERSTATE,
}
_STATUSES: Final = {int(code): status for status, code in _CODES.items()}


def status_of_code(code: int) -> Status:
    """Returns the status for a StatusCode. An unknown one is an I/O error, which proves nothing."""
    return _STATUSES.get(code, Status.IO_ERROR)


def _put(part: Message, form: Form, body: RequestBody | ResponseBody) -> None:
    part.SetInParent()  # an empty message must be present
    for ours, theirs in form.required + form.optional:
        value = getattr(body, ours)
        if isinstance(value, bytearray | memoryview):
            value = bytes(value)
        if value is not None:
            setattr(part, theirs, value)


def _take(part: Any, form: Form) -> dict[str, Any]:
    fields = {ours: getattr(part, theirs) for ours, theirs in form.required}
    if isinstance(fields.get("plugin"), bytes):  # the parser's result if it is not UTF-8
        raise _Invalid("the name of the plugin is not UTF-8")
    for ours, theirs in form.optional:
        fields[ours] = getattr(part, theirs) if part.HasField(theirs) else None
    return fields


class _Invalid(Exception):
    """Why a message that protobuf could parse is invalid."""


# ---- requests


def encode_request(request: Request) -> bytes:
    """Returns the request as a frame with its length.

    `takes_range_acks` has no field in v3 and is dropped, as is the master key of a read that does
    not fence. Raises LocalProtocolError for what v3 does not have: batch reads, two flags in one
    read, a wait without a known LAC, numbers out of range.
    """
    body = request.body
    form = REQUEST_OF_TYPE.get(type(body))
    if form is None:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent over protocol v3")
    message = pb.Request()
    try:
        _check_key(body)
        _check_entry(body)
        _put_header(message.header, form.operation, request.txn_id)
        part = getattr(message, form.part)
        _put(part, form, body)
        if isinstance(body, m.AddRequest | m.ReadRequest) and body.is_high_priority:
            message.header.priority = HIGH_PRIORITY
        if isinstance(body, m.AddRequest):
            _put_add_flags(part, body)
        elif isinstance(body, m.ReadRequest):
            _put_read_flags(part, body)
        return _frame(message)
    except (_Invalid, ValueError, TypeError) as error:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent: {error}") from error


def _put_add_flags(part: pb.AddRequest, body: m.AddRequest) -> None:
    if body.is_recovery:
        part.flag = _RECOVERY
    if body.is_deferred_sync:
        part.writeFlags = DEFERRED_SYNC


def _put_read_flags(part: pb.ReadRequest, body: m.ReadRequest) -> None:
    if body.is_fencing and body.is_piggyback:
        raise _Invalid("a read has one flag: it can fence or piggyback, not both")
    if body.previous_lac is None and (body.is_piggyback or body.timeout_ms is not None):
        raise _Invalid("a read can wait only for more than a previous LAC")
    if body.is_fencing:
        if body.master_key is None:
            raise _Invalid("a fencing read needs the ledger's master key")
        part.flag = _FENCE
        part.masterKey = body.master_key
    elif body.is_piggyback:
        part.flag = _PIGGYBACK


def decode_request(frame: Buffer) -> Request:
    """Returns the request in a frame (without its length). Unknown fields are ignored.

    Raises RequestRefused, holding the answer, if the version is not three (BAD_VERSION) or the
    operation's own message is missing, incomplete or senseless (BAD_REQUEST); RemoteProtocolError
    if the frame cannot be parsed or does not say operation and transaction.
    """
    message = pb.Request()
    header = _parse(message, frame)
    form = REQUEST_OF_OPERATION.get(header.operation)
    try:
        if header.version != pb.VERSION_THREE:
            cause = f"version {header.version} in the header of a v3 request"
            raise _refused(message, Status.BAD_VERSION, cause)
        if form is None:
            raise _Invalid("has no request in protocol v3")
        body = form.body_type(
            **_take(_part(message, form), form), **_taken_flags(message, header.operation)
        )
        _check_entry(body)
    except _Invalid as error:
        cause = f"v3 operation {header.operation}: {error}"
        raise _refused(message, Status.BAD_REQUEST, cause) from error
    return Request(VERSION, header.txnId, body)


def _refused(message: pb.Request, status: Status, cause: str) -> RequestRefused:
    """Returns the response, which names ledger and entry if the request does."""
    header = message.header
    answer: ResponseBody = m.ErrorResponse(status, int(header.operation))
    form = RESPONSE_OF_OPERATION.get(header.operation)
    if form is not None and form.has_status:
        with contextlib.suppress(_Invalid):
            part = _part(message, REQUEST_OF_OPERATION[header.operation])
            # Every required field of these responses is in the request, too.
            fields = {ours: getattr(part, theirs) for ours, theirs in form.required}
            if form.body_type is m.AddResponse:
                fields["last_entry_id"] = fields["entry_id"]
            answer = form.body_type(status, **fields)
    return RequestRefused(cause, Response(VERSION, header.txnId, answer))


def _taken_flags(message: pb.Request, operation: int) -> dict[str, Any]:
    """Returns the fields of adds and reads that are flags in v3, or depend on them."""
    if operation == pb.ADD_ENTRY:
        add = message.addRequest
        return {
            "is_recovery": add.HasField("flag"),  # RECOVERY_ADD is the only flag
            "is_high_priority": message.header.priority > 0,
            "is_deferred_sync": bool(add.writeFlags & DEFERRED_SYNC),
        }
    if operation == pb.READ_ENTRY:
        read = message.readRequest
        flag = read.flag if read.HasField("flag") else None
        is_keyed = flag == _FENCE and read.HasField("masterKey")
        return {
            "is_fencing": flag == _FENCE,
            "is_piggyback": flag == _PIGGYBACK,
            "is_high_priority": message.header.priority > 0,
            "master_key": read.masterKey if is_keyed else None,
        }
    return {}


def _check_key(body: RequestBody) -> None:
    """Checks a key to be sent; in a received request one of another length is a wrong key."""
    if isinstance(body, m.AddRequest | m.ReadRequest | m.WriteLacRequest):
        key = body.master_key
        if key is not None and len(key) != MASTER_KEY_BYTES:
            raise _Invalid(f"master key of {len(key)} bytes, it has {MASTER_KEY_BYTES}")


def _check_entry(body: RequestBody) -> None:
    """Checks adds in both directions, beyond their form."""
    if isinstance(body, m.AddRequest):
        if len(body.body) < ENTRY_HEADER_BYTES:
            raise _Invalid(f"an entry of {len(body.body)} bytes is shorter than its header")
        # In the request and in the entry; the latter is stored.
        if _IDS.unpack_from(body.body) != (body.ledger_id, body.entry_id):
            raise _Invalid(
                f"add of entry {body.entry_id} of ledger {body.ledger_id} holds another's bytes"
            )


# ---- responses


def encode_response(response: Response) -> bytes:
    """Returns the response as a frame with its length; the status is in it twice, as in Apache's.

    Responses without a status of their own (AUTH, START_TLS) lose their message when refused.

    Raises LocalProtocolError for what v3 cannot say: batch reads, range acks, numbers out of
    range.
    """
    body = response.body
    message = pb.Response(status=_CODES[body.status])
    try:
        if isinstance(body, m.ErrorResponse):
            operation = pb.OperationType.ValueType(body.operation)
        else:
            operation = _put_response(message, body)
        _put_header(message.header, operation, response.txn_id)
        return _frame(message)
    except (_Invalid, ValueError, TypeError) as error:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent: {error}") from error


def _put_response(message: pb.Response, body: ResponseBody) -> pb.OperationType.ValueType:
    form = RESPONSE_OF_TYPE.get(type(body))
    if form is None:
        raise _Invalid("not in protocol v3")
    if isinstance(body, m.AddResponse) and body.last_entry_id != body.entry_id:
        raise _Invalid("protocol v3 has no range acks")
    if form.has_status or body.status is Status.OK:
        part = getattr(message, form.part)
        if form.has_status:
            part.status = message.status
        _put(part, form, body)
    return form.operation


def decode_response(frame: Buffer) -> Response:
    """Returns the response in a frame (without its length). Unknown fields are ignored.

    A refusal without (or with a broken) message of its operation comes as ErrorResponse.
    Raises RemoteProtocolError.
    """
    message = pb.Response()
    header = _parse(message, frame)
    if header.version != pb.VERSION_THREE:
        raise RemoteProtocolError(f"version {header.version} in the header of a v3 response")
    status = _status(message)
    form = RESPONSE_OF_OPERATION.get(header.operation)
    try:
        if form is None:
            raise _Invalid("has no response in protocol v3")
        part = _part(message, form)
        if status is Status.OK and form.has_status:
            status = _status(part)
        fields = _take(part, form)
        if form.body_type is m.AddResponse:
            fields["last_entry_id"] = fields["entry_id"]
        return Response(VERSION, header.txnId, form.body_type(status, **fields))
    except _Invalid as error:
        if status is Status.OK:
            raise RemoteProtocolError(f"v3 operation {header.operation}: {error}") from error
    return Response(VERSION, header.txnId, m.ErrorResponse(status, int(header.operation)))


def is_start_tls_error(frame: Buffer) -> bool:
    """Returns whether a frame from a bookie is an error in response to START_TLS.

    Apache's bookies with an authentication plugin send one (EIO) behind each handshake, because the
    client has not authenticated before it, and continue.
    """
    try:
        body = decode_response(frame).body
    except RemoteProtocolError:
        return False
    return isinstance(body, m.ErrorResponse) and body.operation == pb.START_TLS


def _status(message: Any) -> Status:
    """Returns the status code; the parser leaves the field empty for one it does not know."""
    return status_of_code(message.status) if message.HasField("status") else Status.IO_ERROR


# ---- both


def _put_header(
    header: pb.BKPacketHeader, operation: pb.OperationType.ValueType, txn_id: int
) -> None:
    header.version = pb.VERSION_THREE
    header.operation = operation
    header.txnId = txn_id


def _frame(message: Message) -> bytes:
    data = message.SerializeToString()
    return _LENGTH.pack(len(data)) + data


def _parse(message: pb.Request | pb.Response, frame: Buffer) -> pb.BKPacketHeader:
    """Parses into `message`; returns its header, which has at least operation and transaction."""
    try:
        _check_parts(frame)
        message.ParseFromString(bytes(frame))
    except (DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"v3 frame of {len(frame)} bytes: {error}") from error
    header = message.header
    if not (header.HasField("operation") and header.HasField("txnId")):
        raise RemoteProtocolError("v3 frame without a known operation or a transaction id")
    return header


def _check_parts(frame: Buffer) -> None:
    """Checks that a long frame is long because of one value in a part of the message, as those of
    all peers are. Five megabytes of empty parts take twenty times as much memory, and a second.

    Raises ValueError.
    """
    start, end = 0, len(frame)
    for _ in range(2):
        if end - start <= _PARSED_BYTES_MAX:
            return
        start, end = _long_value(frame, start, end)


def _long_value(frame: Buffer, start: int, end: int) -> tuple[int, int]:
    """Returns where the value is beside which a message has at most _PARSED_BYTES_MAX bytes. Raises
    ValueError."""
    least = end - start - _PARSED_BYTES_MAX
    at = start
    try:
        for _ in range(_FIELDS_MAX):
            tag, at = _varint(frame, at)
            number, at = _varint(frame, at) if tag & 7 in (0, 2) else (0, at)
            if tag & 7 == 2 and number >= least:
                if at + number > end:
                    break
                return at, at + number
            at += {0: 0, 1: 8, 2: number, 5: 4}[tag & 7]
    except (IndexError, KeyError):
        pass  # not a message: the bytes end early, or a field has no known form
    raise ValueError(f"more than {_PARSED_BYTES_MAX} bytes of it are not those of one value")


def _varint(frame: Buffer, at: int) -> tuple[int, int]:
    """Returns a number and where it ends. Raises IndexError at the end of the frame."""
    number = 0
    for shift in range(0, 70, 7):
        byte = frame[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
    return number, at


def _part(message: Any, form: Form) -> Any:
    part = getattr(message, form.part)
    if not message.HasField(form.part) or not part.IsInitialized():
        raise _Invalid(f"{form.part} is missing or incomplete")
    return part
