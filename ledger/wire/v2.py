"""Protocol v2 (and 0, 1): fixed binary layouts. Translates requests and responses to bytes and
back.

Frames given to `decode_*` are without their 4-byte length, results of `encode_*` with it. The add
path of client and bookie does not use these functions; it uses the constants and structs below in
place, and they must not change. Bytes from the peer can only cause RemoteProtocolError.
docs/wire.md has the layouts. Bodies of decoded messages are views into the frame, not copies.
"""

from __future__ import annotations

import struct
from typing import Final

from google.protobuf.message import DecodeError

from ledger.errors import LocalProtocolError, RemoteProtocolError, Status
from ledger.proto.bookkeeper_protocol_pb2 import AuthMessage
from ledger.wire import messages as m
from ledger.wire.messages import Buffer, Request, RequestRefused, Response, ResponseBody
from ledger.wire.v2_status import code_of_status as code_of_status
from ledger.wire.v2_status import status_of_code as status_of_code

VERSION: Final = 2
"""The version sent. 0 and 1 are understood too: 0 has no flags, fencing keys need 2."""

ADD: Final = 1
READ: Final = 2
AUTH: Final = 3
BATCH_READ: Final = 7

FENCING: Final = 0x1
RECOVERY_ADD: Final = 0x2
HIGH_PRIORITY: Final = 0x4
RANGE_ACKS: Final = 0x4000
"""An extension. On an ADD: the reply may be a range ack. On an ADD reply: it is one."""
NO_POLLS: Final = 0x2000
"""An extension. On an ADD: a range ack may have this flag. On a range ack: no reader waits at this
bookie for the ledger's last add confirmed. A range ack without it says nothing."""

ADD_HEADER: Final = VERSION << 24 | ADD << 16
"""Header of an ADD without flags, and of a plain ADD reply."""
RANGE_ACK_HEADER: Final = ADD_HEADER | RANGE_ACKS

MASTER_KEY_BYTES: Final = 20
ENTRY_HEADER_BYTES: Final = 32

ADD_START: Final = struct.Struct(">iI20s")
"""Frame length, header, master key. The entry follows."""
ADD_ENTRY_AT: Final = 28
"""Offset of the entry in the frame of an ADD."""
ENTRY_LAC_AT: Final = 16
"""Offset of the last add confirmed in an entry, after its ledger id and entry id."""
ADD_LAC_AT: Final = ADD_ENTRY_AT + ENTRY_LAC_AT
ADD_BYTES_MIN: Final = ADD_ENTRY_AT + ENTRY_HEADER_BYTES
"""Size of the frame of an ADD whose entry is a header and nothing else."""
ADD_REPLY: Final = struct.Struct(">iIiqq")
"""Frame length (24), header, code, ledger id, entry id. READ and BATCH_READ replies begin so."""
RANGE_ACK: Final = struct.Struct(">iIiqqq")
"""Frame length (32), header, code, ledger id, first and last entry id."""

_HEADER = struct.Struct(">I")
_LENGTH_HEADER = struct.Struct(">iI")
_IDS = struct.Struct(">qq")
_READ = struct.Struct(">iIqq")
_WITH_ENTRY: Final = (Status.OK, Status.IO_ERROR)
"""An I/O error brings the bytes that are stored if these are not what was added."""
_BATCH_LIMITS = struct.Struct(">qiq")
_REPLY = struct.Struct(">iqq")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_unpack_int64 = _INT64.unpack_from


# ---- fields in place


def ledger_of_add(frames: Buffer, at: int = 0) -> int:
    """Returns the ledger id in the frame of an ADD that begins at `at`."""
    ledger_id: int = _unpack_int64(frames, at + ADD_ENTRY_AT)[0]
    return ledger_id


def lac_of_add(frames: Buffer, at: int = 0) -> int:
    """Returns the last add confirmed in the frame of an ADD that begins at `at`."""
    lac: int = _unpack_int64(frames, at + ADD_LAC_AT)[0]
    return lac


def lac_of_entry(entries: Buffer, at: int = 0) -> int:
    """Returns the last add confirmed in the header of an entry that begins at `at`."""
    lac: int = _unpack_int64(entries, at + ENTRY_LAC_AT)[0]
    return lac


# ---- requests


