"""Cursors in the metadata store: their paths, and the only ways to change them.

Every change compares versions. Paths: `<namespace>/cursors/<stream>/<cursor>`. A cursor of a
deleted stream whose name is in use again counts as missing, and is overwritten. Must never treat an
unreadable cursor as a missing one: retention waits for cursors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import ANY_VERSION, Check, Create, MetadataStore
from stream.core.metadata.cursors import CursorMetadata, decode_cursor, encode_cursor
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import check_name
from stream.core.position import Position
from stream.errors import NoSuchCursor, NoSuchStream
from stream.store.gone_streams import remove_leftover
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    namespace_path,
    stream_path,
    too_many_conflicts,
)

CURSORS_MAX = 10_000
"""Cursors of one stream that are listed; more are a program that invents names."""


def cursors_path(namespace: str, stream: str) -> str:
    return f"{namespace_path(namespace)}/cursors/{check_name(stream)}"


def cursor_path(namespace: str, stream: str, cursor: str) -> str:
    return f"{cursors_path(namespace, stream)}/{check_name(cursor, 'cursor')}"


class CursorSlot(NamedTuple):
    """The place of a cursor: the cursor if there is one, the version to `put` over (None: no node
    yet), and the epoch up to which there were holders, also of a deleted cursor."""

    cursor: CursorMetadata | None
    version: int | None
    last_epoch: int


class CursorStore:
    """Cursors of one metadata store. Stateless: any number may share the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read_slot(self, namespace: str, stream: StreamMetadata, name: str) -> CursorSlot:
        """Returns the place of a cursor of exactly this stream, whether or not it has one.

        Raises MetadataCorrupt, MetadataUnavailable.
        """
        try:
            node = await self._store.get(cursor_path(namespace, stream.name, name))
        except NoSuchNode:
            return CursorSlot(None, None, 0)
        found = decode_cursor(name, node.data)
        return CursorSlot(_if_present(stream, found), node.version, found.epoch)

    async def read(
        self, namespace: str, stream: StreamMetadata, name: str
    ) -> tuple[CursorMetadata, int]:
        """Returns the cursor and its version. Raises NoSuchCursor, MetadataCorrupt."""
        cursor, version, _ = await self.read_slot(namespace, stream, name)
        if cursor is None or version is None:
            raise _no_cursor(namespace, stream.name, name)
        return cursor, version

    async def put(self, namespace: str, cursor: CursorMetadata, version: int | None) -> int:
        """Replaces what has `version`, or creates the node if that is None; returns the new
        version.

        Raises MetadataConflict if another client came first, NoSuchCursor if the node no longer
        exists, NoSuchStream.
        """
        assert version != ANY_VERSION, "a cursor is never overwritten blindly"
        path, data = cursor_path(namespace, cursor.stream, cursor.name), encode_cursor(cursor)
        if version is not None:
            try:
                return await self._store.put(path, data, version)
            except NoSuchNode:
                raise _no_cursor(namespace, cursor.stream, cursor.name) from None
        there = Check(stream_path(namespace, cursor.stream), ANY_VERSION)
        try:
            await self._store.transaction([there, Create(path, data)])
        except NodeExists:
            raise MetadataConflict(f"cursor {cursor.name!r} was created meanwhile") from None
        except NoSuchNode:
            raise NoSuchStream(
                f"no stream {cursor.stream!r} in namespace {namespace!r}: it cannot have a cursor"
            ) from None
        return 0

    async def list(self, namespace: str, stream: StreamMetadata) -> list[CursorMetadata]:
        """Returns all cursors of a stream, sorted by name. Raises MetadataCorrupt."""
        names = await self._store.children(cursors_path(namespace, stream.name))
        if len(names) > CURSORS_MAX:
            raise InvalidArgument(
                f"stream {stream.name!r} has {len(names)} cursors, at most {CURSORS_MAX} are listed"
            )
        found = [(await self.read_slot(namespace, stream, name)).cursor for name in names]
        return [cursor for cursor in found if cursor is not None]

    async def positions(
        self, namespace: str, stream: StreamMetadata, names: Iterable[str]
    ) -> dict[str, Position]:
        """Returns the positions of these cursors; those that the stream does not have are left out.

        Raises MetadataCorrupt, MetadataUnavailable: then the positions are unknown.
        """
        found = [(await self.read_slot(namespace, stream, name)).cursor for name in names]
        return {cursor.name: cursor.position for cursor in found if cursor is not None}

    async def move(
        self, namespace: str, stream: StreamMetadata, name: str, position: Position, now_ms: int
    ) -> CursorMetadata:
        """Sets a cursor by hand, and creates it if there is none; its user gets CursorMoved.

        Raises NoSuchStream, MetadataUnavailable (it may have been set).
        """
        for _ in range(UPDATE_TRIES_MAX):
            slot = await self.read_slot(namespace, stream, name)
            if slot.cursor is None:
                wanted = new_cursor(stream, name, position, slot.last_epoch, now_ms)
            else:
                wanted = slot.cursor.moved(position, now_ms)
            try:
                await self.put(namespace, wanted, slot.version)
            except (MetadataConflict, NoSuchCursor):
                continue
            return wanted
        raise too_many_conflicts(f"cursor {name!r}")

    async def delete(
        self, namespace: str, stream: StreamMetadata, name: str, now_ms: int
    ) -> CursorMetadata:
        """Deletes a cursor; its user gets CursorMoved. Raises NoSuchCursor."""
        for _ in range(UPDATE_TRIES_MAX):
            present, version = await self.read(namespace, stream, name)
            try:
                await self.put(namespace, present.deleted(now_ms), version)
            except MetadataConflict:
                continue
            return present
        raise too_many_conflicts(f"cursor {name!r}")

    async def forget_stream(self, namespace: str, stream: str, *, only_if: Check) -> None:
        """Removes the nodes of all cursors of a deleted stream. May be repeated.

        Raises MetadataConflict once `only_if` has changed.
        """
        folder = cursors_path(namespace, stream)
        names = await self._store.children(folder)
        for path in (*(f"{folder}/{name}" for name in names), folder):
            await remove_leftover(self._store, path, only_if)

    async def forget_incarnation(self, namespace: str, gone: StreamMetadata) -> None:
        """Removes the cursors of exactly this deleted stream, whose name another stream has now."""
        await self._forget_if(
            namespace, gone.name, lambda cursor: cursor.stream_created_ms == gone.created_ms
        )

    async def forget_deleted(self, namespace: str, stream: StreamMetadata, before_ms: int) -> int:
        """Removes nodes of cursors that were deleted before a time long past; returns how many."""
        # Cursors of an earlier stream of this name stay: it may be restored from the trash.
        return await self._forget_if(
            namespace, stream.name, lambda c: c.is_deleted and c.changed_ms < before_ms
        )

    async def _forget_if(
        self, namespace: str, stream: str, is_going: Callable[[CursorMetadata], bool]
    ) -> int:
        count = 0
        folder = cursors_path(namespace, stream)
        for name in await self._store.children(folder):
            try:
                node = await self._store.get(f"{folder}/{name}")
                cursor = decode_cursor(name, node.data)
            except (NoSuchNode, MetadataCorrupt):
                continue  # removed, or its stream is unknown: it stays
            if is_going(cursor):
                count += await self._remove(f"{folder}/{name}", node.version)
        return count

    async def watch(
        self, namespace: str, stream: StreamMetadata, name: str
    ) -> AsyncGenerator[CursorMetadata | None, None]:
        """Yields the cursor now and after each change; None while the stream has none.

        Close it: `async with aclosing(cursors.watch(n, s, c)) as versions`.
        """
        async with aclosing(self._store.watch(cursor_path(namespace, stream.name, name))) as nodes:
            async for node in nodes:
                yield None if node is None else _if_present(stream, decode_cursor(name, node.data))

    async def _remove(self, path: str, version: int) -> bool:
        try:
            await self._store.delete(path, version)
        except (NoSuchNode, MetadataConflict, InvalidArgument):
            return False  # removed, changed, or in use again: a later call checks it
        return True


def new_cursor(
    stream: StreamMetadata, name: str, position: Position, last_epoch: int, now_ms: int
) -> CursorMetadata:
    """Returns a cursor that no client has used yet."""
    return CursorMetadata(
        name=check_name(name, "cursor"),
        stream=stream.name,
        stream_created_ms=stream.created_ms,
        position=position,
        changed_ms=now_ms,
        epoch=last_epoch,
    )


def _if_present(stream: StreamMetadata, cursor: CursorMetadata) -> CursorMetadata | None:
    is_present = cursor.stream_created_ms == stream.created_ms and not cursor.is_deleted
    return cursor if is_present else None


def _no_cursor(namespace: str, stream: str, name: str) -> NoSuchCursor:
    return NoSuchCursor(
        f"no cursor {name!r} on stream {stream!r} in namespace {namespace!r}; open it "
        f"(namespace.cursor) or set it (ledgerstream cursor set {namespace}/{stream} {name} ...)"
    )
