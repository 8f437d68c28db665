"""The trash of a namespace: deleted streams, how they are restored, and how they are purged.

A deleted stream is stored as a whole at `<namespace>/trash/<stream>~<deleted_ms>`; its name is a
tombstone. Ledgers move between the two in one change, which also changes the folder's version: a
search for ledgers that nothing names can check that nothing moved meanwhile. Core: core/trash.py.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from ledger.client import LedgerClient
from ledger.errors import LedgerError, MetadataConflict, NodeExists, NoSuchNode
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, Delete, MetadataStore, Put
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.pages import NO_PAGES
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import parse_partition
from stream.core.position import Position
from stream.core.trash import (
    drained,
    fenced_in_trash,
    purged_whole,
    tombstone,
    trashed,
    undeleted,
    untruncated,
)
from stream.errors import IsPartitioned, NoSuchStream, NotInTrash, StreamExists
from stream.retention.ledger_deletion import delete_ledgers, purge_through, steps
from stream.store.cursors import CursorStore
from stream.store.groups import forget_groups
from stream.store.pages import all_may_lack
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    StreamStore,
    folder_path,
    namespace_path,
    no_namespace,
    stream_path,
    too_many_conflicts,
    trash_path,
)
from stream.takeover import StreamLedgers

_log = logging.getLogger(__name__)

TOMBSTONE_MS = 600_000
"""The minimum time for which the name of a deleted stream stays known, even without a trash: after
it no change of the deleted stream can still be in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashEntry:
    """Something that can be restored until `purge_ms`: a deleted stream, or the truncated segments
    of an existing one (`is_deleted` False).

    `since_ms` is when it was deleted, or its oldest segment truncated. `records` and `nbytes` are
    those of sealed segments. `first_position` is where the stream begins when all of it is
    restored.
    """

    stream: str
    is_deleted: bool
    since_ms: int
    purge_ms: int
    segments: int
    records: int
    nbytes: int
    first_position: Position


def moves_path(namespace: str) -> str:
    """Returns the path of the node that changes whenever ledgers move between streams and trash."""
    return folder_path(namespace, "trash")


Conditions = Callable[[], Awaitable[Sequence[Check]]]
"""What must hold for a change; called after the document to be changed was read."""


async def no_conditions() -> Sequence[Check]:
    return ()


async def delete(
    store: MetadataStore,
    namespace: str,
    name: str,
    now_ms: int,
    *,
    conditions: Conditions = no_conditions,
) -> int:
    """Moves a stream into the trash; returns the time of deletion, which identifies it there.

    Raises NoSuchStream, what `conditions` raises; MetadataUnavailable (it may have been deleted).
    """
    streams = StreamStore(store)
    for _ in range(UPDATE_TRIES_MAX):
        stream, version = await streams.read_stream(namespace, name)
        if stream.is_deleted and not stream.has_ledgers:
            raise NoSuchStream(f"stream {name!r} in namespace {namespace!r} was deleted already")
        only_if = await conditions()
        try:
            await store.transaction(
                [
                    *only_if,
                    Put(
                        stream_path(namespace, name),
                        encode_stream(tombstone(stream, now_ms)),
                        version,
                    ),
                    Create(
                        trash_path(namespace, name, now_ms),
                        encode_stream(trashed(stream, now_ms)),
                    ),
                    Put(moves_path(namespace), b""),
                ]
            )
        except NodeExists:
            now_ms += 1  # deleted twice within a millisecond
        except (MetadataConflict, NoSuchNode):
            continue
        else:
            return now_ms
    raise too_many_conflicts(f"stream {name!r}")


