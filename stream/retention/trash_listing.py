"""Lists what can be restored from the trash of a namespace, and until when. Changes nothing."""

from __future__ import annotations

from functools import partial

from ledger.client import LedgerClient
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import StreamMetadata
from stream.core.trash import first_recoverable
from stream.errors import IsPartitioned, NoSuchStream, NotInTrash
from stream.retention.trash import Trash, TrashEntry
from stream.store.pages import all_may_lack
from stream.store.streams import StreamStore


async def list_trash(client: LedgerClient, namespace: str) -> list[TrashEntry]:
    """Returns all that can be restored, by name and time. Raises NoSuchNamespace."""
    streams, trash = StreamStore(client.store), Trash(client, namespace)
    policy, _ = await streams.read_namespace(namespace)
    found: list[TrashEntry] = []
    for name, at_ms in await streams.list_trash(namespace):
        try:
            stream, _ = await trash.read(name, at_ms)
        except NotInTrash:
            continue
        if not stream.is_purged:
            ask = partial(_deleted_entry, policy=policy)
            found.append(await streams.pages.resolve(stream, ask, may_lack=all_may_lack))

    async def truncated_entry(stream: StreamMetadata) -> TrashEntry | None:
        ask = partial(_truncated_entry, policy=policy)
        return await streams.pages.resolve(stream, ask, may_lack=stream.is_dropped)

    for name in await streams.list_streams(namespace):
        try:
            entry = await streams.consult(namespace, name, truncated_entry)
        except (NoSuchStream, IsPartitioned):
            continue
        found += [] if entry is None else [entry]
    return sorted(found, key=lambda entry: (entry.stream, entry.since_ms))


def _deleted_entry(stream: StreamMetadata, policy: NamespaceMetadata) -> TrashEntry:
    spans = tuple(stream.spans())
    return TrashEntry(
        stream=stream.name,
        is_deleted=True,
        since_ms=stream.deleted_ms,
        purge_ms=stream.deleted_ms + policy.trash_ms,
        segments=sum(span.count for span in spans),
        records=sum(span.records for span in spans),
        nbytes=sum(span.nbytes for span in spans),
        first_position=stream.first_available,
    )


def _truncated_entry(stream: StreamMetadata, policy: NamespaceMetadata) -> TrashEntry | None:
    dropped = stream.dropped()
    if not dropped:
        return None
    return TrashEntry(
        stream=stream.name,
        is_deleted=False,
        since_ms=dropped[0].dropped_ms,
        purge_ms=dropped[0].dropped_ms + policy.trash_ms,
        segments=sum(segment.count for segment in dropped),
        records=sum(segment.records for segment in dropped),
        nbytes=sum(segment.nbytes for segment in dropped),
        first_position=first_recoverable(stream),
    )
