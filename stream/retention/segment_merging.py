"""Merges small segments of streams in the background: few large ledgers in place of many.

A merge copies the entries to a ledger that nothing names, checks them, and changes the stream in
one step. An interruption before leaves an orphan, one after it leaves nothing. The earlier ledgers
are deleted later, so that readers which have one open go on. Must never delete one before the
change, nor name a ledger that is not complete. What is merged: core/segment_merging.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import groupby

import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    LedgerError,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.clients import client_path
from ledger.writing.writer import LedgerWriter
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.segment_merging import MergeCheck, MergeOutlook, MergePlan, explain_merging, merged
from stream.core.trash import without_replaced
from stream.errors import NoSuchStream
from stream.retention.ledger_deletion import delete_garbage
from stream.store.pages import PageLost, PageStore
from stream.store.streams import UPDATE_TRIES_MAX, StreamStore, too_many_conflicts, was_deleted
from stream.takeover import StreamLedgers

_log = logging.getLogger(__name__)

MERGE_BYTES_PER_S = 8 << 20
"""Payload that merges of one janitor copy per second."""
REPLACED_MS = 3_600_000
"""How long the ledgers are kept that merged segments were on: readers may have them open, and tasks
of Spark were given them."""
MERGES_PER_SWEEP = 4
"""Merges of one stream in a sweep."""
_PAUSE_AFTER_FAILURE_MS = 600_000
_READ_AHEAD_BYTES = 4 << 20
_RELEASE_S = 1.0


def claim_path(namespace: str) -> str:
    """Returns the path of the ephemeral node of the janitor that merges in this namespace."""
    return client_path(f"merger-{namespace}")


async def plan_merge(
    client: LedgerClient, policy: NamespaceMetadata, stream: StreamMetadata, since: int = 0
) -> MergeOutlook:
    """Returns what of the stream is merged next, and why not more. `since` is that of an earlier
    outlook, under the same policy. Raises MetadataUnavailable."""
    now_ms = client.now_ms()
    try:
        return await PageStore(client.store).resolve(
            stream, lambda known: explain_merging(known, policy, now_ms, since)
        )
    except PageLost as error:
        return MergeOutlook(None, f"nothing is merged: {error}")


async def merge_segments(
    client: LedgerClient,
    policy: NamespaceMetadata,
    stream: StreamMetadata,
    plan: MergePlan,
    *,
    bytes_per_s: float = MERGE_BYTES_PER_S,
) -> StreamMetadata:
    """Copies the segments of the plan to one ledger, and has the stream name that; returns the
    stream as stored. If it fails, the stream is unchanged, or the outcome is unknown.

    Raises MetadataConflict if the segments were purged or merged meanwhile, InvalidArgument or
    RecordFormatError if their entries are not those that the stream says, NoSuchStream,
    NoSuchLedger, NotEnoughBookies, MetadataUnavailable, and what reading raises.
    """
    store = StreamStore(client.store)
    ledgers = StreamLedgers(client, store, policy.name, stream.name)
    writer = await ledgers.make(policy)
    try:
        await _copy(client, plan, writer, bytes_per_s)
        _check_closed(plan, await writer.close())
        return await publish_merge(client, policy.name, stream.name, plan, writer.ledger_id)
    except BaseException:
        await ledgers.discard(writer)  # unless the stream names it by now
        raise


async def _copy(
    client: LedgerClient, plan: MergePlan, writer: LedgerWriter, bytes_per_s: float
) -> None:
    check = MergeCheck(plan)
    for ledger_id, found in groupby(plan.segments, key=lambda segment: segment.ledger_id):
        segments = list(found)
        async with _entries(client, ledger_id, segments) as lists:
            async for payloads in lists:
                for payload in payloads:
                    check.add(payload)
                    while not writer.has_room:
                        await writer.wait_room()
                    writer.append_nowait(payload)
                await trio.sleep(sum(map(len, payloads)) / bytes_per_s)
    check.end()


@asynccontextmanager
async def _entries(
    client: LedgerClient, ledger_id: int, segments: Sequence[Segment]
) -> AsyncIterator[AsyncIterator[list[bytes]]]:
    """Enters with the payloads of neighbouring segments on one ledger, some at a time."""
    first, last = segments[0].base_entry, segments[-1].base_entry + segments[-1].last_entry

    async def payloads() -> AsyncIterator[list[bytes]]:
        async for entries in fetched:
            yield [bytes(entry.payload) for entry in entries]

    async with client.open_ledger(ledger_id, recover=False) as reader:
        reader.read_ahead_bytes = _READ_AHEAD_BYTES
        async with aclosing(reader.entries(first, last)) as fetched:
            yield payloads()


def _check_closed(plan: MergePlan, metadata: LedgerMetadata) -> None:
    found, wanted = (metadata.last_entry_id, metadata.length), (plan.entries - 1, plan.nbytes)
    assert found == wanted, f"ledger {metadata.ledger_id} ends at {found}, not {wanted}"


async def publish_merge(
    client: LedgerClient, namespace: str, name: str, plan: MergePlan, ledger_id: int
) -> StreamMetadata:
    """Has the stream name this closed ledger, which has the entries of the plan, if it exists.

    Raises as `merge_segments`.
    """
    store, path = StreamStore(client.store), await client.ledgers.path(ledger_id)
    for _ in range(UPDATE_TRIES_MAX):
        stream, version = await store.read_stream(namespace, name)
        if stream.is_deleted:
            raise was_deleted(namespace, name)
        change = partial(merged, plan=plan, ledger_id=ledger_id, now_ms=client.now_ms())
        try:
            wanted = await store.pages.resolve(stream, change)
        except PageLost:
            if (await store.read_stream(namespace, name))[1] == version:
                raise
            continue  # it was purged just now
        try:
            return (await store.put_stream(namespace, wanted, version, ledger_path=path))[0]
        except MetadataConflict:
            continue
    raise too_many_conflicts(f"stream {name!r}")


async def drop_replaced(
    client: LedgerClient, namespace: str, stream: StreamMetadata, replaced_ms: int = REPLACED_MS
) -> tuple[StreamMetadata, int]:
    """Deletes ledgers of which all segments were merged more than `replaced_ms` ago. Returns the
    stream, and how many ledgers were deleted.

    Raises NoSuchStream, MetadataUnavailable; the rest is then done next time.
    """
    store, deleted = StreamStore(client.store), 0
    until_ms = client.now_ms() - replaced_ms
    while stream.pages.replaced and stream.pages.replaced[0].replaced_ms <= until_ms:
        stream = await store.update_stream(
            namespace, stream.name, partial(without_replaced, until_ms=until_ms), is_purge=True
        )
        stream, count = await delete_garbage(client, store, namespace, stream)
        deleted += count
    return stream, deleted


class SegmentMerger:
    """Merges the segments of a namespace, unless another client is doing so.

    Args:
        bytes_per_s: payload that is copied per second; 0: nothing is merged.
    """

    def __init__(self, client: LedgerClient, namespace: str, bytes_per_s: float) -> None:
        self._client = client
        self._store = StreamStore(client.store)
        self._namespace = namespace
        self._bytes_per_s = bytes_per_s
        self._token = b"%032x" % client.rng.getrandbits(128)
        self._paused: dict[str, int] = {}
        """Streams of which a merge failed, and when the next one may begin."""
        self._since: dict[str, tuple[NamespaceMetadata, int, int]] = {}
        """Where to look next in a stream, by this policy, if it was created then."""

    async def merge(
        self, policy: NamespaceMetadata, streams: Sequence[StreamMetadata]
    ) -> tuple[int, int]:
        """Merges what is due in these streams. Returns how many segments were merged, and how many
        streams failed. Raises MetadataUnavailable."""
        due = [stream.name for stream in streams if await self._is_due(policy, stream)]
        if not due:
            return 0, 0
        segments = failures = 0
        async with self._claim() as is_ours:
            for name in due if is_ours else ():
                try:
                    segments += await self._merge_stream(policy, name)
                except (MetadataConflict, NoSuchStream) as error:
                    _log.info("stream=%s: not merged now: %s", name, error)
                except MetadataUnavailable:
                    raise
                except LedgerError as error:
                    failures += 1
                    self._paused[name] = self._client.now_ms() + _PAUSE_AFTER_FAILURE_MS
                    _log.warning("stream=%s: segments are not merged: %s", name, error)
        return segments, failures

    async def _is_due(self, policy: NamespaceMetadata, stream: StreamMetadata) -> bool:
        if not (self._bytes_per_s and stream.pages) or stream.is_deleted:
            return False
        if self._client.now_ms() < self._paused.get(stream.name, 0):
            return False
        self._paused.pop(stream.name, None)
        return await self._plan(policy, stream) is not None

    async def _plan(self, policy: NamespaceMetadata, stream: StreamMetadata) -> MergePlan | None:
        known = self._since.get(stream.name)
        is_same = known is not None and known[:2] == (policy, stream.created_ms)
        since = known[2] if known is not None and is_same else 0
        outlook = await plan_merge(self._client, policy, stream, since)
        self._since[stream.name] = policy, stream.created_ms, outlook.since
        return outlook.plan

    async def _merge_stream(self, policy: NamespaceMetadata, name: str) -> int:
        count = 0
        for _ in range(MERGES_PER_SWEEP):
            stream = await self._store.read_living_stream(self._namespace, name)
            plan = await self._plan(policy, stream)
            if plan is None:
                break
            await merge_segments(self._client, policy, stream, plan, bytes_per_s=self._bytes_per_s)
            count += len(plan.segments)
        return count

    @asynccontextmanager
    async def _claim(self) -> AsyncIterator[bool]:
        """Enters with whether no other client merges in the namespace: two would copy the same."""
        store, path = self._client.store, claim_path(self._namespace)
        try:
            await store.create(path, self._token, is_ephemeral=True)
        except NodeExists:
            try:
                is_ours = (await store.get(path)).data == self._token
            except NoSuchNode:
                is_ours = False
            if not is_ours:
                yield False
                return
        try:
            yield True
        finally:
            with trio.move_on_after(_RELEASE_S) as scope:
                scope.shield = True
                try:
                    await store.delete(path)
                except LedgerError as error:
                    _log.info("namespace=%s: merging is claimed: %s", self._namespace, error)
