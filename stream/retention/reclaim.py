"""Applies the retention of a stream, and deletes ledgers that the stream no longer needs.

It is safe to interrupt anywhere and to repeat: one change of the metadata makes ledgers garbage,
then they are deleted, then the metadata forgets them. Never touches a ledger that could be
restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ledger.client import LedgerClient
from ledger.errors import MetadataConflict
from ledger.metastore.base import Check
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.retention import Cause, RetentionPlan, explain, retained
from stream.core.trash import purged
from stream.errors import NotInTrash
from stream.retention import trash
from stream.retention.ledger_deletion import delete_garbage, purge_through
from stream.retention.partition_sizes import PartitionSizes
from stream.store.cursors import CursorStore, cursor_path
from stream.store.pages import PageLost, PageStore, all_may_lack
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    StreamStore,
    namespace_path,
    too_many_conflicts,
    was_deleted,
)


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What applying its retention did to a stream: `stream` is as stored afterwards."""

    stream: StreamMetadata
    plan: RetentionPlan
    ledgers_deleted: int


async def reclaim_stream(
    client: LedgerClient, store: StreamStore, namespace: str, name: str
) -> int:
    """Deletes the ledgers of a stream's garbage; returns how many.

    Raises NoSuchStream, MetadataUnavailable; the rest is then done next time.
    """
    stream, _ = await store.read_stream(namespace, name)
    _, count = await delete_garbage(client, store, namespace, stream)
    return count


async def plan_retention(
    client: LedgerClient,
    policy: NamespaceMetadata,
    stream: StreamMetadata,
    sizes: PartitionSizes | None = None,
    *,
    in_short: bool = False,
) -> tuple[RetentionPlan, list[Check]]:
    """Returns what the policy does to the stream now, and checks of the nodes that this is based
    on.

    They are cursors and, for a partition dropped for the size of the whole stream, the other
    partitions. `sizes` are those of this sweep, if it covers several streams; `in_short` is as in
    `explain`. An unreadable cursor counts as missing: everything is kept. Raises PageLost unless
    the segments of the page are in the trash, MetadataUnavailable.
    """
    cursors: dict[str, Position] = {}
    checks: list[Check] = []
    if policy.retention_ms is not None or policy.retention_bytes is not None:
        store = CursorStore(client.store)
        for name in policy.retention_cursors:
            slot = await store.read_slot(policy.name, stream, name)
            if slot.cursor is not None and slot.version is not None:
                cursors[name] = slot.cursor.position
                checks.append(Check(cursor_path(policy.name, stream.name, name), slot.version))
    sizes = PartitionSizes(client, policy.name) if sizes is None else sizes
    share, others = await sizes.share(policy, stream)
    now_ms = client.now_ms()
    plan = await PageStore(client.store).resolve(
        stream,
        lambda known: explain(known, policy, cursors, now_ms, share, in_short=in_short),
        may_lack=stream.is_dropped,
    )
    if any(segment.cause is Cause.SIZE for segment in plan.dropped):
        checks += others
    return plan, checks


class StreamVersion(NamedTuple):
    """A stream and its policy, as they were read."""

    policy: NamespaceMetadata
    policy_version: int
    stream: StreamMetadata
    version: int


async def read_stream_version(store: StreamStore, namespace: str, name: str) -> StreamVersion:
    """Reads a stream and its policy. Raises NoSuchNamespace, NoSuchStream."""
    policy, policy_version = await store.read_namespace(namespace)
    stream, version = await store.read_stream(namespace, name)
    if stream.is_deleted:
        raise was_deleted(namespace, name)
    return StreamVersion(policy, policy_version, stream, version)


