"""Protocol v3: protobuf requests and responses to bytes and back.

Frames given to `decode_*` are without their 4-byte length, results of `encode_*` with it.
Bytes from the peer can only cause RemoteProtocolError; where the peer can be told, that is a
RequestRefused with the answer. Fields and conventions are Apache's (docs/wire.md). Most of the
translation is the two tables of forms; the code below them is what a table cannot say.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from ledger.errors import LocalProtocolError, RemoteProtocolError, Status
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import messages as m
from ledger.wire.messages import Buffer, Request, RequestBody, Response, ResponseBody
from ledger.wire.refusal import RequestRefused

VERSION: Final = 3
HIGH_PRIORITY: Final = 100
"""What Apache's client sends; anything above 0 counts."""
DEFERRED_SYNC: Final = 1
MASTER_KEY_BYTES: Final = 20
ENTRY_HEADER_BYTES: Final = 32

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
    """What a StatusCode means. An unknown one proves nothing, as an I/O error does not."""
    return _STATUSES.get(code, Status.IO_ERROR)


# ---- forms: which of our fields is which of protobuf's


@dataclass(frozen=True, slots=True)
class _Form:
    """Pairs are "ours=theirs". Optional ones are None here and absent there."""

    operation: pb.OperationType.ValueType
    part: str
    body_type: type[Any]
    required: tuple[tuple[str, str], ...]
    optional: tuple[tuple[str, str], ...]
    has_status: bool


def _form(
    operation: pb.OperationType.ValueType,
    part: str,
    body_type: type[Any],
    required: str = "",
    optional: str = "",
    *,
    has_status: bool = True,
) -> _Form:
    return _Form(operation, part, body_type, _pairs(required), _pairs(optional), has_status)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (ours, theirs) for ours, _, theirs in (pair.partition("=") for pair in text.split())
    )


_LEDGER = "ledger_id=ledgerId"
_ENTRY = "ledger_id=ledgerId entry_id=entryId"
_AUTH = "plugin=authPluginName payload=payload"
_KEY_AND_BODY = "master_key=masterKey body=body"
_LIST = pb.GET_LIST_OF_ENTRIES_OF_LEDGER
_AVAILABILITY = "availability=availabilityOfEntriesOfLedger"

_REQUESTS: Final = (
    _form(pb.ADD_ENTRY, "addRequest", m.AddRequest, f"{_ENTRY} {_KEY_AND_BODY}"),
    _form(
        pb.READ_ENTRY,
        "readRequest",
        m.ReadRequest,
        _ENTRY,
        "previous_lac=previousLAC timeout_ms=timeOut",
    ),
    _form(pb.AUTH, "authRequest", m.AuthRequest, _AUTH),
    _form(pb.WRITE_LAC, "writeLacRequest", m.WriteLacRequest, f"{_LEDGER} lac=lac {_KEY_AND_BODY}"),
    _form(pb.READ_LAC, "readLacRequest", m.ReadLacRequest, _LEDGER),
    _form(
        pb.GET_BOOKIE_INFO, "getBookieInfoRequest", m.GetBookieInfoRequest, "requested=requested"
    ),
    _form(pb.START_TLS, "startTLSRequest", m.StartTlsRequest),
    _form(pb.FORCE_LEDGER, "forceLedgerRequest", m.ForceLedgerRequest, _LEDGER),
    _form(_LIST, "getListOfEntriesOfLedgerRequest", m.ListEntriesRequest, _LEDGER),
)

