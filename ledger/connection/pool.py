"""The client's connections to all bookies: up to one for v2 and one for v3 each, made on demand.

Adds and reads go over v2, which is cheap. Requests that v2 cannot express (long poll, explicit
LAC, force, info) or cannot tell apart (fencing, recovery) go over v3; by option all do. After a
failure a bookie is not tried again during a back-off that grows, so that no caller spins on it.
Whether a bookie supports batch reads is probed on a separate connection, because a bookie that
does not closes it, and nothing else may be lost with it (docs/adr/0014). Some of Apache's bookies
never answer the request for their list of entries; a read that is sent after it finds that out. Of
a bookie that runs our software silence proves nothing. `ask_space` asks bookies for their disk
space.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from ledger.connection.authentication import AuthSource
from ledger.connection.connection import (
    BookieConnection,
    ConnectionStatistics,
    Resolve,
    lost,
    version_for,
)
from ledger.connection.encryption import ClientTls
from ledger.connection.pending_calls import OnAnswer
from ledger.errors import (
    BookieUnavailable,
    LedgerClosed,
    LedgerError,
    OperationTimeout,
    RemoteProtocolError,
    Status,
    Unauthorized,
    error_of_status,
)
from ledger.options import ClientOptions
from ledger.runtime.network import Network
from ledger.wire.messages import (
    BatchReadRequest,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ReadRequest,
    RequestBody,
    ResponseBody,
)


@dataclass(slots=True)
class _Failures:
    """The failures of one bookie, and when it may be tried again."""

    count: int
    next_try_at: float
    reason: str
    error: type[LedgerError]


_NOT_UNDERSTOOD = (Status.BAD_REQUEST, Status.BAD_VERSION)
_PROBES = 2
"""Connections that must be closed on a batch read before the bookie counts as too old: a bookie
that is being stopped closes one."""
_NO_ENTRY = 2**63 - 1
"""No ledger has an entry with this id."""


Outcome = ResponseBody | LedgerError
"""The outcome of a request."""


class BookiePool:
    """The connections of one client; they live in the nursery given to `start`.

    Args:
        network: how bookies are reached.
        resolve: returns host and port of a bookie id; may raise any LedgerError.
        options: timeouts and bounds.
        rng: jitter of the back-off.
        tls: encrypts each connection; None: nothing is encrypted.
        auth: who the client is, for bookies that authenticate clients; asked for each connection.
        is_ours: whether a bookie runs our software, which lists entries; None if unknown.
    """

    def __init__(
        self,
        network: Network,
        resolve: Resolve,
        options: ClientOptions,
        rng: random.Random,
        *,
        tls: ClientTls | None = None,
        auth: AuthSource | None = None,
        is_ours: Callable[[str], Awaitable[bool | None]],
    ) -> None:
        self._network = network
        self._is_ours = is_ours
        self._resolve = resolve
        self._options = options
        self._rng = rng
        self._auth = auth
        self._tls = tls
        self._knows_batches: dict[str, bool] = {}
        """What was probed, valid as long as the v2 connection lives: a bookie is restarted when
        its version changes."""
        self._lists_nothing: set[str] = set()
        """The bookies that were found not to list entries, as long as the v3 connection lives."""
        self._probes: dict[str, tuple[trio.Event, BookieConnection]] = {}
        self._nursery: trio.Nursery | None = None
        self._connections: dict[tuple[str, int], BookieConnection] = {}
        self._failures: dict[str, _Failures] = {}

    def separate(self) -> BookiePool:
        """Returns a pool of connections of its own to the same bookies, not started: acks to adds
        over it are never taken for those of this client's writers, nor the reverse."""
        return BookiePool(
            self._network, self._resolve, self._options, self._rng,
            auth=self._auth, tls=self._tls, is_ours=self._is_ours,
        )  # fmt: skip

    @property
    def user(self) -> str:
        """The user that the client authenticates as, "?" if only the bookies know its name, "" if
        it does not."""
        provider = None if self._auth is None else self._auth()
        if provider is None:
            return "?" if self._options.tls_certificate_file else ""
        return getattr(provider, "user", "") or "?"

    def is_refused_by(self, bookies: Iterable[str]) -> bool:
        """Whether one of these bookies refused this client's identity when it last connected."""
        failures = (self._failures.get(bookie) for bookie in bookies)
        return any(each is not None and each.error is Unauthorized for each in failures)

    def start(self, nursery: trio.Nursery) -> None:
        """Connections live in `nursery` from now on."""
        self._nursery = nursery

    def connection(self, bookie: str, version: int) -> BookieConnection:
        """Returns the connection to `bookie`, and begins one if there is none. Raises
        BookieUnavailable during the back-off after a failure."""
        connection = self._connections.get((bookie, version))
        if connection is not None and connection.error is None:
            return connection
        connection, nursery = self._new_connection(bookie, version)
        self._connections[bookie, version] = connection
        nursery.start_soon(self._run, connection)
        return connection

    def _new_connection(self, bookie: str, version: int) -> tuple[BookieConnection, trio.Nursery]:
        if self._nursery is None:
            raise LedgerClosed("the client is not open")
        failures = self._failures.get(bookie)
        if failures is not None:
            wait_s = failures.next_try_at - trio.current_time()
            if wait_s > 0:
                raise failures.error(
                    f"{failures.reason}; tried {failures.count} times, next try in {wait_s:.2f} s"
                )
        connection = BookieConnection(
            bookie,
            version,
            outbox_bytes_max=self._options.outbox_bytes_max,
            auth=self._auth,
            tls=self._tls,
        )
        return connection, self._nursery

    async def _run(self, connection: BookieConnection) -> None:
        key = (connection.bookie, connection.version)
        began_at = trio.current_time()
        try:
            await connection.run(self._network, self._resolve, self._options.connect_timeout_s)
        finally:
            if self._connections.get(key) is connection:
                del self._connections[key]
            if connection.version == 2:
                self._knows_batches.pop(connection.bookie, None)
            else:
                self._lists_nothing.discard(connection.bookie)
        self._remember(connection, began_at)

    async def _run_probe(self, connection: BookieConnection) -> None:
        began_at = trio.current_time()
        await connection.run(self._network, self._resolve, self._options.connect_timeout_s)
        if not connection.was_connected:
            self._remember(connection, began_at)

    def _remember(self, connection: BookieConnection, began_at: float) -> None:
        options = self._options
        now = trio.current_time()
        before = self._failures.pop(connection.bookie, None)
        lived = now - began_at > options.reconnect_wait_max_s
        if connection.was_connected and lived:
            # The bookie was well. It may have ended the connection because a password or token has
            # been replaced, as all bookies do then: the next request must find a new connection.
            return
        count = 1 if before is None or lived else before.count + 1
        wait_s = min(options.reconnect_wait_max_s, options.reconnect_wait_s * 2 ** min(count, 10))
        error = connection.error or BookieUnavailable("the connection ended")
        self._failures[connection.bookie] = _Failures(
            count, now + wait_s * self._rng.uniform(0.5, 1.0), str(error), type(lost(error))
        )

    async def wait_connected(self, bookie: str, version: int) -> None:
        """Returns once adds can be sent to `bookie`. Raises BookieUnavailable, Unauthorized."""
        await self.connection(bookie, version).wait_connected()

    def _connection_for(self, bookie: str, body: RequestBody) -> BookieConnection:
        version = 3 if self._options.wire_version == 3 else version_for(body)
        return self.connection(bookie, version)

    async def call(self, bookie: str, body: RequestBody, *, timeout_s: float) -> ResponseBody:
        """Sends one request and returns its response, which may have an error status.

        Cancelling is safe: a late response is dropped. Raises BookieUnavailable if the bookie
        cannot be reached or the connection breaks, OperationTimeout after `timeout_s`
        seconds; in both cases the request may have been carried out. Raises Unauthorized if the
        bookie refused to authenticate the client.
        """
        return await self._connection_for(bookie, body).call(body, timeout_s)

    async def list_entries(
        self, bookie: str, ledger_id: int, *, timeout_s: float
    ) -> ResponseBody | None:
        """Like `call` with a ListEntriesRequest; None if this bookie does not answer that, but
        serves reads, like Apache's with DbLedgerStorage. That is found out in `timeout_s`, once."""
        if bookie in self._lists_nothing:
            return None
        outcome, give_up = await self._ask_within(bookie, ListEntriesRequest(ledger_id), timeout_s)
        if outcome is None:
            probe = ReadRequest(ledger_id, _NO_ENTRY)
            read, _ = await self._ask_within(bookie, probe, timeout_s)
            if read is None or isinstance(read, LedgerError):
                raise give_up()
            if await self._is_ours(bookie) is not False:
                raise give_up()  # one of its two connections may be slower than the other
            self._lists_nothing.add(bookie)
        elif isinstance(outcome, LedgerError):
            raise outcome
        return outcome

    async def _ask_within(
        self, bookie: str, body: RequestBody, timeout_s: float
    ) -> tuple[Outcome | None, Callable[[], LedgerError]]:
        """Returns the outcome of a request, None if there is none yet, and what `ask` returns."""
        done, outcomes = trio.Event(), list[Outcome]()

        def note(outcome: Outcome) -> None:
            outcomes.append(outcome)
            done.set()

        give_up = self.ask(bookie, body, note)
        with trio.move_on_after(timeout_s):
            await done.wait()
        return (outcomes[0] if outcomes else None), give_up

    async def read_batch(
        self, bookie: str, body: BatchReadRequest, *, timeout_s: float
    ) -> ResponseBody | None:
        """Like `call`; None if this bookie or the wire version in use has no batch reads."""
        if self._options.wire_version == 3:
            return None
        while (is_known := self._knows_batches.get(bookie)) is None:
            probing = self._probes.get(bookie)
            if probing is None:
                return await self._probe(bookie, body, timeout_s)
            with trio.move_on_after(timeout_s) as scope:
                await probing[0].wait()
            if scope.cancelled_caught:
                raise OperationTimeout(f"bookie {bookie} was not found to know batch reads yet")
        return await self.call(bookie, body, timeout_s=timeout_s) if is_known else None

    def knows_batches(self, bookie: str) -> bool:
        """Whether this bookie was found to support batch reads, on its present connection."""
        return self._knows_batches.get(bookie, False)

    def must_probe(self, bookie: str) -> bool:
        """Whether only `read_batch` can find out if this bookie supports batch reads."""
        return self._options.wire_version != 3 and bookie not in self._knows_batches

    async def _probe(
        self, bookie: str, body: BatchReadRequest, timeout_s: float
    ) -> ResponseBody | None:
        done = trio.Event()
        try:
            for _ in range(_PROBES):
                connection, nursery = self._new_connection(bookie, 2)
                self._probes[bookie] = done, connection
                nursery.start_soon(self._run_probe, connection)
                await connection.wait_connected()
                try:
                    answer = await connection.call(body, timeout_s)
                except BookieUnavailable:
                    continue
                is_known = answer.status not in _NOT_UNDERSTOOD
                self._knows_batches[bookie] = is_known
                return answer if is_known else None
            self._knows_batches[bookie] = False
            return None
        finally:
            probing = self._probes.pop(bookie, None)
            if probing is not None:
                probing[1].close(BookieUnavailable("only to see whether it knows batch reads"))
            done.set()

    def post(self, bookie: str, body: RequestBody, on_answer: OnAnswer) -> None:
        """Sends a request for which no task waits: `on_answer` is called with the response, or
        with None if the bookie cannot be reached."""
        try:
            connection = self._connection_for(bookie, body)
        except (BookieUnavailable, LedgerClosed, Unauthorized):
            on_answer(None)
        else:
            connection.post(body, on_answer)

    def ask(
        self,
        bookie: str,
        body: RequestBody,
        on_outcome: Callable[[Outcome], None],
        *,
        keeps_views: bool = True,
    ) -> Callable[[], LedgerError]:
        """Sends a request like `call`, but no task waits: `on_outcome` is called with the
        response, or with the error that `call` would raise; possibly before this returns. Unless
        it `keeps_views`, the entries of a batch are valid during that call only.

        Returns a function to call when the response takes too long: it closes the connection if
        nothing was received over it since, and returns the error to report. `on_outcome` may
        still be called afterwards.
        """
        return self.ask_many(bookie, [(body, on_outcome)], keeps_views=keeps_views)

    def ask_many(
        self,
        bookie: str,
        requests: Sequence[tuple[RequestBody, Callable[[Outcome], None]]],
        *,
        keeps_views: bool = True,
    ) -> Callable[[], LedgerError]:
        """Sends requests of one kind like `ask`, in one piece; the returned function gives up all
        that have no response."""
        try:
            connection = self._connection_for(bookie, requests[0][0])
        except LedgerError as error:
            failed = error
            for _, on_outcome in requests:
                on_outcome(failed)
            return lambda: failed

        def answered(on_outcome: Callable[[Outcome], None], answer: ResponseBody | None) -> None:
            on_outcome(_lost(connection) if answer is None else answer)

        kind = type(requests[0][0]).__name__
        received, began_at = connection.bytes_received, trio.current_time()
        connection.post_many(
            [(body, partial(answered, on_outcome)) for body, on_outcome in requests],
            keeps_views=keeps_views,
        )

        def give_up() -> LedgerError:
            waited = f"{trio.current_time() - began_at:g} s"
            if connection.bytes_received == received:
                connection.close(BookieUnavailable(f"bookie {bookie} is silent for {waited}"))
            return OperationTimeout(
                f"no answer from bookie {bookie} to {kind} in {waited}; outcome unknown"
            )

        return give_up

    def close_all(self) -> None:
        """Ends all connections; calls in flight get BookieUnavailable, later ones LedgerClosed."""
        self._nursery = None
        probes = [connection for _, connection in self._probes.values()]
        for connection in [*self._connections.values(), *probes]:
            connection.close(BookieUnavailable("the client was closed"))

    def statistics(self) -> dict[tuple[str, int], ConnectionStatistics]:
        """The statistics of each connection, by bookie and wire version."""
        return {key: c.statistics() for key, c in self._connections.items()}