async def apply_retention(
    client: LedgerClient, namespace: str, seen: StreamVersion, sizes: PartitionSizes | None = None
) -> RetentionResult:
    """Drops and purges what the policy of the namespace says now, and deletes ledgers.

    Each change is made only if stream, policy and cursors are still those that it was decided by;
    otherwise it is decided again: nothing is dropped that was to be kept a moment ago, or is to be
    kept from now on. So it is after each step of a purge from pages. Raises NoSuchStream,
    NoSuchNamespace, MetadataConflict if they change all the time, MetadataUnavailable.
    """
    store = StreamStore(client.store)
    name = seen.stream.name
    sizes = PartitionSizes(client, namespace) if sizes is None else sizes
    first_plan: RetentionPlan | None = None
    count = tries = 0
    while tries < UPDATE_TRIES_MAX:
        policy, policy_version, stream, version = seen
        try:
            plan, checks = await plan_retention(client, policy, stream, sizes, in_short=True)
        except PageLost:
            # Unless another client has purged it just now, also from another partition.
            seen, tries = await read_stream_version(store, namespace, name), tries + 1
            sizes.forget_all(name)
            if seen.version == version and tries > 1:
                raise
            continue
        wanted = await store.pages.resolve(
            stream, partial(retained, plan=plan), may_lack=all_may_lack
        )
        if wanted != stream:
            checks.append(Check(namespace_path(namespace), policy_version))
            try:
                wanted, _ = await store.put_stream(namespace, wanted, version, only_if=checks)
            except MetadataConflict:
                sizes.forget_all(name)
                seen, tries = await read_stream_version(store, namespace, name), tries + 1
                continue
            sizes.forget(name)
        after, deleted = await delete_garbage(client, store, namespace, wanted)
        first_plan, count, tries = first_plan or plan, count + deleted, 0
        if not (after.pages and stream.pages.first < after.pages.first <= plan.purge_through):
            if after.pages.has_purged:
                after, deleted = await purge_through(client, store, namespace, after, 0)
                count += deleted
            return RetentionResult(after, first_plan, count)
        seen = await read_stream_version(store, namespace, name)
    raise too_many_conflicts(f"stream {name!r}, its cursors or its policy")


async def truncate_stream(
    client: LedgerClient, store: StreamStore, namespace: str, name: str, position: Position
) -> StreamMetadata:
    """Moves the begin of a stream forward; what is dropped goes to the trash, if there is one.

    Raises InvalidArgument for a position behind the end of the stream, NoSuchStream.
    """
    for _ in range(UPDATE_TRIES_MAX):
        policy, policy_version, stream, version = await read_stream_version(store, namespace, name)
        now_ms = client.now_ms()
        wanted = await store.pages.resolve(
            stream,
            partial(StreamMetadata.truncated, position=position, now_ms=now_ms),
            may_lack=all_may_lack,
        )
        # What the trash has kept long enough is left to janitors, which check their clocks.
        is_purge = policy.trash_ms == 0
        if is_purge and not (wanted.pages or wanted.pages.has_purged):
            wanted = purged(wanted, wanted.last_dropped())
        if wanted != stream:
            unchanged = [Check(namespace_path(namespace), policy_version)]
            try:
                wanted, _ = await store.put_stream(namespace, wanted, version, only_if=unchanged)
            except MetadataConflict:
                continue
        stream, _ = await delete_garbage(client, store, namespace, wanted)
        if is_purge and (stream.pages or stream.pages.has_purged):
            last = await store.pages.resolve(
                stream, StreamMetadata.last_dropped, may_lack=all_may_lack
            )
            stream, _ = await purge_through(client, store, namespace, stream, last)
        return stream
    raise too_many_conflicts(f"stream {name!r}")


async def delete_stream(
    client: LedgerClient,
    store: StreamStore,
    namespace: str,
    name: str,
    *,
    conditions: trash.Conditions = trash.no_conditions,
) -> None:
    """Moves a stream into the trash and fences its writer; without a trash it is purged at once.

    Raises NoSuchStream, and what `conditions` raises. Once the metadata has changed, the janitor
    completes the rest too.
    """
    policy, policy_version = await store.read_namespace(namespace)
    deleted_ms = await trash.delete(
        client.store, namespace, name, client.now_ms(), conditions=conditions
    )
    its_trash = trash.Trash(client, namespace)
    await its_trash.fence(name, deleted_ms)
    if policy.trash_ms == 0:
        unchanged = Check(namespace_path(namespace), policy_version)
        try:
            await its_trash.purge(name, deleted_ms, only_if=[unchanged])
        except (MetadataConflict, NotInTrash):
            pass  # it is deleted; a janitor purged it already, or the policy has a trash again
