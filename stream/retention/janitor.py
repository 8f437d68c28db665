"""The janitor applies retention, empties the trash, deletes ledgers and finds orphans.

Any number may run; each step compares versions, can be interrupted anywhere and repeated. Deletes a
ledger only when metadata says that nothing can need it, and never on a guess.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    LedgerError,
    MetadataConflict,
    MetadataCorrupt,
    NoSuchLedger,
    NoSuchNode,
)
from ledger.metastore.base import Check
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import parse_partition
from stream.core.sinks import SinkMetadata, SinkTag
from stream.errors import IsPartitioned, NoSuchStream, NotInTrash
from stream.retention.clock_check import check_clock
from stream.retention.orphans import delete_orphaned_partition, orphaned_partitions
from stream.retention.paged_ledgers import PagedLedgers
from stream.retention.partition_sizes import PartitionSizes
from stream.retention.reclaim import StreamVersion, apply_retention
from stream.retention.segment_merger import MergeReport, SegmentMerger, merge_for_ever
from stream.retention.segment_merging import (
    COPY_S,
    MERGE_BYTES_PER_S,
    REPLACED_MS,
    drop_replaced,
)
from stream.retention.trash import TOMBSTONE_MS, Trash, delete
from stream.store.groups import forget_groups
from stream.store.sinks import find_sink
from stream.store.streams import StreamStore, namespace_path, stream_path
from stream.takeover import SINK_TAG, STREAM_TAG

_log = logging.getLogger(__name__)

T = TypeVar("T")

ORPHAN_AGE_MS = 3_600_000
"""A ledger that nothing names is kept for this long: its writer may be about to publish it."""
SINK_ORPHAN_AGE_MS = 86_400_000
"""The same for a ledger that a task of a sink made: its batch may run for hours before it is
committed. Once that batch or a later one is committed, ledgers that it did not use are deleted at
once."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did. `failures` counts streams, deleted streams and ledgers that it could not
    process."""

    streams: int = 0
    streams_truncated: int = 0
    segments_dropped: int = 0
    segments_purged: int = 0
    streams_purged: int = 0
    ledgers_deleted: int = 0
    orphans_deleted: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Sweep:
    """What a sweep has read and done so far."""

    policy: NamespaceMetadata
    policy_version: int
    moves: Check
    sizes: PartitionSizes
    counts: dict[str, int] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)
    """Ledgers that a stream or the trash names in its document."""
    paged: list[StreamMetadata] = field(default_factory=list)
    """Streams, also in the trash, that name others in pages."""
    sinks: dict[str, SinkMetadata | None] = field(default_factory=dict)
    created_ms: int = -1
    """When the metadata store created the namespace; -1 before it was asked."""
    tombstones: list[tuple[StreamMetadata, int]] = field(default_factory=list)
    """Tombstones and their versions, read before the trash was."""

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number


class Janitor:
    """Cleans up one namespace.

    Args:
        client: of the cluster; the caller keeps it open.
        namespace: its name.
        orphan_age_ms: how old a ledger that no stream names must be before it is deleted.
        sink_orphan_age_ms: the same for a ledger that a sink's task made, while its batch is not
            committed; the batch fails if it takes longer.
        trust_clock: sweep although the clock of this machine is in doubt (ClockInDoubt).
        merge_bytes_per_s: payload of small segments that is copied per second, to merge them; 0:
            nothing is merged.
        replaced_ms: how long the ledgers of merged segments are kept.
    """

    def __init__(
        self,
        client: LedgerClient,
        namespace: str,
        *,
        orphan_age_ms: int = ORPHAN_AGE_MS,
        sink_orphan_age_ms: int = SINK_ORPHAN_AGE_MS,
        trust_clock: bool = False,
        merge_bytes_per_s: float = MERGE_BYTES_PER_S,
        replaced_ms: int = REPLACED_MS,
    ) -> None:
        self._client = client
        self._store = StreamStore(client.store)
        self._trash = Trash(client, namespace)
        self._namespace = namespace
        self._orphan_age_ms = orphan_age_ms
        self._sink_orphan_age_ms = sink_orphan_age_ms
        self._is_clock_trusted = trust_clock
        copy_s = min(COPY_S, max(1.0, orphan_age_ms / 6000))
        self._merger = SegmentMerger(client, namespace, merge_bytes_per_s, copy_s)
        self._replaced_ms = replaced_ms
        self._warned: set[str] = set()
        """Warnings about stored times, each of which is logged once."""
        self._foreign: set[int] = set()
        """Ledgers that are not of this namespace: checked once, not in every sweep."""
        self._paged = PagedLedgers(self._store.pages)

    async def run(self, interval_s: float) -> None:
        """Sweeps forever, `interval_s` apart, and merges segments beside that; failures are logged
        and tried again."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(merge_for_ever, {self._namespace: self}, interval_s)
            while True:
                try:
                    report = await self.sweep()
                    _log.info("namespace=%s: %s", self._namespace, report)
                except LedgerError as error:
                    _log.warning("namespace=%s: sweep failed: %s", self._namespace, error)
                await trio.sleep(interval_s)

    async def merge(self, limit_s: float | None = None) -> MergeReport:
        """Merges small segments of the streams that sweeps found since the last call: a few times
        in each, at `merge_bytes_per_s`. May run beside `sweep`.

        Does nothing if there is nothing to merge, or another client does it. `limit_s`: no merge
        begins that takes longer, about, and none lasts more than twice that or ten seconds. A
        stream of which a merge failed counts as a failure, and is tried again later. Raises
        MetadataUnavailable.
        """
        return await self._merger.merge(limit_s)

    async def sweep(self) -> SweepReport:
        """Checks every stream, the trash and every orphan once.

        A failure is counted, and does not keep the other streams from being cleaned up. Raises
        NoSuchNamespace, ClockInDoubt (nothing was changed), MetadataUnavailable.
        """
        policy, version = await self._store.read_namespace(self._namespace)
        await check_clock(self._client, policy, is_trusted=self._is_clock_trusted)
        sizes = PartitionSizes(self._client, self._namespace)
        sweep = _Sweep(policy, version, await self._trash.moves(), sizes)
        names = await self._store.list_nodes(self._namespace)
        await self._finish_deletions(sweep, names)
        for name in self._rotated(names):
            try:
                await self._sweep_stream(sweep, name)
            except (NoSuchStream, IsPartitioned):
                continue
            except LedgerError as error:
                sweep.count("failures")
                _log.warning("stream=%s: not cleaned up: %s", name, error)
        for name, deleted_ms in self._rotated(await self._store.list_trash(self._namespace)):
            try:
                await self._sweep_deleted(sweep, name, deleted_ms)
            except NotInTrash:
                continue
            except LedgerError as error:
                sweep.count("failures")
                _log.warning("stream=%s: its trash is not emptied: %s", name, error)
        await self._sweep_tombstones(sweep)
        if sweep.counts.get("failures"):
            _log.info("namespace=%s: orphans are left to a later sweep", self._namespace)
        else:
            await self._delete_orphans(sweep)
        self._merger.note(policy, sweep.paged)
        return SweepReport(**sweep.counts)

    def _rotated(self, found: list[T]) -> list[T]:
        """Returns all items, beginning at a random one: a janitor that always dies early still
        reaches every stream."""
        first = self._client.rng.randrange(len(found)) if found else 0
        return found[first:] + found[:first]

    async def _sweep_stream(self, sweep: _Sweep, name: str) -> None:
        stream, version = await self._store.read_stream(self._namespace, name)
        if stream.is_deleted:
            if stream.has_ledgers:
                # Deleted by a release without a trash, and interrupted half way.
                await delete(self._client.store, self._namespace, name, self._client.now_ms())
            else:
                sweep.tombstones.append((stream, version))
            return
        sweep.named.update(stream.ledgers())
        seen = StreamVersion(sweep.policy, sweep.policy_version, stream, version)
        drop = partial(drop_replaced, self._client, self._namespace, replaced_ms=self._replaced_ms)
        try:
            applied = await apply_retention(self._client, self._namespace, seen, sweep.sizes)
        except LedgerError:
            with suppress(LedgerError):  # retention's error is the one to be reported
                await drop(stream)  # which needs no more than the ledgers that were merged
            raise
        self._warn(name, applied.plan.warnings)
        kept, deleted = await drop(applied.stream)
        self._note_named(sweep, kept)
        sweep.count("streams")
        sweep.count("streams_truncated", bool(applied.plan.dropped))
        sweep.count("segments_dropped", sum(plan.count for plan in applied.plan.dropped))
        sweep.count("segments_purged", sum(plan.count for plan in applied.plan.purged))
        sweep.count("ledgers_deleted", applied.ledgers_deleted + deleted)

    def _note_named(self, sweep: _Sweep, stream: StreamMetadata) -> None:
        sweep.named.update(stream.ledgers())
        if stream.pages or stream.pages.replaced:
            sweep.paged.append(stream)

    def _warn(self, name: str, warnings: Sequence[str]) -> None:
        for warning in warnings:
            if f"{name}: {warning[:60]}" not in self._warned:
                self._warned.add(f"{name}: {warning[:60]}")
                _log.warning("stream=%s: %s", name, warning)

    async def _finish_deletions(self, sweep: _Sweep, names: list[str]) -> None:
        """Deletes partitions that were left when the deletion of their stream was interrupted."""
        for name in await orphaned_partitions(self._client, self._namespace, names):
            try:
                await delete_orphaned_partition(self._client, self._namespace, name)
            except LedgerError as error:
                sweep.count("failures")
                _log.warning("stream=%s: its deletion is not complete: %s", name, error)

    async def _sweep_tombstones(self, sweep: _Sweep) -> None:
        """Removes tombstones, so that their names are free again. A tombstone with data in the
        trash is removed with that."""
        trash = await self._store.list_trash(self._namespace)
        in_trash = {name for name, _ in trash}
        in_trash |= {partition.stream for name in in_trash if (partition := parse_partition(name))}
        for stream, version in sweep.tombstones:
            age_ms = self._client.now_ms() - stream.deleted_ms
            if stream.name in in_trash or age_ms < max(sweep.policy.trash_ms, TOMBSTONE_MS):
                continue
            is_gone = Check(stream_path(self._namespace, stream.name), version)
            try:
                await forget_groups(
                    self._client.store, self._namespace, stream.name, only_if=is_gone
                )
                await self._store.remove_stream(self._namespace, stream, version)
            except (MetadataConflict, NoSuchStream):
                continue  # removed with its trash, or in use again

    async def _sweep_deleted(self, sweep: _Sweep, name: str, deleted_ms: int) -> None:
        """Purges a deleted stream whose time has passed; before that, fences its writer."""
        stream, _ = await self._trash.read(name, deleted_ms)
        sweep.named.update(stream.ledgers())
        is_due = self._client.now_ms() - deleted_ms >= sweep.policy.trash_ms
        if not (is_due or stream.is_purged):
            self._note_named(sweep, stream)
            await self._trash.fence(name, deleted_ms)
            return
        unchanged = Check(namespace_path(self._namespace), sweep.policy_version)
        try:
            sweep.count(
                "ledgers_deleted", await self._trash.purge(name, deleted_ms, only_if=[unchanged])
            )
        except MetadataConflict:
            self._note_named(sweep, stream)
            return  # the policy changed, or it is in use: the next sweep checks again
        sweep.count("streams_purged", not stream.is_purged)

    async def _delete_orphans(self, sweep: _Sweep) -> None:
        """Deletes ledgers made for a stream of this namespace that never used them, or no longer
        names them.

        Their writers died between making and publishing them.
        """
        now_ms = self._client.now_ms()
        prefix = f"{self._namespace}/".encode()
        older: list[int] = []
        ledger_ids = await self._client.list_ledgers()
        self._foreign.intersection_update(ledger_ids)
        known = sweep.named | self._foreign
        known |= await self._paged.named(sweep.paged, set(ledger_ids) - known)
        for ledger_id in ledger_ids:
            if ledger_id in known:
                continue
            try:
                metadata = await self._client.ledger_metadata(ledger_id)
            except NoSuchLedger:
                continue
            except MetadataCorrupt as error:
                sweep.count("failures")
                _log.warning("owner unknown ledger=%d cause=%s", ledger_id, error)
                continue
            tag = metadata.custom.get(STREAM_TAG, b"")
            if not tag.startswith(prefix):
                self._foreign.add(ledger_id)
                continue
            if await self._is_older(sweep, ledger_id):
                self._foreign.add(ledger_id)
                older.append(ledger_id)
                continue
            name = tag[len(prefix) :].decode(errors="replace")
            try:
                if not await self._is_orphan(sweep, metadata, now_ms):
                    continue
                sweep.count("orphans_deleted", await self._delete_orphan(sweep, ledger_id, name))
            except MetadataConflict:
                continue  # the stream or the trash changed just now: the next sweep checks again
            except LedgerError as error:
                sweep.count("failures")
                _log.warning("ledger=%d: orphan of stream=%s is kept: %s", ledger_id, name, error)
        if older:
            _log.warning(
                "namespace=%s: %d ledgers, like %d, are older than the namespace, and no stream "
                "names them: they are kept. Cure: if the metadata of an earlier namespace was "
                "lost, restore it; if not, delete them (ledgerstream ledger delete)",
                self._namespace, len(older), older[0],
            )  # fmt: skip

    async def _is_older(self, sweep: _Sweep, ledger_id: int) -> bool:
        """Whether the ledger is older than the namespace, by the clock of the metadata store: it
        was named by an earlier namespace, of which perhaps only the metadata was lost."""
        store = self._client.store
        if sweep.created_ms < 0:
            sweep.created_ms = (await store.get(namespace_path(self._namespace))).created_ms
        try:
            node = await store.get(await self._client.ledgers.path(ledger_id))
        except NoSuchNode:
            return False
        return node.created_ms < sweep.created_ms

    async def _is_orphan(self, sweep: _Sweep, metadata: LedgerMetadata, now_ms: int) -> bool:
        """Whether no client can be about to give this ledger to a stream. A client that does so all
        the same finds it deleted, and commits nothing."""
        age_ms = now_ms - metadata.created_ms
        data = metadata.custom.get(SINK_TAG)
        if data is None:
            return age_ms >= self._orphan_age_ms
        tag = SinkTag.decode(data)
        if tag.sink_id is not None and tag.batch_id is not None:
            if tag.sink_id not in sweep.sinks:
                sweep.sinks[tag.sink_id] = await find_sink(self._client.store, tag.sink_id)
            sink = sweep.sinks[tag.sink_id]
            if sink is not None and sink.is_committed(tag.batch_id):
                return True
        return age_ms >= self._sink_orphan_age_ms

    async def _delete_orphan(self, sweep: _Sweep, ledger_id: int, name: str) -> int:
        """Deletes a ledger, only if no ledger moved between streams and trash since the sweep
        began, and the stream that it was made for has not changed since it was read without it."""
        path = await self._client.ledgers.path(ledger_id)
        only_if = [
            sweep.moves,
            Check(namespace_path(self._namespace), sweep.policy_version),
        ]
        try:
            stream, version = await self._store.read_stream(self._namespace, name)
        except NoSuchStream:
            await self._store.delete_orphan_of_none(path, only_if=only_if)
            return 1
        if await self._store.pages.resolve(stream, lambda known: known.needs(ledger_id)):
            return 0
        await self._store.delete_orphan(self._namespace, name, version, path, only_if=only_if)
        return 1