def _lost(connection: BookieConnection) -> LedgerError:
    """Returns the error for a request that gets no response."""
    if connection.error is not None:
        return lost(connection.error)
    return BookieUnavailable(f"too many requests to bookie {connection.bookie} wait for answers")


_TOTAL, _FREE = 1, 2


@dataclass(frozen=True, slots=True)
class BookieSpace:
    """Disk space of one bookie, over all directories for entries."""

    total_bytes: int
    free_bytes: int


async def ask_space(
    pool: BookiePool, bookies: Iterable[str], *, timeout_s: float
) -> dict[str, BookieSpace | LedgerError]:
    """Asks all bookies at once; returns the space of each, or its error, in the order given."""
    found: dict[str, BookieSpace | LedgerError] = {}

    async def ask(bookie: str) -> None:
        try:
            found[bookie] = await _ask_one(pool, bookie, timeout_s)
        except LedgerError as error:
            found[bookie] = error

    order = list(dict.fromkeys(bookies))
    async with trio.open_nursery() as nursery:
        for bookie in order:
            nursery.start_soon(ask, bookie)
    return {bookie: found[bookie] for bookie in order}


async def _ask_one(pool: BookiePool, bookie: str, timeout_s: float) -> BookieSpace:
    answer = await pool.call(bookie, GetBookieInfoRequest(_TOTAL | _FREE), timeout_s=timeout_s)
    if answer.status is not Status.OK:
        raise error_of_status(answer.status, f"bookie info of {bookie}")
    if not isinstance(answer, GetBookieInfoResponse):
        raise RemoteProtocolError(f"{bookie} answered with {type(answer).__name__}")
    if answer.total_bytes is None or answer.free_bytes is None:
        raise RemoteProtocolError(f"{bookie} left out what it was asked: {answer}")
    return BookieSpace(answer.total_bytes, answer.free_bytes)
