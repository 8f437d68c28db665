"""Gives back the ledgers a stream no longer needs, and removes deleted streams.

Safe to stop anywhere and to repeat: metadata first says that a ledger is not needed, then the
ledger goes, then the metadata forgets it. Never touches a ledger the stream still reads from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ledger.client import LedgerClient
from ledger.errors import MetadataConflict, NoSuchLedger, RetryableError
from stream.core.metadata import StreamMetadata
from stream.store import UPDATE_TRIES_MAX, StreamStore

_log = logging.getLogger(__name__)


async def delete_ledgers(client: LedgerClient, ledger_ids: Iterable[int]) -> int:
    """Deletes ledgers, those already gone too; returns how many there still were."""
    count = 0
    for ledger_id in ledger_ids:
        try:
            await client.delete_ledger(ledger_id)
            count += 1
        except NoSuchLedger:
            pass
    return count


async def reclaim_stream(
    client: LedgerClient, store: StreamStore, namespace: str, name: str
) -> int:
    """Deletes the ledgers of truncated segments and of garbage; returns how many.

    Raises NoSuchStream, MetadataUnavailable; what was not done then is done next time.
    """
    stream, _ = await store.read_stream(namespace, name)
    unneeded = (*(segment.ledger_id for segment in stream.dropped()), *stream.garbage)
    if not unneeded or stream.is_deleted:
        return 0
    count = await delete_ledgers(client, unneeded)
    await store.update_stream(namespace, name, lambda present: present.forgotten(unneeded))
    return count


async def delete_stream(
    client: LedgerClient, store: StreamStore, namespace: str, name: str
) -> None:
    """Marks a stream as deleted and removes all of it. Raises NoSuchStream."""
    for _ in range(UPDATE_TRIES_MAX):
        stream, version = await store.read_stream(namespace, name)
        if not stream.is_deleted:
            try:
                version = await store.put_stream(namespace, stream.deleted(), version)
            except MetadataConflict:
                continue
        await purge_stream(client, store, namespace, stream, version)
        return
    raise MetadataConflict(f"stream {name!r}: others changed it {UPDATE_TRIES_MAX} times")


async def purge_stream(
    client: LedgerClient, store: StreamStore, namespace: str, stream: StreamMetadata, version: int
) -> None:
    """Removes a stream that is marked as deleted: fences its writer, deletes its ledgers."""
    segment = stream.open_segment
    if segment is not None:
        try:
            # Without a fence a living writer would go on confirming records into nothing.
            async with client.open_ledger(segment.ledger_id, recover=True):
                pass
        except NoSuchLedger:
            pass
        except RetryableError as error:
            _log.info("stream=%s: deleted without fencing its writer: %s", stream.name, error)
    await delete_ledgers(client, stream.ledgers())
    await store.remove_stream(namespace, stream.name, version)
