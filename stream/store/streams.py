"""Namespaces and streams in the metadata store: their paths, and the only ways to change them.

Every change compares versions. Watches yield decoded metadata. Paths:
`/ledgerstream/namespaces/<namespace>` and `.../streams/<stream>`. A deleted stream leaves a
tombstone there, so that versions never begin again under a late change; its data is in the trash
(retention/trash.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import ClassVar, TypeVar

from ledger.errors import InvalidArgument, MetadataConflict, NodeExists, NoSuchLedger, NoSuchNode
from ledger.metastore.base import (
    ANY_VERSION,
    Change,
    Check,
    Create,
    Delete,
    MetadataStore,
    Put,
)
from stream.core.metadata.format import (
    decode_namespace,
    decode_stream,
    encode_namespace,
    encode_stream,
)
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import RUNS_PER_PAGE, SEGMENTS_PER_PAGE
from stream.core.metadata.segments import Run
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import check_name, parse_partition
from stream.core.trash import begun_at, recreated
from stream.errors import (
    IsPartitioned,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchStream,
    StreamExists,
    TooManyStreams,
)
from stream.store.gone_streams import GoneSegments
from stream.store.pages import PageLost, PageStore, none_may_lack

ROOT = "/ledgerstream/namespaces"
T = TypeVar("T")

UPDATE_TRIES_MAX = 100
"""Each failed attempt means that another client changed the stream; more than a few are a bug."""


def namespace_path(namespace: str) -> str:
    return f"{ROOT}/{check_name(namespace, 'namespace')}"


def stream_path(namespace: str, stream: str) -> str:
    return f"{namespace_path(namespace)}/streams/{check_name(stream)}"


def folder_path(namespace: str, folder: str) -> str:
    """Returns the path of the folder "streams", "trash", "cursors" or "groups"."""
    return f"{namespace_path(namespace)}/{folder}"


def trash_path(namespace: str, stream: str, deleted_ms: int) -> str:
    return f"{folder_path(namespace, 'trash')}/{check_name(stream)}~{deleted_ms}"


def parse_trash_name(node: str) -> tuple[str, int] | None:
    """ "clicks~1700000000000" -> ("clicks", 1700000000000); None for any other name."""
    stream, mark, number = node.rpartition("~")
    if not (mark and stream and number.isascii() and number.isdigit()):
        return None
    return stream, int(number)


class StreamStore:
    """Namespaces and streams of one metadata store. Stateless: any number may share the store."""

    page_sizes: ClassVar = (SEGMENTS_PER_PAGE, RUNS_PER_PAGE)
    """Segments in a page, and pages in a page above them. Only tests change it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.gone = GoneSegments(store)
        self.pages = PageStore(store)

    # Namespaces

    async def create_namespace(self, namespace: NamespaceMetadata) -> None:
        """Creates a namespace. Raises NamespaceExists."""
        try:
            await self._store.create(namespace_path(namespace.name), encode_namespace(namespace))
        except NodeExists:
            raise NamespaceExists(f"namespace {namespace.name!r} already exists") from None

    async def read_namespace(self, name: str) -> tuple[NamespaceMetadata, int]:
        """Returns the policy and its version. Raises NoSuchNamespace, MetadataCorrupt."""
        try:
            node = await self._store.get(namespace_path(name))
        except NoSuchNode:
            raise no_namespace(name) from None
        return decode_namespace(name, node.data), node.version

    async def put_namespace(self, namespace: NamespaceMetadata, version: int) -> int:
        """Replaces a policy. Raises MetadataConflict if it has another version, NoSuchNamespace."""
        try:
            return await self._store.put(
                namespace_path(namespace.name), encode_namespace(namespace), version
            )
        except NoSuchNode:
            raise no_namespace(namespace.name) from None

    async def list_namespaces(self) -> list[str]:
        """Returns the names, sorted."""
        return await self._store.children(ROOT)

    async def delete_namespace(self, name: str) -> None:
        """Deletes a namespace without streams, with the cursors, groups and tombstones of deleted
        ones.

        Raises NoSuchNamespace; NamespaceNotEmpty while it has streams, or some in the trash.
        """
        path = namespace_path(name)
        await self.read_namespace(name)
        if streams := await self.list_streams(name):
            raise NamespaceNotEmpty(
                f"namespace {name!r} has {len(streams)} streams (like {streams[0]!r}); "
                f"delete them first"
            )
        await self._forget_deleted(name)
        left = await self._store.children(f"{path}/pages")  # none of them is of a later stream
        try:
            # A stream created meanwhile prevents the deletion of its folder and the namespace.
            for folder in (
                "streams", "trash", "cursors", "groups", "successors",
                *(f"pages/{folder}" for folder in left), "pages",
            ):  # fmt: skip
                if folder in ("cursors", "groups", "successors") or folder.startswith("pages/"):
                    await self._delete_tree(f"{path}/{folder}")
                    continue
                try:
                    await self._store.delete(f"{path}/{folder}")
                except NoSuchNode:
                    pass
            await self._store.delete(path)
        except NoSuchNode:
            raise no_namespace(name) from None
        except InvalidArgument:
            raise NamespaceNotEmpty(f"namespace {name!r}: a stream was created meanwhile") from None

    async def _forget_deleted(self, namespace: str) -> None:
        """Removes the nodes of deleted streams if they hold no data."""
        left: list[Delete] = []
        for stream, deleted_ms in await self.list_trash(namespace):
            path = trash_path(namespace, stream, deleted_ms)
            node = await self._store.get(path)
            if decode_stream(stream, node.data).has_ledgers:
                raise NamespaceNotEmpty(
                    f"namespace {namespace!r}: stream {stream!r} is in the trash; purge it "
                    f"(ledgerstream stream purge {namespace}/{stream}) or wait for its time"
                )
            left.append(Delete(path, node.version))
        for stream in await self._store.children(folder_path(namespace, "streams")):
            present, version = await self.read_stream(namespace, stream)
            if not present.is_deleted or present.has_ledgers:
                raise NamespaceNotEmpty(f"namespace {namespace!r}: stream {stream!r} exists")
            await self.gone.note(present.next_segment)
            left.append(Delete(stream_path(namespace, stream), version))
        for delete in left:
            await self._store.transaction([delete])

    async def _delete_tree(self, path: str) -> None:
        for child in await self._store.children(path):
            await self._delete_tree(f"{path}/{child}")
        try:
            await self._store.delete(path)
        except NoSuchNode:
            pass

    # Streams

    async def create_stream(self, namespace: str, stream: StreamMetadata) -> StreamMetadata:
        """Stores a new stream; returns it. A deleted stream of the name stays in the trash.

        Raises StreamExists, NoSuchNamespace; TooManyStreams beyond `streams_max`, which concurrent
        creations may exceed.
        """
        policy, _ = await self.read_namespace(namespace)
        await self.check_stream_limit(policy, [stream.name])
        for _ in range(UPDATE_TRIES_MAX):
            try:
                return await self._create(namespace, stream)
            except MetadataConflict:
                continue
            except NodeExists:
                pass
            try:
                present, version = await self.read_stream(namespace, stream.name)
                if not present.is_deleted or present.has_ledgers:
                    break
                stored, _ = await self.put_stream(namespace, recreated(stream, present), version)
            except (MetadataConflict, NoSuchStream):
                continue
            except IsPartitioned:
                break
            return stored
        raise StreamExists(f"stream {stream.name!r} already exists in namespace {namespace!r}")

    async def _create(self, namespace: str, stream: StreamMetadata) -> StreamMetadata:
        begin, is_begin = await self.gone.begin()
        stream = begun_at(stream, begin)
        try:
            # One transaction: a namespace cannot be deleted while a stream is created in it.
            await self._store.transaction(
                [
                    Check(namespace_path(namespace), ANY_VERSION),
                    is_begin,
                    Create(stream_path(namespace, stream.name), encode_stream(stream)),
                ]
            )
        except NoSuchNode:
            raise no_namespace(namespace) from None
        return stream

    async def check_stream_limit(self, policy: NamespaceMetadata, wanted: Collection[str]) -> None:
        """Raises TooManyStreams if the namespace may not have these streams too."""
        if policy.streams_max is None:
            return
        streams = await self.list_streams(policy.name)
        fresh = [name for name in wanted if name not in streams]
        if fresh and len(streams) + len(fresh) > policy.streams_max:
            raise TooManyStreams(
                f"namespace {policy.name!r} has {len(streams)} streams, {len(fresh)} more are "
                f"over streams_max of {policy.streams_max}; delete some, or raise it "
                f"(ledgerstream namespace set {policy.name} --streams-max N)"
            )

    async def read_stream(self, namespace: str, name: str) -> tuple[StreamMetadata, int]:
        """Returns metadata and its version; also of a stream that is being deleted. Raises
        NoSuchStream, MetadataCorrupt."""
        try:
            node = await self._store.get(stream_path(namespace, name))
        except NoSuchNode:
            raise no_such_stream(namespace, name) from None
        return decode_stream(name, node.data), node.version

    async def read_living_stream(self, namespace: str, name: str) -> StreamMetadata:
        """Returns an existing stream. Raises NoSuchStream if deleted, MetadataCorrupt."""
        stream, _ = await self.read_stream(namespace, name)
        if stream.is_deleted:
            raise was_deleted(namespace, name)
        return stream

    async def consult(
        self, namespace: str, name: str, ask: Callable[[StreamMetadata], Awaitable[T]]
    ) -> T:
        """Returns what `ask` says of an existing stream as it is now; it is asked again if a page
        was missing because its segments had been purged meanwhile.

        Raises NoSuchStream if deleted, PageLost, MetadataCorrupt, and what `ask` raises.
        """
        present = await self.read_stream(namespace, name)
        while True:
            if present[0].is_deleted:
                raise was_deleted(namespace, name)
            try:
                return await ask(present[0])
            except PageLost:
                before, present = present, await self.read_stream(namespace, name)
                if present == before:
                    raise

    async def put_stream(
        self,
        namespace: str,
        stream: StreamMetadata,
        version: int,
        *,
        ledger_path: str | None = None,
        only_if: Sequence[Check] = (),
    ) -> tuple[StreamMetadata, int]:
        """Replaces metadata that has `version`; returns the stream as stored, with older segments
        in pages, and the new version.

        With `ledger_path`, only if that ledger's metadata exists, in one transaction: a ledger
        deleted as an orphan can never become a segment. `only_if`: nodes that must not have changed
        either. Raises MetadataConflict if the stream or one of those has another version,
        NoSuchStream, NoSuchLedger.
        """
        path, dead = stream_path(namespace, stream.name), list[Change]()
        try:
            stored, change, dead = await self.prepared(namespace, path, stream, version)
            if ledger_path is None and not only_if and not dead:
                return stored, await self._store.put(path, change.data, version)
            made = () if ledger_path is None else (Check(ledger_path, ANY_VERSION),)
            await self._store.transaction([change, *made, *only_if, *dead])
        except NoSuchNode:
            await self.read_stream(namespace, stream.name)
            self.pages.forget(dead)
            if only_if or dead or ledger_path is None:
                raise MetadataConflict(
                    f"stream {stream.name!r}: a node that the change depends on was deleted"
                ) from None
            raise NoSuchLedger(
                f"stream {stream.name!r}: the ledger at {ledger_path} was deleted meanwhile"
            ) from None
        return stored, version + 1

    async def prepared(
        self, namespace: str, path: str, stream: StreamMetadata, version: int
    ) -> tuple[StreamMetadata, Put, list[Change]]:
        """Writes the pages that the stream makes, and returns the stream as it is to be stored in
        the node `path`, which has `version`, the change that does so, and those that belong to the
        same transaction. Raises MetadataConflict, NoSuchNode."""
        assert version != ANY_VERSION, "stream metadata is never overwritten blindly"
        is_same = Check(path, version)
        stored, dead = await self.pages.prepare(namespace, stream, is_same, *self.page_sizes)
        return stored, Put(path, encode_stream(stored), version), dead

    async def delete_orphan(
        self,
        namespace: str,
        stream: str,
        version: int,
        ledger_path: str,
        *,
        only_if: Sequence[Check] = (),
    ) -> None:
        """Deletes the metadata of a ledger that the stream at `version` does not name.

        Raises MetadataConflict if the stream, or a node of `only_if`, has changed since: the ledger
        may be named now.
        """
        try:
            await self._store.transaction(
                [Check(stream_path(namespace, stream), version), *only_if, Delete(ledger_path)]
            )
        except NoSuchNode:
            pass  # the ledger or the stream no longer exists: a later sweep checks both

    async def delete_orphan_of_none(self, ledger_path: str, *, only_if: Sequence[Check]) -> None:
        """Deletes the metadata of a ledger of no stream; `only_if` as for `delete_orphan`."""
        try:
            await self._store.transaction([*only_if, Delete(ledger_path)])
        except NoSuchNode:
            pass

    async def update_stream(
        self,
        namespace: str,
        name: str,
        transform: Callable[[StreamMetadata], StreamMetadata],
        *,
        may_lack: Callable[[StreamMetadata, Run], bool] = none_may_lack,
    ) -> StreamMetadata:
        """Reads, transforms and writes until no other change comes between; returns what is stored.

        `transform` is pure and may be called several times; its errors are raised here. A stream
        that is being deleted is NoSuchStream. Pages that are lost count as empty if `may_lack`
        says so of the present stream.
        """
        for _ in range(UPDATE_TRIES_MAX):
            present, version = await self.read_stream(namespace, name)
            if present.is_deleted:
                raise no_such_stream(namespace, name)
            try:
                wanted = await self.pages.resolve(
                    present, transform, may_lack=partial(may_lack, present)
                )
            except PageLost:  # unless it was purged just now
                if await self.read_stream(namespace, name) == (present, version):
                    raise
                continue
            if wanted == present:
                return present
            try:
                return (await self.put_stream(namespace, wanted, version))[0]
            except MetadataConflict:
                continue
        raise too_many_conflicts(f"stream {name!r}")

    async def remove_stream(self, namespace: str, stream: StreamMetadata, version: int) -> None:
        """Removes a tombstone. Raises MetadataConflict, NoSuchStream."""
        await self.gone.note(stream.next_segment)
        try:
            await self._store.delete(stream_path(namespace, stream.name), version)
        except NoSuchNode:
            raise no_such_stream(namespace, stream.name) from None

    async def list_streams(self, namespace: str) -> list[str]:
        """Returns the names, sorted. Deleted streams are left out."""
        names = await self._store.children(folder_path(namespace, "streams"))
        # Every tombstone has a node in the trash, so that only those few names are read.
        deleted = {stream for stream, _ in await self.list_trash(namespace)}
        deleted |= {partition.stream for name in deleted if (partition := parse_partition(name))}
        gone: list[str] = []
        for name in names:
            if name in deleted:
                try:
                    stream, _ = await self.read_stream(namespace, name)
                except NoSuchStream:
                    gone.append(name)
                except IsPartitioned:
                    continue
                else:
                    gone += [name] if stream.is_deleted else []
        return [name for name in names if name not in gone] if gone else names

    async def list_nodes(self, namespace: str) -> list[str]:
        """Returns the names of streams and tombstones, sorted."""
        return await self._store.children(folder_path(namespace, "streams"))

    async def list_trash(self, namespace: str) -> list[tuple[str, int]]:
        """Returns deleted streams, even if only the name is left, and their times of deletion."""
        nodes = await self._store.children(folder_path(namespace, "trash"))
        return [parsed for node in nodes if (parsed := parse_trash_name(node)) is not None]

    async def watch_stream(
        self, namespace: str, name: str
    ) -> AsyncGenerator[StreamMetadata | None, None]:
        """Yields the metadata now and after each change; None when the stream is deleted.

        Close it: `async with aclosing(store.watch_stream(n, s)) as versions`.
        """
        async with aclosing(self._store.watch(stream_path(namespace, name))) as nodes:
            async for node in nodes:
                stream = None if node is None else decode_stream(name, node.data)
                yield None if stream is None or stream.is_deleted else stream


def no_namespace(name: str) -> NoSuchNamespace:
    return NoSuchNamespace(
        f"no namespace {name!r}; create it (ledgerstream namespace create {name})"
    )


def no_such_stream(namespace: str, name: str) -> NoSuchStream:
    return NoSuchStream(
        f"no stream {name!r} in namespace {namespace!r}, or it was deleted; create it "
        f"(ledgerstream stream create {namespace}/{name})"
    )


def was_deleted(namespace: str, name: str) -> NoSuchStream:
    return NoSuchStream(
        f"stream {name!r} in namespace {namespace!r} was deleted; it can be restored "
        f"while it is in the trash (ledgerstream stream undelete {namespace}/{name})"
    )


def too_many_conflicts(what: str) -> MetadataConflict:
    """Returns the error of a change that lost against other clients too often."""
    return MetadataConflict(
        f"{what}: other clients changed the metadata first, {UPDATE_TRIES_MAX} times"
    )
