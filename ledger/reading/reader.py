"""LedgerReader: reads a ledger up to its last add confirmed, and follows it. Core: `core.reading`.

Never serves an entry after the last add confirmed, nor one whose digest does not fit; the last
add confirmed never goes back. Fetching is `ledger.reading.replica_fetch`, reading ahead
`ledger.reading.read_ahead`; here is what they may read, and how that grows.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest, Entry
from ledger.core.metadata import LedgerMetadata
from ledger.core.reading import Failed, LacRead, ReadReplica, ReplicaAnswered, lac_of
from ledger.errors import (
    InvalidArgument,
    LedgerClosed,
    LedgerError,
    MetadataCorrupt,
    NoSuchLedger,
    NotEnoughBookies,
    RemoteProtocolError,
    RetryableError,
    Status,
    error_of_status,
)
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import CLIENT_TAG, LedgerStore
from ledger.options import ClientOptions
from ledger.reading.last_confirmed import LacPoll
from ledger.reading.quorum_lac import find_confirmed
from ledger.reading.read_ahead import EntryRange
from ledger.reading.replica_fetch import ReplicaFetch
from ledger.reading.tail import Tail
from ledger.runtime.drive import drive
from ledger.wire.messages import ReadLacRequest, ReadLacResponse

_POLL_PAUSE_S_MIN = 0.005
_POLL_PAUSE_S_MAX = 0.25
"""Pauses after a poll that ended early and brought nothing, so that nobody spins."""
_WATCH_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """Counts since the ledger was opened."""

    entries: int
    payload_bytes: int
    requests: int
    hedges: int
    replica_failures: int
    digest_mismatches: int
    long_polls: int


class LedgerReader:
    """Reads one ledger; made by `LedgerClient.open_ledger`. Any number of tasks may use it.

    Args:
        digest: of the ledger's type and password; the opener checked the password.
        nursery: the client's; tasks of this reader end with it or with `aclose`.
        rotation: which replica is asked first, counted round; None: any.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        digest: Digest,
        *,
        pool: BookiePool,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        options: ClientOptions,
        rng: random.Random,
        nursery: trio.Nursery,
        rotation: int | None = None,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self._digest = digest
        self._pool = pool
        self._ledgers = ledgers
        self._bookies = bookies
        self._options = options
        self._nursery = nursery
        self._fetch = ReplicaFetch(
            metadata,
            digest,
            pool=pool,
            ledgers=ledgers,
            options=options,
            rng=rng,
            on_metadata=self._install,
            rotation=rotation,
        )
        self.read_ahead_bytes = options.read_ahead_bytes
        """Bytes a range read begun from now on may hold ahead of its consumer."""
        self._lac = -1
        self._length = 0
        self._poll = LacPoll(self._fetch, digest, pool, options)
        self._changed = trio.Event()
        """Set and replaced when metadata changed."""
        self._failure: LedgerError | None = None
        self._watch_scope: trio.CancelScope | None = None
        self._piggybacked: Entry | None = None
        self._install(metadata)

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the tasks of this reader. Closing twice is fine."""
        if self._watch_scope is not None:
            self._watch_scope.cancel()
        await trio.lowlevel.checkpoint()

    @property
    def metadata(self) -> LedgerMetadata:
        """As last seen."""
        return self._fetch.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is known to have its final end."""
        return self.metadata.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read, as far as is known here; -1 if none."""
        return self._lac

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; of one not closed, up to the last entry heard of."""
        return self.metadata.length if self.is_closed else self._length

    def statistics(self) -> ReaderStatistics:
        counts = self._fetch.counts
        return ReaderStatistics(
            entries=counts.entries,
            payload_bytes=counts.payload_bytes,
            requests=counts.requests,
            hedges=counts.hedges,
            replica_failures=counts.replica_failures,
            digest_mismatches=counts.digest_mismatches,
            long_polls=self._poll.count,
        )

    # Reading what is confirmed

    async def read(self, first: int, last: int) -> list[Entry]:
        """Entries first..last, both included; all of them or an error.

        Raises InvalidArgument for a range that is no range or goes beyond the last add
        confirmed; NoSuchEntry only if every replica says so; else retryable errors.
        """
        self._check_range(first, last)
        entries: list[Entry] = []
        async with aclosing(self._range(first, last)) as found:
            async for some in found:
                entries += some
        self._heard_entry(entries[-1])
        return entries

    def entries(self, first: int, last: int | None = None) -> EntryRange:
        """Entries first..last in order, in lists as they come, read ahead of the caller.

        Without `last`: up to the last add confirmed of this moment; nothing if that is before
        `first`. Raises what `read` raises.
        """
        if last is None:
            last = self._lac
            if first == last + 1:
                return self._range(first, last)
        self._check_range(first, last)
        return self._range(first, last)

    def tail(self, first: int) -> Tail:
        """Entries from `first` on as they are confirmed, until the ledger is closed and all
        of it was read."""
        if first < 0:
            raise InvalidArgument(f"entry id {first} is negative")
        return Tail(
            self,
            first,
            read_range=self._range,
            on_entry=self._heard_entry,
            long_poll_s=self._options.long_poll_s,
        )

    def _check_range(self, first: int, last: int) -> None:
        if not 0 <= first <= last:
            raise InvalidArgument(f"entries {first}..{last} of ledger {self.ledger_id}: no range")
        if last > self._lac:
            state = "closed" if self.is_closed else "open"
            raise InvalidArgument(
                f"entries {first}..{last} of ledger {self.ledger_id}: the ledger is {state} and "
                f"its last add confirmed is {self._lac}"
                + ("" if self.is_closed else "; wait_lac_after or tail wait for more")
            )

    def _range(self, first: int, last: int) -> EntryRange:
        return EntryRange(self._fetch, self._spawn, first, last, bytes_max=self.read_ahead_bytes)

    def _spawn(self, function: Callable[..., Awaitable[Any]], argument: Any) -> None:
        try:
            self._nursery.start_soon(function, argument)
        except RuntimeError as error:
            raise LedgerClosed("the client is closed") from error

    # Learning how far the ledger is confirmed

    def note_confirmed(self, entry_id: int) -> None:
        """Another reader of this ledger learned that `entry_id` is confirmed. Which bookies
        answer decides how much one reader hears, so two may know different amounts."""
        self._heard_lac(entry_id)

    def _heard_lac(self, lac: int) -> None:
        # What lies after the end of a closed ledger was never confirmed, whoever says so.
        if not self.is_closed and lac > self._lac:
            self._lac = lac

    def _heard_entry(self, entry: Entry) -> None:
        self._heard_lac(entry.lac)
        self._length = max(self._length, entry.length)

    def _install(self, metadata: LedgerMetadata) -> None:
        """Takes newer metadata over. Raises MetadataCorrupt if it takes confirmed entries away."""
        before = self._fetch.metadata
        if before.is_closed and not metadata.is_closed:
            return  # older than what we have
        self._fetch.metadata = metadata
        if metadata.is_closed:
            if metadata.last_entry_id < self._lac:
                raise MetadataCorrupt(
                    f"ledger {self.ledger_id} is closed at entry {metadata.last_entry_id}, but "
                    f"entry {self._lac} was confirmed"
                )
            self._lac = metadata.last_entry_id
        else:
            # A fragment begins after the last entry confirmed before it.
            self._heard_lac(metadata.last_fragment.first_entry_id - 1)
        if metadata != before:
            self._tell_changed()

    def _tell_changed(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        self._poll.interrupt()

    async def read_last_confirmed(self) -> int:
        """Asks the bookies how far the ledger is confirmed; never less than known before.

        Raises NotEnoughBookies if too many are silent.
        """
        while not self.is_closed:
            await self._fetch.refresh()
            fragment = self.metadata.last_fragment
            try:
                lac = await drive(LacRead(self.metadata), self._ask_lac)
            except NotEnoughBookies:
                await self._fetch.refresh()
                if not self.is_closed and self.metadata.last_fragment == fragment:
                    raise
                continue
            self._heard_lac(lac)
            await self._look_behind_writer()
            break
        return self._lac

    async def _look_behind_writer(self) -> None:
        writer = self.metadata.custom.get(CLIENT_TAG)
        if self.is_closed or not await self._ledgers.is_writer_gone(self.metadata):
            return
        # The ensemble that will not be changed any more: of one it left, copies prove nothing.
        if await self._fetch.refresh() and self.metadata.custom.get(CLIENT_TAG) == writer:
            await self.find_confirmed()

    async def find_confirmed(self) -> int:
        """Moves the last add confirmed past what the writer told, to what an ack quorum holds:
        the last entries of a writer that died. Fences nobody; see `ledger.reading.quorum_lac`.

        Only for a ledger whose writer is gone: a living one may be about to replace the very
        bookies that were counted.
        """
        if not self.is_closed:
            found = await find_confirmed(
                self.metadata, self._digest, self._pool, self._bookies, self._options, self._lac
            )
            self._heard_lac(found)
        return self._lac

    async def _ask_lac(self, action: ReadReplica) -> ReplicaAnswered[int] | Failed:
        bookie = action.bookie
        try:
            response = await self._pool.call(
                bookie, ReadLacRequest(self.ledger_id), timeout_s=self._options.read_timeout_s
            )
            if response.status is not Status.OK:
                return Failed(bookie, error_of_status(response.status, f"read LAC at {bookie}"))
            if not isinstance(response, ReadLacResponse):
                return Failed(bookie, RemoteProtocolError(f"{bookie}: {type(response).__name__}"))
            lac = lac_of(self._digest, self.ledger_id, response.lac_body, response.last_entry_body)
        except LedgerError as error:
            return Failed(bookie, error)
        return ReplicaAnswered(bookie, lac)

    # Following

    async def wait_lac_after(self, known: int, timeout_s: float) -> int:
        """Waits until an entry after `known` is confirmed, the ledger is closed, or
        `timeout_s` have passed; returns the last add confirmed, which may be `known` still.

        Raises NoSuchLedger if the ledger is deleted meanwhile. Bookies that fail are replaced
        by others silently: not knowing more is no error.
        """
        deadline = trio.current_time() + timeout_s
        pause_s = _POLL_PAUSE_S_MIN
        self._start_watch()
        while True:
            if self._failure is not None:
                raise self._failure
            began = trio.current_time()
            left_s = deadline - began
            if self._lac > known or self.is_closed or left_s <= 0:
                await trio.lowlevel.checkpoint()
                return self._lac
            changed = self._changed
            poll_s = min(left_s, self._options.long_poll_s)
            answer = await self._poll.poll(known, poll_s)
            if answer is not None:
                self._heard_lac(answer.lac)
                if answer.entry is not None:
                    self._piggybacked = answer.entry
            if self._lac <= known and not changed.is_set():
                await self._look_behind_writer()
            if self._lac > known or changed.is_set():
                pause_s = _POLL_PAUSE_S_MIN
            elif trio.current_time() - began < pause_s:
                with trio.move_on_at(min(trio.current_time() + pause_s, deadline)):
                    await changed.wait()
                pause_s = min(2 * pause_s, _POLL_PAUSE_S_MAX)

    def take_piggybacked(self, entry_id: int) -> Entry | None:
        """The entry that came with the last poll, if it is this one: no need to read it."""
        entry, self._piggybacked = self._piggybacked, None
        if entry is None or entry.entry_id != entry_id or entry_id > self._lac:
            return None
        self._fetch.counts.entries += 1
        self._fetch.counts.payload_bytes += len(entry.payload)
        return entry

    def _start_watch(self) -> None:
        """Metadata is watched from the first wait on, until the ledger is closed."""
        if self._watch_scope is None and not self.is_closed:
            self._watch_scope = trio.CancelScope()
            self._spawn(self._watch, self._watch_scope)

    async def _watch(self, scope: trio.CancelScope) -> None:
        with scope:
            while not self.is_closed and self._failure is None:
                try:
                    await self._watch_versions()
                except RetryableError:
                    await trio.sleep(_WATCH_PAUSE_S)
                except LedgerError as error:
                    self._failure = error
                    self._tell_changed()

    async def _watch_versions(self) -> None:
        async with aclosing(self._ledgers.watch(self.ledger_id)) as versions:
            async for metadata in versions:
                if metadata is None:
                    raise NoSuchLedger(f"ledger {self.ledger_id} was deleted")
                self._install(metadata)
                if self.is_closed:
                    return
