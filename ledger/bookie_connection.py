"""One connection to one bookie: outbox, matching of answers to calls, dispatch of acks.

Sends whatever has gathered in one piece; takes a whole chunk of answers at a time. Adds go
through `send_adds` and come back to an `AckSink` as runs of entries; everything else is a
`call`: one request, one answer. Nothing is retried here: whoever asked decides.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from ledger.calls import Calls, OnAnswer
from ledger.errors import (
    BookieUnavailable,
    LedgerError,
    OperationTimeout,
    Status,
)
from ledger.runtime.network import Network, Transport
from ledger.wire import v2
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import RequestBody, ResponseBody

_ACK = v2.ADD_REPLY
_ACK_BYTES = _ACK.size
_RANGE_ACK_BYTES = v2.RANGE_ACK.size
_ACK_HEADER = v2.ADD_HEADER
_RANGE_ACK_HEADER = v2.RANGE_ACK_HEADER
_LENGTH_AND_HEADER = struct.Struct(">iI").unpack_from
_RC_AND_RANGE = struct.Struct(">iqqq").unpack_from
_RC_AND_ENTRY = struct.Struct(">iqq").unpack_from

_JOINED_PIECE_BYTES_MAX = 16 * 1024
_JOINED_BYTES_MAX = 128 * 1024
_POSTED_CALLS_MAX = 10_000

Resolve = Callable[[str], Awaitable[tuple[str, int]]]
"""Host and port of a bookie id."""


class AckSink(Protocol):
    """A ledger being written, as its connections see it. All calls are synchronous."""

    @property
    def bytes_pending(self) -> int:
        """Bytes this writer holds unconfirmed, within its own window."""
        ...

    def acked(self, bookie: str, first: int, last: int) -> None:
        """`bookie` has first..last on disk. `settle` follows at the end of the chunk."""
        ...

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        """`bookie` answered an add with an error."""
        ...

    def lost(self, bookie: str, error: LedgerError) -> None:
        """The connection ended: whatever is not acknowledged may or may not be stored."""
        ...

    def settle(self) -> None:
        """The chunk of acks is over."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    sends: int
    receives: int
    bytes_sent: int
    bytes_received: int
    outbox_bytes: int
    calls_waiting: int


