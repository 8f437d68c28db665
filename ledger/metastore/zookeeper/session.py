"""One session with ZooKeeper: connects, bounds the calls in flight, and closes within a time limit.

Everything except kazoo's own thread runs in trio's. A call waits for a lost connection up to the
session timeout; reads are retried, and a change whose response was lost is reported as unknown.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, Id

from ledger.errors import MetadataUnavailable
from ledger.metastore.zookeeper.access import ACL_CREATOR, OPEN_ACCESS, ZooKeeperAccess
from ledger.metastore.zookeeper.address import OWN, ZooKeeperAddress
from ledger.metastore.zookeeper.errors import LOST, OutcomeUnknown
from ledger.metastore.zookeeper.threads import CompletionQueue, Handler
from ledger.runtime.certificates import TlsContext

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 1000
READ_TRIES_MAX = 5
"""A read whose response is lost this often may itself break the connection: a list too long to
arrive in time takes all other calls with it."""
_READ_PAUSE_S = 0.05
"""Before a lost read is tried again; a multiple of it later."""

RECONNECT_DELAY_S = 0.05
RECONNECT_DELAY_S_MAX = 0.35
"""Before jitter of up to 40 %: a server that returns is found within half a second."""

GREETINGS_PER_PATIENCE = 3
GREET_TIMEOUT_S_MIN = 0.5
"""A server that accepts a connection and sends nothing costs only a part of the timeout."""

CLOSE_TIMEOUT_S = 2.0
"""How long closing waits for the server to end the session."""

Issue = Callable[[KazooClient], Any]
"""Hands one request (or several; the last one counts) to kazoo; returns its async result."""


def synced(path: str, issue: Issue) -> Issue:
    """Returns `issue`, a read, such that a server answers that has caught up with all changes."""

    def both(client: KazooClient) -> Any:
        return _Synced(client.sync_async(path), issue(client))

    return both


class _Synced:
    """The result of a read that counts only if the sync before it was carried out.

    The connection may break between the two: then the read waits for the next connection, and may
    reach another server that lags behind.
    """

    def __init__(self, sync: Any, answer: Any) -> None:
        self._sync = sync
        self._answer = answer

    def rawlink(self, answered: Callable[[Any], None]) -> None:
        def check(answer: Any) -> None:
            # Responses arrive in order: a sync that has none by now will never have one.
            answered(answer if self._sync.successful() else _LOST_SYNC)

        self._answer.rawlink(check)


class _Lost:
    value = None
    exception = ConnectionLoss("the sync before a read was lost")


_LOST_SYNC = _Lost()


class _Call:
    __slots__ = ("done", "error", "sent_at", "value")

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at
        self.done = trio.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class ZooKeeperSession:
    """One session, made in trio's thread; `run` is its task, `aclose` ends it."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        session_timeout_ms: int,
        tls: TlsContext | None = None,
        access: ZooKeeperAccess = OPEN_ACCESS,
    ) -> None:
        self.address = address
        self._tls = tls
        self.access = access
        self.patience_s = session_timeout_ms / 1000
        self.session_id: int | None = None
        self.is_closed = False
        self.on_closed: Callable[[], None] = lambda: None
        self.completions = CompletionQueue(trio.lowlevel.current_trio_token())
        self._slots = trio.Semaphore(IN_FLIGHT_MAX)
        self._in_flight: dict[_Call, None] = {}
        self._has_work = trio.Event()
        self._is_connected = False
        self._state_changed = trio.Event()
        self._has_ended = trio.Event()
        # kazoo warns twice a second while a server is down; this module warns once.
        self._kazoo_log = logging.getLogger(f"{__name__}.kazoo")
        self._kazoo_log.setLevel(logging.ERROR)
        self._start()

    def acl_of(self, whole: str) -> list[ACL] | None:
        """Returns the ACL of a node that is to be made, by its path from ZooKeeper's root; None:
        the session's default. Raises InvalidArgument for a node of an unknown kind."""
        address = self.address
        path = whole.removeprefix(address.chroot) if whole != address.chroot else "/"
        if f"{address.chroot}/".startswith(f"{whole}/"):
            path = "/"  # above the cluster
        elif path == address.own or path.startswith(f"{address.own}/"):
            path = OWN + path.removeprefix(address.own)
        rights = self.access.acl_of(path, address.root)
        if rights is None:
            return None
        return [ACL(int(right), Id("digest", user)) for user, right in rights]

    # Calls.

    async def call(self, issue: Issue, what: str, *, is_change: bool, patient: bool = False) -> Any:
        """Returns kazoo's result; raises its errors unchanged, except for these two.

        Raises MetadataUnavailable if there is no connection for `patience_s`, or a read was lost
        READ_TRIES_MAX times (`patient`: retries forever); OutcomeUnknown if a change was sent and
        its response was lost.
        """
        give_up_at = math.inf if patient else trio.current_time() + self.patience_s
        tries = 0
        while True:
            await self.wait_connected(give_up_at, what)
            await self._slots.acquire()
            if not self._is_connected or self.is_closed:
                self._slots.release()
                continue
            call = self._send(issue)
            await call.done.wait()
            if call.error is None:
                return call.value
            if not isinstance(call.error, LOST):
                raise call.error
            if is_change:
                raise OutcomeUnknown(
                    f"the connection to ZooKeeper at {self.address.hosts} was lost while it"
                    f" answered: {what} may have happened or not. Cure: read and decide again"
                ) from call.error
            tries += 1
            if tries == READ_TRIES_MAX and not patient:
                raise MetadataUnavailable(
                    f"{what}: the connection to ZooKeeper at {self.address.hosts} was lost before"
                    f" the answer, {tries} times. Cure: if others get answers, this one may be"
                    f" too long for the session timeout of {self.patience_s:g} s"
                ) from call.error
            # The loss may be known here before kazoo reports its new state: without a pause all
            # tries would be used up in that moment.
            await trio.sleep(_READ_PAUSE_S * tries)

    def post(self, issue: Issue) -> None:
        """Sends a request whose response is not needed; drops it while not connected."""
        if self._is_connected and not self.is_closed:
            issue(self._client)

    async def wait_connected(self, give_up_at: float, what: str) -> None:
        """Raises MetadataUnavailable at `give_up_at` (trio's clock), or once closed."""
        with trio.move_on_at(give_up_at):
            while not self._is_connected and not self.is_closed:
                await self._state_changed.wait()
        if self.is_closed:
            raise MetadataUnavailable("this metadata store is closed")
        if not self._is_connected:
            raise MetadataUnavailable(
                f"{what}: ZooKeeper at {self.address.hosts} was not reached for"
                f" {self.patience_s:g} s ({self._handler.connect_error}). Cure: check that it"
                " runs, that the address is right, and that no firewall is between"
            )

    def _send(self, issue: Issue) -> _Call:
        call = _Call(trio.current_time())
        self._in_flight[call] = None
        self._has_work.set()

        def answered(result: Any) -> None:
            self.completions.put(partial(self._finish, call, result.value, result.exception))

        issue(self._client).rawlink(answered)
        return call

    def _finish(self, call: _Call, value: Any, error: BaseException | None) -> None:
        if call not in self._in_flight:
            return  # it was given up before; kazoo may also answer twice
        del self._in_flight[call]
        self._slots.release()
        call.value, call.error = value, error
        call.done.set()

    # Tasks.

    async def run(self) -> None:
        """Drops the connection to a server that does not answer; restarts kazoo if its thread
        ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_answers)
            nursery.start_soon(self._revive)

    async def _watch_answers(self) -> None:
        # kazoo's heartbeats do not notice a silent server while requests are sent to it.
        while True:
            if not self._in_flight:
                self._has_work = trio.Event()
                await self._has_work.wait()
            oldest = next(iter(self._in_flight), None)
            if oldest is None:
                continue
            wait_s = oldest.sent_at + self.patience_s - trio.current_time()
            if wait_s > 0:
                await trio.sleep(wait_s)
                continue
            log.warning("ZooKeeper is silent seconds=%g", self.patience_s)
            self._handler.drop()
            self._fail_all()

    async def _revive(self) -> None:
        while True:
            await self._has_ended.wait()
            await trio.sleep(RECONNECT_DELAY_S_MAX)
            if self.is_closed:
                return
            log.warning("ZooKeeper client started again")
            self._client.close()
            self._has_ended = trio.Event()
            self._start()

    def _fail_all(self) -> None:
        for call in list(self._in_flight):
            self._finish(call, None, ConnectionClosedError("given up"))

    # kazoo.

    def _start(self) -> None:
        servers = len(self.address.servers)
        ended = partial(self.completions.put, self._on_ended)
        self._handler = Handler(
            f"zookeeper {self.address.hosts}",
            max(self.patience_s / servers / GREETINGS_PER_PATIENCE, GREET_TIMEOUT_S_MIN),
            ended,
            self._tls,
        )
        access = self.access
        self._client = KazooClient(
            hosts=self.address.hosts,
            timeout=self.patience_s,
            handler=self._handler,
            connection_retry=KazooRetry(
                max_tries=-1, delay=RECONNECT_DELAY_S, max_delay=RECONNECT_DELAY_S_MAX
            ),
            use_ssl=self._tls is not None,
            logger=self._kazoo_log,
            default_acl=CREATOR_ALL_ACL if access.acl == ACL_CREATOR else None,
            auth_data=[("digest", access.credentials)] if access.credentials else None,
        )
        self._client.add_listener(partial(self._receive_state, self._client))
        self._client.start_async()

    def _receive_state(self, client: KazooClient, state: str) -> None:
        """Called in kazoo's thread."""
        session_id = None
        if state == KazooState.CONNECTED:
            self._handler.greeted()
            session_id = client.client_id[0] if client.client_id else None
        self.completions.put(partial(self._on_state, state, session_id))

    def _on_state(self, state: str, session_id: int | None) -> None:
        if self.is_closed:
            return
        self._is_connected = state == KazooState.CONNECTED
        if session_id is not None:
            is_new = session_id != self.session_id
            self.session_id = session_id
            log.info("ZooKeeper session connected session=%#x is_new=%s", session_id, is_new)
        elif state == KazooState.LOST:
            log.warning("ZooKeeper session lost session=%s", self.session_id)
        else:
            log.warning("zookeeper_connection_lost hosts=%s", self.address.hosts)
        changed, self._state_changed = self._state_changed, trio.Event()
        changed.set()

    def _on_ended(self) -> None:
        self._has_ended.set()

    async def aclose(self) -> None:
        """Ends the session if the server answers; returns within about `CLOSE_TIMEOUT_S`."""
        if self.is_closed:
            await trio.lowlevel.checkpoint()
            return
        self.is_closed = True
        self._is_connected = False
        self._state_changed.set()
        self._fail_all()
        self.on_closed()
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hurry)
                # A thread may be left behind only while it resolves a name. The limiter is not the
                # shared one, so that closing waits for no other threads.
                with trio.move_on_after(CLOSE_TIMEOUT_S + 1):
                    await trio.to_thread.run_sync(
                        _stop, self._client, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                    )
                nursery.cancel_scope.cancel()

    async def _hurry(self) -> None:
        await trio.sleep(CLOSE_TIMEOUT_S)
        log.warning("zookeeper_session_left_open session=%s", self.session_id)
        self._handler.drop(is_final=True)


def _stop(client: KazooClient) -> None:
    """Runs in a thread of its own, which waits for kazoo's."""
    client.stop()
    client.close()
