"""What is confirmed although nobody told: entries that an ack quorum has on disk.

The last add confirmed travels with the *next* add, so a writer that died takes the knowledge
of its last entries with it. An entry found on an ack quorum of its write set can never be
lost to a recovery, which needs more denials than there are bookies left; so it is confirmed,
and a reader may serve it without fencing anybody. That holds only once the writer is gone (a
living one may replace a bookie that was counted), and only of bookies that serve entries after
the last add confirmed once they are durable and not before: ours do, Apache's do not. So only
those registered as ours count, all others are taken for silent (docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import write_set
from ledger.errors import LedgerError, MetadataUnavailable, Status
from ledger.metastore.bookies import OUR_SOFTWARE, SOFTWARE_PROPERTY, BookieRegistry
from ledger.options import ClientOptions
from ledger.wire.messages import BatchReadRequest, BatchReadResponse, ReadRequest, ReadResponse

_ROUNDS_MAX = 10_000
"""So many batches or entries are looked at; a writer's window is far smaller."""


async def find_confirmed(
    metadata: LedgerMetadata,
    digest: Digest,
    pool: BookiePool,
    bookies: BookieRegistry,
    options: ClientOptions,
    known: int,
) -> int:
    """The last entry that is surely confirmed, at least `known`.

    Asks those bookies of the last fragment that are ours; one that fails or is silent proves
    nothing.
    """
    ensemble = metadata.last_fragment.bookies
    trusted = await _of_our_software(bookies, ensemble)
    if len(trusted) < metadata.ack_quorum:
        return known
    search = _Search(metadata, digest, pool, options, trusted)
    for _ in range(_ROUNDS_MAX):
        found = await search.past(known)
        if found == known:
            break
        known = found
    return known


async def _of_our_software(registry: BookieRegistry, ensemble: tuple[str, ...]) -> dict[str, None]:
    """Bookies of `ensemble` registered as ours now; one whose registration is in doubt is not.

    A list would not do: it remembers what a bookie published, and under the same name there may
    be other software since."""
    ours: dict[str, None] = {}
    for bookie in ensemble:
        try:
            info = await registry.info(bookie)
        except MetadataUnavailable:
            return {}
        except LedgerError:
            continue
        if info is not None and info.properties.get(SOFTWARE_PROPERTY) == OUR_SOFTWARE:
            ours[bookie] = None
    return ours


class _Search:
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

    async def past(self, known: int) -> int:
        """One step further than `known`, or `known`."""
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
        """How many entries from `first` on this bookie has, as far as one batch shows."""
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