_RESPONSES: Final = (
    _form(pb.ADD_ENTRY, "addResponse", m.AddResponse, _ENTRY),
    _form(
        pb.READ_ENTRY,
        "readResponse",
        m.ReadResponse,
        _ENTRY,
        "body=body max_lac=maxLAC lac_update_ms=lacUpdateTimestamp",
    ),
    _form(pb.AUTH, "authResponse", m.AuthResponse, _AUTH, has_status=False),
    _form(pb.WRITE_LAC, "writeLacResponse", m.WriteLacResponse, _LEDGER),
    _form(
        pb.READ_LAC,
        "readLacResponse",
        m.ReadLacResponse,
        _LEDGER,
        "lac_body=lacBody last_entry_body=lastEntryBody",
    ),
    _form(
        pb.GET_BOOKIE_INFO,
        "getBookieInfoResponse",
        m.GetBookieInfoResponse,
        optional="total_bytes=totalDiskCapacity free_bytes=freeDiskSpace",
    ),
    _form(pb.START_TLS, "startTLSResponse", m.StartTlsResponse, has_status=False),
    _form(pb.FORCE_LEDGER, "forceLedgerResponse", m.ForceLedgerResponse, _LEDGER),
    _form(_LIST, "getListOfEntriesOfLedgerResponse", m.ListEntriesResponse, _LEDGER, _AVAILABILITY),
)

_REQUEST_OF_TYPE: Final = {form.body_type: form for form in _REQUESTS}
_REQUEST_OF_OPERATION: Final = {int(form.operation): form for form in _REQUESTS}
_RESPONSE_OF_TYPE: Final = {form.body_type: form for form in _RESPONSES}
_RESPONSE_OF_OPERATION: Final = {int(form.operation): form for form in _RESPONSES}


def _put(part: Message, form: _Form, body: RequestBody | ResponseBody) -> None:
    part.SetInParent()  # an empty message must still be there
    for ours, theirs in form.required + form.optional:
        value = getattr(body, ours)
        if isinstance(value, bytearray | memoryview):
            value = bytes(value)
        if value is not None:
            setattr(part, theirs, value)


def _take(part: Any, form: _Form) -> dict[str, Any]:
    fields = {ours: getattr(part, theirs) for ours, theirs in form.required}
    if isinstance(fields.get("plugin"), bytes):  # what the parser makes of a string not UTF-8
        raise _Senseless("the name of the plugin is not UTF-8")
    for ours, theirs in form.optional:
        fields[ours] = getattr(part, theirs) if part.HasField(theirs) else None
    return fields


class _Senseless(Exception):
    """What makes a message unfit that protobuf could parse."""


# ---- requests


def encode_request(request: Request) -> bytes:
    """The request as a frame with its length.

    `takes_range_acks` has no place in v3 and is dropped, as is the master key of a read that
    does not fence. Raises LocalProtocolError for what v3 cannot say: batch reads, two flags in
    one read, a wait without a known LAC, numbers out of range.
    """
    body = request.body
    form = _REQUEST_OF_TYPE.get(type(body))
    if form is None:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent over protocol v3")
    message = pb.Request()
    try:
        _check(body)
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
    except (_Senseless, ValueError, TypeError) as error:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent: {error}") from error


def _put_add_flags(part: pb.AddRequest, body: m.AddRequest) -> None:
    if body.is_recovery:
        part.flag = _RECOVERY
    if body.is_deferred_sync:
        part.writeFlags = DEFERRED_SYNC


def _put_read_flags(part: pb.ReadRequest, body: m.ReadRequest) -> None:
    if body.is_fencing and body.is_piggyback:
        raise _Senseless("a read has one flag: it can fence or piggyback, not both")
    if body.previous_lac is None and (body.is_piggyback or body.timeout_ms is not None):
        raise _Senseless("a read can wait only for more than a previous LAC")
    if body.is_fencing:
        if body.master_key is None:
            raise _Senseless("a fencing read needs the ledger's master key")
        part.flag = _FENCE
        part.masterKey = body.master_key
    elif body.is_piggyback:
        part.flag = _PIGGYBACK


def decode_request(frame: Buffer) -> Request:
    """The request in a frame (without its length). Unknown fields are ignored.

    Raises RequestRefused, holding the answer, if the version is not three (BAD_VERSION) or the
    operation's own message is missing, incomplete or senseless (BAD_REQUEST); RemoteProtocolError
    if the frame cannot be parsed or does not say operation and transaction.
    """
    message = pb.Request()
    header = _parse(message, frame)
    form = _REQUEST_OF_OPERATION.get(header.operation)
    try:
        if header.version != pb.VERSION_THREE:
            cause = f"version {header.version} in the header of a v3 request"
            raise _refused(header, Status.BAD_VERSION, cause)
        if form is None:
            raise _Senseless("has no request in protocol v3")
        body = form.body_type(
            **_take(_part(message, form), form), **_taken_flags(message, header.operation)
        )
        _check(body)
    except _Senseless as error:
        cause = f"v3 operation {header.operation}: {error}"
        raise _refused(header, Status.BAD_REQUEST, cause) from error
    return Request(VERSION, header.txnId, body)


