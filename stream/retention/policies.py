"""Policies of namespaces: created, changed, and what a change would do to existing data.

What is shown before a change is what the janitor does after it: both use core/retention.py. A
change that would drop data is made only if the caller allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, MetadataConflict, MetadataCorrupt
from ledger.units import duration_text, parse_size_bytes, size_text
from stream.core.arguments import Duration, Size, to_duration_ms
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import StreamMetadata
from stream.core.retention import (
    DataWouldBeDropped,
    RetentionPlan,
    SegmentPlan,
    Verdict,
    explain_deleted,
)
from stream.errors import IsPartitioned, NoSuchNamespace, NoSuchStream, NotInTrash
from stream.retention.partition_sizes import PartitionSizes
from stream.retention.reclaim import plan_retention
from stream.retention.trash import Trash
from stream.store.pages import all_may_lack
from stream.store.streams import UPDATE_TRIES_MAX, StreamStore, too_many_conflicts

if TYPE_CHECKING:
    from ledger.metastore.permissions import Permissions


class NamespaceSettings(TypedDict, total=False):
    """Settings of a namespace: times in milliseconds, sizes in bytes, or as text like "7d" and
    "500MB"; docs/streams.md describes all.

    None, where it is legal, means no limit.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: str
    roll_ms: Duration
    roll_bytes: Size
    retention_ms: Duration | None
    retention_bytes: Size | None
    retention_cursors: tuple[str, ...]
    trash_ms: Duration
    placement: str
    record_bytes_max: Size
    streams_max: int | None
    bytes_per_s_max: Size | None
    compression: str
    batch_bytes: Size
    linger_ms: Duration
    placement_policy: str
    placement_min: int
    placement_enforce: bool


_SETTINGS = frozenset(field.name for field in fields(NamespaceMetadata)) - {"name", "created_ms"}


async def create_namespace(
    client: LedgerClient, name: str, **settings: Unpack[NamespaceSettings]
) -> NamespaceMetadata:
    """Creates a namespace; settings that are left out get their defaults.

    Raises NamespaceExists, InvalidArgument, MetadataUnavailable.
    """
    blank = NamespaceMetadata(name=name, created_ms=client.now_ms())
    namespace = with_settings(blank, settings)
    await StreamStore(client.store).create_namespace(namespace)
    return namespace


async def list_namespaces(client: LedgerClient) -> list[str]:
    """Returns the names, sorted. Raises MetadataUnavailable."""
    return await StreamStore(client.store).list_namespaces()


async def delete_namespace(client: LedgerClient, name: str, *, purge: bool = False) -> None:
    """Deletes a namespace without streams, and what was granted on it by name.

    With `purge`, streams in its trash are deleted permanently first. Raises NoSuchNamespace;
    NamespaceNotEmpty while it has streams, or without `purge` anything in its trash; Unauthorized
    if this client may not see what was granted.
    """
    from ledger.metastore.permissions import Permissions  # deletions are rare

    store, permissions = StreamStore(client.store), Permissions(client.store)
    # Before anything is deleted: a client that may not see the grants cannot remove them either.
    with suppress(MetadataCorrupt):
        await permissions.read()
    if purge and not await store.list_streams(name):
        trash = Trash(client, name)
        for stream, deleted_ms in await store.list_trash(name):
            try:
                await trash.purge(stream, deleted_ms)
            except NotInTrash:
                continue
    try:
        await store.delete_namespace(name)
    except NoSuchNamespace:
        await _forget_grants(permissions, name)  # of a deletion that was interrupted
        raise
    await _forget_grants(permissions, name)


async def _forget_grants(permissions: Permissions, name: str) -> None:
    with suppress(MetadataCorrupt):  # a damaged table grants nothing to a later namespace
        await permissions.forget_namespace(name)


def with_settings(namespace: NamespaceMetadata, settings: NamespaceSettings) -> NamespaceMetadata:
    """Returns the namespace with some settings changed. Raises InvalidArgument."""
    if unknown := sorted(settings.keys() - _SETTINGS):
        raise InvalidArgument(
            f"no namespace setting {', '.join(unknown)}; there are: {', '.join(sorted(_SETTINGS))}"
        )
    plain = {name: _plain(name, value) for name, value in settings.items()}
    if settings.get("placement_policy") == "default":
        plain = {"placement_min": 0, "placement_enforce": False} | plain  # it has no rule
    return replace(namespace, **cast("Any", plain))


