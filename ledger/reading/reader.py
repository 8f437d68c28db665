"""LedgerReader: reads a ledger up to its last add confirmed, and follows it. Core: `core.reading`.

It must never return an entry after the last add confirmed, nor one whose digest does not match.
`ledger.reading.replica_fetch` fetches entries, `ledger.reading.read_ahead` reads ahead, and
`ledger.reading.last_confirmed` knows which entries may be read.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest, Entry
from ledger.core.metadata import LedgerMetadata
from ledger.errors import InvalidArgument, LedgerClosed
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.options import ClientOptions
from ledger.reading.last_confirmed import LastConfirmed
from ledger.reading.read_ahead import EntryRange
from ledger.reading.replica_fetch import ReplicaFetch
from ledger.reading.tail import Tail


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
        bookies: BookieRegistry,
        options: ClientOptions,
        rng: random.Random,
        nursery: trio.Nursery,
        rotation: int | None = None,
        arrange: Callable[[Sequence[str]], Sequence[str]] | None = None,
    ) -> None:
        self.ledger_id = metadata.ledger_id
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
            arrange=arrange,
        )
        self._confirmed = LastConfirmed(
            self._fetch,
            digest,
            pool=pool,
            ledgers=ledgers,
            bookies=bookies,
            options=options,
            spawn=self._spawn,
        )
        self.read_ahead_bytes = options.read_ahead_bytes
        """Bytes that a range read begun from now on may hold ahead of its consumer."""

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
        """Ends the tasks of this reader. It may be called twice."""
        self._confirmed.close()
        await trio.lowlevel.checkpoint()

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as last read."""
        return self._fetch.metadata

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<LedgerReader of {state} ledger {self.ledger_id}>"

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is known to be closed, and its end to be final."""
        return self.metadata.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is known here to be readable; -1 if none."""
        return self._confirmed.entry_id

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; of an open one, up to the last entry received."""
        return self.metadata.length if self.is_closed else self._confirmed.length

    def statistics(self) -> ReaderStatistics:
        counts = self._fetch.counts
        return ReaderStatistics(
            entries=counts.entries,
            payload_bytes=counts.payload_bytes,
            requests=counts.requests,
            hedges=counts.hedges,
            replica_failures=counts.replica_failures,
            digest_mismatches=counts.digest_mismatches,
            long_polls=self._confirmed.polls,
        )

    # Reading confirmed entries

    async def read(self, first: int, last: int) -> list[Entry]:
        """Returns all entries first..last, both included, or raises.

        Raises InvalidArgument for a range that is not valid or ends after the last add confirmed;
        NoSuchEntry only if every replica says so; otherwise retryable errors.
        """
        self._check_range(first, last)
        entries: list[Entry] = []
        async with aclosing(self._range(first, last)) as found:
            async for some in found:
                entries += some
        self._confirmed.note_entry(entries[-1])
        return entries

    def entries(self, first: int, last: int | None = None) -> EntryRange:
        """Iterates over entries first..last in order, in lists as they arrive, read ahead.

        Without `last` it ends at the current last add confirmed, and is empty if that is before
        `first`. Raises what `read` raises.
        """
        if last is None:
            last = self.last_add_confirmed
            if first == last + 1:
                return self._range(first, last)
        self._check_range(first, last)
        return self._range(first, last)

    def tail(self, first: int) -> Tail:
        """Iterates over entries from `first` on as they are confirmed, until the ledger is closed
        and all of it was read."""
        if first < 0:
            raise InvalidArgument(f"entry id {first} is negative")
        return Tail(
            self._confirmed,
            first,
            read_range=self._range,
            long_poll_s=self._options.long_poll_s,
        )

    def _check_range(self, first: int, last: int) -> None:
        if not 0 <= first <= last:
            raise InvalidArgument(f"entries {first}..{last} of ledger {self.ledger_id}: no range")
        if last > self.last_add_confirmed:
            state = "closed" if self.is_closed else "open"
            raise InvalidArgument(
                f"entries {first}..{last} of ledger {self.ledger_id}: the ledger is {state} and "
                f"its last add confirmed is {self.last_add_confirmed}"
                + ("" if self.is_closed else "; wait_lac_after or tail wait for more")
            )

    def _range(self, first: int, last: int) -> EntryRange:
        return EntryRange(self._fetch, self._spawn, first, last, bytes_max=self.read_ahead_bytes)

    def _spawn(self, function: Callable[..., Awaitable[Any]], argument: Any) -> None:
        try:
            self._nursery.start_soon(function, argument)
        except RuntimeError as error:
            raise LedgerClosed("the client is closed") from error

    def _install(self, metadata: LedgerMetadata) -> None:
        self._confirmed.install(metadata)

    # The last add confirmed

    def note_confirmed(self, entry_id: int) -> None:
        """Records that `entry_id` is confirmed, as another reader of this ledger has learned. How
        much a reader learns depends on the bookies that answer it, so two may differ."""
        self._confirmed.note(entry_id)

    async def read_last_confirmed(self) -> int:
        """Asks the bookies for the last add confirmed; returns never less than was known before.

        Raises NotEnoughBookies if too few of them answer.
        """
        return await self._confirmed.read()

    async def find_confirmed(self) -> int:
        """Advances the last add confirmed beyond what the writer announced, to the last entry that
        an ack quorum holds: the last entries of a writer that died. It fences no writer; see
        `ledger.reading.quorum_lac`.

        Only for a ledger whose writer is gone: a live one may be about to replace the very bookies
        that were counted.
        """
        return await self._confirmed.find()

    async def wait_lac_after(self, known: int, timeout_s: float) -> int:
        """Waits until an entry after `known` is confirmed, the ledger is closed, or
        `timeout_s` have passed; returns the last add confirmed, which may still be `known`.

        Raises NoSuchLedger if the ledger is deleted meanwhile. Bookies that fail are replaced
        by others silently: having no news is not an error.
        """
        return await self._confirmed.wait_after(known, timeout_s)

    def take_piggybacked(self, entry_id: int) -> Entry | None:
        """Returns this entry if it arrived with the last long poll and need not be read."""
        return self._confirmed.take_piggybacked(entry_id)
