"""The sending half of a connection: replies that wait until the peer takes them.

Bytes that fit into the socket's buffer are sent at once, without a task. A peer that takes nothing
for too long is disconnected, because it would keep the memory forever.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import trio

from bookie.server.backpressure import Backpressure
from ledger.runtime.network import Transport

_log = logging.getLogger(__name__)

SEND_QUEUE_BYTES_MAX = 16 * 1024 * 1024
"""Replies waiting for one peer; above it nothing more is read from that peer."""


class SendQueue:
    """The send queue of one connection. It calls `on_flushed` when the peer has taken everything,
    and `on_broken` when the connection ends."""

    def __init__(
        self,
        transport: Transport,
        pressure: Backpressure,
        *,
        on_flushed: Callable[[], None],
        on_broken: Callable[[], None],
    ) -> None:
        self.nbytes = 0
        self.nursery: trio.Nursery | None = None
        """Runs the task that sends what does not fit into the socket's buffer."""
        self.is_closed = False
        self._transport = transport
        self._pressure = pressure
        self._on_flushed = on_flushed
        self._on_broken = on_broken
        self._pieces: deque[bytes | memoryview] = deque()
        self._flushed = trio.Event()

    def is_full_with(self, more_bytes: int) -> bool:
        """Returns whether no more replies should be made for this peer now; `more_bytes` are about
        to be sent."""
        nbytes = self.nbytes + more_bytes
        return nbytes > SEND_QUEUE_BYTES_MAX or (nbytes > 0 and self._pressure.are_replies_over)

    def send(self, data: bytes) -> None:
        """Sends `data`, or queues the part that the socket does not take."""
        if self.is_closed:
            return
        if self._pieces:
            self._enqueue(data)
            return
        try:
            sent = self._transport.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._on_broken()
            return
        if sent < len(data):
            self._enqueue(memoryview(data)[sent:])
            assert self.nursery is not None
            self.nursery.start_soon(self._flush)

    def _enqueue(self, data: bytes | memoryview) -> None:
        self._pieces.append(data)
        self._count(len(data))

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._pressure.replies_bytes += nbytes

    async def _flush(self) -> None:
        pieces = self._pieces
        wait_s = self._pressure.limits.reply_wait_s_max
        while pieces:
            with trio.move_on_after(wait_s) as waited:
                await self._transport.wait_writable()
            if waited.cancelled_caught:
                self._disconnect(wait_s)
                return
            try:
                while pieces:
                    data = pieces[0]
                    sent = self._transport.send(data)
                    self._count(-sent)
                    if sent < len(data):
                        pieces[0] = memoryview(data)[sent:]
                        break
                    pieces.popleft()
            except BlockingIOError:
                continue
        self._flushed.set()
        self._flushed = trio.Event()
        self._on_flushed()

    def _disconnect(self, waited_s: float) -> None:
        self._pressure.peers_dropped += 1
        _log.warning(
            "connection closed peer=%s cause=it took none of %d bytes of replies for %g s",
            self._transport.peer,
            self.nbytes,
            waited_s,
        )
        self._on_broken()

    async def wait_flushed(self) -> None:
        """Returns when the peer has taken everything or has disconnected."""
        if self._pieces and not self.is_closed:
            await self._flushed.wait()

    def close(self) -> None:
        """Drops the replies that wait; nothing more is sent."""
        self.is_closed = True
        self._count(-self.nbytes)
        self._pieces.clear()
        self._flushed.set()
