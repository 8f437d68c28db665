"""Shell of one connection of a bookie: chunk of bytes in, requests, one piece of replies out.

One task per connection and none per request. Adds go from the receive buffer to cache and journal
(`bookie.server.add_intake`). Other requests are answered inside the receive loop when memory can
answer, and in turns with all connections when a disk must be asked
(`bookie.server.read_scheduler`). While there is no room for adds, a few are held, and everything
else goes on. A peer that breaks the protocol loses its connection and harms nobody else.
"""

from __future__ import annotations

import logging
import struct
from functools import partial

import trio

from bookie.server.add_intake import AddIntake, ReceivedSegments
from bookie.server.backpressure import Backpressure, Blocked
from bookie.server.error_replies import error_reply
from bookie.server.internal_errors import PROGRAMMING_ERRORS, log_connection_closed
from bookie.server.request_metrics import RequestCounts, Wait
from bookie.server.requests import Requests
from bookie.server.send_queue import SendQueue
from bookie.server.throttled_adds import THROTTLED_BYTES_MAX, ThrottledAdds
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.yielding import yield_to_threads
from ledger.errors import LedgerError, ProtocolError, Status
from ledger.runtime.network import Transport
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer, is_version_3
from ledger.wire.messages import AddRequest, Request, RequestRefused, Response, ResponseBody

_log = logging.getLogger(__name__)

_HEADER = struct.Struct(">I").unpack_from

_WAITING_READS_MAX = 1000
"""Requests of one connection that may wait for a disk at once."""
_CAREFUL_BYTES_MAX = 64 * 1024
"""Received at once while room for adds is short."""
_JOINED_REPLIES_BYTES_MAX = 256 * 1024
"""Replies to one chunk are sent in one piece, up to this size."""
_FRAMES_PER_SLICE = 500
"""After so many that are looked at one by one others run."""


