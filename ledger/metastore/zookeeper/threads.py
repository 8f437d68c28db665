"""The boundary between kazoo and trio: kazoo's one thread, and the way from it to trio's.

kazoo asks a handler for threads, queues and sockets. This one starts the connection's thread and no
other. Results and watch events are callbacks in that thread, and a callback must do nothing except
put a call into a `CompletionQueue`, which trio's thread empties. Nothing here waits in trio's
thread.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError
from kazoo.handlers.utils import selector_select

from ledger.runtime.certificates import TlsContext
from ledger.runtime.network import refuse_own_echo
from ledger.runtime.tls import cause_of

log = logging.getLogger(__name__)


class CompletionQueue:
    """Calls that any thread puts in and trio's thread makes, in order; woken once per burst."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._calls: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def put(self, call: Callable[[], None]) -> None:
        """Queues `call`, which must not raise. After the end of trio's run it is dropped."""
        self._calls.append(call)
        # No lock: a thread that sees the flag set has put its call in before the flag is cleared,
        # so before the queue is emptied; two threads that see it cleared only wake trio twice.
        if self._is_scheduled:
            return
        self._is_scheduled = True
        try:
            self._token.run_sync_soon(self._empty)
        except trio.RunFinishedError:
            self._calls.clear()

    def _empty(self) -> None:
        self._is_scheduled = False
        while self._calls:
            self._calls.popleft()()


class EventFdWakeup:
    """Both ends of the channel by which kazoo wakes its thread, once per request.

    kazoo would use a pair of sockets, whose buffer holds a few hundred wake-ups: the next one would
    block the caller, which is trio's thread. The counter of an eventfd is never full.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)

    def fileno(self) -> int:
        return self._fd

    def send(self, wakeups: bytes) -> int:
        os.eventfd_write(self._fd, len(wakeups))
        return len(wakeups)

    def recv(self, _count: int) -> bytes:
        os.eventfd_read(self._fd)
        return b"\0"

    def close(self) -> None:
        """Closes it; may be called for each end."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Handler:
    """An IHandler of kazoo, for one client from its start to its end.

    Args:
        name: of the thread.
        greet_timeout_s: how long one server may take to answer the handshake; kazoo alone would
            wait for the whole session timeout. ZooKeeper forgets connections that it accepts while
            it loads its data: they stay open, and nothing is ever sent on them.
        on_ended: called in the thread when kazoo's connection loop ends.
        tls: encrypts the connections; None: nothing is encrypted.
    """

    name = "ledgerstream"
    timeout_exception = KazooTimeoutError
    sleep_func = staticmethod(time.sleep)
    running = False
    """False makes kazoo call back at once, in the thread that received the result."""

    def __init__(
        self,
        name: str,
        greet_timeout_s: float,
        on_ended: Callable[[], None],
        tls: TlsContext | None = None,
    ) -> None:
        self._thread_name = name
        self._greet_timeout_s = greet_timeout_s
        self._greeted_by = math.inf
        self._on_ended = on_ended
        self._tls = tls
        self._socket: socket.socket | None = None
        self._is_stopped = False
        self.connect_error = "no connection was tried yet: do the names have addresses?"

    def start(self) -> None:
        """There are no workers to start."""

    def stop(self) -> None:
        """There are no workers to stop."""

    def drop(self, *, is_final: bool = False) -> None:
        """Breaks the present connection, even while it connects. Any thread may call it."""
        self._is_stopped = self._is_stopped or is_final
        connection = self._socket
        if connection is not None:
            try:
                # Not SSLSocket's own: it would continue in clear while kazoo's thread reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                pass  # it is over already

    def spawn(self, function: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            except Exception:
                log.warning("ZooKeeper thread died", exc_info=True)
            finally:
                self._on_ended()

        thread = threading.Thread(target=run, name=self._thread_name, daemon=True)
        thread.start()
        return thread

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", **_: Any
    ) -> socket.socket:
        """Connects to a numeric address; kazoo resolves names itself. `hostname` is the name."""
        family, kind, protocol, _name, target = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        connection = socket.socket(family, kind, protocol)
        self._socket = connection
        self._greeted_by = time.monotonic() + self._greet_timeout_s
        try:
            if self._is_stopped:
                raise ConnectionAbortedError("closing")
            connection.settimeout(self._greet_timeout_s)
            connection.connect(target)
            refuse_own_echo(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._encrypted(connection, hostname or address[0], self._tls)
        except OSError as error:
            connection.close()
            is_tls = isinstance(error, ssl.SSLError)
            self.connect_error = (
                f"TLS: {cause_of(error)}" if is_tls else f"{error.strerror or error}"
            )
            raise
        self.connect_error = "no answer to the handshake"
        return connection

    def _encrypted(
        self, connection: socket.socket, hostname: str, tls: TlsContext
    ) -> socket.socket:
        name = hostname.removeprefix("[").removesuffix("]")
        encrypted = tls.current().wrap_socket(connection, server_hostname=name)
        self._socket = encrypted
        return encrypted

    def greeted(self) -> None:
        """Called in kazoo's thread when the server has answered the handshake."""
        self._greeted_by = math.inf

    def select(self, reads: Any, writes: Any, errors: Any, timeout_s: float) -> Any:
        """Like kazoo's own, but returns without a ready socket if a handshake takes too long."""
        # What TLS has decrypted already is not seen by a selector.
        ready = [one for one in reads if isinstance(one, ssl.SSLSocket) and one.pending()]
        if ready:
            return ready, [], []
        left_s = max(self._greeted_by - time.monotonic(), 0)
        return selector_select(reads, writes, errors, min(timeout_s, left_s))

    def create_socket_pair(self) -> tuple[EventFdWakeup, EventFdWakeup]:
        bell = EventFdWakeup()
        return bell, bell

    def async_result(self) -> Any:
        return AsyncResult(self)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def event_object(self) -> threading.Event:
        return threading.Event()

    def lock_object(self) -> Any:
        return threading.Lock()

    def rlock_object(self) -> Any:
        return threading.RLock()