def encode_request(request: Request) -> bytes:
    """Returns the request as a frame with its length. Raises LocalProtocolError for what v2 does
    not have: long polls, deferred sync, the operations that only v3 has."""
    body, version = request.body, request.version
    if not 0 <= version <= VERSION:
        raise LocalProtocolError(f"protocol v2 has versions 0 to {VERSION}, not {version}")
    try:
        if isinstance(body, m.AddRequest):
            return _encode_add(version, body)
        if isinstance(body, m.ReadRequest):
            return _encode_read(version, body)
        if isinstance(body, m.BatchReadRequest):
            return _encode_batch_read(version, request.txn_id, body)
        if isinstance(body, m.AuthRequest):
            return _encode_auth(version, body)
    except (struct.error, ValueError) as error:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent: {error}") from error
    raise LocalProtocolError(f"{type(body).__name__} cannot be sent over protocol v2")


def _encode_add(version: int, body: m.AddRequest) -> bytes:
    if body.is_deferred_sync:
        raise LocalProtocolError("deferred sync needs protocol v3")
    if len(body.body) < ENTRY_HEADER_BYTES:
        raise LocalProtocolError(f"an entry of {len(body.body)} bytes is shorter than its header")
    if _IDS.unpack_from(body.body) != (body.ledger_id, body.entry_id):
        raise LocalProtocolError(
            f"add of entry {body.entry_id} of ledger {body.ledger_id} holds another entry's bytes"
        )
    flags = (
        RECOVERY_ADD * body.is_recovery
        | HIGH_PRIORITY * body.is_high_priority
        | RANGE_ACKS * body.takes_range_acks
    )
    header = _header(version, ADD, flags)
    start = ADD_START.pack(24 + len(body.body), header, _checked_key(body.master_key))
    return b"".join((start, body.body))


def _encode_read(version: int, body: m.ReadRequest) -> bytes:
    if body.is_piggyback or body.previous_lac is not None or body.timeout_ms is not None:
        raise LocalProtocolError("waiting for the LAC needs protocol v3")
    header = _header(
        version, READ, FENCING * body.is_fencing | HIGH_PRIORITY * body.is_high_priority
    )
    key = _fencing_key(version, body)
    return _READ.pack(20 + len(key), header, body.ledger_id, body.entry_id) + key


def _encode_batch_read(version: int, request_id: int, body: m.BatchReadRequest) -> bytes:
    header = _header(version, BATCH_READ, FENCING * body.is_fencing)
    key = _fencing_key(version, body)
    start = _READ.pack(40 + len(key), header, body.ledger_id, body.entry_id)
    return start + _BATCH_LIMITS.pack(request_id, body.count_max, body.size_max) + key


def _encode_auth(version: int, body: m.AuthRequest | m.AuthResponse) -> bytes:
    message = AuthMessage(authPluginName=body.plugin, payload=body.payload).SerializeToString()
    return _LENGTH_HEADER.pack(4 + len(message), _header(version, AUTH, 0)) + message


def _fencing_key(version: int, body: m.ReadRequest | m.BatchReadRequest) -> bytes:
    """Returns the key, which bookies read only in fencing reads, and only since version 2."""
    if not body.is_fencing:
        return b""
    if version < 2 or body.master_key is None:
        raise LocalProtocolError("fencing needs version 2 and the ledger's master key")
    return _checked_key(body.master_key)


def _checked_key(key: bytes) -> bytes:
    if len(key) != MASTER_KEY_BYTES:
        raise LocalProtocolError(f"a master key has {MASTER_KEY_BYTES} bytes, not {len(key)}")
    return key


def decode_request(frame: Buffer) -> Request:
    """Returns the request in a frame (without its length).

    Raises RequestRefused if the version is not 0..2 but the rest can be read, otherwise
    RemoteProtocolError. Bytes after the last field are ignored.
    """
    view = memoryview(frame)
    version, operation, flags = _split_header(view)
    if operation == ADD:
        request = Request(version, 0, _decode_add(view, version, flags))
    elif operation == READ:
        request = Request(version, 0, _decode_read(view, version, flags))
    elif operation == BATCH_READ:
        request = _decode_batch_read(view, version, flags)
    elif operation == AUTH:
        request = Request(version, 0, m.AuthRequest(*_decode_auth(view)))
    else:
        raise RemoteProtocolError(f"operation {operation} does not exist in protocol v2")
    if version > VERSION:
        raise _bad_version(request)
    return request


