"""What all connections of a server together have done, in plain numbers.

Adds are counted once per chunk; another request costs one look at its answer.
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
"""What is counted apart. A read that fences is a fence, a batch read that does, too."""


class Wait(Enum):
    """Why adds were held, or a connection was not read for a while."""

    WRITE_CACHE = "write_cache"
    JOURNAL = "journal"
    REPLIES = "replies"
    READS = "reads"


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    adds: int
    """Entries taken; acknowledged as soon as they are durable."""
    add_bytes: int
    """Of their frames."""
    reads: int
    """Entries given out, by single and batch reads."""
    read_bytes: int
    read_batches: int
    answered: dict[str, int]
    """Requests that were answered, however, by operation; adds as `adds`."""
    refused: dict[tuple[str, ...], int]
    """Answers other than OK, by operation and status."""
    waits: dict[Wait, int]
    """How often adds were held, or a connection was not read, by what it waited for."""


class RequestCounts:
    """Counted by all connections; `statistics` freezes it."""

    def __init__(self) -> None:
        self.chunks = self.protocol_errors = 0
        self.adds = self.add_bytes = 0
        self.waits = dict.fromkeys(Wait, 0)
        self._reads = self._read_bytes = self._read_batches = 0
        self._adds_refused = 0
        self._answered = dict.fromkeys(OPERATIONS, 0)
        self._refused: Counter[tuple[str, ...]] = Counter()

    def replied(self, request: Request, body: ResponseBody) -> None:
        """An answer of any kind but the acknowledgement of adds that came over v2."""
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
            answered=self._answered | {_ADD: self.adds + self._adds_refused},
            refused=dict(self._refused),
            waits=dict(self.waits),
        )


def operation_of(body: RequestBody) -> str:
    """Which of `OPERATIONS` it is."""
    if isinstance(body, ReadRequest):
        if body.is_fencing:
            return _FENCE
        if body.previous_lac is not None:
            return _LONG_POLL
    elif isinstance(body, BatchReadRequest) and body.is_fencing:
        return _FENCE
    return _OPERATIONS[type(body)]