class Connection:
    """A connection to one peer. Its first v2 frame fixes the version of all that follow."""

    def __init__(
        self,
        transport: Transport,
        storage: BookieStorage,
        requests: Requests,
        counts: RequestCounts,
        pressure: Backpressure,
        *,
        frame_bytes_max: int,
    ) -> None:
        self._transport = transport
        self._storage = storage
        self._shards = storage.shards
        self._requests = requests
        self._read_scheduler = requests.read_scheduler
        self._counts = counts
        self._pressure = pressure
        buffer = ReceiveBuffer(frame_bytes_max, new_segment=storage.segments.take_segment)
        self._received = ReceivedSegments(buffer, storage.directories)
        self._is_v2 = False
        self._is_refusal_logged = False
        resume = partial(self._read_scheduler.resume, self)
        self._send_queue = box = SendQueue(
            transport, pressure, on_flushed=resume, on_broken=self.close
        )
        self._intake = AddIntake(storage, counts, box.send, self._may_take, requests.make_known)
        self._held = ThrottledAdds(pressure)
        self._settling: set[int] = set()
        """Lanes of which adds are held, each with a task that sees to them."""
        self._is_room_made = trio.Event()
        """Held adds were taken or refused, or a request was answered that waited for a disk."""
        self._waiting_reads = 0
        self._has_unread = False
        """Requests were left in the buffer, because too much waited already, or others did."""
        self._is_critical = False
        self._blocked: Blocked | None = None
        """What the next request in the buffer waits for."""
        self._replies: list[bytes] = []
        self._replies_bytes = 0
        self._is_taking = False
        self._is_closed = False
        self._nursery: trio.Nursery | None = None

    # ---- receiving

    async def run(self) -> None:
        """Serves until the peer leaves or breaks the protocol."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._send_queue.nursery = self._nursery
                try:
                    await self._receive()
                finally:
                    # Before the nursery closes: an answer that comes late must find it so.
                    self.close()
        except* (OSError, trio.ClosedResourceError):
            pass  # the peer is gone: nobody to tell
        except* LedgerError as errors:
            self._counts.protocol_errors += bool(errors.subgroup(ProtocolError))
            log_connection_closed(self._transport.peer, errors.exceptions[0])
        except* PROGRAMMING_ERRORS as errors:
            log_connection_closed(self._transport.peer, errors)

    async def _receive(self) -> None:
        transport, buffer = self._transport, self._received.buffer
        while True:
            if self._has_unread:
                await trio.lowlevel.checkpoint()
            else:
                await transport.wait_readable()
            await self._wait_turn()
            yield_to_threads()
            if self._has_unread:
                self._has_unread = False
                self._check_capacity()
                self._take_chunk(self._received)
                continue
            buffer.segment_bytes_max = self._pressure.segment_bytes_max
            space = buffer.space()
            if self._check_capacity():
                space = space[:_CAREFUL_BYTES_MAX]
            try:
                count = transport.recv_into(space)
            except BlockingIOError:
                continue
            if count == 0:
                return
            buffer.received(count)
            self._take_chunk(self._received)

    async def _wait_turn(self) -> None:
        """Returns when what this peer sends next has a place."""
        pressure, waits = self._pressure, self._counts.waits
        while not self._is_closed:  # all of them anew: each may change while another is waited for
            if self._held.nbytes >= THROTTLED_BYTES_MAX:
                await self._is_room_made.wait()  # counted when the first of them was held
            elif self._send_queue.is_full_with(0):
                waits[Wait.REPLIES] += 1
                await self._send_queue.wait_flushed()
            elif self._has_many_reads:
                waits[Wait.READS] += 1
                await self._is_room_made.wait()
            elif self._blocked is not None and pressure.must_wait(self._blocked):
                waits[Wait.JOURNAL] += 1
                await pressure.wait_less(self._blocked)
            else:
                self._blocked = None
                return

    @property
    def _has_many_reads(self) -> bool:
        waiting = self._waiting_reads
        return waiting >= _WAITING_READS_MAX or (waiting > 0 and self._read_scheduler.is_crowded)

    @property
    def _is_too_much_asked(self) -> bool:
        """Small requests may ask for large answers, and for many."""
        return self._has_many_reads or self._send_queue.is_full_with(self._replies_bytes)

    def _made_room(self) -> None:
        event, self._is_room_made = self._is_room_made, trio.Event()
        event.set()

    def _check_capacity(self) -> bool:
        """Whether adds must be asked for one by one."""
        is_careful = self._storage.capacity.is_limited or self._held.nbytes > 0
        self._is_critical = self._storage.capacity.is_critical
        self._intake.is_careful = is_careful or self._storage.gate.is_read_only
        self._intake.takes_new = not (self._intake.is_careful or self._is_critical)
        return is_careful

    def _take_chunk(self, received: ReceivedSegments) -> None:
        """What is whole in the buffer. No await: nothing else runs meanwhile."""
        self._counts.chunks += 1
        buffer, intake = received.buffer, self._intake
        is_held, taken = received is not self._received, 0
        self._is_taking = True
        try:
            while not self._is_closed:  # it may be found out by a reply
                taken += intake.take_many(received)
                at = buffer.start
                if buffer.end - at < 4:  # not even the length of a frame
                    break
                if not is_held and (taken >= _FRAMES_PER_SLICE or self._is_too_much_asked):
                    self._has_unread = True
                    break
                frame = buffer.next_frame()
                if frame is None:
                    break
                if not self._take_frame(received, frame, at):
                    buffer.start = at
                    self._has_unread = True
                    break
                taken += 1
        finally:
            self._is_taking = False
            if self._replies:
                self._send_replies()
            if self._is_closed:
                self._received.release()  # not before: places in it were still being kept

    def _take_frame(self, received: ReceivedSegments, frame: memoryview, at: int) -> bool:
        """False: not now, and nothing behind it either."""
        # What was held is in either version, as it was when it came.
        is_v3 = is_version_3(frame[0]) and (not self._is_v2 or received is not self._received)
        codec = v3 if is_v3 else v2
        header = 0
        try:
            if not is_v3:
                self._is_v2 = True
                header = _HEADER(frame)[0]
            request = codec.decode_request(frame)
        except RequestRefused as refused:
            if not self._is_refusal_logged:
                self._is_refusal_logged = True  # once per connection: a flood is not logged
                _log.warning("request refused peer=%s cause=%s", self._transport.peer, refused)
            self._replies.append(codec.encode_response(refused.response))
            return True
        body = request.body
        if self._is_critical and received is self._received:
            self._blocked = self._pressure.blocking(body)
            if self._blocked is not None:
                return False
        if isinstance(body, AddRequest):
            if self._intake.is_careful and self._must_hold(body):
                self._hold(body, received.buffer.view[at : at + 4 + len(frame)])
                return True
            if header >> 16 == v2.ADD_HEADER >> 16:
                self._intake.expect(header)
                self._take_one_add(received, at, 4 + len(frame), request, body)
                return True
        self._ask(request)
        return True

    def _take_one_add(
        self, received: ReceivedSegments, at: int, size: int, request: Request, body: AddRequest
    ) -> None:
        status = self._requests.check_add(body)
        if status is Status.OK:
            self._intake.take_one(received, at, size, body.ledger_id, body.entry_id)
        else:
            self._reply(request, error_reply(body, status))

    # ---- requests

    def _ask(self, request: Request) -> None:
        """Answers now, or when a disk has."""
        reply = partial(self._reply, request)
        if self._requests.answer_nowait(request, reply, self._is_gone, self):
            return
        if self._requests.submit(request, self, partial(self._answer, request)):
            self._waiting_reads += 1
        else:
            self._reply(request, error_reply(request.body, Status.TOO_MANY_REQUESTS))

    async def _answer(self, request: Request) -> None:
        """When it is its turn. Must not raise: others take turns with it."""
        reply = partial(self._reply, request)
        try:
            if self._is_closed:
                return
            if not self._requests.answer_nowait(request, reply, self._is_gone, self):
                await self._requests.answer(request, reply, self._is_gone, self)
        except (LedgerError, *PROGRAMMING_ERRORS) as error:
            self._fail(error)
        finally:
            self._waiting_reads -= 1
            self._made_room()

    def _is_gone(self) -> bool:
        return self._is_closed

    @property
    def takes_replies(self) -> bool:
        """For `DiskReads`: there is room for the reply to a request that waits."""
        return self._is_closed or not self._send_queue.is_full_with(0)

    # ---- adds without room

    def _may_take(self, shard_no: int) -> bool:
        """Whether ordinary adds of a shard go on; in a read-only bookie each is refused."""
        if self._storage.gate.is_read_only or self._held.has(shard_no):
            return False
        return self._pressure.cause(self._shards[shard_no]) is None

    def _must_hold(self, body: AddRequest) -> bool:
        """There is no room for it, but there may be soon."""
        if self._storage.gate.refuses(is_urgent=body.is_urgent):
            return False
        shard_no = body.ledger_id % len(self._shards)
        is_open = self._pressure.cause(self._shards[shard_no]) is None
        if is_open and not self._held.has(shard_no):
            return False
        return not (body.is_urgent and self._pressure.may_use_reserve(self._shards[shard_no]))

    def _hold(self, body: AddRequest, frame: memoryview) -> None:
        shard_no = body.ledger_id % len(self._shards)
        self._held.add(shard_no, frame, trio.current_time())
        if shard_no not in self._settling:
            self._settling.add(shard_no)
            assert self._nursery is not None
            self._counts.waits[self._pressure.cause(self._shards[shard_no]) or Wait.JOURNAL] += 1
            self._nursery.start_soon(self._settle_held, shard_no)

    async def _settle_held(self, shard_no: int) -> None:
        """Takes the throttled adds of a shard when there is capacity, or refuses them at last."""
        held, pressure, shard = self._held, self._pressure, self._shards[shard_no]
        while held.has(shard_no) and not self._is_closed:
            with trio.move_on_at(self._refuse_at(shard_no)) as waited:
                await pressure.wait_open(shard)
            if waited.cancelled_caught:
                await self._refuse(held.take(shard_no))
            elif held.has(shard_no):  # the peer may have left meanwhile
                self._take_held(shard_no)
            self._made_room()
        # No await since it was seen that nothing is held.
        self._settling.discard(shard_no)

    def _take_held(self, shard_no: int) -> None:
        since = self._held.since(shard_no)
        frames = self._held.take(shard_no)
        buffer = ReceiveBuffer.holding(frames, self._received.buffer.frame_bytes_max)
        received = ReceivedSegments(buffer, self._storage.directories)
        self._check_capacity()
        try:
            self._take_chunk(received)
        finally:
            received.release()
        self._held.again_since(shard_no, since)

    def _refuse_at(self, shard_no: int) -> float:
        pressure, shard = self._pressure, self._shards[shard_no]
        since = self._held.since(shard_no)
        cause = pressure.cause(shard)
        if cause is not None:
            since = min(since, pressure.closed_since(shard_no, shard, cause))
        return since + pressure.limits.add_wait_s_max

    async def _refuse(self, frames: bytearray) -> None:
        """Says of each add that is held that there was no room for it. None of them was taken."""
        buffer = ReceiveBuffer.holding(frames, self._received.buffer.frame_bytes_max)
        count = 0
        while (frame := buffer.next_frame()) is not None:
            request = (v3 if is_version_3(frame[0]) else v2).decode_request(frame)
            self._reply(request, error_reply(request.body, Status.TOO_MANY_REQUESTS))
            count += 1
            if count % _FRAMES_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()

    # ---- sending

    @property
    def send_queue_bytes(self) -> int:
        """Replies that wait for the peer to take them."""
        return self._send_queue.nbytes

    def _reply(self, request: Request, body: ResponseBody) -> None:
        self._counts.replied(request, body)
        codec = v3 if request.version == 3 else v2
        try:
            data = codec.encode_response(Response(request.version, request.txn_id, body))
        except (
            LedgerError,
            *PROGRAMMING_ERRORS,
        ) as error:  # journals and whoever moves a LAC call this
            self._fail(error)
            return
        self._replies.append(data)
        self._replies_bytes += len(data)
        if not self._is_taking or self._replies_bytes > _JOINED_REPLIES_BYTES_MAX:
            self._send_replies()

    def _send_replies(self) -> None:
        replies, self._replies = self._replies, []
        self._replies_bytes = 0
        self._send_queue.send(replies[0] if len(replies) == 1 else b"".join(replies))

    def _fail(self, cause: Exception) -> None:
        log_connection_closed(self._transport.peer, cause)
        self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.close()
        self._send_queue.close()
        self._held.clear()
        self._read_scheduler.drop(self)
        self._made_room()
        if not self._is_taking:
            self._received.release()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