def _plain(name: str, value: object) -> object:
    """Returns a duration in milliseconds and a size in bytes, however they were given."""
    try:
        if name.endswith("_ms") and isinstance(value, str | timedelta):
            return to_duration_ms(value)
        if "bytes" in name and isinstance(value, str):
            return parse_size_bytes(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None
    return value


async def set_policy(
    client: LedgerClient,
    name: str,
    settings: NamespaceSettings,
    *,
    dry_run: bool = False,
    allow_drop: bool = True,
) -> NamespaceMetadata:
    """Changes settings; returns all settings as they then are. With `dry_run` nothing is stored.

    Raises NoSuchNamespace, InvalidArgument; without `allow_drop` DataWouldBeDropped if the next
    sweep would drop or purge what it would not by the present policy. Nothing is changed then.
    """
    store = StreamStore(client.store)
    for _ in range(UPDATE_TRIES_MAX):
        present, version = await store.read_namespace(name)
        wanted = with_settings(present, settings)
        if not allow_drop:
            changes = await consequences(client, present, wanted)
            if any(change.is_loss for change in changes):
                raise _would_drop(wanted, changes)
        if dry_run or wanted == present:
            return wanted
        try:
            await store.put_namespace(wanted, version)
        except MetadataConflict:
            continue
        return wanted
    raise too_many_conflicts(f"namespace {name!r}")


async def plans(client: LedgerClient, policy: NamespaceMetadata) -> list[RetentionPlan]:
    """Returns what a policy does now to each stream of its namespace, and to those in the trash."""
    store, trash = StreamStore(client.store), Trash(client, policy.name)
    sizes = PartitionSizes(client, policy.name)
    found: list[RetentionPlan] = []
    for name in await store.list_nodes(policy.name):
        try:
            found.append(await plan_of(client, policy, name, sizes))
        except (NoSuchStream, IsPartitioned):
            continue
    for name, deleted_ms in await store.list_trash(policy.name):
        try:
            stream, _ = await trash.read(name, deleted_ms)
        except NotInTrash:
            continue
        if not stream.is_purged:
            ask = partial(explain_deleted, policy=policy, now_ms=client.now_ms())
            found.append(await store.pages.resolve(stream, ask, may_lack=all_may_lack))
    return found


async def plans_of(
    client: LedgerClient, policy: NamespaceMetadata, names: Sequence[str]
) -> list[RetentionPlan]:
    """Returns the plans of some streams, such as the partitions of one. Raises NoSuchStream."""
    sizes = PartitionSizes(client, policy.name)
    return [await plan_of(client, policy, name, sizes) for name in names]


async def plan_of(
    client: LedgerClient,
    policy: NamespaceMetadata,
    name: str,
    sizes: PartitionSizes | None = None,
) -> RetentionPlan:
    """Returns the plan of a stream as it is now. Raises NoSuchStream, IsPartitioned."""

    async def plan(stream: StreamMetadata) -> RetentionPlan:
        return (await plan_retention(client, policy, stream, sizes))[0]

    return await StreamStore(client.store).consult(policy.name, name, plan)


@dataclass(frozen=True, slots=True)
class Consequence:
    """What a new policy does to a stream at the next sweep that the present one does not.

    `plan` is by the new policy. `dropped`: segments that readers lose; `purged`: segments that
    cannot be restored.
    """

    plan: RetentionPlan
    dropped: tuple[SegmentPlan, ...]
    purged: tuple[SegmentPlan, ...]

    @property
    def is_loss(self) -> bool:
        return bool(self.dropped or self.purged)


async def consequences(
    client: LedgerClient, present: NamespaceMetadata, wanted: NamespaceMetadata
) -> list[Consequence]:
    """Compares two policies, for each stream and for each one in the trash."""
    before = {(plan.stream, plan.deleted_ms): plan for plan in await plans(client, present)}
    found = []
    for plan in await plans(client, wanted):
        old = before.get((plan.stream, plan.deleted_ms))
        # What goes is the oldest: by both policies all segments up to a number.
        dropped_before = old.dropped[-1].last_number if old and old.dropped else 0
        purged_before = old.purged[-1].last_number if old and old.purged else 0
        found.append(
            Consequence(
                plan,
                tuple(s for s in plan.dropped if s.last_number > dropped_before),
                tuple(s for s in plan.purged if s.last_number > purged_before),
            )
        )
    return found


def _would_drop(wanted: NamespaceMetadata, changes: Sequence[Consequence]) -> DataWouldBeDropped:
    dropped = [segment for change in changes for segment in change.dropped]
    purged = [segment for change in changes for segment in change.purged]
    streams = sorted({change.plan.stream for change in changes if change.is_loss})
    actions = []
    if dropped:
        actions.append(f"drop {_amount(dropped)}")
    if purged:
        actions.append(f"delete {_amount(purged)} permanently")
    kept = (
        f" What is dropped can be restored for {duration_text(wanted.trash_ms)}."
        if any(segment.verdict is Verdict.DROP and not segment.is_purged for segment in dropped)
        else ""
    )
    listed = ", ".join(streams[:5]) + (", ..." if len(streams) > 5 else "")
    return DataWouldBeDropped(
        f"namespace {wanted.name!r}: this policy would {' and '.join(actions)} at the next sweep, "
        f"of {len(streams)} streams ({listed}).{kept} Nothing was changed; see the details "
        f"with --dry-run, and confirm with --yes (allow_drop=True)",
        [change.plan for change in changes if change.is_loss],
    )


def _amount(segments: Sequence[SegmentPlan]) -> str:
    records = sum(segment.records for segment in segments)
    nbytes = sum(segment.nbytes for segment in segments)
    count = sum(segment.count for segment in segments)
    return f"{count:,} segments ({records:,} records, {size_text(nbytes)})"
