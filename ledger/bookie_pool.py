"""The client's connections to all bookies: one for v2 and one for v3 each, made when needed.

Adds and reads go over v2 (cheap), what v2 cannot say (long poll, explicit LAC, force, info)
over v3, as Apache's own v2 client does. A bookie that failed is not tried again for a short,
growing pause, so that nobody spins on it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import trio

from ledger.bookie_connection import BookieConnection, ConnectionStatistics, Resolve
from ledger.calls import OnAnswer
from ledger.errors import BookieUnavailable, LedgerClosed
from ledger.options import ClientOptions
from ledger.runtime.network import Network
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ReadRequest,
    RequestBody,
    ResponseBody,
)


@dataclass(slots=True)
class _Failures:
    """What the pool remembers of a bookie that failed."""

    count: int
    next_try_at: float
    reason: str


def version_for(body: RequestBody) -> int:
    """The wire version a request travels in."""
    if isinstance(body, ReadRequest):
        # v2 has no request id: the answer to a plain read of the same entry would be taken for
        # the fencing read's, before the fence is durable.
        is_long_poll = body.previous_lac is not None or body.is_piggyback
        return 3 if is_long_poll or body.is_fencing else 2
    if isinstance(body, BatchReadRequest):
        return 2
    if isinstance(body, AddRequest):
        return 3 if body.is_deferred_sync else 2
    return 3


class BookiePool:
    """Used inside `async with` of its owner: `start` needs the owner's nursery.

    Args:
        network: the network door.
        resolve: bookie id to host and port; may raise any LedgerError.
        options: timeouts and bounds.
        rng: jitter of pauses.
    """

    def __init__(
        self, network: Network, resolve: Resolve, options: ClientOptions, rng: random.Random
    ) -> None:
        self._network = network
        self._resolve = resolve
        self._options = options
        self._rng = rng
        self._nursery: trio.Nursery | None = None
        self._connections: dict[tuple[str, int], BookieConnection] = {}
        self._failures: dict[str, _Failures] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Connections live in `nursery` from now on."""
        self._nursery = nursery

    def connection(self, bookie: str, version: int) -> BookieConnection:
        """The connection to `bookie`, begun if there is none. Raises BookieUnavailable while
        the pause after a failure lasts."""
        connection = self._connections.get((bookie, version))
        if connection is not None and connection.error is None:
            return connection
        if self._nursery is None:
            raise LedgerClosed("the client is not open")
        failures = self._failures.get(bookie)
        if failures is not None:
            wait_s = failures.next_try_at - trio.current_time()
            if wait_s > 0:
                raise BookieUnavailable(
                    f"{failures.reason}; tried {failures.count} times, next try in {wait_s:.2f} s"
                )
        connection = BookieConnection(
            bookie, version, outbox_bytes_max=self._options.outbox_bytes_max
        )
        self._connections[bookie, version] = connection
        self._nursery.start_soon(self._run, connection)
        return connection

    async def _run(self, connection: BookieConnection) -> None:
        key = (connection.bookie, connection.version)
        began_at = trio.current_time()
        try:
            await connection.run(self._network, self._resolve, self._options.connect_timeout_s)
        finally:
            if self._connections.get(key) is connection:
                del self._connections[key]
        self._remember(connection, began_at)

    def _remember(self, connection: BookieConnection, began_at: float) -> None:
        options = self._options
        now = trio.current_time()
        before = self._failures.get(connection.bookie)
        # A connection that lived for a while says that the bookie was well: begin anew.
        lived = now - began_at > options.reconnect_wait_max_s
        count = 1 if before is None or lived else before.count + 1
        wait_s = min(options.reconnect_wait_max_s, options.reconnect_wait_s * 2 ** min(count, 10))
        self._failures[connection.bookie] = _Failures(
            count, now + wait_s * self._rng.uniform(0.5, 1.0), str(connection.error)
        )

    async def wait_connected(self, bookie: str) -> None:
        """Returns once adds can be sent to `bookie`. Raises BookieUnavailable."""
        await self.connection(bookie, 2).wait_connected()

    async def call(self, bookie: str, body: RequestBody, *, timeout_s: float) -> ResponseBody:
        """One request, one answer; the answer may carry a bad status.

        Cancelling is safe: a late answer is dropped. Raises BookieUnavailable if the bookie
        cannot be reached or the connection breaks, OperationTimeout after `timeout_s`
        seconds; in both cases the request may have been carried out.
        """
        connection = self.connection(bookie, version_for(body))
        return await connection.call(body, timeout_s)

    def post(self, bookie: str, body: RequestBody, on_answer: OnAnswer) -> None:
        """Sends a request for which no task waits: `on_answer` is called with the answer, or
        with None if the bookie is out of reach."""
        try:
            connection = self.connection(bookie, version_for(body))
        except BookieUnavailable:
            on_answer(None)
        else:
            connection.post(body, on_answer)

    def close_all(self) -> None:
        """Ends all connections; whoever waits gets BookieUnavailable."""
        for connection in list(self._connections.values()):
            connection.close(BookieUnavailable("the client was closed"))

    def statistics(self) -> dict[tuple[str, int], ConnectionStatistics]:
        """By bookie and wire version."""
        return {key: c.statistics() for key, c in self._connections.items()}
