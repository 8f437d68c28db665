"""Shell of one connection of a bookie: chunk of bytes in, requests, one piece of replies out.

One task per connection and none per request. Adds go straight from the receive buffer to the
write cache and the journal (`bookie.core.adds`); their replies come in one piece per journal
commit. Other requests are answered inside the receive loop when memory can answer, and by one
task per chunk when a disk must be asked. A peer that breaks the protocol loses its connection
and harms nobody else.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from dataclasses import dataclass
from functools import partial

import trio

from bookie.core.adds import FRAME_BYTES_MIN, Run, take_adds
from bookie.requests import Requests
from bookie.storage.journal import CommitGroup
from bookie.storage.ledger_storage import LedgerStorage
from ledger.errors import LedgerError, ProtocolError, Status
from ledger.runtime.network import Transport
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer, is_version_3
from ledger.wire.messages import AddResponse, Request, Response, ResponseBody
from ledger.wire.refusal import RequestRefused

_log = logging.getLogger(__name__)

_HEADER = struct.Struct(">I").unpack_from
_ACK = v2.ADD_REPLY.pack
_RANGE_ACK = v2.RANGE_ACK.pack
_ADD_FRAME = struct.Struct(">iI20sqq").unpack_from
_LAC = struct.Struct(">q").unpack_from

_OUTBOX_BYTES_MAX = 16 * 1024 * 1024
"""Replies waiting for one peer; above it nothing more is read from that peer."""
_QUEUED_CALLBACKS_MAX = 100_000
"""With more answers waiting for the journal no socket is read: what only waits has no bytes."""
_WAITING_CHUNKS_MAX = 8
"""Chunks of one connection that may wait for a disk at once."""


@dataclass(slots=True)
class ConnectionCounts:
    """What all connections of a server together have seen."""

    chunks: int = 0
    protocol_errors: int = 0


class Connection:
    """One peer. The protocol version is fixed by the first v2 frame (facts 1.1)."""

    def __init__(
        self,
        transport: Transport,
        storage: LedgerStorage,
        requests: Requests,
        counts: ConnectionCounts,
        *,
        frame_bytes_max: int,
        queued_bytes_max: int,
    ) -> None:
        """`queued_bytes_max`: with more waiting for the journal the socket is not read."""
        self._transport = transport
        self._storage = storage
        self._cache = storage.cache
        self._requests = requests
        self._counts = counts
        self._queued_bytes_max = queued_bytes_max
        self._buffer = ReceiveBuffer(frame_bytes_max, new_segment=self._cache.take_segment)
        self._segment_no = -1
        self._is_v2 = False
        self._is_refusal_told = False
        self._add_header = 0
        self._takes_range_acks = False
        self._runs_as_ranges = False
        self._group: CommitGroup | None = None
        self._runs: list[Run] = []
        self._replies: list[bytes] = []
        self._replies_bytes = 0
        self._is_taking = False
        self._outbox: deque[bytes | memoryview] = deque()
        self._outbox_bytes = 0
        self._flushed = trio.Event()
        self._is_closed = False
        self._nursery: trio.Nursery | None = None
        self._waiting_chunks = 0
        self._chunk_done = trio.Event()

    # ---- receiving

    async def run(self) -> None:
        """Serves until the peer leaves or breaks the protocol."""
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    await self._receive()
                finally:
                    # Before the nursery closes: an answer that comes late must find it so.
                    self.close()
        except* (OSError, trio.ClosedResourceError):
            pass  # the peer is gone: nobody to tell
        except* LedgerError as errors:
            self._counts.protocol_errors += bool(errors.subgroup(ProtocolError))
            _log.warning(
                "connection closed peer=%s cause=%s", self._transport.peer, errors.exceptions[0]
            )

    async def _receive(self) -> None:
        transport, buffer, storage = self._transport, self._buffer, self._storage
        while True:
            await transport.wait_readable()
            while storage.is_full:
                await storage.wait_room()
            while self._is_too_much_queued:
                await self._requests.wait_durable()
            while self._outbox_bytes > _OUTBOX_BYTES_MAX and not self._is_closed:
                await self._flushed.wait()
            while self._waiting_chunks >= _WAITING_CHUNKS_MAX:
                await self._chunk_done.wait()
            try:
                count = transport.recv_into(buffer.space())
            except BlockingIOError:
                continue
            if count == 0:
                return
            buffer.received(count)
            self._take_chunk()

    @property
    def _is_too_much_queued(self) -> bool:
        journal = self._storage.journal
        return (
            journal.queued_bytes > self._queued_bytes_max
            or journal.queued_callbacks > _QUEUED_CALLBACKS_MAX
        )

    def _take_chunk(self) -> None:
        """Everything that is whole in the buffer. No await: nothing else runs meanwhile."""
        self._counts.chunks += 1
        buffer = self._buffer
        waiting: list[Request] = []
        self._is_taking = True
        try:
            while True:
                if self._add_header:
                    self._take_adds()
                at = buffer.start
                frame = buffer.next_frame()
                if frame is None:
                    break
                self._take_frame(frame, at, waiting)
        finally:
            self._is_taking = False
            self._send_replies()
        if waiting:
            assert self._nursery is not None
            self._waiting_chunks += 1
            self._nursery.start_soon(self._answer_waiting, waiting)

    def _take_frame(self, frame: memoryview, at: int, waiting: list[Request]) -> None:
        is_v3 = not self._is_v2 and is_version_3(frame[0])
        codec = v3 if is_v3 else v2
        try:
            if not is_v3:
                self._is_v2 = True
                header: int = _HEADER(frame)[0]
                if header >> 16 == v2.ADD_HEADER >> 16:
                    self._take_one_add(frame, at, header)
                    return
            request = codec.decode_request(frame)
        except RequestRefused as refused:
            if not self._is_refusal_told:
                self._is_refusal_told = True  # once per connection: a flood is not logged
                _log.warning("request refused peer=%s cause=%s", self._transport.peer, refused)
            self._replies.append(codec.encode_response(refused.response))
            return
        # Small requests may ask for large answers: beyond the bound they wait their turn.
        is_over = self._outbox_bytes + self._replies_bytes > _OUTBOX_BYTES_MAX
        reply = partial(self._reply, request)
        if is_over or not self._requests.answer_nowait(request, reply, self._is_gone):
            waiting.append(request)

    def _is_gone(self) -> bool:
        return self._is_closed

    async def _answer_waiting(self, waiting: list[Request]) -> None:
        try:
            for request in waiting:
                while self._outbox_bytes > _OUTBOX_BYTES_MAX and not self._is_closed:
                    await self._flushed.wait()
                reply = partial(self._reply, request)
                if not self._requests.answer_nowait(request, reply, self._is_gone):
                    await self._requests.answer(request, reply)
        finally:
            self._waiting_chunks -= 1
            self._chunk_done.set()
            self._chunk_done = trio.Event()

    # ---- adds

    def _take_adds(self) -> None:
        """The stretch of ordinary adds at the front of the buffer (hot)."""
        buffer, storage = self._buffer, self._storage
        start = buffer.start
        if buffer.end - start < FRAME_BYTES_MIN:
            return
        self._pin_segment()
        group = self._open_group()
        runs = self._runs
        before = len(runs)
        stop = take_adds(
            buffer.segment,
            start,
            buffer.end,
            self._segment_no,
            self._add_header,
            buffer.frame_bytes_max,
            self._cache.active,
            storage.states,
            runs,
        )
        if stop == start:
            return
        buffer.start = stop
        entries = 0
        for i in range(before, len(runs)):
            _, first, last = runs[i]
            entries += last - first + 1
        self._queue(group, buffer.view[start:stop], entries)

    def _take_one_add(self, frame: memoryview, at: int, header: int) -> None:
        """An add that the hot loop left: the first of a ledger, a recovery add, or a bad one."""
        request = v2.decode_request(frame)
        _, _, key, ledger_id, entry_id = _ADD_FRAME(self._buffer.segment, at)
        is_recovery = bool(header & v2.RECOVERY_ADD)
        self._takes_range_acks = bool(header & v2.RANGE_ACKS)
        self._add_header = header & ~v2.RECOVERY_ADD
        status = self._requests.check_add(ledger_id, entry_id, key, is_recovery)
        if status is not Status.OK:
            self._reply(request, AddResponse(status, ledger_id, entry_id, entry_id))
            return
        self._pin_segment()
        state = self._storage.states[ledger_id]
        active = self._cache.active
        active.setdefault(ledger_id, {})[entry_id] = self._segment_no << 32 | at
        lac: int = _LAC(frame, 40)[0]
        if lac > state.lac:
            state.advance_lac(lac)
        group = self._open_group()
        self._runs.append((state, entry_id, entry_id))
        self._queue(group, self._buffer.view[at : at + 4 + len(frame)], 1)

    def _pin_segment(self) -> None:
        """The cache keeps places in the segment that is being filled."""
        buffer = self._buffer
        if not buffer.is_pinned:
            if self._segment_no >= 0:
                self._cache.release_segment(self._segment_no)
            self._segment_no = self._cache.add_segment(buffer.view)
            buffer.is_pinned = True

    def _open_group(self) -> CommitGroup:
        group = self._storage.journal.open_group
        if group is not self._group or self._runs_as_ranges != self._takes_range_acks:
            self._group = group
            self._runs = []
            self._runs_as_ranges = self._takes_range_acks
            group.on_durable.append(partial(self._acknowledge, self._runs, self._runs_as_ranges))
        return group

    def _queue(self, group: CommitGroup, frames: memoryview, entries: int) -> None:
        size = len(frames)
        self._cache.nbytes += size
        group.views.append(frames)
        group.nbytes += size
        group.entries += entries
        self._storage.journal.kick()

    def _acknowledge(self, runs: list[Run], as_ranges: bool) -> None:
        """The journal has fsynced `runs`: all their replies in one piece."""
        if not runs or self._is_closed:
            return
        if as_ranges:
            self._send(_encode_range_acks(runs))
        else:
            header = v2.ADD_HEADER
            self._send(
                b"".join(
                    [
                        _ACK(24, header, 0, state.ledger_id, entry_id)
                        for state, first, last in runs
                        for entry_id in range(first, last + 1)
                    ]
                )
            )

    # ---- sending

    def _reply(self, request: Request, body: ResponseBody) -> None:
        response = Response(request.version, request.txn_id, body)
        codec = v3 if request.version == 3 else v2
        data = codec.encode_response(response)
        self._replies.append(data)
        self._replies_bytes += len(data)
        if not self._is_taking:
            self._send_replies()

    def _send_replies(self) -> None:
        if self._replies:
            replies, self._replies = self._replies, []
            self._replies_bytes = 0
            self._send(replies[0] if len(replies) == 1 else b"".join(replies))

    def _send(self, data: bytes) -> None:
        if self._is_closed:
            return
        if self._outbox:
            self._outbox.append(data)
            self._outbox_bytes += len(data)
            return
        try:
            sent = self._transport.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self._outbox.append(memoryview(data)[sent:])
            self._outbox_bytes += len(data) - sent
            assert self._nursery is not None
            self._nursery.start_soon(self._flush)

    async def _flush(self) -> None:
        outbox = self._outbox
        while outbox:
            await self._transport.wait_writable()
            try:
                while outbox:
                    data = outbox[0]
                    sent = self._transport.send(data)
                    self._outbox_bytes -= sent
                    if sent < len(data):
                        outbox[0] = memoryview(data)[sent:]
                        break
                    outbox.popleft()
            except BlockingIOError:
                continue
        self._flushed.set()
        self._flushed = trio.Event()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.close()
        self._flushed.set()
        if self._segment_no >= 0:
            self._cache.release_segment(self._segment_no)
            self._segment_no = -1
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()


def _encode_range_acks(runs: list[Run]) -> bytes:
    """Neighbouring runs of one ledger become one range ack (docs/wire.md)."""
    header = v2.RANGE_ACK_HEADER
    out: list[bytes] = []
    state, first, last = runs[0]
    for next_state, next_first, next_last in runs[1:]:
        if next_state is state and next_first == last + 1:
            last = next_last
            continue
        out.append(_RANGE_ACK(32, header, 0, state.ledger_id, first, last))
        state, first, last = next_state, next_first, next_last
    out.append(_RANGE_ACK(32, header, 0, state.ledger_id, first, last))
    return b"".join(out)