def _refused(header: pb.BKPacketHeader, status: Status, cause: str) -> RequestRefused:
    answer = m.ErrorResponse(status, int(header.operation))
    return RequestRefused(cause, Response(VERSION, header.txnId, answer))


def _taken_flags(message: pb.Request, operation: int) -> dict[str, Any]:
    """The fields of adds and reads that are flags there, or depend on them."""
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


def _check(body: RequestBody) -> None:
    """What must hold of requests in both directions, beyond their form."""
    if isinstance(body, m.AddRequest | m.ReadRequest | m.WriteLacRequest):
        key = body.master_key
        if key is not None and len(key) != MASTER_KEY_BYTES:
            raise _Senseless(f"master key of {len(key)} bytes, it has {MASTER_KEY_BYTES}")
    if isinstance(body, m.AddRequest):
        if len(body.body) < ENTRY_HEADER_BYTES:
            raise _Senseless(f"an entry of {len(body.body)} bytes is shorter than its header")
        # Said twice, outside and in the entry; what is stored goes by the latter.
        if _IDS.unpack_from(body.body) != (body.ledger_id, body.entry_id):
            raise _Senseless(
                f"add of entry {body.entry_id} of ledger {body.ledger_id} holds another's bytes"
            )


# ---- responses


def encode_response(response: Response) -> bytes:
    """The response as a frame with its length; the status is said twice, as Apache does.

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
    except (_Senseless, ValueError, TypeError) as error:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent: {error}") from error


def _put_response(message: pb.Response, body: ResponseBody) -> pb.OperationType.ValueType:
    form = _RESPONSE_OF_TYPE.get(type(body))
    if form is None:
        raise _Senseless("not in protocol v3")
    if isinstance(body, m.AddResponse) and body.last_entry_id != body.entry_id:
        raise _Senseless("protocol v3 has no range acks")
    part = getattr(message, form.part)
    if form.has_status:
        part.status = message.status
    _put(part, form, body)
    return form.operation


def decode_response(frame: Buffer) -> Response:
    """The response in a frame (without its length). Unknown fields are ignored.

    A refusal without (or with a broken) message of its operation comes as ErrorResponse.
    Raises RemoteProtocolError.
    """
    message = pb.Response()
    header = _parse(message, frame)
    if header.version != pb.VERSION_THREE:
        raise RemoteProtocolError(f"version {header.version} in the header of a v3 response")
    status = _status(message)
    form = _RESPONSE_OF_OPERATION.get(header.operation)
    try:
        if form is None:
            raise _Senseless("has no response in protocol v3")
        part = _part(message, form)
        if status is Status.OK and form.has_status:
            status = _status(part)
        fields = _take(part, form)
        if form.body_type is m.AddResponse:
            fields["last_entry_id"] = fields["entry_id"]
        return Response(VERSION, header.txnId, form.body_type(status, **fields))
    except _Senseless as error:
        if status is Status.OK:
            raise RemoteProtocolError(f"v3 operation {header.operation}: {error}") from error
    return Response(VERSION, header.txnId, m.ErrorResponse(status, int(header.operation)))


def _status(message: Any) -> Status:
    """A code this release does not know is kept out of the field by the parser."""
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
    """Fills `message`; its header, which says at least operation and transaction."""
    try:
        message.ParseFromString(bytes(frame))
    except (DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"v3 frame of {len(frame)} bytes: {error}") from error
    header = message.header
    if not (header.HasField("operation") and header.HasField("txnId")):
        raise RemoteProtocolError("v3 frame without a known operation or a transaction id")
    return header


def _part(message: Any, form: _Form) -> Any:
    part = getattr(message, form.part)
    if not message.HasField(form.part) or not part.IsInitialized():
        raise _Senseless(f"{form.part} is missing or incomplete")
    return part
