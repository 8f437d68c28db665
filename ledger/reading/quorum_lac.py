"""Finds entries that are confirmed although no add announced it: an ack quorum has them on disk.

The last add confirmed is sent with the *next* add, so when a writer dies, nothing announces its
last entries. An entry found on an ack quorum of its write set cannot be lost to a recovery, which
would need more negative answers than there are bookies left; so it is confirmed, and a reader may
serve it without fencing the writer. That is true only once the writer is gone, since a live one may
replace a bookie that was counted, and only for bookies that serve an entry after the last add
confirmed once it is durable, and not before. Our bookies do; Apache's do not. So only bookies that
are registered as ours count, and all others count as silent (docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import write_set
from ledger.errors import LedgerError, MetadataUnavailable, Status
from ledger.metastore.bookies import BookieRegistry
from ledger.options import ClientOptions
from ledger.wire.messages import BatchReadRequest, BatchReadResponse, ReadRequest, ReadResponse

_ROUNDS_MAX = 10_000
"""Batches or entries that are examined at most; a writer's window is far smaller."""


async def find_confirmed(
    metadata: LedgerMetadata,
    digest: Digest,
    pool: BookiePool,
    bookies: BookieRegistry,
    options: ClientOptions,
    known: int,
) -> int:
    """Returns the last entry that is certainly confirmed, at least `known`.

    Asks the bookies of the last fragment that run our software; one that fails or is silent
    proves nothing.
    """
    ensemble = metadata.last_fragment.bookies
    trusted = await _of_our_software(bookies, ensemble)
    if len(trusted) < metadata.ack_quorum:
        return known
    search = _Search(metadata, digest, pool, options, trusted)
    for _ in range(_ROUNDS_MAX):
        found = await search.advance(known)
        if found == known:
            break
        known = found
    return known


async def _of_our_software(registry: BookieRegistry, ensemble: tuple[str, ...]) -> dict[str, None]:
    """Returns the bookies of `ensemble` that are registered as ours at this moment.

    A bookie whose registration cannot be read does not count. The registry's list would not do:
    it caches what a bookie published, and other software may have its id since.
    """
    ours: dict[str, None] = {}
    for bookie in ensemble:
        try:
            if await registry.is_ours(bookie):
                ours[bookie] = None
        except MetadataUnavailable:
            return {}
        except LedgerError:
            continue
    return ours


class _Search:
    """Counts, entry by entry or batch by batch, how many bookies hold what follows."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        digest: Digest,
        pool: BookiePool,
        options: ClientOptions,
        trusted: Collection[str],
    ) -> None:
        self._trusted = trusted
        self._ledger_id = metadata.ledger_id
        self._ack_quorum = metadata.ack_quorum
        self._write_quorum = metadata.write_quorum
        self._bookies = metadata.last_fragment.bookies
        self._digest = digest
        self._pool = pool
        self._options = options

    async def advance(self, known: int) -> int:
        """Returns the last entry after `known` that one step found, or `known`."""
        first = known + 1
        if self._write_quorum == len(self._bookies):
            counts = await self._ask(self._bookies, first, self._count_batch)
        else:
            indices = write_set(first, len(self._bookies), self._write_quorum)
            asked = tuple(self._bookies[i] for i in indices)
            counts = await self._ask(asked, first, self._count_one)
        return known + sorted(counts)[-self._ack_quorum]

    async def _ask(
        self,
        bookies: tuple[str, ...],
        first: int,
        count: Callable[[str, int], Awaitable[int]],
    ) -> list[int]:
        counts = [0] * len(bookies)

        async def ask(index: int) -> None:
            if bookies[index] not in self._trusted:
                return
            try:
                counts[index] = await count(bookies[index], first)
            except LedgerError:
                return  # proves nothing: 0

        async with trio.open_nursery() as nursery:
            for index in range(len(bookies)):
                nursery.start_soon(ask, index)
        return counts

    async def _count_batch(self, bookie: str, first: int) -> int:
        """Returns how many entries from `first` on this bookie has, up to one batch."""
        request = BatchReadRequest(self._ledger_id, first, 0, self._options.batch_read_bytes)
        timeout_s = self._options.read_timeout_s
        answer = await self._pool.read_batch(bookie, request, timeout_s=timeout_s)
        if answer is None:
            return await self._count_one(bookie, first)
        if not isinstance(answer, BatchReadResponse) or answer.status is not Status.OK:
            return 0
        return len(self._digest.decode_many(self._ledger_id, first, answer.bodies))

    async def _count_one(self, bookie: str, entry_id: int) -> int:
        request = ReadRequest(self._ledger_id, entry_id)
        answer = await self._pool.call(bookie, request, timeout_s=self._options.read_timeout_s)
        if not isinstance(answer, ReadResponse) or answer.status is not Status.OK:
            return 0
        self._digest.decode_entry(self._ledger_id, entry_id, answer.body or b"")
        return 1
