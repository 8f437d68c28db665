"""Accepts the connections of a bookie and counts them; `bookie.server.connection` serves each.

At the limit a connection is refused at once, or replaces one that has shown less
(`bookie.core.peers`), so that descriptors are left for files. An error of one connection must never
end another one or the server.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from bookie.core.metrics import Distribution
from bookie.core.peers import Ending, Peer, PeerLimits, Peers, address_of
from bookie.core.sessions import Proof, SessionEnd
from bookie.server.access import AccessControl
from bookie.server.audit import AuditLog, ConnectionAudit
from bookie.server.auth_session import AuthSession
from bookie.server.authentication import AuthenticationCounts, Authenticator
from bookie.server.backpressure import Backpressure, BackpressureLimits
from bookie.server.connection import Connection
from bookie.server.encryption import ServerTls, TlsStatistics
from bookie.server.ended_connections import EndedConnections
from bookie.server.identity import Identity
from bookie.server.peer_watch import PeerWatch
from bookie.server.request_metrics import RequestCounts, RequestStatistics
from bookie.server.requests import Requests
from bookie.server.sessions import SessionWatch
from bookie.storage.bookie_storage import BookieStorage
from ledger.runtime.logs import OF_PEER
from ledger.runtime.network import Listener, Transport

_log = logging.getLogger(__name__)

LEAVE_S_MAX = 5.0
"""How long a peer whose connection ends may take the answers that are in flight."""
_COLLECTED_EVERY = 10_000
"""Connections, of which each leaves a few KB at most."""


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    connections_accepted: int
    connections_refused: int
    connections_replaced: int
    """Connections that were closed for a newer one, because they had sent no valid request, or
    were idle."""
    connections_unproven: int
    """Connections over which no valid request has come yet."""
    chunks: int
    protocol_errors: int
    authentications: int
    """Peers that proved who they are."""
    authentications_failed: int
    authentications_unseen: int
    """Attempts that were refused without a look, because of failures before."""
    sessions_ended: int
    """Connections that ended with the password, token or certificate that they rested on."""
    held_add_bytes: int
    """Adds that were received and wait for capacity in a write cache or journal."""
    reply_bytes: int
    """Replies that wait for peers to take them."""
    peers_dropped: int
    """Connections that were closed because the peer sent no request or no rest of one, or took no
    replies."""
    receive_bytes: int
    """Receive buffers of all connections, beyond SEGMENT_BYTES_MIN of each."""
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
    tls: TlsStatistics


class Server:
    """Serves the connections of one listener; `run` is a task of the bookie."""

    def __init__(
        self,
        storage: BookieStorage,
        requests: Requests,
        *,
        limits: BackpressureLimits,
        frame_bytes_max: int,
        peer_limits: PeerLimits,
        tls: ServerTls | None = None,
        authenticator: Authenticator | None = None,
        access: AccessControl | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`limits` holds for all connections together. `tls` encrypts those that ask for it, and
        all on the port for TLS. Without `authenticator` every peer is served. `access`: the
        permissions to enforce; None: everything is allowed to everyone. `audit` records what
        peers do."""
        self.authenticator = authenticator
        self._access = access
        self._audit = audit
        self._storage = storage
        self._requests = requests
        self._frame_bytes_max = frame_bytes_max
        self.tls = tls
        self._accepted = self._refused = self._replaced = 0
        self._counts = RequestCounts()
        self._pressure = Backpressure(storage, limits, requests.read_scheduler)
        self._peers = Peers(peer_limits)
        self._connections: dict[Peer, Connection] = {}
        self._watch = PeerWatch(
            self._peers, self._pressure, end=self._end, give_back=self._give_back
        )
        self._ended = EndedConnections(_COLLECTED_EVERY)
        self._sessions: SessionWatch | None = None
        if authenticator is not None:
            self._sessions = SessionWatch(
                authenticator.users, authenticator.now_ms, self._open_sessions, self._end_sessions
            )
        self._leaving: trio.Nursery | None = None
        """Of the tasks that end connections."""
        self._accepting = trio.CancelScope()
        self._left = trio.Event()
        """Set when a connection has ended."""
        self._has_ended = trio.Event()

    async def run(self, listener: Listener, tls_listener: Listener | None = None) -> None:
        """Accepts until cancelled, or until `drain`. Connections at `tls_listener` are encrypted
        from their first byte on."""
        async with trio.open_nursery() as nursery:
            self._leaving = nursery
            nursery.start_soon(self._watch.run)
            if self._sessions is not None:
                nursery.start_soon(self._sessions.run)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(self._accept, listener, nursery, False)
                    if tls_listener is not None:
                        accepting.start_soon(self._accept, tls_listener, nursery, True)
            listener.close()
            if tls_listener is not None:
                tls_listener.close()
            await self._all_left()
            nursery.cancel_scope.cancel()
        self._has_ended.set()

    async def drain(self) -> None:
        """Answers the requests that were received, and ends all connections. The caller bounds the
        time, and cancels `run` after it: a journal may hang, or a peer take no replies."""
        self._accepting.cancel()
        all_durable = self._drain(list(self._connections.values()))
        await self._all_durable()
        all_durable.set()
        await self._has_ended.wait()

    async def leave_idle_writers(self) -> int:
        """Ends the connections over which adds came and that are idle, after the answers they
        wait for, so that their writers look for another bookie; returns their number."""
        idle = [one for one in self._connections.values() if one.is_idle_writer]
        if idle:
            await self._leave(idle, self._drain(idle))
        return len(idle)

    def _drain(self, leaving: Sequence[Connection]) -> trio.Event:
        all_durable = trio.Event()
        for connection in leaving:
            connection.drain(all_durable)
        return all_durable

    async def _leave(self, leaving: Sequence[Connection], all_durable: trio.Event) -> None:
        """Ends connections that take no more requests, after the answers that are in flight."""
        try:
            with trio.move_on_after(LEAVE_S_MAX):
                await self._all_durable()
                all_durable.set()
                await trio.sleep_forever()
        finally:
            for connection in leaving:
                connection.close()  # if its peer did not

    async def _all_left(self) -> None:
        while self._connections:
            self._left = trio.Event()
            await self._left.wait()

    async def _all_durable(self) -> None:
        for journal in self._storage.journals:
            durable = trio.Event()
            journal.when_durable(durable.set)
            await durable.wait()

    async def _accept(
        self, listener: Listener, nursery: trio.Nursery, begins_encrypted: bool
    ) -> None:
        while True:
            transport = await listener.accept()
            connection = self._admit(transport, begins_encrypted=begins_encrypted)
            if connection is not None:
                nursery.start_soon(self._serve, connection)

    def _admit(self, transport: Transport, *, begins_encrypted: bool = False) -> Connection | None:
        """Returns the connection, or None if it was refused."""
        admission = self._peers.admit(address_of(transport.peer), trio.current_time())
        peer = admission.peer
        if peer is None:
            self._refused += 1
            _log.warning(
                "connection refused peer=%s cause=%s",
                transport.peer,
                admission.cause,
                extra=OF_PEER,
            )
            transport.close()
            return None
        if admission.leaves is not None:
            self._replaced += 1
            self._connections[admission.leaves].close()
        self._accepted += 1
        self._pressure.count_connection(1)
        known, log = self.authenticator, self._audit
        audit = ConnectionAudit(log, transport.peer) if log is not None else None
        connection = self._connections[peer] = Connection(
            transport,
            self._storage,
            self._requests,
            self._counts,
            self._pressure,
            peer,
            self._peers,
            self._watch,
            frame_bytes_max=self._frame_bytes_max,
            identity=Identity(
                self.tls,
                begins_encrypted=begins_encrypted,
                session=AuthSession(known, transport.peer) if known is not None else None,
                audit=audit,
                begun=self._begun,
            ),
            access=self._access,
            audit=audit,
        )
        self._watch.wake()
        return connection

    async def serve(self, transport: Transport) -> None:
        """Serves one connection until it ends, unless it is refused."""
        connection = self._admit(transport)
        if connection is not None:
            await self._serve(connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            connection.close()
            connection.forget()
            self._peers.leave(connection.peer)
            del self._connections[connection.peer]
            self._left.set()
            self._pressure.count_connection(-1)
            self._ended.count()

    def _end(self, ending: Ending) -> None:
        connection = self._connections[ending.peer]
        self._pressure.peers_dropped += 1
        _log.warning(
            "connection closed peer=%s cause=%s", connection.name, ending.cause, extra=OF_PEER
        )
        self._peers.leave(ending.peer)
        connection.close()

    def _begun(self, proof: Proof) -> None:
        """Records that a peer has authenticated."""
        assert self._sessions is not None
        self._sessions.begun(proof)

    def _open_sessions(self) -> list[tuple[Peer, Proof]]:
        return [
            (peer, proof)
            for peer, connection in self._connections.items()
            if (proof := connection.proof) is not None
        ]

    def _end_sessions(self, ends: Sequence[SessionEnd[Peer]]) -> None:
        leaving: list[Connection] = []
        for end in ends:
            connection = self._connections.get(end.session)
            if connection is None or connection.proof is None:
                continue  # it ended by itself meanwhile
            leaving.append(connection)
            _log.warning(
                "connection closed peer=%s cause=%s", connection.name, end.cause, extra=OF_PEER
            )
            if self._audit is not None:
                self._audit.record(
                    "authenticate", "ended", user=end.proof.user, peer=connection.name,
                    mechanism=end.proof.mechanism, cause=end.cause,
                )  # fmt: skip
        if leaving:
            assert self.authenticator is not None
            assert self._leaving is not None
            self.authenticator.counts.ended += len(leaving)
            self._leaving.start_soon(self._leave, leaving, self._drain(leaving))

    def _give_back(self) -> None:
        for connection in self._connections.values():
            connection.give_back()

    def statistics(self) -> ServerStatistics:
        reads = self._requests.read_scheduler
        known = self.authenticator
        counts = AuthenticationCounts() if known is None else known.counts
        return ServerStatistics(
            connections=self._pressure.connections,
            connections_accepted=self._accepted,
            connections_refused=self._refused,
            connections_replaced=self._replaced,
            connections_unproven=self._peers.unproven,
            chunks=self._counts.chunks,
            protocol_errors=self._counts.protocol_errors,
            authentications=counts.succeeded,
            authentications_failed=counts.failed,
            authentications_unseen=counts.unseen,
            sessions_ended=counts.ended,
            held_add_bytes=self._pressure.held_bytes,
            reply_bytes=self._pressure.replies_bytes,
            peers_dropped=self._pressure.peers_dropped,
            receive_bytes=self._pressure.receive_bytes,
            reads_waiting=reads.waiting,
            reads_waiting_by_directory=reads.waiting_by_directory(),
            reads_waited_seconds=reads.waited.distribution(),
            reads_worked_seconds=reads.worked.distribution(),
            long_polls=self._requests.long_polls,
            requests=self._counts.statistics(),
            tls=self.tls.now() if self.tls is not None else TlsStatistics(),
        )
