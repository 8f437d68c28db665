"""The sending half of a connection: replies that wait until the peer takes them.

Bytes that fit into the socket's buffer are sent at once, without a task. A peer that takes nothing
for too long is disconnected, because it would keep the memory forever.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import trio

from bookie.core.peers import Peer
from bookie.server.backpressure import Backpressure
from ledger.runtime.logs import OF_PEER
from ledger.runtime.network import Transport

_log = logging.getLogger(__name__)

SEND_QUEUE_BYTES_MAX = 16 * 1024 * 1024
"""Replies waiting for one peer; above it nothing more is read from that peer."""
TAKEN_BYTES_MIN = 64 * 1024
"""A peer that takes less than this, and not all, in the time allowed is disconnected."""


def _nothing() -> None:
    pass


class SendQueue:
    """The send queue of one connection. It calls `on_flushed` when the peer has taken everything,
    and `on_broken` when the connection ends."""

    def __init__(
        self,
        transport: Transport,
        pressure: Backpressure,
        peer: Peer,
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
        self._peer = peer
        self._on_flushed = on_flushed
        self._on_broken = on_broken
        self._pieces: deque[bytes] = deque()
        self._sent = 0
        """How much of the first piece the peer has taken; its memory is counted until the end."""
        self._flushed = trio.Event()

    def forget(self) -> None:
        """Calls nothing any more; the queue must be closed."""
        assert self.is_closed
        self.nursery = None
        self._on_flushed = self._on_broken = _nothing

    def use(self, transport: Transport) -> None:
        """Sends over `transport` from now on. Nothing may be waiting."""
        assert not self._pieces, "replies wait that belong to the transport before"
        self._transport = transport

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
            self._sent = sent
            self._peer.replies_taken_at = trio.current_time()
            self._enqueue(data)
            assert self.nursery is not None
            self.nursery.start_soon(self._flush)

    def _enqueue(self, data: bytes) -> None:
        self._pieces.append(data)
        self._count(len(data))

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._peer.reply_bytes = self.nbytes
        self._pressure.count_replies(nbytes)

    async def _flush(self) -> None:
        pieces, peer = self._pieces, self._peer
        wait_s = self._pressure.limits.reply_wait_s_max
        since, taken = peer.replies_taken_at, 0
        while pieces:
            with trio.move_on_at(since + wait_s) as waited:
                await self._transport.wait_writable()
            if waited.cancelled_caught:
                self._disconnect(wait_s)
                return
            sent = self._send_pieces()
            if sent:
                peer.replies_taken_at = trio.current_time()
                taken += sent
            if taken >= TAKEN_BYTES_MIN:
                since, taken = peer.replies_taken_at, 0
        self._flushed.set()
        self._flushed = trio.Event()
        self._on_flushed()

    def _send_pieces(self) -> int:
        """Returns how many bytes the socket took. Raises OSError."""
        pieces, total = self._pieces, 0
        while pieces:
            data = pieces[0]
            try:
                sent = self._transport.send(memoryview(data)[self._sent :])
            except BlockingIOError:
                break
            total += sent
            self._sent += sent
            if self._sent < len(data):
                break
            self._sent = 0
            pieces.popleft()
            self._count(-len(data))
        return total

    def _disconnect(self, waited_s: float) -> None:
        self._pressure.peers_dropped += 1
        _log.warning(
            "connection closed peer=%s cause=it took almost none of %d bytes of replies for %g s",
            self._transport.peer,
            self.nbytes,
            waited_s,
            extra=OF_PEER,
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
