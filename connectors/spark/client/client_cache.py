"""One LedgerClient per cluster and process, kept between Spark's tasks, used from any thread.

It lives on the background loop that all connections of the process share. A forked process, or
one whose loop has ended, connects anew by itself; the metadata store is opened by the first
question asked of it. Must never be pickled with a connection in it: what is pickled is the
cluster's address.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Concatenate, Generic, ParamSpec, TypeVar

import trio

from connectors.spark.client.lazy_store import LazyStore
from ledger.client import LedgerClient, wall_ms
from ledger.errors import InvalidArgument, LedgerClosed
from ledger.metastore import ClusterAddress
from ledger.options import ClientOptions
from ledger.runtime.bridge import BackgroundLoop, Call, RemoteContext
from ledger.runtime.network import TcpNetwork
from ledger.runtime.shared_loop import acquire_loop, release_loop
from stream.blocking.bridge import Bridge, BridgedContext
from stream.bridge.prefetch import Prefetch

T = TypeVar("T")
P = ParamSpec("P")

CONNECTED_MAX = 16
"""Clusters one process is connected to; for one more, the one not used for longest is let go."""
BATCH_READ_BYTES = 2_000_000
"""Twice what clients ask for that do not read whole segments: less is done per byte at both ends
(measured in turns: 18 % less in the client, 30 % less in the bookies)."""


@asynccontextmanager
async def _connect(cluster: ClusterAddress) -> AsyncIterator[LedgerClient]:
    async with (
        LazyStore(cluster) as store,
        LedgerClient(
            store,
            TcpNetwork(),
            rng=random.SystemRandom(),
            now_ms=wall_ms,
            root=cluster.root,
            layout=cluster.layout,
            options=ClientOptions(batch_read_bytes=BATCH_READ_BYTES),
        ) as client,
    ):
        yield client


class _Connection:
    """A client on the loop, from `open` to `close`."""

    def __init__(self, cluster: ClusterAddress) -> None:
        self.loop: BackgroundLoop = acquire_loop()
        self.bridge = Bridge(self.loop)
        self._scopes: dict[trio.CancelScope, None] = {}
        """Around what runs here. The loop may go on: others use it too."""
        self._held = RemoteContext(self.loop, lambda: _connect(cluster), Bridge.wake)
        self._holding = BridgedContext(self.bridge, self._held)
        try:
            self.client = self._holding.__enter__()
        except BaseException:
            release_loop(self.loop)
            raise

    @property
    def is_alive(self) -> bool:
        return not (self.loop.is_forked or self.loop.ended.is_set() or self._held.left.is_set)

    async def guarded(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives. Raises LedgerClosed if the connection is closed meanwhile."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            try:
                return await work()
            finally:
                del self._scopes[scope]
        raise LedgerClosed("the connection was closed while this ran")

    def close(self) -> None:
        """Soon, without waiting for it."""
        try:
            self.bridge.post(self._cancel_all)
        except LedgerClosed:
            pass  # the loop has ended, and with it what ran there
        self._holding.drop()
        release_loop(self.loop)

    def _cancel_all(self) -> None:
        for scope in list(self._scopes):
            scope.cancel()


class BackgroundCall(Generic[T]):
    """An async function begun by `ClusterClient.start`."""

    def __init__(self, bridge: Bridge, call: Call[T]) -> None:
        self._bridge = bridge
        self._call = call

    @property
    def has_ended(self) -> bool:
        return self._call.is_set

    def cancel(self) -> None:
        """Ends it soon; does not wait. Safe in any thread, and twice."""
        try:
            self._bridge.post(self._call.cancel)
        except LedgerClosed:
            pass  # its loop has ended, or it was left behind by a fork

    def result(self) -> T:
        """Waits for its end; what it returned, or raises what it raised."""
        self._bridge.wait(self._call)
        return self._call.result()


class ClusterClient:
    """A cluster as this process is connected to it. Made by `kept`; may be pickled.

    Async functions are called with the client before their own arguments, in the thread of the
    background loop. They must not block it.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self.cluster = address.uri
        self._address = address
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._used_s = 0.0

    def __reduce__(self) -> tuple[Callable[[str], ClusterClient], tuple[str]]:
        return cached_cluster, (self.cluster,)

    def run(
        self,
        function: Callable[Concatenate[LedgerClient, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Awaits `function(client, ...)` and returns or raises what it did, as it was raised.

        From any thread but the loop's own. Ctrl-C cancels it there. `fail_after` of
        `stream.blocking` bounds the wait. Raises TooManyRequests when 10,000 calls are under way.
        """
        while True:
            connection = self._connected()
            begun: list[bool] = []

            def begin(
                connection: _Connection = connection, begun: list[bool] = begun
            ) -> Awaitable[T]:
                begun.append(True)
                return connection.guarded(lambda: function(connection.client, *args, **kwargs))

            try:
                return connection.bridge.call(begin)
            except LedgerClosed:
                if begun or connection.is_alive:
                    raise  # what has begun is never done twice

    def start(
        self,
        function: Callable[Concatenate[LedgerClient, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> BackgroundCall[T]:
        """Begins `function(client, ...)` on the loop and does not wait for it."""
        connection = self._connected()
        call = Call(
            connection.loop,
            lambda: connection.guarded(lambda: function(connection.client, *args, **kwargs)),
            Bridge.wake,
        )
        connection.bridge.post(call.start)
        return BackgroundCall(connection.bridge, call)

    def iterate(
        self,
        begin: Callable[Concatenate[LedgerClient, P], AsyncIterator[T]],
        size_of: Callable[[T], int],
        bytes_max: int,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Generator[T, None, None]:
        """The items of `begin(client, ...)`, pulled on the loop ahead of this thread.

        At most `bytes_max` wait here, and beside them one item. Raises what the iterator raises;
        closing this one, or dropping it, ends that one.
        """
        connection = self._connected()
        bridge = connection.bridge
        items = begin(connection.client, *args, **kwargs)

        async def pull(_: None) -> T | None:
            return await anext(items, None)

        ahead = Prefetch[T, None](pull, size_of, bridge.post, bridge.wake, bytes_max=bytes_max)

        async def run() -> None:
            try:
                await connection.guarded(ahead.run)
            except LedgerClosed:
                pass  # whoever takes the items is told by them
            finally:
                if isinstance(items, AsyncGenerator):
                    with trio.CancelScope(shield=True):
                        await items.aclose()

        bridge.ask(lambda: connection.loop.start_task(run))
        try:
            while True:
                fetched = ahead.head()
                if fetched is None:
                    bridge.wait(ahead.want(None))
                    continue
                ahead.pop()
                if fetched.error is not None:
                    raise fetched.error
                if fetched.item is None:
                    return
                yield fetched.item
        finally:
            try:
                bridge.post(ahead.close)
            except LedgerClosed:
                pass  # it ended with its loop

    def post(self, job: Callable[[], object]) -> None:
        """Has a plain function run in the thread of the loop soon. It must raise nothing."""
        self._connected().bridge.post(job)

    def disconnect(self) -> None:
        """Lets go of the connections; the next call makes new ones. What runs fails."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def is_connected(self) -> bool:
        connection = self._connection
        return connection is not None and connection.is_alive

    @property
    def used_s(self) -> float:
        """When it was used last, monotonic."""
        return self._used_s

    def _connected(self) -> _Connection:
        self._used_s = time.monotonic()
        connection = self._connection
        if connection is not None and connection.is_alive:
            return connection
        _evict_idle(self)
        with self._lock:
            connection = self._connection
            if connection is None or not connection.is_alive:
                if connection is not None and not connection.loop.is_forked:
                    connection.close()
                self._connection = None
                connection = self._connection = _Connection(self._address)
            return connection

    def after_fork(self) -> None:
        """In the child: a thread that was not copied may have held the lock."""
        self._lock = threading.Lock()
        self._connection = None


_guard = threading.Lock()
_clusters: dict[str, ClusterClient] = {}


def cached_cluster(cluster: str) -> ClusterClient:
    """The cluster at this address, e.g. "sqlite:///var/lib/cluster.db"; connects when first used.

    Raises InvalidArgument for an address nobody can serve.
    """
    if cluster.partition(":")[0].lower() == "memory":
        raise InvalidArgument(
            f"cluster address {cluster!r}: a cluster in memory cannot be shared by Spark's "
            "processes. Cure: sqlite:///path/cluster.db or zk://host:2181/ledgers"
        )
    address = ClusterAddress.parse(cluster)
    with _guard:
        found = _clusters.get(cluster)
        if found is None:
            found = _clusters[cluster] = ClusterClient(address)
        return found


def _evict_idle(newcomer: ClusterClient) -> None:
    with _guard:
        others = [k for k in _clusters.values() if k is not newcomer and k.is_connected]
    others.sort(key=lambda each: each.used_s)
    for each in others[: max(0, len(others) + 1 - CONNECTED_MAX)]:
        each.disconnect()


def _reset_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    for each in _clusters.values():
        each.after_fork()


os.register_at_fork(after_in_child=_reset_in_child)
