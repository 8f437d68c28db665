"""Deletes ledgers that nothing names any more, some at a time, and lets the metadata forget them.

One that dies on the way has not worked in vain: every so often what is gone is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ledger.client import LedgerClient
from ledger.errors import NoSuchLedger
from ledger.runtime.concurrency import map_bounded
from stream.core.metadata.streams import StreamMetadata
from stream.store.streams import StreamStore

DELETES_AT_ONCE = 16

LEDGERS_PER_STEP = 200
"""After so many deletions the metadata forgets them."""


async def delete_ledgers(client: LedgerClient, ledger_ids: Iterable[int]) -> int:
    """Deletes ledgers, those already gone too; returns how many there still were.

    Raises the first error, when those under way are done.
    """

    async def delete(ledger_id: int) -> bool:
        try:
            await client.delete_ledger(ledger_id)
        except NoSuchLedger:
            return False
        return True

    return sum(await map_bounded(ledger_ids, delete, concurrent_max=DELETES_AT_ONCE))


def steps(ledger_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The ledgers in parts, after each of which the metadata should forget them."""
    for begin in range(0, len(ledger_ids), LEDGERS_PER_STEP):
        yield ledger_ids[begin : begin + LEDGERS_PER_STEP]


async def delete_garbage(
    client: LedgerClient, store: StreamStore, namespace: str, stream: StreamMetadata
) -> tuple[StreamMetadata, int]:
    """Deletes the garbage of a stream; returns the stream without it, and how many there were.

    The ledger of a writer that a commit has interrupted stays until the writer has gone on: it may
    not know yet, and a bookie that has forgotten the ledger, fence and all, would take its adds.
    Raises NoSuchStream, MetadataUnavailable; what was not done then is done next time.
    """
    count = 0
    spared = -1 if stream.interrupted is None else stream.interrupted.ledger_id
    if not stream.is_deleted:
        for part in steps([ledger for ledger in stream.garbage if ledger != spared]):
            count += await delete_ledgers(client, part)

            def forgotten(present: StreamMetadata, part: Sequence[int] = part) -> StreamMetadata:
                return present.forgotten(part)

            stream = await store.update_stream(namespace, stream.name, forgotten)
    return stream, count
