"""Merges small segments of a stream: few large ledgers in place of many.

A merge copies the entries to a ledger that nothing names, checks them, and changes the stream in
one step. An interruption before leaves an orphan, one after it leaves nothing. The earlier ledgers
are deleted later, so that readers which have one open continue. Must never delete one before the
change, nor name a ledger that is not complete, with all its copies. What is merged:
core/segment_merging.py; when: segment_merger.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.policies import Grade
from ledger.errors import (
    FinalError,
    InvalidArgument,
    LedgerError,
    MetadataConflict,
    NoSuchNode,
    NotEnoughBookies,
    OperationTimeout,
)
from ledger.metastore.base import Check
from ledger.units import duration_text, size_text
from ledger.writing.writer import LedgerWriter
from stream.core.backoff import conflict_pause_s
from stream.core.merge_check import MergeCheck
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.pages import page_name
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.segment_merging import (
    WHOLE_STREAM,
    MergeOutlook,
    MergePlan,
    MergeScope,
    explain_merging,
    merged,
)
from stream.core.strict_policy import as_strict, bookies_of
from stream.core.trash import without_replaced
from stream.retention.ledger_deletion import delete_garbage
from stream.store.pages import PageLost, PageStore, all_may_lack, pages_path
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    StreamStore,
    stream_path,
    too_many_conflicts,
    was_deleted,
)
from stream.takeover import StreamLedgers

_log = logging.getLogger(__name__)

MERGE_BYTES_PER_S = 8 << 20
"""Payload that merges of one janitor copy per second."""
REPLACED_MS = 3_600_000
"""How long the ledgers are kept that merged segments were on: readers may have them open, and tasks
of Spark were given them."""
COPY_S = 600.0
"""A merge has no more bytes than are copied in this time."""
_GIVE_UP = 2.0
"""A merge is given up after `copy_s` times this: long before its ledger counts as an orphan."""
_READ_AHEAD_BYTES = 4 << 20
_CLEANUP_S = 1.0


class MergeRefused(NotEnoughBookies):
    """There are no bookies for all copies of a merged ledger, where they must be."""


@dataclass(slots=True)
class MergeProgress:
    """A merge in progress: the ledger that is `reading` is read (-1: none), `written` are the
    names of pages that were written for it; `is_in_doubt`: the stream may name them. `stricter` is
    the last segment on a ledger that has more copies, say, than the policy asks for (-1: none).
    `is_given_up`: it took too long."""

    reading: int = -1
    written: set[str] = field(default_factory=set)
    is_in_doubt: bool = False
    stricter: int = -1
    is_given_up: bool = False


async def plan_merge(
    client: LedgerClient,
    policy: NamespaceMetadata,
    stream: StreamMetadata,
    scope: MergeScope = WHOLE_STREAM,
) -> MergeOutlook:
    """Returns what of the stream is merged next, and why not more. `scope.since` is that of an
    earlier outlook, under the same policy. Raises MetadataUnavailable."""
    now_ms = client.now_ms()
    try:
        return await PageStore(client.store).resolve(
            stream,
            lambda known: explain_merging(known, policy, now_ms, scope),
            may_lack=stream.is_dropped,
        )
    except PageLost as error:
        return MergeOutlook(None, f"nothing is merged: {error}", scope.since)


async def merge_segments(
    client: LedgerClient,
    policy: NamespaceMetadata,
    stream: StreamMetadata,
    plan: MergePlan,
    *,
    bytes_per_s: float = MERGE_BYTES_PER_S,
    copy_s: float = COPY_S,
    progress: MergeProgress | None = None,
) -> StreamMetadata:
    """Copies the segments of the plan to one ledger, and has the stream name that; returns the
    stream as stored. If it fails, the stream is unchanged, or the outcome is unknown.

    The ledger has the most copies, the strongest digest and the strictest placement of the earlier
    ones and the policy; MergeRefused if that is not to be had, also where another ledger would
    be made all the same. Each entry is written to all bookies of its write quorum, however few must
    confirm it: one that is down ends the merge if none takes its place. Raises MetadataConflict if
    the segments were purged or merged meanwhile, InvalidArgument or RecordFormatError if their
    entries are not those that the stream says, OperationTimeout if copying takes twice `copy_s`,
    NoSuchStream, NoSuchLedger, MetadataUnavailable, and what reading raises.
    """
    progress = progress or MergeProgress()
    store = StreamStore(client.store)
    ledgers = StreamLedgers(client, store, policy.name, stream.name)
    until_s = trio.current_time() + _GIVE_UP * copy_s
    with _given_up_at(until_s, plan, copy_s, progress):
        strict = await _strictest(client, policy, plan, progress)
    try:
        writer = await ledgers.make(replace(strict, ack_quorum=strict.write_quorum))
    except NotEnoughBookies as error:
        raise _refused(plan, strict, error) from error
    try:
        await _check_placement(client, plan, strict, writer.metadata)
        with _given_up_at(until_s, plan, copy_s, progress):
            await _copy(client, plan, writer, bytes_per_s, progress)
            await _close(client, strict, plan, writer)
        return await publish_merge(
            client, policy.name, stream.name, plan, writer.ledger_id, progress
        )
    except BaseException:
        await ledgers.discard(writer)  # unless the stream names it by now
        await _discard_pages(store, ledgers, writer.ledger_id, progress)
        raise


@contextmanager
def _given_up_at(
    until_s: float, plan: MergePlan, copy_s: float, progress: MergeProgress
) -> Iterator[None]:
    """Raises OperationTimeout if the block lasts longer."""
    with trio.move_on_at(until_s) as scope:
        yield
    if scope.cancelled_caught:
        progress.is_given_up = True
        raise OperationTimeout(
            f"{size_text(plan.nbytes)} on {plan.ledgers} ledgers were not copied in "
            f"{duration_text(int(_GIVE_UP * copy_s * 1000))}"
        )


async def _strictest(
    client: LedgerClient, policy: NamespaceMetadata, plan: MergePlan, progress: MergeProgress
) -> NamespaceMetadata:
    """Returns the policy, as strict as each ledger of the plan: a merge takes no copy away. Raises
    MergeRefused where no policy is as strict as two of them."""
    strict = policy
    for ledger_id, group in groupby(plan.segments, key=lambda segment: segment.ledger_id):
        progress.reading, found = ledger_id, list(group)
        metadata = await client.ledger_metadata(ledger_id)
        try:
            alone, together = as_strict(policy, metadata), as_strict(strict, metadata)
        except InvalidArgument as error:
            progress.reading, progress.stricter = -1, found[-1].number
            raise _refused(plan, strict, f"{error} (ledger {ledger_id})") from error
        if bookies_of(alone) != bookies_of(policy):
            progress.stricter = found[-1].number
        strict = together
    progress.reading = -1
    return strict


async def _check_placement(
    client: LedgerClient, plan: MergePlan, strict: NamespaceMetadata, made: LedgerMetadata
) -> None:
    """Checks that no copies are nearer than they must be, even where it is not enforced: it is for
    good. Raises NotEnoughBookies."""
    placement = strict.bookie_placement
    if placement.is_default:
        return
    topology, quorums = await client.bookies.topology(), (strict.write_quorum, strict.ack_quorum)
    for fragment in made.fragments:
        grade, why = placement.adherence(fragment.bookies, *quorums, topology)
        if grade is Grade.FAIL:
            raise _refused(plan, strict, why)


def _refused(plan: MergePlan, strict: NamespaceMetadata, why: object) -> MergeRefused:
    return MergeRefused(
        f"segments {plan.first} to {plan.last} need a ledger with {strict.write_quorum} copies on "
        f"{strict.ensemble_size} bookies, digest {strict.digest_type} and placement "
        f"{strict.bookie_placement.encode().decode()}, as the policy or one of their "
        f"{plan.ledgers} ledgers has: {why}"
    )


async def _copy(
    client: LedgerClient,
    plan: MergePlan,
    writer: LedgerWriter,
    bytes_per_s: float,
    progress: MergeProgress,
) -> None:
    check = MergeCheck(plan)
    for ledger_id, found in groupby(plan.segments, key=lambda segment: segment.ledger_id):
        segments = list(found)
        progress.reading = ledger_id
        async with _entries(client, ledger_id, segments) as lists:
            async for payloads in lists:
                for payload in payloads:
                    check.add(payload)
                    await _append(writer, payload, progress)
                await trio.sleep(sum(map(len, payloads)) / bytes_per_s)
    check.end()
    progress.reading = -1


async def _append(writer: LedgerWriter, payload: bytes, progress: MergeProgress) -> None:
    try:
        while not writer.has_room:
            await writer.wait_room()
        writer.append_nowait(payload)
    except LedgerError:
        progress.reading = -1  # it is not to blame
        raise


@asynccontextmanager
async def _entries(
    client: LedgerClient, ledger_id: int, segments: Sequence[Segment]
) -> AsyncIterator[AsyncIterator[list[bytes]]]:
    """Enters with the payloads of neighbouring segments on one ledger, some at a time."""
    first, last = segments[0].base_entry, segments[-1].base_entry + segments[-1].last_entry

    async def payloads() -> AsyncGenerator[list[bytes], None]:
        async for entries in fetched:
            yield [bytes(entry.payload) for entry in entries]

    async with client.open_ledger(ledger_id, recover=False) as reader:
        reader.read_ahead_bytes = _READ_AHEAD_BYTES
        async with aclosing(reader.entries(first, last)) as fetched, aclosing(payloads()) as lists:
            yield lists


async def _close(
    client: LedgerClient, strict: NamespaceMetadata, plan: MergePlan, writer: LedgerWriter
) -> None:
    """Closes the ledger once all copies are there. From then on it is a ledger like others."""
    closed = await writer.close()
    await _check_placement(client, plan, strict, closed)  # bookies may have been replaced
    found, wanted = (closed.last_entry_id, closed.length), (plan.entries - 1, plan.nbytes)
    if found != wanted:
        raise InvalidArgument(f"ledger {writer.ledger_id} ends at {found}, not {wanted}")

    def as_others(stored: LedgerMetadata) -> LedgerMetadata:
        return replace(stored, ack_quorum=strict.ack_quorum)

    if strict.ack_quorum != closed.ack_quorum:
        await client.ledgers.update(writer.ledger_id, as_others)


async def publish_merge(
    client: LedgerClient,
    namespace: str,
    name: str,
    plan: MergePlan,
    ledger_id: int,
    progress: MergeProgress | None = None,
) -> StreamMetadata:
    """Has the stream name this closed ledger, which has the entries of the plan, if it exists.

    Pages are written once, however often the stream changes meanwhile. Raises as `merge_segments`.
    """
    progress = progress or MergeProgress()
    store, path = StreamStore(client.store), await client.ledgers.path(ledger_id)
    begun_s = trio.current_time()
    for conflicts in range(UPDATE_TRIES_MAX):
        if conflicts:  # others change the stream, too: they take turns
            waited_s = trio.current_time() - begun_s
            await trio.sleep(conflict_pause_s(conflicts, waited_s, client.rng))
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
        folder, is_same = (
            pages_path(stream.pages.folder),
            Check(stream_path(namespace, name), version),
        )
        named = {page_name(page.run) for page in wanted.pages.made}
        try:
            await store.pages.create(folder, wanted.pages.made, is_same, progress.written)
            wanted = replace(wanted, pages=replace(wanted.pages, made=()))
            progress.is_in_doubt = True
            stored, _ = await store.put_stream(namespace, wanted, version, ledger_path=path)
        except (MetadataConflict, NoSuchNode):
            progress.is_in_doubt = False
            continue
        except FinalError:  # also of a document that is full: nothing was changed
            progress.is_in_doubt = False
            raise
        await _remove_pages(store, folder, progress.written - named)
        return stored
    raise too_many_conflicts(f"stream {name!r}")


async def _discard_pages(
    store: StreamStore, ledgers: StreamLedgers, ledger_id: int, progress: MergeProgress
) -> None:
    """Removes the pages of a merge that failed; none if the stream may name them."""
    if progress.is_in_doubt or not progress.written:
        return
    with trio.move_on_after(_CLEANUP_S) as scope:
        scope.shield = True
        try:
            stream, _ = await store.read_stream(ledgers.namespace, ledgers.stream)
            if not await store.pages.resolve(stream, lambda known: known.needs(ledger_id)):
                await store.pages.remove(pages_path(stream.pages.folder), progress.written)
        except LedgerError as error:
            _log.info("pages are left stream=%s cause=%s", ledgers.stream, error)


async def _remove_pages(store: StreamStore, folder: str, names: set[str]) -> None:
    """Removes pages of tries that lost against other changes of the stream."""
    try:
        await store.pages.remove(folder, names)
    except LedgerError as error:
        _log.info("pages are left folder=%s cause=%s", folder, error)


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
            namespace, stream.name, partial(without_replaced, until_ms=until_ms),
            may_lack=all_may_lack,
        )  # fmt: skip
        stream, count = await delete_garbage(client, store, namespace, stream)
        deleted += count
    return stream, deleted