class BookieConnection:
    """Lives from `run` until the first failure or `close`; never reused after that.

    Args:
        bookie: id, for messages.
        version: 2 or 3.
        outbox_bytes_max: more waiting bytes than this mean the bookie cannot keep up; the
            connection is given up, so that a slow bookie never costs unbounded memory.
    """

    def __init__(self, bookie: str, version: int, *, outbox_bytes_max: int) -> None:
        self.bookie = bookie
        self.version = version
        self.outbox_bytes_max = outbox_bytes_max
        self.sinks: dict[int, AckSink] = {}
        self.error: LedgerError | None = None
        self._transport: Transport | None = None
        self._outbox: deque[bytes | memoryview] = deque()
        self._outbox_bytes = 0
        self._sender: trio.lowlevel.Task | None = None
        self._calls = Calls(version)
        self._settled = trio.Event()
        self._scope = trio.CancelScope()
        self._sends = self._receives = self._bytes_sent = self._bytes_received = 0

    async def wait_connected(self) -> None:
        """Returns once requests can be sent; raises BookieUnavailable if that failed."""
        await self._settled.wait()
        if self.error is not None:
            raise BookieUnavailable(str(self.error))

    # ---- sending

    def send_adds(self, frames: bytes) -> None:
        """Queues whole ADD frames; the answers go to `sinks[ledger id]`."""
        self._send(frames)

    def _send(self, data: bytes) -> None:
        if self.error is not None:
            return  # the sinks were told, calls were failed
        if self._transport is not None and not self._outbox:
            try:
                sent = self._transport.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._fail(BookieUnavailable(f"connection to bookie {self.bookie} broke: {error}"))
                return
            self._sends += 1
            self._bytes_sent += sent
            if sent == len(data):
                return
            self._outbox.append(memoryview(data)[sent:])
            self._outbox_bytes += len(data) - sent
        else:
            self._outbox.append(data)
            self._outbox_bytes += len(data)
        if self._outbox_bytes > self.outbox_bytes_max and self._outbox_bytes > (
            # What writers hold unconfirmed is bounded by their windows, and no excess.
            self.outbox_bytes_max + sum(sink.bytes_pending for sink in self.sinks.values())
        ):
            self._fail(
                BookieUnavailable(
                    f"bookie {self.bookie} does not keep up: {self._outbox_bytes} bytes wait to "
                    f"be sent, allowed are {self.outbox_bytes_max}"
                )
            )
            return
        if self._sender is not None:
            task, self._sender = self._sender, None
            trio.lowlevel.reschedule(task)

    async def _run_sender(self, transport: Transport) -> None:
        outbox = self._outbox
        while True:
            if not outbox:
                self._sender = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_sender)
                continue
            await transport.wait_writable()
            while outbox:
                if len(outbox) > 1 and len(outbox[0]) < _JOINED_PIECE_BYTES_MAX:
                    self._join_outbox()
                data = outbox[0]
                try:
                    sent = transport.send(data)
                except BlockingIOError:
                    break
                self._sends += 1
                self._bytes_sent += sent
                self._outbox_bytes -= sent
                if sent < len(data):
                    outbox[0] = memoryview(data)[sent:]
                    break
                outbox.popleft()

    def _stop_sender(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._sender = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _join_outbox(self) -> None:
        """Small pieces at the front become one; large ones are never copied again."""
        pieces: list[bytes | memoryview] = []
        size = 0
        outbox = self._outbox
        while outbox and len(outbox[0]) < _JOINED_PIECE_BYTES_MAX and size < _JOINED_BYTES_MAX:
            pieces.append(outbox.popleft())
            size += len(pieces[-1])
        outbox.appendleft(b"".join(pieces))

    # ---- calls

    async def call(self, body: RequestBody, timeout_s: float) -> ResponseBody:
        """Sends one request and waits for its answer.

        Raises BookieUnavailable if the connection is or gets lost, OperationTimeout after
        `timeout_s` seconds: then the request may or may not have been carried out.
        """
        if self.error is not None:
            raise BookieUnavailable(str(self.error))
        call, data = self._calls.begin(body)
        self._send(data)
        if self.error is not None:
            raise BookieUnavailable(str(self.error))
        received = self._bytes_received
        with trio.move_on_after(timeout_s):
            return await self._calls.wait(call)
        if self._bytes_received == received:
            # Not a byte in all that time: the peer is gone and nobody told us.
            self.close(BookieUnavailable(f"bookie {self.bookie} is silent for {timeout_s:g} s"))
        raise OperationTimeout(
            f"no answer from bookie {self.bookie} to {type(body).__name__} in {timeout_s:g} s; "
            "outcome unknown"
        )

    def post(self, body: RequestBody, on_answer: OnAnswer) -> None:
        """Sends one request; no task waits, `on_answer` gets the answer, or None."""
        if self.error is not None or self._calls.waiting >= _POSTED_CALLS_MAX:
            on_answer(None)
            return
        call, data = self._calls.begin(body)
        call.on_answer = on_answer
        self._send(data)

    # ---- receiving

    async def run(self, network: Network, resolve: Resolve, connect_timeout_s: float) -> None:
        """Connects and serves until the connection fails or `close`. Never raises for what
        the network or the peer did: callers and sinks are told instead."""
        try:
            with self._scope:
                with trio.fail_after(connect_timeout_s):
                    host, port = await resolve(self.bookie)
                    transport = await network.connect(host, port)
                try:
                    await self._serve(transport)
                finally:
                    transport.close()
        except trio.TooSlowError:
            self._fail(
                BookieUnavailable(
                    f"no connection to bookie {self.bookie} in {connect_timeout_s:g} s"
                )
            )
        except LedgerError as error:
            self._fail(error)
        except (OSError, trio.ClosedResourceError) as error:
            self._fail(BookieUnavailable(f"connection to bookie {self.bookie} broke: {error}"))
        finally:
            self._transport = None
            self._fail(BookieUnavailable(f"connection to bookie {self.bookie} was closed"))

    async def _serve(self, transport: Transport) -> None:
        self._transport = transport
        self._settled.set()
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                nonlocal failure
                try:
                    await self._run_sender(transport)
                except (OSError, trio.ClosedResourceError) as error:
                    failure = error
                    nursery.cancel_scope.cancel()

            nursery.start_soon(send)
            try:
                await self._receive(transport)
            except (OSError, trio.ClosedResourceError, LedgerError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _receive(self, transport: Transport) -> None:
        buffer = ReceiveBuffer()
        take = self._take_calls if self.version == 3 else self._take_v2
        while True:
            await transport.wait_readable()
            try:
                count = transport.recv_into(buffer.space())
            except BlockingIOError:
                continue
            if count == 0:
                raise BookieUnavailable(f"bookie {self.bookie} closed the connection")
            self._receives += 1
            self._bytes_received += count
            buffer.received(count)
            take(buffer)

    def _take_calls(self, buffer: ReceiveBuffer) -> None:
        while (frame := buffer.next_frame()) is not None:
            self._calls.deliver(frame)

    def _take_v2(self, buffer: ReceiveBuffer) -> None:
        """Acks of adds as runs, straight from the buffer; everything else by `_deliver`."""
        touched: dict[int, AckSink] = {}
        segment = buffer.segment
        while True:
            start, end = buffer.start, buffer.end
            if end - start < 8:
                break
            length, header = _LENGTH_AND_HEADER(segment, start)
            if header == _RANGE_ACK_HEADER and length == 32:
                if end - start < _RANGE_ACK_BYTES:
                    break
                rc, ledger_id, first, last = _RC_AND_RANGE(segment, start + 8)
                buffer.start = start + _RANGE_ACK_BYTES
                self._acked(touched, rc, ledger_id, first, last)
                continue
            if header == _ACK_HEADER and length == 24:
                if end - start < _ACK_BYTES:
                    break
                if not self._calls.waiting:
                    buffer.start = self._take_single_acks(touched, segment, start, end)
                    continue
                rc, ledger_id, entry_id = _RC_AND_ENTRY(segment, start + 8)
                if not self._calls.is_add(ledger_id, entry_id):
                    buffer.start = start + _ACK_BYTES
                    self._acked(touched, rc, ledger_id, entry_id, entry_id)
                    continue
            frame = buffer.next_frame()
            if frame is None:
                break
            # The caller looks at the answer later, when the buffer is being filled again; a
            # copy is cheaper than a new buffer.
            self._calls.deliver(memoryview(bytes(frame)))
        for sink in touched.values():
            sink.settle()

    def _take_single_acks(
        self, touched: dict[int, AckSink], segment: bytearray, start: int, end: int
    ) -> int:
        """Runs of consecutive one-entry acks, as Apache's bookies send them."""
        unpack = _ACK.unpack_from
        ledger_id = first = last = -1
        while end - start >= _ACK_BYTES:
            length, header, rc, ledger, entry = unpack(segment, start)
            if header != _ACK_HEADER or length != 24:
                break
            start += _ACK_BYTES
            if rc == 0 and ledger == ledger_id and entry == last + 1:
                last = entry
                continue
            if first >= 0:
                self._acked(touched, 0, ledger_id, first, last)
                first = -1
            if rc:
                self._acked(touched, rc, ledger, entry, entry)
            else:
                ledger_id, first, last = ledger, entry, entry
        if first >= 0:
            self._acked(touched, 0, ledger_id, first, last)
        return start

    def _acked(
        self, touched: dict[int, AckSink], rc: int, ledger_id: int, first: int, last: int
    ) -> None:
        sink = self.sinks.get(ledger_id)
        if sink is None:
            return  # a writer that is closed or failed: nobody waits any more
        touched[ledger_id] = sink
        if rc == 0:
            sink.acked(self.bookie, first, last)
        else:
            sink.refused(self.bookie, first, v2.status_of_code(rc))

    # ---- end

    def _fail(self, error: LedgerError) -> None:
        """Only the first failure counts: fails all calls, tells all sinks, ends `run`."""
        if self.error is not None:
            return
        self.error = error
        self._settled.set()
        self._outbox.clear()
        self._outbox_bytes = 0
        self._calls.fail_all(str(error))
        sinks, self.sinks = self.sinks, {}
        for sink in sinks.values():
            sink.lost(self.bookie, error)
        self._scope.cancel()

    def close(self, reason: LedgerError) -> None:
        """Ends the connection; what waits fails with BookieUnavailable for `reason`."""
        self._fail(reason)

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            sends=self._sends,
            receives=self._receives,
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            outbox_bytes=self._outbox_bytes,
            calls_waiting=self._calls.waiting,
        )