class Trash:
    """The trash of one namespace. Stateless."""

    def __init__(self, client: LedgerClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._store = client.store
        self._streams = StreamStore(client.store)

    async def read(self, stream: str, deleted_ms: int) -> tuple[StreamMetadata, int]:
        """Returns a deleted stream and its version. Raises NotInTrash, MetadataCorrupt."""
        try:
            node = await self._store.get(trash_path(self._namespace, stream, deleted_ms))
        except NoSuchNode:
            raise self._not_in_trash(stream) from None
        return decode_stream(stream, node.data), node.version

    async def moves(self) -> Check:
        """Returns a check that fails in a transaction once any ledger moves between the streams
        and the trash. Raises NoSuchNamespace: a deleted namespace must not be begun again."""
        path = moves_path(self._namespace)
        for _ in range(UPDATE_TRIES_MAX):
            try:
                return Check(path, (await self._store.get(path)).version)
            except NoSuchNode:
                pass
            parent = Check(namespace_path(self._namespace), ANY_VERSION)
            try:
                await self._store.transaction([parent, Create(path, b"")])
            except NodeExists:
                pass
            except NoSuchNode:
                raise no_namespace(self._namespace) from None
        raise MetadataConflict(f"{path} is created and deleted again and again")

    # Restoring

    async def undelete(
        self, stream: str, *, as_name: str | None = None, deleted_ms: int | None = None
    ) -> StreamMetadata:
        """Restores the stream of this name that was deleted last, or at `deleted_ms`.

        Its cursors are restored with it, unless it gets another name. Raises NotInTrash;
        StreamExists if the name is in use.
        """
        name = as_name or stream
        for _ in range(UPDATE_TRIES_MAX):
            at_ms = await self._deleted_at(stream, deleted_ms)
            present, version = await self.read(stream, at_ms)
            if present.is_purged:
                raise self._not_in_trash(stream)
            try:
                back, changes = await self._restored(present, name)
                # The name stays in the trash's listing: StreamStore.list_streams relies on it.
                path = trash_path(self._namespace, stream, at_ms)
                if name == stream:
                    changes.append(Delete(path, version))
                else:
                    rest = replace(purged_whole(present), garbage=(), pages=NO_PAGES)
                    changes.append(Put(path, encode_stream(rest), version))
                await self._store.transaction(changes)
            except (MetadataConflict, NodeExists, NoSuchNode):
                continue
            return back
        raise too_many_conflicts(f"stream {stream!r}")

    async def _restored(
        self, present: StreamMetadata, name: str
    ) -> tuple[StreamMetadata, list[Change]]:
        path = stream_path(self._namespace, name)
        changes: list[Change] = [
            Check(namespace_path(self._namespace), ANY_VERSION),
            Put(moves_path(self._namespace), b""),
        ]
        try:
            existing, version = await self._streams.read_stream(self._namespace, name)
        except NoSuchStream:
            begin, is_begin = await self._streams.gone.begin()
            back = undeleted(present, name, present.epoch + 1, begin)
            return back, [*changes, is_begin, Create(path, encode_stream(back))]
        if not existing.is_deleted or existing.has_ledgers:
            raise StreamExists(
                f"stream {name!r} is in use again in namespace {self._namespace!r}: restore "
                f"the deleted one under another name (ledgerstream stream undelete "
                f"{self._namespace}/{present.name} --as-name NAME)"
            )
        epoch = max(existing.epoch, present.epoch) + 1
        back = undeleted(present, name, epoch, existing.next_segment)
        return back, [*changes, Put(path, encode_stream(back), version)]

    async def _deleted_at(self, stream: str, deleted_ms: int | None) -> int:
        """Returns when the stream was deleted: without `deleted_ms` the last one that is not
        purged."""
        times = [
            at for name, at in await self._streams.list_trash(self._namespace) if name == stream
        ]
        if deleted_ms is not None:
            if deleted_ms not in times:
                raise self._not_in_trash(stream)
            return deleted_ms
        for at_ms in sorted(times, reverse=True):
            try:
                present, _ = await self.read(stream, at_ms)
            except NotInTrash:
                continue
            if not present.is_purged:
                return at_ms
        raise self._not_in_trash(stream)

    async def untruncate(self, stream: str, position: Position | None) -> StreamMetadata:
        """Moves the begin of a stream back to `position`, or as far as its trash allows.

        A page in the trash that is lost is left out. Raises NoSuchStream; InvalidArgument for a
        position that was purged.
        """
        return await self._streams.update_stream(
            self._namespace, stream, lambda present: untruncated(present, position),
            may_lack=StreamMetadata.is_dropped,
        )  # fmt: skip

    # Purging

    async def fence(self, stream: str, deleted_ms: int) -> None:
        """Fences the writer that a deleted stream may still have: it can confirm nothing more.

        A failure does no harm now: the janitor tries again, at the latest before purging.
        """
        try:
            present, version = await self.read(stream, deleted_ms)
            segment = present.open_segment
            if segment is None:
                return
            ledgers = StreamLedgers(self._client, self._streams, self._namespace, stream)
            end = await ledgers.recovered_end(segment.ledger_id, segment.first_sequence)
            fenced = fenced_in_trash(present, end, self._client.now_ms())
            await self._put(fenced, version)
        except LedgerError as error:
            _log.info("stream=%s: deleted, its writer not fenced yet: %s", stream, error)

    async def purge(self, stream: str, deleted_ms: int, *, only_if: Sequence[Check] = ()) -> int:
        """Deletes the ledgers of a deleted stream; after the first change it can no longer be
        restored.

        Returns how many were deleted. The name is removed when it is old enough. Raises NotInTrash
        if it was restored or purged; MetadataConflict if `only_if` changed.
        """
        present, version = await self._mark_purged(stream, deleted_ms, only_if)
        count, pages = 0, self._streams.pages
        try:
            while present.has_ledgers:
                for part in steps(present.garbage):
                    count += await delete_ledgers(self._client, part)
                    present = replace(present, garbage=present.garbage[len(part) :])
                    present, version = await self._put(present, version)
                if present.pages or present.pages.replaced:
                    present = await pages.resolve(present, drained, may_lack=all_may_lack)
                    present, version = await self._put(present, version)
            await pages.remove_all(present.pages.folder)
            if self._client.now_ms() - deleted_ms >= TOMBSTONE_MS:
                await self._forget(present, version)
        except (MetadataConflict, NotInTrash) as error:
            # Another client purges it too, or has just created another stream of the name.
            _log.info("stream=%s: not forgotten yet: %s", stream, error)
        return count

    async def _mark_purged(
        self, stream: str, deleted_ms: int, only_if: Sequence[Check]
    ) -> tuple[StreamMetadata, int]:
        """Returns the deleted stream and its version once nothing can restore it any more."""
        for _ in range(UPDATE_TRIES_MAX):
            present, version = await self.read(stream, deleted_ms)
            if present.is_purged:
                return present, version
            await self.fence(stream, deleted_ms)
            present, version = await self.read(stream, deleted_ms)
            try:
                marked = await self._put(purged_whole(present), version, only_if)
            except MetadataConflict:
                if only_if:
                    raise
            else:
                await self._streams.pages.remove_unnamed(self._namespace, present)
                return marked
        raise too_many_conflicts(f"stream {stream!r} in the trash")

    async def _forget(self, present: StreamMetadata, version: int) -> None:
        """Removes the last trace of a purged stream, and its name, if that is not in use again."""
        removals: list[Change] = [
            Delete(trash_path(self._namespace, present.name, present.deleted_ms), version)
        ]
        try:
            existing, existing_version = await self._streams.read_stream(
                self._namespace, present.name
            )
        except NoSuchStream:
            pass
        except LedgerError as error:
            _log.info("stream=%s: the node of its name is kept: %s", present.name, error)
        else:
            if existing.is_deleted and existing.deleted_ms == present.deleted_ms:
                path = stream_path(self._namespace, present.name)
                is_gone = Check(path, existing_version)
                await CursorStore(self._store).forget_stream(
                    self._namespace, present.name, only_if=is_gone
                )
                await forget_groups(self._store, self._namespace, present.name, only_if=is_gone)
                await self._streams.gone.note(existing.next_segment)
                removals.append(Delete(path, existing_version))
            elif existing.created_ms != present.created_ms:
                await CursorStore(self._store).forget_incarnation(self._namespace, present)
        try:
            await self._store.transaction(removals)
        except NoSuchNode:
            pass  # another client removed it

    async def purge_all_of(self, stream: str) -> int:
        """Empties the trash of a stream or of all its partitions: truncated segments, and deleted
        streams of the name. Returns how many ledgers were deleted. Raises NotInTrash if there is
        nothing."""
        deleted, found = 0, False
        for name, at_ms in await self._streams.list_trash(self._namespace):
            if _belongs_to(name, stream):
                try:
                    found |= not (await self.read(name, at_ms))[0].is_purged
                    deleted += await self.purge(name, at_ms)
                except NotInTrash:
                    continue
        for name in await self._streams.list_nodes(self._namespace):
            if _belongs_to(name, stream):
                count = await self._purge_dropped(name)
                found |= count >= 0
                deleted += max(count, 0)
        if not found:
            raise self._not_in_trash(stream)
        return deleted

    async def _purge_dropped(self, name: str) -> int:
        """Deletes truncated segments of an existing stream; returns -1 if there are none."""
        try:
            present, _ = await self._streams.read_stream(self._namespace, name)
            pages, ask = self._streams.pages, StreamMetadata.last_dropped
            through = await pages.resolve(present, ask, may_lack=all_may_lack)
            if not (through or present.pages.has_purged):
                return -1
            place = self._client, self._streams, self._namespace
            _, count = await purge_through(*place, present, through)
        except (NoSuchStream, IsPartitioned):
            return -1
        return count

    async def _put(
        self, stream: StreamMetadata, version: int, only_if: Sequence[Check] = ()
    ) -> tuple[StreamMetadata, int]:
        path, dead = trash_path(self._namespace, stream.name, stream.deleted_ms), list[Change]()
        try:
            made = await self._streams.prepared(self._namespace, path, stream, version)
            stored, change, dead = made
            await self._store.transaction([change, *only_if, *dead])
        except NoSuchNode:
            self._streams.pages.forget(dead)
            await self.read(stream.name, stream.deleted_ms)
            raise MetadataConflict(f"stream {stream.name!r}: a page of it is missing") from None
        return stored, version + 1

    def _not_in_trash(self, stream: str) -> NotInTrash:
        return NotInTrash(
            f"no deleted stream {stream!r} that could be restored in namespace "
            f"{self._namespace!r} (`ledgerstream stream trash {self._namespace}` lists all; a "
            f"deleted stream stays there for trash_ms)"
        )


def _belongs_to(name: str, stream: str) -> bool:
    """Whether it is this stream, or a partition of it."""
    partition = parse_partition(name)
    return name == stream or (partition is not None and partition.stream == stream)
