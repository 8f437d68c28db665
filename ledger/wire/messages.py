"""Requests and responses between client and bookie, independent of the wire version.

The codecs `v2` and `v3` translate them to bytes and back. The add path does not use these objects
per entry (see `bookie.core.adds`, `ledger.writing.writer`); everything else does. The fields are
those of Apache BookKeeper's `BookieProtocol` and `BookkeeperProtocol.proto`. The codecs raise
`RequestRefused` for a request that cannot be served but can be answered.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.errors import RemoteProtocolError, Status

if not TYPE_CHECKING:

    def dataclass(**options: Any) -> Any:
        """The type checker alone sees that messages are frozen: setting the attributes of a frozen
        instance takes three times as long, for the dozen messages of each record that is tailed."""
        return dataclasses.dataclass(**options | {"frozen": False, "unsafe_hash": True})


Buffer = bytes | bytearray | memoryview

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""Longest frame either side accepts (Apache: nettyMaxFrameSizeBytes)."""


class Operation(enum.IntEnum):
    """Operation numbers of v3; v2's opcodes are mapped to them by its codec."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES = 11
    BATCH_READ = 12


@dataclass(frozen=True, slots=True)
class AddRequest:
    """`body` is the whole entry as stored: 32-byte header, digest, payload."""

    ledger_id: int
    entry_id: int
    master_key: bytes = field(repr=False)
    body: Buffer
    is_recovery: bool = False
    is_high_priority: bool = False
    is_deferred_sync: bool = False
    takes_range_acks: bool = False
    """v2 only, an extension: one response may acknowledge a run of entries (docs/wire.md)."""

    @property
    def is_urgent(self) -> bool:
        """Adds of recoveries are accepted where ordinary adds are refused."""
        return self.is_recovery or self.is_high_priority


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Reads one entry; `entry_id` -1 is the last entry that the bookie holds."""

    ledger_id: int
    entry_id: int
    master_key: bytes | None = field(default=None, repr=False)
    is_fencing: bool = False
    is_high_priority: bool = False
    is_piggyback: bool = False
    previous_lac: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BatchReadRequest:
    """Reads entries from `entry_id` on; v2 only. `count_max` <= 0 means no bound by count."""

    ledger_id: int
    entry_id: int
    count_max: int
    size_max: int
    master_key: bytes | None = field(default=None, repr=False)
    is_fencing: bool = False


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """`payload` may be a token, or what a password can be found out from."""

    plugin: str
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WriteLacRequest:
    """`body` is the LAC packet: ledger id, LAC, digest."""

    ledger_id: int
    lac: int
    master_key: bytes = field(repr=False)
    body: Buffer


@dataclass(frozen=True, slots=True)
class ReadLacRequest:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class GetBookieInfoRequest:
    """`requested` is a bit mask: 1 total capacity, 2 free space."""

    requested: int


@dataclass(frozen=True, slots=True)
class StartTlsRequest:
    pass


@dataclass(frozen=True, slots=True)
class ForceLedgerRequest:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ListEntriesRequest:
    ledger_id: int


RequestBody = (
    AddRequest
    | ReadRequest
    | BatchReadRequest
    | AuthRequest
    | WriteLacRequest
    | ReadLacRequest
    | GetBookieInfoRequest
    | StartTlsRequest
    | ForceLedgerRequest
    | ListEntriesRequest
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and the fields that its response must repeat.

    `version` is 0..2 for the binary protocol and 3 for protobuf. `txn_id` is v3's transaction
    id, and v2's request id for batch reads; it is 0 for all other v2 requests.
    """

    version: int
    txn_id: int
    body: RequestBody


@dataclass(frozen=True, slots=True)
class AddResponse:
    """`last_entry_id` > `entry_id` only in a range ack (see `AddRequest.takes_range_acks`)."""

    status: Status
    ledger_id: int
    entry_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class ReadResponse:
    status: Status
    ledger_id: int
    entry_id: int
    body: Buffer | None = None
    max_lac: int | None = None
    lac_update_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BatchReadResponse:
    status: Status
    ledger_id: int
    entry_id: int
    bodies: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthResponse:
    status: Status
    plugin: str
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WriteLacResponse:
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ReadLacResponse:
    status: Status
    ledger_id: int
    lac_body: Buffer | None = None
    last_entry_body: Buffer | None = None


@dataclass(frozen=True, slots=True)
class GetBookieInfoResponse:
    status: Status
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StartTlsResponse:
    status: Status


@dataclass(frozen=True, slots=True)
class ForceLedgerResponse:
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ListEntriesResponse:
    status: Status
    ledger_id: int
    availability: bytes | None = None


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The response to a request of v3 that was not understood enough for a typed response."""

    status: Status
    operation: int


ResponseBody = (
    AddResponse
    | ReadResponse
    | BatchReadResponse
    | AuthResponse
    | WriteLacResponse
    | ReadLacResponse
    | GetBookieInfoResponse
    | StartTlsResponse
    | ForceLedgerResponse
    | ListEntriesResponse
    | ErrorResponse
)


@dataclass(frozen=True, slots=True)
class Response:
    """One response; `version` and `txn_id` repeat those of the request."""

    version: int
    txn_id: int
    body: ResponseBody


class RequestRefused(RemoteProtocolError):
    """A request is invalid, but its frame names the operation, so that it can be answered.

    A server encodes `response` with the codec that raised this, sends it and continues; after
    any other RemoteProtocolError it closes the connection.
    """

    def __init__(self, cause: str, response: Response) -> None:
        super().__init__(cause)
        self.response = response
