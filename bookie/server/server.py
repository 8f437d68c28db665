"""Accepts the connections of a bookie and counts them; `bookie.server.connection` serves each.

Above the limit a connection is refused at once, so that descriptors are left for files. An error
of one connection must never end another one or the server.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from bookie.core.metrics import Distribution
from bookie.server.backpressure import Backpressure, BackpressureLimits
from bookie.server.connection import Connection
from bookie.server.request_metrics import RequestCounts, RequestStatistics
from bookie.server.requests import Requests
from bookie.storage.bookie_storage import BookieStorage
from ledger.runtime.network import Listener, Transport

_log = logging.getLogger(__name__)

LEAVE_S_MAX = 5.0
"""How long a peer whose connection ends may take the answers that are in flight."""


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    connections_accepted: int
    connections_refused: int
    chunks: int
    protocol_errors: int
    held_add_bytes: int
    """Adds that were received and wait for capacity in a write cache or journal."""
    reply_bytes: int
    """Replies that wait for peers to take them."""
    peers_dropped: int
    """Connections that were closed because the peer took no replies."""
    reads_waiting: int
    """Requests that wait for a disk now."""
    reads_waiting_by_directory: tuple[int, ...]
    reads_waited_seconds: Distribution
    """Durations of requests that needed a disk, from the request on."""
    reads_worked_seconds: Distribution
    """Durations of the same requests, from the start of their job on."""
    long_polls: int
    """Tailing reads that wait for a newer LAC now."""
    requests: RequestStatistics


class Server:
    """Serves the connections of one listener; `run` is a task of the bookie."""

    def __init__(
        self,
        storage: BookieStorage,
        requests: Requests,
        *,
        limits: BackpressureLimits,
        frame_bytes_max: int,
        connections_max: int,
    ) -> None:
        """`limits` holds for all connections together."""
        self._storage = storage
        self._requests = requests
        self._frame_bytes_max = frame_bytes_max
        self._connections_max = connections_max
        self._accepted = self._refused = 0
        self._counts = RequestCounts()
        self._pressure = Backpressure(storage, limits)
        self._connections: dict[Connection, None] = {}
        self._accepting = trio.CancelScope()
        self._has_ended = trio.Event()

    async def run(self, listener: Listener) -> None:
        """Accepts until cancelled, or until `drain`."""
        async with trio.open_nursery() as nursery:
            with self._accepting:
                await self._accept(listener, nursery)
            listener.close()
        self._has_ended.set()

    async def drain(self) -> None:
        """Answers the requests that were received, and ends all connections. The caller bounds the
        time, and cancels `run` after it: a journal may hang, or a peer take no replies."""
        self._accepting.cancel()
        all_durable = trio.Event()
        for connection in list(self._connections):
            connection.drain(all_durable)
        await self._all_durable()
        all_durable.set()
        await self._has_ended.wait()

    async def leave_idle_writers(self) -> int:
        """Ends the connections over which adds came and that are idle, after the answers they
        wait for, so that their writers look for another bookie; returns their number."""
        idle = [one for one in self._connections if one.is_idle_writer]
        all_durable = trio.Event()
        try:
            for connection in idle:
                connection.drain(all_durable)
            await self._all_durable()
            all_durable.set()
            if idle:
                await trio.sleep(LEAVE_S_MAX)
        finally:
            for connection in idle:
                connection.close()  # if its peer did not
        return len(idle)

    async def _all_durable(self) -> None:
        for journal in self._storage.journals:
            durable = trio.Event()
            journal.when_durable(durable.set)
            await durable.wait()

    async def _accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        while True:
            transport = await listener.accept()
            if self._pressure.connections >= self._connections_max:
                self._refused += 1
                _log.warning(
                    "connection refused peer=%s connections=%d limit=%d",
                    transport.peer,
                    self._pressure.connections,
                    self._connections_max,
                )
                transport.close()
                continue
            self._accepted += 1
            self._pressure.count_connection(1)
            nursery.start_soon(self.serve, transport)

    async def serve(self, transport: Transport) -> None:
        """Serves one connection until it ends."""
        connection = Connection(
            transport,
            self._storage,
            self._requests,
            self._counts,
            self._pressure,
            frame_bytes_max=self._frame_bytes_max,
        )
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            self._pressure.count_connection(-1)
            connection.close()

    def statistics(self) -> ServerStatistics:
        reads = self._requests.read_scheduler
        return ServerStatistics(
            connections=self._pressure.connections,
            connections_accepted=self._accepted,
            connections_refused=self._refused,
            chunks=self._counts.chunks,
            protocol_errors=self._counts.protocol_errors,
            held_add_bytes=self._pressure.held_bytes,
            reply_bytes=self._pressure.replies_bytes,
            peers_dropped=self._pressure.peers_dropped,
            reads_waiting=reads.waiting,
            reads_waiting_by_directory=reads.waiting_by_directory(),
            reads_waited_seconds=reads.waited.distribution(),
            reads_worked_seconds=reads.worked.distribution(),
            long_polls=self._requests.long_polls,
            requests=self._counts.statistics(),
        )
