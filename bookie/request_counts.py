"""What all connections of a server together have done, in plain numbers.

Adds are counted once per chunk; a read costs one look at its answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from ledger.errors import Status
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadResponse,
    ReadResponse,
    Request,
    ResponseBody,
)


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
    refused: dict[tuple[str, ...], int]
    """Answers other than OK, by operation ("add", "read") and status."""
    waits: dict[Wait, int]
    """How often adds were held, or a connection was not read, by what it waited for."""


class RequestCounts:
    """Counted by all connections; `statistics` freezes it."""

    def __init__(self) -> None:
        self.chunks = self.protocol_errors = 0
        self.adds = self.add_bytes = 0
        self.waits = dict.fromkeys(Wait, 0)
        self._reads = self._read_bytes = self._read_batches = 0
        self._refused: Counter[tuple[str, ...]] = Counter()

    def replied(self, request: Request, body: ResponseBody) -> None:
        """An answer of any kind but the acknowledgement of adds that came over v2."""
        if isinstance(body, ReadResponse):
            if body.status is not Status.OK:
                self._refused["read", body.status.name.lower()] += 1
            elif body.body is not None:
                self._reads += 1
                self._read_bytes += len(body.body)
        elif isinstance(body, BatchReadResponse):
            self._read_batches += 1
            if body.status is not Status.OK:
                self._refused["read", body.status.name.lower()] += 1
            self._reads += len(body.bodies)
            self._read_bytes += sum(map(len, body.bodies))
        elif isinstance(body, AddResponse):
            if body.status is not Status.OK:
                self._refused["add", body.status.name.lower()] += 1
            elif isinstance(request.body, AddRequest):
                self.adds += 1
                self.add_bytes += len(request.body.body)

    def statistics(self) -> RequestStatistics:
        return RequestStatistics(
            adds=self.adds,
            add_bytes=self.add_bytes,
            reads=self._reads,
            read_bytes=self._read_bytes,
            read_batches=self._read_batches,
            refused=dict(self._refused),
            waits=dict(self.waits),
        )
