"""Deletes ledgers that nothing names any more, and removes them from the metadata.

A bounded number is deleted at a time. An interrupted deletion keeps its progress: the metadata is
updated after every LEDGERS_PER_STEP ledgers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ledger.client import LedgerClient
from ledger.errors import NoSuchLedger
from ledger.runtime.concurrency import map_bounded
from stream.core.metadata.streams import StreamMetadata
from stream.core.trash import purged
from stream.store.pages import all_may_lack
from stream.store.streams import StreamStore

DELETIONS_CONCURRENT_MAX = 16

LEDGERS_PER_STEP = 200
"""Deletions after which the metadata is updated."""


async def delete_ledgers(client: LedgerClient, ledger_ids: Iterable[int]) -> int:
    """Deletes ledgers, and ignores those that no longer exist; returns how many existed.

    Raises the first error, once the deletions in progress have ended.
    """

    async def delete(ledger_id: int) -> bool:
        try:
            await client.delete_ledger(ledger_id)
        except NoSuchLedger:
            return False
        return True

    return sum(await map_bounded(ledger_ids, delete, concurrent_max=DELETIONS_CONCURRENT_MAX))


def steps(ledger_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields the ledgers in parts, after each of which the metadata should be updated."""
    for begin in range(0, len(ledger_ids), LEDGERS_PER_STEP):
        yield ledger_ids[begin : begin + LEDGERS_PER_STEP]


async def delete_garbage(
    client: LedgerClient, store: StreamStore, namespace: str, stream: StreamMetadata
) -> tuple[StreamMetadata, int]:
    """Deletes the garbage of a stream; returns the stream without it, and how many ledgers there
    were.

    The ledger of a writer that a commit has interrupted is kept until the writer has continued: the
    writer may not know yet, and a bookie that has forgotten the ledger and its fence would accept
    its adds. Raises NoSuchStream, MetadataUnavailable; the rest is then done next time.
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


async def purge_through(
    client: LedgerClient, store: StreamStore, namespace: str, stream: StreamMetadata, through: int
) -> tuple[StreamMetadata, int]:
    """Deletes truncated segments up to number `through`, some of those in pages at a time; what is
    restored meanwhile stays. Returns the stream, and how many ledgers were deleted.

    Raises NoSuchStream, MetadataUnavailable; the rest is then done next time.
    """

    def purged_again(known: StreamMetadata) -> StreamMetadata:
        return purged(known, min(through, known.last_dropped()))

    deleted = 0
    while True:
        before = stream.pages
        stream = await store.update_stream(
            namespace, stream.name, purged_again, may_lack=all_may_lack
        )
        stream, count = await delete_garbage(client, store, namespace, stream)
        deleted += count
        if stream.pages == before or not (stream.pages or stream.pages.has_purged):
            return stream, deleted
