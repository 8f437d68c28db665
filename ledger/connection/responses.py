"""Dispatches what one connection receives: acks to the writers, responses to the calls.

Processes a whole chunk of received bytes at a time. Acks are dispatched as runs of entries,
straight from the receive buffer, and each writer is notified once at the end of a chunk. Bytes
that are no response to a request end the connection by a RemoteProtocolError.
"""

from __future__ import annotations

import struct
from typing import Protocol

from ledger.connection.pending_calls import PendingCalls
from ledger.errors import (
    LedgerError,
    RemoteProtocolError,
    Status,
    Unauthorized,
    error_of_status,
)
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import AddResponse

_ACK = v2.ADD_REPLY
_ACK_BYTES = _ACK.size
_RANGE_ACK_BYTES = v2.RANGE_ACK.size
_ACK_HEADER = v2.ADD_HEADER
_RANGE_ACK_HEADER = v2.RANGE_ACK_HEADER
_RANGE_ACK_MASK = 0xFFFF_FFFF ^ v2.NO_POLLS
_LENGTH_AND_HEADER = struct.Struct(">iI").unpack_from
_RC_AND_RANGE = struct.Struct(">iqqq").unpack_from
_RC_AND_ENTRY = struct.Struct(">iqq").unpack_from


class AckSink(Protocol):
    """A ledger being written, as seen by its connections. All methods are synchronous."""

    @property
    def bytes_pending(self) -> int:
        """Bytes that this writer holds unconfirmed, within its own window."""
        ...

    def acked(self, bookie: str, first: int, last: int, *, is_unpolled: bool = False) -> None:
        """`bookie` has first..last on disk, and said with `is_unpolled` that no reader waits there
        for the last add confirmed. `settle` follows at the end of the chunk."""
        ...

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        """`bookie` answered an add with an error."""
        ...

    def fail(self, error: LedgerError) -> None:
        """The bookie takes no adds of this client at all, of whatever ledger."""
        ...

    def lost(self, bookie: str, error: LedgerError) -> None:
        """The connection ended: entries not acknowledged may or may not be stored."""
        ...

    def settle(self) -> None:
        """All acks of the chunk were reported."""
        ...


class ResponseReader:
    """Reads the responses of one connection. `sinks` are the writers by ledger id."""

    def __init__(self, bookie: str, calls: PendingCalls) -> None:
        self.sinks: dict[int, AckSink] = {}
        self._bookie = bookie
        self._calls = calls

    def take_v3(self, buffer: ReceiveBuffer) -> None:
        """Processes a chunk of v3: finds calls by transaction id, writers by ledger and entry."""
        touched: dict[int, AckSink] = {}
        ledger_id = first = last = -1
        while (frame := buffer.next_frame()) is not None:
            try:
                body = self._calls.deliver(frame)
            except RemoteProtocolError as error:
                raise self._cause_of(frame, error) from None
            if body is None:
                continue
            if not isinstance(body, AddResponse):
                raise self._refused_unread(body.status)
            entry_id = body.entry_id
            if body.status is Status.OK and body.ledger_id == ledger_id and entry_id == last + 1:
                last = entry_id
                continue
            if first >= 0:
                self._dispatch_run(touched, ledger_id, first, last)
                ledger_id = first = -1  # the next ack begins a run
            if body.status is Status.OK:
                ledger_id, first, last = body.ledger_id, entry_id, entry_id
            else:
                self._refused(touched, body.status, body.ledger_id, entry_id)
        if first >= 0:
            self._dispatch_run(touched, ledger_id, first, last)
        for sink in touched.values():
            sink.settle()

    def take_v2(self, buffer: ReceiveBuffer) -> None:
        """Processes a chunk of v2: acks in place as runs, the rest by `PendingCalls.deliver`."""
        touched: dict[int, AckSink] = {}
        segment = buffer.segment
        while True:
            start, end = buffer.start, buffer.end
            if end - start < 8:
                break
            length, header = _LENGTH_AND_HEADER(segment, start)
            if header & _RANGE_ACK_MASK == _RANGE_ACK_HEADER and length == 32:
                if end - start < _RANGE_ACK_BYTES:
                    break
                rc, ledger_id, first, last = _RC_AND_RANGE(segment, start + 8)
                buffer.start = start + _RANGE_ACK_BYTES
                self._dispatch_ack(touched, rc, ledger_id, first, last, header != _RANGE_ACK_HEADER)
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
                    self._dispatch_ack(touched, rc, ledger_id, entry_id, entry_id)
                    continue
            frame = buffer.next_frame()
            if frame is None:
                break
            if self._calls.keeps_views(frame):
                # The caller reads the response later, while the buffer is being filled again; a
                # copy is cheaper than a new buffer.
                frame = memoryview(bytes(frame))
            try:
                self._calls.deliver(frame)
            except RemoteProtocolError as error:
                raise self._cause_of(frame, error) from None
        for sink in touched.values():
            sink.settle()

    def _take_single_acks(
        self, touched: dict[int, AckSink], segment: bytearray, start: int, end: int
    ) -> int:
        """Joins consecutive acks of one entry, as Apache's bookies send them, to runs."""
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
                self._dispatch_run(touched, ledger_id, first, last)
                ledger_id = first = -1  # the next ack begins a run
            if rc:
                self._dispatch_ack(touched, rc, ledger, entry, entry)
            else:
                ledger_id, first, last = ledger, entry, entry
        if first >= 0:
            self._dispatch_run(touched, ledger_id, first, last)
        return start

    def _dispatch_ack(
        self,
        touched: dict[int, AckSink],
        rc: int,
        ledger_id: int,
        first: int,
        last: int,
        is_unpolled: bool = False,
    ) -> None:
        if rc == 0:
            self._dispatch_run(touched, ledger_id, first, last, is_unpolled)
        else:
            self._refused(touched, v2.status_of_code(rc), ledger_id, first)

    def _dispatch_run(
        self,
        touched: dict[int, AckSink],
        ledger_id: int,
        first: int,
        last: int,
        is_unpolled: bool = False,
    ) -> None:
        sink = self.sinks.get(ledger_id)
        if sink is not None:  # otherwise its writer was closed or failed
            touched[ledger_id] = sink
            sink.acked(self._bookie, first, last, is_unpolled=is_unpolled)

    def _refused(
        self, touched: dict[int, AckSink], status: Status, ledger_id: int, entry_id: int
    ) -> None:
        sink = self.sinks.get(ledger_id)
        if sink is not None:
            touched[ledger_id] = sink
            sink.refused(self._bookie, entry_id, status)

    def _refused_unread(self, status: Status) -> LedgerError:
        """Returns the error for a response to an add that names neither ledger nor entry.

        A bookie that requires authentication refuses every ledger alike. Another bookie would do
        the same, so the writers fail instead of replacing it, as with v2.
        """
        bookie = self._bookie
        if status is Status.OK:
            return RemoteProtocolError(f"bookie {bookie} answered an add with something else")
        if status is not Status.UNAUTHORIZED:
            return error_of_status(status, f"adds to bookie {bookie}")
        return self._unauthenticated()

    def _cause_of(self, frame: memoryview, error: RemoteProtocolError) -> LedgerError:
        """Returns the error for a frame that is no response to a request."""
        return self._unauthenticated() if v3.is_start_tls_error(frame) else error

    def _unauthenticated(self) -> Unauthorized:
        error = Unauthorized(
            f"bookie {self._bookie} requires authentication, and the client has not authenticated. "
            "Cure: connect with auth= of the kind the bookie requires"
        )
        for sink in list(self.sinks.values()):
            sink.fail(error)
        return error
