"""Counts the requests of all connections of a server, in plain numbers.

Adds are counted once per chunk; any other request costs one look at its reply.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ledger.errors import Status
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    AuthRequest,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    ResponseBody,
    StartTlsRequest,
    WriteLacRequest,
)

_ADD: Final = "add"
_FENCE: Final = "fence"
_OPERATIONS: Final[dict[type[RequestBody], str]] = {
    AddRequest: _ADD,
    ReadRequest: "read",
    BatchReadRequest: "batch_read",
    WriteLacRequest: "write_lac",
    ReadLacRequest: "read_lac",
    ForceLedgerRequest: "force_ledger",
    GetBookieInfoRequest: "bookie_info",
    ListEntriesRequest: "list_entries",
    AuthRequest: "auth",
    StartTlsRequest: "start_tls",
}
_LONG_POLL: Final = "long_poll"
OPERATIONS: Final = (*_OPERATIONS.values(), _FENCE, _LONG_POLL)
"""The operations that are counted separately. A read or batch read that fences is a fence."""


class Wait(Enum):
    """The reason why adds were throttled or a connection was not read for a while."""

    WRITE_CACHE = "write_cache"
    JOURNAL = "journal"
    REPLIES = "replies"
    READS = "reads"
    FRAMES = "frames"


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    adds: int
    """Entries accepted; each is acknowledged as soon as it is durable."""
    add_bytes: int
    """Bytes of their frames."""
    reads: int
    """Entries returned by single and batch reads."""
    read_bytes: int
    read_batches: int
    answered: dict[str, int]
    """Requests that were answered, with any status, by operation; for adds, the number of
    entries."""
    refused: dict[tuple[str, ...], int]
    """Replies with a status other than OK, by operation and status."""
    waits: dict[Wait, int]
    """How often adds were throttled, or a connection was not read, by what it waited for."""


class RequestCounts:
    """The counters that all connections share; `statistics` returns a copy."""

    def __init__(self) -> None:
        self.chunks = self.protocol_errors = 0
        self.adds = self.add_bytes = 0
        self.waits = dict.fromkeys(Wait, 0)
        self._reads = self._read_bytes = self._read_batches = 0
        self._adds_refused = 0
        self._answered = dict.fromkeys(OPERATIONS, 0)
        self._refused: Counter[tuple[str, ...]] = Counter()

    def replied(self, request: Request, body: ResponseBody) -> None:
        """Counts a reply, unless it is the acknowledgement of adds that came over v2."""
        if isinstance(body, AddResponse):
            if body.status is not Status.OK:
                self._adds_refused += 1
                self._refused[_ADD, body.status.name.lower()] += 1
            elif isinstance(request.body, AddRequest):
                self.adds += 1
                self.add_bytes += len(request.body.body)
            return
        operation = operation_of(request.body)
        self._answered[operation] += 1
        if body.status is not Status.OK:
            self._refused[operation, body.status.name.lower()] += 1
        elif isinstance(body, ReadResponse) and body.body is not None:
            self._reads += 1
            self._read_bytes += len(body.body)
        if isinstance(body, BatchReadResponse):
            self._read_batches += 1
            self._reads += len(body.bodies)
            self._read_bytes += sum(map(len, body.bodies))

    def statistics(self) -> RequestStatistics:
        return RequestStatistics(
            adds=self.adds,
            add_bytes=self.add_bytes,
            reads=self._reads,
            read_bytes=self._read_bytes,
            read_batches=self._read_batches,
            answered=self._answered | {_ADD: self._answered[_ADD] + self.adds + self._adds_refused},
            refused=dict(self._refused),
            waits=dict(self.waits),
        )


def operation_of(body: RequestBody) -> str:
    """Returns the name of the operation, one of `OPERATIONS`."""
    if isinstance(body, ReadRequest):
        if body.is_fencing:
            return _FENCE
        if body.previous_lac is not None:
            return _LONG_POLL
    elif isinstance(body, BatchReadRequest) and body.is_fencing:
        return _FENCE
    return _OPERATIONS[type(body)]
