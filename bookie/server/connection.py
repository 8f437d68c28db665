"""Serves one connection of a bookie: receives chunks, carries out their requests, sends replies.

There is one task per connection and none per request. Adds go from the receive buffer to write
cache and journal (`bookie.server.add_intake`). Other requests are answered inside the receive loop
if memory suffices; if a disk must be read, they take turns with those of all other connections
(`bookie.server.read_scheduler`). While there is no capacity for adds, a few are throttled, and all
other requests continue. A peer that breaks the protocol must never affect another one.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import replace
from functools import partial

import trio

from bookie.core.operations import ADD, operation_of
from bookie.core.peers import Peer, Peers
from bookie.core.sessions import Proof
from bookie.server.access import (
    Access,
    AccessControl,
    AdmittedLedgers,
    ConnectionAccess,
    bodies_ahead,
)
from bookie.server.add_intake import AddIntake, ReceivedSegments
from bookie.server.audit import ConnectionAudit
from bookie.server.backpressure import Backpressure, Blocked
from bookie.server.error_replies import error_reply
from bookie.server.identity import Identity
from bookie.server.internal_errors import REQUEST_ERRORS, log_connection_closed
from bookie.server.key_check import Contact
from bookie.server.peer_watch import PeerWatch
from bookie.server.receive_memory import ReceiveMemory, ReceiveMemoryShort
from bookie.server.request_metrics import RequestCounts, Wait
from bookie.server.requests import Requests
from bookie.server.send_queue import SendQueue
from bookie.server.throttled_adds import THROTTLED_BYTES_MAX, ThrottledAdds
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.yielding import yield_to_threads
from ledger.errors import (
    LedgerError,
    ProtocolError,
    Status,
)
from ledger.runtime.logs import OF_PEER
from ledger.runtime.network import Transport
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer, is_version_3
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadResponse,
    ListEntriesResponse,
    ReadLacResponse,
    ReadResponse,
    Request,
    RequestBody,
    RequestRefused,
    Response,
    ResponseBody,
    StartTlsRequest,
)

_log = logging.getLogger(__name__)

_HEADER = struct.Struct(">I").unpack_from

_WAITING_READS_MAX = 1000
"""Requests of one connection that may wait for a disk at the same time."""
_CAREFUL_BYTES_MAX = 64 * 1024
"""Bytes received in one call while capacity for adds is short."""
_JOINED_REPLIES_BYTES_MAX = 256 * 1024
"""Replies to one chunk are sent in one piece, up to this size."""
_WITH_DATA = (ReadResponse, BatchReadResponse, ReadLacResponse, ListEntriesResponse)
"""Responses that are checked again when they were deferred: a right may be gone by then."""
_FRAMES_PER_SLICE = 500
"""After this number of frames that are examined one by one, other tasks run."""
_KEPT_BYTES_MAX = 64 << 20
"""Bytes of adds of all connections that wait for capacity or for a disk; while it is exceeded,
further ones that need a disk are refused."""

_STATUS_OF_ACCESS = {
    Access.REFUSED: Status.UNAUTHORIZED,
    # Of an add that was throttled, or a reply that was deferred, before it became unknown again.
    Access.UNRESOLVED: Status.TOO_MANY_REQUESTS,
    Access.UNAVAILABLE: Status.TOO_MANY_REQUESTS,
}


class Connection:
    """A connection to one peer. Its first v2 frame fixes the version of all that follow."""

    def __init__(
        self,
        transport: Transport,
        storage: BookieStorage,
        requests: Requests,
        counts: RequestCounts,
        pressure: Backpressure,
        peer: Peer,
        peers: Peers,
        watch: PeerWatch,
        *,
        frame_bytes_max: int,
        identity: Identity,
        access: AccessControl | None = None,
        audit: ConnectionAudit | None = None,
    ) -> None:
        """`peer` is this connection in `peers`, over which `watch` watches. `access`: what users
        may do; None: everything. `audit`: where it is recorded what they do."""
        self._audit = audit
        self._admitted = admitted = AdmittedLedgers(storage) if access or audit else None
        self._access = ConnectionAccess(access, admitted) if access and admitted else None
        self._unresolved: int | None = None  # the ledger whose namespace must be known first
        self._transport = transport
        self._identity = identity
        self.peer = peer
        self._peers, self._watch = peers, watch
        self._storage, self._shards = storage, storage.shards
        self._requests, self._read_scheduler = requests, requests.read_scheduler
        self._counts, self._pressure = counts, pressure
        self._memory = ReceiveMemory(
            storage.segments, pressure, peer, frame_bytes_max=frame_bytes_max
        )
        self._received = ReceivedSegments(self._memory.buffer, storage.directories)
        self._is_v2 = self._has_adds = False
        self._is_refusal_logged = self._is_denial_logged = False
        resume = partial(self._read_scheduler.resume, self)
        self._send_queue = box = SendQueue(
            transport, pressure, peer, on_flushed=resume, on_broken=self.close
        )
        states, make_known = None if admitted is None else admitted.states, self._make_known
        self._intake = AddIntake(storage, counts, box.send, self._may_take, make_known, states)
        self._throttled = ThrottledAdds(pressure)
        self._releasing: set[int] = set()
        """Shards whose adds are throttled, each with a task that takes or refuses them."""
        self._progress = trio.Event()
        """Set when throttled adds were taken or refused, or a read from a disk was answered."""
        self._waiting_reads = self._kept_bytes = self._replies_bytes = 0
        """Reads from disks, and bytes of adds that are to be compared with entries on one."""
        self._has_unread = False
        """Requests were left in the buffer: too many waited already, or other tasks must run."""
        self._is_critical = self._is_taking = self._is_closed = False
        self._blocked: Blocked | None = None
        """What the next request in the buffer waits for."""
        self._unproven: Contact | None = None  # whose key must be proven first
        self._proof: tuple[Contact | None, Status] = None, Status.OK  # what was found out
        self._replies: list[bytes] = []
        self._nursery: trio.Nursery | None = None
        self._receiving = trio.CancelScope()
        self._all_durable: trio.Event | None = None
        """Set while the bookie stops, see `drain`."""

    @property
    def principal(self) -> str:
        """The user whose requests these are."""
        return self._identity.user

    @property
    def proof(self) -> Proof | None:
        """What the user proved itself by; None: nothing, or the connection is ending."""
        return self._identity.proof if self._all_durable is None else None

    # ---- receiving

    async def run(self) -> None:
        """Serves until the peer leaves or breaks the protocol."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._send_queue.nursery = self._nursery
                try:
                    with self._receiving:
                        await self._receive()
                    if self._receiving.cancelled_caught:
                        await self._answer_and_leave()
                finally:
                    # Before the nursery closes: a deferred reply must find the connection closed.
                    self.close()
        except* (OSError, trio.ClosedResourceError):
            pass  # the peer has disconnected, so no reply can be sent
        except* LedgerError as errors:
            self._counts.protocol_errors += bool(errors.subgroup(ProtocolError))
            log_connection_closed(self._transport.peer, errors.exceptions[0])
        except* REQUEST_ERRORS as errors:
            log_connection_closed(self._transport.peer, errors)

    def drain(self, all_durable: trio.Event) -> None:
        """Takes no more requests, and ends once those that were taken are answered. `all_durable`
        is set when everything in the journals is on disk, so that their adds are acknowledged."""
        self._all_durable = all_durable
        self._receiving.cancel()

    @property
    def name(self) -> str:
        """Address of the peer, for the log."""
        return self._transport.peer

    @property
    def is_idle_writer(self) -> bool:
        """Whether adds came over this connection, and nothing that was received is unanswered, but
        for adds that are not durable yet and tailing reads."""
        buffer = self._received.buffer
        is_busy = self._throttled.nbytes or self._waiting_reads or self._send_queue.nbytes
        return self._has_adds and not is_busy and buffer.start == buffer.end

    async def _answer_and_leave(self) -> None:
        assert self._all_durable is not None
        await self._all_durable.wait()
        while self._waiting_reads and not self._is_closed:
            await self._progress.wait()
        await self._send_queue.wait_flushed()
        # With unread bytes a plain close would be a reset, which may drop replies in flight.
        self._transport.end_sending()
        discarded = memoryview(bytearray(_CAREFUL_BYTES_MAX))
        while True:
            await self._transport.wait_readable()
            try:
                if not self._transport.recv_into(discarded):
                    return
            except BlockingIOError:
                continue

    async def _receive(self) -> None:
        transport, buffer, peer = self._transport, self._received.buffer, self.peer
        while True:
            if self._identity.auth_request is not None:
                await self._identity.authenticate(self._reply)
            if self._has_unread:
                await trio.lowlevel.checkpoint()
            else:
                peer.is_reading = True
                await transport.wait_readable()
                peer.is_reading = False
            await self._wait_capacity()
            yield_to_threads()
            if self._identity.starts_tls:
                transport = await self._start_tls()
                continue
            if self._has_unread:
                self._has_unread = False
                self._check_capacity()
            else:
                buffer.segment_bytes_max = self._pressure.segment_bytes_max
                try:
                    space = buffer.space()
                except ReceiveMemoryShort:
                    self._counts.waits[Wait.FRAMES] += 1
                    peer.is_short = True
                    await self._pressure.wait_receive_freed()
                    peer.is_short = False
                    continue
                if self._check_capacity():
                    space = space[:_CAREFUL_BYTES_MAX]
                try:
                    count = transport.recv_into(space)
                except BlockingIOError:
                    continue
                if count == 0:
                    return
                buffer.received(count)
                peer.received_bytes += count
                peer.received_at = trio.current_time()
            self._take_chunk(self._received)
            unfinished = buffer.end - buffer.start
            peer.consumed_bytes = peer.received_bytes - unfinished
            peer.has_unfinished = unfinished > 0 and not self._has_unread
            if peer.has_unfinished and self._watch.is_asleep:
                self._watch.wake()

    def give_back(self) -> None:
        """Frees the receive buffer if nothing is in it, while memory is short."""
        buffer = self._received.buffer
        if self.peer.is_reading and buffer.start == buffer.end:
            self._received.release()
            self._memory.drop()

    async def _start_tls(self) -> Transport:
        """Encrypts the connection; returns its transport from now on. Raises RemoteProtocolError if
        the peer sent requests in clear behind START_TLS."""
        await self._send_queue.wait_flushed()
        buffer = self._received.buffer
        behind = bytes(buffer.view[buffer.start : buffer.end])
        buffer.start = buffer.end
        encrypted, early = await self._identity.start_tls(self._transport, behind)
        self._transport = encrypted
        self._send_queue.use(encrypted)
        self._has_unread = False
        if early is not None and self._identity.admit(early, encrypted, self._reply):
            self._dispatch(early)
        return encrypted

    async def _wait_capacity(self) -> None:
        """Returns when there is capacity for the next requests of this peer."""
        pressure, waits = self._pressure, self._counts.waits
        while not self._is_closed:  # checks all again: each may change during a wait for another
            if self._throttled.nbytes >= THROTTLED_BYTES_MAX:
                await self._progress.wait()  # counted when the first of them was throttled
            elif self._send_queue.is_full_with(0):
                waits[Wait.REPLIES] += 1
                await self._send_queue.wait_flushed()
            elif self._has_many_reads:
                waits[Wait.READS] += 1
                await self._progress.wait()
            elif self._unproven is not None:
                contact, self._unproven = self._unproven, None
                self._proof = contact, await self._requests.key_check.prove(contact)
            elif self._blocked is not None and pressure.must_wait(self._blocked):
                waits[Wait.JOURNAL] += 1
                await pressure.wait_less(self._blocked)
            elif self._unresolved is not None and self._access is not None:
                ledger_id, self._unresolved = self._unresolved, None
                ahead = bodies_ahead(self._received.buffer, is_v2=self._is_v2)
                await self._access.resolve(self._identity.user, ledger_id, ahead)
            else:
                self._blocked = None
                return

    @property
    def _has_many_reads(self) -> bool:
        waiting = self._waiting_reads
        is_many = waiting >= _WAITING_READS_MAX or self._kept_bytes >= THROTTLED_BYTES_MAX
        return is_many or (waiting > 0 and self._read_scheduler.is_crowded)

    @property
    def _is_overloaded(self) -> bool:
        """Whether the requests of this chunk have caused as many replies as the peer may have."""
        return self._has_many_reads or self._send_queue.is_full_with(self._replies_bytes)

    def _made_progress(self) -> None:
        event, self._progress = self._progress, trio.Event()
        event.set()

    def _check_capacity(self) -> bool:
        """Updates the flags of the intake; returns whether adds must be checked one by one."""
        is_careful = self._storage.capacity.is_limited or self._throttled.nbytes > 0
        self._is_critical = self._storage.capacity.is_critical
        self._intake.is_careful = is_careful or self._storage.gate.is_read_only
        self._intake.takes_new = not (self._intake.is_careful or self._is_critical)
        return is_careful

    def _take_chunk(self, received: ReceivedSegments, *, is_replay: bool = False) -> None:
        """Carries out the requests whose frames are complete in the buffer. There is no await, so
        no other task runs meanwhile. `is_replay`: they are throttled adds, taken again."""
        self._counts.chunks += 1
        buffer, intake = received.buffer, self._intake
        taken = 0
        if self._access is not None:
            self._access.refresh(self._identity.user)
        self._is_taking = True
        try:
            # Sending a reply may close it.
            while not (self._is_closed or self._identity.is_pending):
                taken += intake.take_many(received)
                at = buffer.start
                if buffer.end - at < 4:  # not even the length of a frame
                    break
                if not is_replay and (taken >= _FRAMES_PER_SLICE or self._is_overloaded):
                    self._has_unread = True
                    break
                frame = buffer.next_frame()
                if frame is None:
                    break
                if not self._take_frame(received, frame, at, is_replay=is_replay):
                    buffer.start = at
                    self._has_unread = True
                    break
                taken += 1
        finally:
            self._is_taking = False
            if self._replies:
                self._send_replies()
            self._intake.commit()
            if self._is_closed:
                self._drop_received()  # not earlier: frames in it were still being stored

    def _take_frame(
        self, received: ReceivedSegments, frame: memoryview, at: int, *, is_replay: bool
    ) -> bool:
        """Carries out one request; returns False if it must wait, and all behind it with it."""
        # Throttled frames keep the version in which they were received.
        is_v3 = is_version_3(frame[0]) and (is_replay or not self._is_v2)
        codec = v3 if is_v3 else v2
        header = 0
        try:
            if not is_v3:
                self._is_v2 = True
                header = _HEADER(frame)[0]
            request = codec.decode_request(frame)
        except RequestRefused as refused:
            self._log_refusal(refused)
            self._replies.append(codec.encode_response(refused.response))
            return True
        body = request.body
        is_settled = self._identity.is_settled and not isinstance(body, AuthRequest)
        if not (is_replay or is_settled) and not self._identity.admit(
            request, self._transport, self._reply
        ):
            self._has_unread = self._has_unread or self._identity.is_pending
            return True
        if self._access is not None:
            verdict = self._access.check(self._identity.user, body)
            if verdict is not Access.ALLOWED:
                return self._withhold(request, verdict, is_replay=is_replay)
        if self._audit is not None and not isinstance(body, AuthRequest | StartTlsRequest):
            ledger_id: int | None = getattr(body, "ledger_id", None)
            self._audit.used(self._identity.user, operation_of(body), ledger_id)
        if not self.peer.is_proven and not isinstance(body, AuthRequest | StartTlsRequest):
            self._peers.prove(self.peer)
        contact = None if is_replay else self._requests.key_check.unproven(body)
        if contact is not None:
            return self._refuse_key(request, contact)
        if self._is_critical and not is_replay:
            self._blocked = self._pressure.blocking(body)
            if self._blocked is not None:
                return False
        if isinstance(body, AddRequest):
            self._has_adds = True  # the first one over v2 is never taken by the hot loop
            if self._intake.is_careful and self._must_throttle(body):
                self._throttle(body, received.buffer.view[at : at + 4 + len(frame)])
                return True
            if header >> 16 == v2.ADD_HEADER >> 16:
                self._intake.expect(header)
                self._take_one_add(received, at, 4 + len(frame), request, body)
                return True
        self._dispatch(request)
        return True

    def _refuse_key(self, request: Request, contact: Contact) -> bool:
        """Refuses a request whose key was found not to be the ledger's; returns False if that must
        be found out first (`KeyCheck`)."""
        asked, status = self._proof
        self._proof = None, Status.OK
        if asked != contact or status is Status.OK:
            self._unproven = contact
            return False
        self._reply(request, error_reply(request.body, status))
        return True

    def _take_one_add(
        self, received: ReceivedSegments, at: int, size: int, request: Request, body: AddRequest
    ) -> None:
        status = self._requests.check_add(body)
        if status is not Status.OK:
            self._reply(request, error_reply(body, status))
        elif self._requests.is_new(body):
            self._intake.take_one(received, at, size, body.ledger_id, body.entry_id)
            if self._admitted is not None:
                self._admitted.admit(body.ledger_id)
        else:
            self._dispatch(request)

    def _log_refusal(self, cause: LedgerError) -> None:
        if not self._is_refusal_logged:
            self._is_refusal_logged = True  # once per connection, not for each of a flood
            peer = self._transport.peer
            _log.warning("request refused peer=%s cause=%s", peer, cause, extra=OF_PEER)

    # ---- audit

    def _audit_refusal(self, body: RequestBody) -> None:
        """Records that a request was refused; AUTH is recorded where it is looked at."""
        if self._audit is not None and not isinstance(body, AuthRequest):
            identity = self._identity
            self._audit.refused(identity.user, body, identity.why_refused or None)

    # ---- permissions

    def _make_known(self, ledger_id: int, entry_id: int, key: bytes) -> bool:
        """`Requests.make_known`, for a ledger to which this peer may add."""
        access, admitted = self._access, self._admitted
        if access is not None and not access.check_add(self._identity.user, ledger_id, key):
            return False
        if not self._requests.make_known(ledger_id, entry_id, key):
            return False
        if admitted is not None:
            admitted.admit(ledger_id)
        if self._audit is not None:
            self._audit.used(self._identity.user, ADD, ledger_id)
        return True

    def _withhold(self, request: Request, verdict: Access, *, is_replay: bool) -> bool:
        """Refuses a request that is not allowed; returns False if it must wait, and all behind it
        with it, until the namespace of its ledger is known."""
        body = request.body
        ledger_id: int | None = getattr(body, "ledger_id", None)
        if verdict is Access.UNRESOLVED and not is_replay:
            self._unresolved = ledger_id
            return False
        if verdict is Access.REFUSED and not self._is_denial_logged:
            self._is_denial_logged = True  # once per connection, not for each of a flood
            _log.warning(
                "permission denied peer=%s user=%r operation=%r ledger=%s",
                self._transport.peer,
                self._identity.user,
                operation_of(body).name,
                ledger_id,
                extra=OF_PEER,
            )
        self._reply(request, error_reply(body, _STATUS_OF_ACCESS[verdict]))
        return True

    def _recheck(self, request: Request, body: ResponseBody) -> ResponseBody:
        """Returns a deferred response, or the refusal if the peer lost its right meanwhile."""
        assert self._access is not None
        verdict = self._access.check(self._identity.user, request.body)
        if verdict is Access.ALLOWED:
            return body
        return error_reply(request.body, _STATUS_OF_ACCESS[verdict])

    # ---- requests

    def _dispatch(self, request: Request) -> None:
        """Answers a request now, or when a disk was read."""
        reply = partial(self._reply, request)
        if self._requests.answer_nowait(request, reply, self._is_gone, self):
            return
        body = request.body
        if isinstance(body, AddRequest):  # the receive buffer is used for other frames meanwhile
            request = replace(request, body=replace(body, body=bytes(body.body)))
        nbytes = _bytes_kept(request)
        is_over = nbytes > 0 and self._pressure.held_bytes >= _KEPT_BYTES_MAX
        if not is_over and self._requests.submit(request, self, partial(self._answer, request)):
            self._waiting_reads += 1
            self._keep(nbytes)
        else:
            self._reply(request, error_reply(request.body, Status.TOO_MANY_REQUESTS))

    def _keep(self, nbytes: int) -> None:
        self._kept_bytes += nbytes
        self._pressure.held_bytes += nbytes

    async def _answer(self, request: Request) -> None:
        """Answers a request when it is its turn. Must not raise: the task runs other jobs, too."""
        reply = partial(self._reply, request)
        try:
            if self._is_closed:
                return
            if not self._requests.answer_nowait(request, reply, self._is_gone, self):
                await self._requests.answer(request, reply, self._is_gone, self)
        except (LedgerError, *REQUEST_ERRORS) as error:
            self._fail(error)
        finally:
            self._waiting_reads -= 1
            if not self._is_closed:
                self._keep(-_bytes_kept(request))
            self._made_progress()

    def _is_gone(self) -> bool:
        return self._is_closed

    @property
    def takes_replies(self) -> bool:
        """Whether the send queue has capacity for replies to requests that wait for a disk."""
        return self._is_closed or not self._send_queue.is_full_with(0)

    def takes_beside(self, nbytes: int) -> bool:
        """Whether it has capacity beside replies of `nbytes`, which are being read."""
        return self._is_closed or not self._send_queue.is_full_with(nbytes)

    # ---- throttled adds

    def _may_take(self, shard_no: int) -> bool:
        """Returns whether ordinary adds of a shard are taken; a read-only bookie refuses each."""
        if self._storage.gate.is_read_only or self._throttled.has(shard_no):
            return False
        return self._pressure.cause(self._shards[shard_no]) is None

    def _must_throttle(self, body: AddRequest) -> bool:
        """Returns whether the add must wait, because there is no capacity now."""
        if self._storage.gate.refuses(is_urgent=body.is_urgent):
            return False
        shard_no = self._storage.shard_of(body.ledger_id)
        is_open = self._pressure.cause(self._shards[shard_no]) is None
        if is_open and not self._throttled.has(shard_no):
            return False
        return not (body.is_urgent and self._pressure.may_use_reserve(self._shards[shard_no]))

    def _throttle(self, body: AddRequest, frame: memoryview) -> None:
        shard_no = self._storage.shard_of(body.ledger_id)
        self._throttled.add(shard_no, frame, trio.current_time())
        if shard_no not in self._releasing:
            self._releasing.add(shard_no)
            assert self._nursery is not None
            self._counts.waits[self._pressure.cause(self._shards[shard_no]) or Wait.JOURNAL] += 1
            self._nursery.start_soon(self._release_throttled, shard_no)

    async def _release_throttled(self, shard_no: int) -> None:
        """Takes the throttled adds of a shard when there is capacity, or refuses them in time."""
        throttled, pressure, shard = self._throttled, self._pressure, self._shards[shard_no]
        while throttled.has(shard_no) and not self._is_closed:
            with trio.move_on_at(self._refuse_at(shard_no)) as waited:
                await pressure.wait_open(shard)
            if waited.cancelled_caught:
                await self._refuse(throttled.take(shard_no))
            elif throttled.has(shard_no):  # the peer may have left meanwhile
                self._take_throttled(shard_no)
            self._made_progress()
        # There was no await since the check that nothing is throttled.
        self._releasing.discard(shard_no)

    def _take_throttled(self, shard_no: int) -> None:
        since = self._throttled.since(shard_no)
        frames = self._throttled.take(shard_no)
        buffer = ReceiveBuffer.holding(frames, self._received.buffer.frame_bytes_max)
        received = ReceivedSegments(buffer, self._storage.directories)
        self._check_capacity()
        try:
            self._take_chunk(received, is_replay=True)
        finally:
            received.release()
        self._throttled.restore_since(shard_no, since)

    def _refuse_at(self, shard_no: int) -> float:
        pressure, shard = self._pressure, self._shards[shard_no]
        since = self._throttled.since(shard_no)
        cause = pressure.cause(shard)
        if cause is not None:
            since = min(since, pressure.closed_since(shard_no, shard, cause))
        return since + pressure.limits.add_wait_s_max

    async def _refuse(self, frames: bytearray) -> None:
        """Refuses throttled adds, none of which was stored, with "too many requests"."""
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
        """Bytes of replies that the peer has not taken yet."""
        return self._send_queue.nbytes

    def _reply(self, request: Request, body: ResponseBody) -> None:
        if self._access is not None and not self._is_taking and isinstance(body, _WITH_DATA):
            body = self._recheck(request, body)
        self._counts.replied(request, body)
        if body.status is Status.UNAUTHORIZED:
            self._audit_refusal(request.body)
        codec = v3 if request.version == 3 else v2
        try:
            data = codec.encode_response(Response(request.version, request.txn_id, body))
        except (LedgerError, *REQUEST_ERRORS) as error:
            self._fail(error)  # never raised: a journal or a request that moves a LAC is the caller
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

    def _drop_received(self) -> None:
        # At once: this object is part of cycles, which the collector finds seldom.
        self._received.release()
        self._memory.drop()

    def forget(self) -> None:
        """Ends the cycles of references, once nothing runs any more: the collector finds those that
        have become old very seldom, and a peer may connect again and again."""
        self._nursery = None
        self._send_queue.forget()
        self._intake.forget()
        self._memory.buffer.new_segment = None

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.close()
        self._send_queue.close()
        self._throttled.clear()
        self._keep(-self._kept_bytes)
        self._read_scheduler.drop(self)
        self._made_progress()
        if not self._is_taking:
            self._drop_received()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()


def _bytes_kept(request: Request) -> int:
    return len(request.body.body) if isinstance(request.body, AddRequest) else 0
