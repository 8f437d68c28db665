"""Accepts the connections of a bookie and counts them; `bookie.connection` serves each.

Above the limit a connection is refused at once, so that descriptors are left for files. What
one connection does never ends another, nor the server.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from bookie.connection import Connection, ConnectionCounts
from bookie.requests import Requests
from bookie.storage.ledger_storage import LedgerStorage
from ledger.runtime.network import Listener, Transport

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    connections_accepted: int
    connections_refused: int
    chunks: int
    protocol_errors: int


class Server:
    """Serves connections of one listener; `run` lives in the bookie's nursery."""

    def __init__(
        self,
        storage: LedgerStorage,
        requests: Requests,
        *,
        frame_bytes_max: int,
        connections_max: int,
        queued_bytes_max: int,
    ) -> None:
        """`queued_bytes_max`: with more waiting for the journal no socket is read."""
        self._storage = storage
        self._requests = requests
        self._frame_bytes_max = frame_bytes_max
        self._connections_max = connections_max
        self._queued_bytes_max = queued_bytes_max
        self._connections = self._accepted = self._refused = 0
        self._counts = ConnectionCounts()

    async def run(self, listener: Listener) -> None:
        """Accepts until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                transport = await listener.accept()
                if self._connections >= self._connections_max:
                    self._refused += 1
                    _log.warning(
                        "connection refused peer=%s connections=%d limit=%d",
                        transport.peer,
                        self._connections,
                        self._connections_max,
                    )
                    transport.close()
                    continue
                self._accepted += 1
                self._connections += 1
                nursery.start_soon(self.serve, transport)

    async def serve(self, transport: Transport) -> None:
        """One connection, until it ends."""
        connection = Connection(
            transport,
            self._storage,
            self._requests,
            self._counts,
            frame_bytes_max=self._frame_bytes_max,
            queued_bytes_max=self._queued_bytes_max,
        )
        try:
            await connection.run()
        finally:
            self._connections -= 1
            connection.close()

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            connections=self._connections,
            connections_accepted=self._accepted,
            connections_refused=self._refused,
            chunks=self._counts.chunks,
            protocol_errors=self._counts.protocol_errors,
        )