def _decode_add(view: memoryview, version: int, flags: int) -> m.AddRequest:
    _need(view, 4 + MASTER_KEY_BYTES + _IDS.size, "an ADD")
    body = view[4 + MASTER_KEY_BYTES :]
    ledger_id, entry_id = _IDS.unpack_from(body)
    if len(body) < ENTRY_HEADER_BYTES:
        answer = m.AddResponse(Status.BAD_REQUEST, ledger_id, entry_id, entry_id)
        cause = f"an entry of {len(body)} bytes is shorter than its header"
        raise RequestRefused(cause, Response(version, 0, answer))
    return m.AddRequest(
        ledger_id,
        entry_id,
        bytes(view[4 : 4 + MASTER_KEY_BYTES]),
        body,
        is_recovery=bool(flags & RECOVERY_ADD),
        is_high_priority=bool(flags & HIGH_PRIORITY),
        takes_range_acks=bool(flags & RANGE_ACKS),
    )


def _decode_read(view: memoryview, version: int, flags: int) -> m.ReadRequest:
    _need(view, 20, "a READ")
    ledger_id, entry_id = _IDS.unpack_from(view, 4)
    is_fencing = bool(flags & FENCING)
    return m.ReadRequest(
        ledger_id,
        entry_id,
        master_key=_decode_key(view, 20, is_fencing and version >= 2),
        is_fencing=is_fencing,
        is_high_priority=bool(flags & HIGH_PRIORITY),
    )


def _decode_batch_read(view: memoryview, version: int, flags: int) -> Request:
    _need(view, 40, "a BATCH_READ")
    ledger_id, entry_id = _IDS.unpack_from(view, 4)
    request_id, count_max, size_max = _BATCH_LIMITS.unpack_from(view, 20)
    is_fencing = bool(flags & FENCING)
    body = m.BatchReadRequest(
        ledger_id,
        entry_id,
        count_max,
        size_max,
        master_key=_decode_key(view, 40, is_fencing and version >= 2),
        is_fencing=is_fencing,
    )
    return Request(version, request_id, body)


def _decode_key(view: memoryview, start: int, is_there: bool) -> bytes | None:
    if not is_there:
        return None
    _need(view, start + MASTER_KEY_BYTES, "a fencing read")
    return bytes(view[start : start + MASTER_KEY_BYTES])


def _decode_auth(view: memoryview) -> tuple[str, bytes]:
    message = AuthMessage()
    try:
        message.ParseFromString(bytes(view[4:]))
    except (DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"AUTH message cannot be parsed: {error}") from error
    plugin: object = message.authPluginName  # bytes if it is not UTF-8
    if not message.IsInitialized() or not isinstance(plugin, str):
        raise RemoteProtocolError("AUTH message without a plugin name in UTF-8 or a payload")
    return plugin, message.payload


def _bad_version(request: Request) -> RemoteProtocolError:
    cause = f"version {request.version} of protocol v2; known are 0 to {VERSION}"
    body = request.body
    answer: ResponseBody
    if isinstance(body, m.AddRequest):
        answer = m.AddResponse(Status.BAD_VERSION, body.ledger_id, body.entry_id, body.entry_id)
    elif isinstance(body, m.ReadRequest):
        answer = m.ReadResponse(Status.BAD_VERSION, body.ledger_id, body.entry_id)
    elif isinstance(body, m.BatchReadRequest):
        answer = m.BatchReadResponse(Status.BAD_VERSION, body.ledger_id, body.entry_id)
    else:
        return RemoteProtocolError(cause)  # an AUTH reply has no status field
    return RequestRefused(cause, Response(request.version, request.txn_id, answer))


# ---- responses


def encode_response(response: Response) -> bytes:
    """Returns the response as a frame with its length.

    A read's `max_lac` and `lac_update_ms` have no field in v2 and are dropped. Raises
    LocalProtocolError for responses that v2 does not have, and for a refused AUTH, which a server
    can report only by closing the connection.
    """
    body = response.body
    version = response.version
    try:
        if isinstance(body, m.AddResponse):
            return _encode_add_reply(version, body)
        if isinstance(body, m.ReadResponse):
            data = body.body or b""
            return b"".join((_encode_reply(version, READ, body, len(data)), data))
        if isinstance(body, m.BatchReadResponse):
            return _encode_batch_reply(version, response.txn_id, body)
        if isinstance(body, m.AuthResponse) and body.status is Status.OK:
            return _encode_auth(VERSION, body)  # always, as Apache's bookies do
    except (struct.error, ValueError) as error:
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent: {error}") from error
    raise LocalProtocolError(f"{type(body).__name__} ({body.status.name}) has no form in v2")


