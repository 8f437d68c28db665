"""Fetches entries of one ledger from whichever replica returns them. Shell of `core.reading`.

Every entry returned was checked against its digest. One request fetches a run of entries if the
bookie supports that; after a replica that fails, returns wrong bytes or is slow the next one is
asked, and metadata that is out of date (the entries have moved) is read again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ledger.connection.authorization import unauthorized
from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest, Entry
from ledger.core.metadata import LedgerMetadata
from ledger.core.permissions import Role
from ledger.core.reading import (
    Failed,
    HedgeDelayElapsed,
    ReadReplica,
    ReplicaAnswered,
    ReplicaOrder,
    ReplicaRead,
    Wait,
    good_prefix,
    span_end,
)
from ledger.errors import (
    DigestMismatch,
    LedgerError,
    NoSuchLedger,
    RemoteProtocolError,
    RetryableError,
    Status,
    TooManyRequests,
    Unauthorized,
    error_of_status,
)
from ledger.metastore.ledgers import LedgerStore
from ledger.options import ClientOptions
from ledger.reading.replica_call import ReplicaCall
from ledger.runtime.drive import drive
from ledger.wire.messages import (
    FRAME_BYTES_MAX,
    BatchReadRequest,
    BatchReadResponse,
    Buffer,
    ReadRequest,
    ReadResponse,
    RequestBody,
    ResponseBody,
)

_TRIES_MAX = 3
_RETRY_WAIT_S = 0.1
_RETRY_WAIT_S_MAX = 1.0
_BATCH_ENTRIES_MAX = 20_000
_SINGLES_MAX = 100
"""Single reads in flight for one run of entries, with a bookie that has no batch reads; fewer while
it refuses some of them as too many."""
_SINGLES_STEP = 10


@dataclass(slots=True)
class FetchCounts:
    """Counts of what a reader fetched, updated per request."""

    entries: int = 0
    payload_bytes: int = 0
    requests: int = 0
    hedges: int = 0
    replica_failures: int = 0
    digest_mismatches: int = 0


class ReplicaFetch:
    """Fetches entries by the metadata it has; reads that again when all replicas fail.

    Args:
        on_metadata: called with metadata that was read again.
        rotation: which replica is asked first, counted modulo their number; None: any.
        arrange: puts replicas into the order of their distance; None: any is as near.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        digest: Digest,
        *,
        pool: BookiePool,
        ledgers: LedgerStore,
        options: ClientOptions,
        rng: random.Random,
        on_metadata: Callable[[LedgerMetadata], None],
        rotation: int | None = None,
        arrange: Callable[[Sequence[str]], Sequence[str]] | None = None,
    ) -> None:
        self.metadata = metadata
        turn = rng.randrange(1 << 16) if rotation is None else rotation
        self.order = ReplicaOrder(turn, arrange)
        self.counts = FetchCounts()
        self._digest = digest
        self._pool = pool
        self._ledgers = ledgers
        self._options = options
        self._on_metadata = on_metadata
        self._singles = _SINGLES_MAX
        self._entry_bytes = 0.0
        if metadata.is_closed and metadata.last_entry_id >= 0:
            self._entry_bytes = metadata.length / (metadata.last_entry_id + 1)
            self._is_size_known = True
        else:
            self._is_size_known = False

    @property
    def is_size_known(self) -> bool:
        """Whether `batch_entries` is more than a guess."""
        return self._is_size_known

    @property
    def batch_entries(self) -> int:
        """How many entries make up one batch read of the configured size."""
        if not self._is_size_known:
            return 64
        overhead = 36 + self._digest.size
        count = int(self._options.batch_read_bytes / (self._entry_bytes + overhead))
        return max(1, min(count, _BATCH_ENTRIES_MAX))

    @property
    def entry_bytes(self) -> float:
        """Mean payload of the entries fetched last, by which read-ahead is bounded."""
        return self._entry_bytes if self._is_size_known else self._options.batch_read_bytes / 64

    def span_entries(self, first: int, last: int) -> int:
        """Returns how many of the entries first..last one request should ask for."""
        return span_end(self.metadata, first, last, self.batch_entries) - first + 1

    async def fetch(self, first: int, last: int) -> list[Entry]:
        """Returns entries from `first` on, in order, at least one, none after `last`.

        Raises NoSuchEntry only if every replica says so; otherwise the error that summarizes the
        replicas' failures, after a few retries if these might help: of overloaded bookies for the
        time that a read may take.
        """
        tries, patient_until_s = 0, trio.current_time() + self._options.read_timeout_s
        while True:
            tries += 1
            fragment = self.metadata.fragment_of(first)
            try:
                return await self._fetch_once(first, last)
            except LedgerError as error:
                if isinstance(error, Unauthorized):
                    raise unauthorized(self._pool, self.metadata, Role.READ, error) from None
                is_overload = isinstance(error, TooManyRequests)
                if tries >= _TRIES_MAX and not (
                    is_overload and trio.current_time() < patient_until_s
                ):
                    raise
                await self.refresh()
                if self.metadata.fragment_of(first) != fragment:
                    continue
                if not error.retry_is_safe:
                    raise
            await trio.sleep(min(_RETRY_WAIT_S * tries, _RETRY_WAIT_S_MAX))

    async def refresh(self) -> bool:
        """Reads the metadata again. Returns False, and keeps it, if the store is unreachable."""
        try:
            metadata, _ = await self._ledgers.read(self.metadata.ledger_id)
        except RetryableError:
            return False
        except NoSuchLedger:
            raise NoSuchLedger(
                f"ledger {self.metadata.ledger_id} was deleted while it was read"
            ) from None
        self._on_metadata(metadata)
        return True

    async def _fetch_once(self, first: int, last: int) -> list[Entry]:
        metadata = self.metadata
        end = span_end(metadata, first, last, self.batch_entries)
        order = self.order.order(metadata, first, trio.current_time())
        what = f"entry {first} of ledger {metadata.ledger_id}"
        read = ReplicaRead[list[Entry]](what, order, self._options.speculative_read_s)
        try:
            if first == end or self._pool.knows_batches(order[0]):
                entries = await self._ask_at_once(read, first, end)
            else:
                entries = await self._ask_in_tasks(read, first, end)
        finally:
            self._remember(read)
        self._count(entries)
        return entries

    async def _ask_at_once(
        self, read: ReplicaRead[list[Entry]], first: int, end: int
    ) -> list[Entry]:
        """Fetches with one request per replica, which needs no task. One entry is enough from a
        further replica that may not support batch reads."""
        ledger_id = self.metadata.ledger_id

        def request(bookie: str) -> RequestBody:
            self.counts.requests += 1
            if first == end or not self._pool.knows_batches(bookie):
                return ReadRequest(ledger_id, first)
            return self._batch_request(first, end)

        def take(bookie: str, response: ResponseBody) -> list[Entry]:
            if isinstance(response, BatchReadResponse):
                return self._taken_batch(bookie, first, end, response)
            return self._checked(bookie, first, [_body_of(bookie, response)])

        timeout_s = self._options.read_timeout_s
        entries = await ReplicaCall(self._pool, read, request, take, timeout_s=timeout_s).run()
        assert entries is not None, "it cannot be interrupted"
        return entries

    async def _ask_in_tasks(
        self, read: ReplicaRead[list[Entry]], first: int, end: int
    ) -> list[Entry]:
        async def perform(
            action: ReadReplica | Wait,
        ) -> ReplicaAnswered[list[Entry]] | Failed | HedgeDelayElapsed:
            if isinstance(action, Wait):
                await trio.sleep(action.seconds)
                return HedgeDelayElapsed()
            try:
                return ReplicaAnswered(action.bookie, await self._ask(action.bookie, first, end))
            except LedgerError as error:
                return Failed(action.bookie, error)

        return (await drive(read, perform)).value

    def _remember(self, read: ReplicaRead[list[Entry]]) -> None:
        now_s = trio.current_time()
        self.counts.hedges += read.hedges
        self.counts.replica_failures += len(read.errors)
        for bookie in [*read.errors, *read.slow]:
            self.order.failed(bookie, now_s)

    def _count(self, entries: list[Entry]) -> None:
        # Lengths are cumulative, so the sum needs no look at each entry. They are not in entry
        # order if the writer chose the ids itself: then this is not the sum.
        size = max(0, entries[-1].length - entries[0].length + len(entries[0].payload))
        self.counts.entries += len(entries)
        self.counts.payload_bytes += size
        self._entry_bytes = size / len(entries)
        self._is_size_known = True

    async def _ask(self, bookie: str, first: int, end: int) -> list[Entry]:
        """Returns entries first..end or a prefix of them from one bookie, checked."""
        if first < end:
            entries = await self._ask_batch(bookie, first, end)
            if entries is not None:
                return entries
        return self._checked(bookie, first, await self._ask_singles(bookie, first, end))

    async def _ask_batch(self, bookie: str, first: int, end: int) -> list[Entry] | None:
        """Like `_ask` by a batch read; None if this bookie has none."""
        response = await self._pool.read_batch(
            bookie, self._batch_request(first, end), timeout_s=self._options.read_timeout_s
        )
        if response is None:
            return None
        self.counts.requests += 1
        return self._taken_batch(bookie, first, end, response)

    def _batch_request(self, first: int, end: int) -> BatchReadRequest:
        # Twice the expected size: entries that grew must not cost a second round trip.
        size_max = min(2 * self._options.batch_read_bytes, FRAME_BYTES_MAX - 1024)
        return BatchReadRequest(self.metadata.ledger_id, first, end - first + 1, size_max)

    def _taken_batch(
        self, bookie: str, first: int, end: int, response: ResponseBody
    ) -> list[Entry]:
        count = end - first + 1
        if response.status is not Status.OK:
            raise error_of_status(response.status, f"batch read at {bookie}")
        if not isinstance(response, BatchReadResponse) or not 0 < len(response.bodies) <= count:
            raise RemoteProtocolError(f"{bookie} answered a batch read of {count} with no batch")
        return self._checked(bookie, first, response.bodies)

    async def _ask_singles(self, bookie: str, first: int, end: int) -> list[Buffer]:
        """Requests single entries all at once; returns those before the first that is missing."""
        ledger_id = self.metadata.ledger_id
        count = min(end - first + 1, self._singles)
        self.counts.requests += count
        others = _Gathering(count - 1)

        async def post_others() -> None:
            for i in range(count - 1):
                request = ReadRequest(ledger_id, first + 1 + i)
                self._pool.post(bookie, request, others.taker(i))

        failure: LedgerError | None = None
        async with trio.open_nursery() as nursery:
            # They are sent after the first: without that one they are useless.
            nursery.start_soon(post_others)
            try:
                # A task waits for the first, to notice a bookie that is silent altogether.
                response = await self._pool.call(
                    bookie, ReadRequest(ledger_id, first), timeout_s=self._options.read_timeout_s
                )
            except LedgerError as error:
                failure = error
        if failure is not None:
            raise failure
        body = _body_of(bookie, response)
        with trio.move_on_after(self._options.read_timeout_s):
            await others.wait()
        if others.were_too_many:
            self._singles = max(1, count // 2)
        else:
            self._singles = min(self._singles + _SINGLES_STEP, _SINGLES_MAX)
        return [body, *others.prefix()]

    def _checked(self, bookie: str, first: int, bodies: Sequence[Buffer]) -> list[Entry]:
        """Returns the entries in `bodies`, or those before the first that is corrupt."""
        ledger_id = self.metadata.ledger_id
        try:
            return self._digest.decode_many(ledger_id, first, bodies)
        except DigestMismatch:
            self.counts.digest_mismatches += 1
            good, _ = good_prefix(self._digest, ledger_id, first, bodies)
            if good == 0:
                raise
            # Entries before the corrupt one are good; that one is fetched from another replica.
            self.order.failed(bookie, trio.current_time())
            return self._digest.decode_many(ledger_id, first, bodies[:good])


def _body_of(bookie: str, response: ResponseBody) -> Buffer:
    if response.status is not Status.OK:
        raise error_of_status(response.status, f"read at {bookie}")
    if not isinstance(response, ReadResponse) or response.body is None:
        raise RemoteProtocolError(f"{bookie} answered a read without an entry: {response}")
    return response.body


class _Gathering:
    """Collects the responses to reads that were posted together."""

    def __init__(self, count: int) -> None:
        self._answers: list[ResponseBody | None] = [None] * count
        self._left = count
        self._done = trio.Event()
        if count == 0:
            self._done.set()

    def taker(self, index: int) -> Callable[[ResponseBody | None], None]:
        def take(answer: ResponseBody | None) -> None:
            self._answers[index] = answer
            self._left -= 1
            if self._left == 0:
                self._done.set()

        return take

    async def wait(self) -> None:
        if not self._done.is_set():
            await self._done.wait()

    @property
    def were_too_many(self) -> bool:
        return any(a is not None and a.status is Status.TOO_MANY_REQUESTS for a in self._answers)

    def prefix(self) -> list[Buffer]:
        """Returns the entries before the first that is missing."""
        bodies: list[Buffer] = []
        for answer in self._answers:
            if not isinstance(answer, ReadResponse) or answer.status is not Status.OK:
                break
            if answer.body is None:
                break
            bodies.append(answer.body)
        return bodies