def _encode_add_reply(version: int, body: m.AddResponse) -> bytes:
    code = code_of_status(body.status)
    if body.last_entry_id == body.entry_id:
        header = _header(version, ADD, 0)
        return ADD_REPLY.pack(24, header, code, body.ledger_id, body.entry_id)
    if body.last_entry_id < body.entry_id:
        raise LocalProtocolError(f"range ack of entries {body.entry_id}..{body.last_entry_id}")
    header = _header(version, ADD, RANGE_ACKS)
    return RANGE_ACK.pack(32, header, code, body.ledger_id, body.entry_id, body.last_entry_id)


def _encode_batch_reply(version: int, request_id: int, body: m.BatchReadResponse) -> bytes:
    size = 8 + 4 * len(body.bodies) + sum(map(len, body.bodies))
    start = _encode_reply(version, BATCH_READ, body, size)
    pieces: list[Buffer] = [start, _INT64.pack(request_id)]
    for data in body.bodies:
        pieces += (_INT32.pack(len(data)), data)
    return b"".join(pieces)


def _encode_reply(
    version: int, operation: int, body: m.ReadResponse | m.BatchReadResponse, more_bytes: int
) -> bytes:
    header = _header(version, operation, 0)
    code = code_of_status(body.status)
    return ADD_REPLY.pack(24 + more_bytes, header, code, body.ledger_id, body.entry_id)


def decode_response(frame: Buffer) -> Response:
    """Returns the response in a frame (without its length). Raises RemoteProtocolError."""
    view = memoryview(frame)
    version, operation, flags = _split_header(view)
    if version > VERSION:
        raise RemoteProtocolError(f"reply in version {version} of protocol v2")
    if operation == AUTH:
        return Response(version, 0, m.AuthResponse(Status.OK, *_decode_auth(view)))
    if operation not in (ADD, READ, BATCH_READ):
        raise RemoteProtocolError(f"reply to operation {operation}, which v2 does not have")
    _need(view, 24, "a reply")
    code, ledger_id, entry_id = _REPLY.unpack_from(view, 4)
    status = status_of_code(code)
    if operation == ADD:
        last = _decode_last_acked(view, entry_id) if flags & RANGE_ACKS else entry_id
        return Response(version, 0, m.AddResponse(status, ledger_id, entry_id, last))
    if operation == READ:
        body = view[24:] if status in _WITH_ENTRY and len(view) > 24 else None
        return Response(version, 0, m.ReadResponse(status, ledger_id, entry_id, body))
    _need(view, 32, "a BATCH_READ reply")
    request_id = _INT64.unpack_from(view, 24)[0]
    bodies = _decode_bodies(view)
    return Response(version, request_id, m.BatchReadResponse(status, ledger_id, entry_id, bodies))


def batch_request_id(frame: Buffer) -> int | None:
    """Returns the id of the batch read that a frame (without its length) is the response to; None
    if it is another response."""
    if len(frame) < 32 or frame[0] == 0 or frame[1] != BATCH_READ:
        return None
    request_id: int = _INT64.unpack_from(frame, 24)[0]
    return request_id


def _decode_last_acked(view: memoryview, first: int) -> int:
    _need(view, 32, "a range ack")
    last: int = _INT64.unpack_from(view, 24)[0]
    if last < first:
        raise RemoteProtocolError(f"range ack of entries {first}..{last}")
    return last


def _decode_bodies(view: memoryview) -> tuple[Buffer, ...]:
    bodies: list[Buffer] = []
    place, end = 32, len(view)
    unpack = _INT32.unpack_from
    while place < end:
        if end - place < 4:
            raise RemoteProtocolError(f"BATCH_READ reply ends in {end - place} stray bytes")
        length = unpack(view, place)[0]
        place += 4
        if not 0 <= length <= end - place:
            raise RemoteProtocolError(
                f"entry of {length} bytes announced in a BATCH_READ reply, {end - place} are left"
            )
        bodies.append(view[place : place + length])
        place += length
    return tuple(bodies)


# ---- header


def _header(version: int, operation: int, flags: int) -> int:
    if version == 0:
        # The whole integer is the operation. A flag would turn it into another operation.
        if flags:
            raise LocalProtocolError(f"version 0 has no flags (0x{flags:x} wanted)")
        return operation
    return version << 24 | operation << 16 | flags


def _split_header(view: memoryview) -> tuple[int, int, int]:
    """Returns version, operation and flags."""
    _need(view, 4, "a header")
    header: int = _HEADER.unpack_from(view)[0]
    version = header >> 24
    if version == 0:
        return 0, header, 0
    return version, header >> 16 & 0xFF, header & 0xFFFF


def _need(view: memoryview, size: int, what: str) -> None:
    if len(view) < size:
        raise RemoteProtocolError(f"{what} takes at least {size} bytes, the frame has {len(view)}")
