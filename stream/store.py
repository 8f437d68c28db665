"""Namespaces and streams in the metadata store: where they lie, and the only ways to change them.

Every change compares versions. Watches yield decoded metadata. Paths:
`/ledgerstream/namespaces/<namespace>` and `.../streams/<stream>`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from ledger.errors import InvalidArgument, MetadataConflict, NodeExists, NoSuchLedger, NoSuchNode
from ledger.metastore.base import ANY_VERSION, Check, Create, Delete, MetadataStore, Put
from stream.core.metadata import StreamMetadata
from stream.core.metadata_format import (
    decode_namespace,
    decode_stream,
    encode_namespace,
    encode_stream,
)
from stream.core.names import check_name
from stream.core.policy import NamespaceMetadata
from stream.errors import (
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchStream,
    StreamExists,
)

ROOT = "/ledgerstream/namespaces"
UPDATE_TRIES_MAX = 100
"""Each lost try means that somebody else changed the stream; more than a few are a bug."""


def namespace_path(namespace: str) -> str:
    return f"{ROOT}/{check_name(namespace, 'namespace')}"


def stream_path(namespace: str, stream: str) -> str:
    return f"{namespace_path(namespace)}/streams/{check_name(stream)}"


class StreamStore:
    """Stateless: any number may share one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    # Namespaces

    async def create_namespace(self, namespace: NamespaceMetadata) -> None:
        """Raises NamespaceExists."""
        try:
            await self._store.create(namespace_path(namespace.name), encode_namespace(namespace))
        except NodeExists:
            raise NamespaceExists(f"namespace {namespace.name!r} exists already") from None

    async def read_namespace(self, name: str) -> tuple[NamespaceMetadata, int]:
        """Metadata and its version. Raises NoSuchNamespace, MetadataCorrupt."""
        try:
            node = await self._store.get(namespace_path(name))
        except NoSuchNode:
            raise _no_namespace(name) from None
        return decode_namespace(name, node.data), node.version

    async def put_namespace(self, namespace: NamespaceMetadata, version: int) -> int:
        """Raises MetadataConflict if it has another version, NoSuchNamespace."""
        try:
            return await self._store.put(
                namespace_path(namespace.name), encode_namespace(namespace), version
            )
        except NoSuchNode:
            raise _no_namespace(namespace.name) from None

    async def list_namespaces(self) -> list[str]:
        """Names, sorted."""
        return await self._store.children(ROOT)

    async def delete_namespace(self, name: str) -> None:
        """Raises NoSuchNamespace; NamespaceNotEmpty while it has streams."""
        path = namespace_path(name)
        await self.read_namespace(name)
        if streams := await self.list_streams(name):
            raise NamespaceNotEmpty(
                f"namespace {name!r} has {len(streams)} streams (like {streams[0]!r}); "
                f"delete them first"
            )
        try:
            # A stream made meanwhile keeps the folder from going, and the namespace with it.
            try:
                await self._store.delete(f"{path}/streams")
            except NoSuchNode:
                pass
            await self._store.delete(path)
        except NoSuchNode:
            raise _no_namespace(name) from None
        except InvalidArgument:
            raise NamespaceNotEmpty(f"namespace {name!r}: a stream was made meanwhile") from None

    # Streams

    async def create_stream(self, namespace: str, stream: StreamMetadata) -> None:
        """Raises StreamExists, NoSuchNamespace."""
        try:
            # One transaction: a namespace cannot go while a stream is being made in it.
            await self._store.transaction(
                [
                    Check(namespace_path(namespace), ANY_VERSION),
                    Create(stream_path(namespace, stream.name), encode_stream(stream)),
                ]
            )
        except NodeExists:
            raise StreamExists(
                f"stream {stream.name!r} exists already in namespace {namespace!r}"
            ) from None
        except NoSuchNode:
            raise _no_namespace(namespace) from None

    async def read_stream(self, namespace: str, name: str) -> tuple[StreamMetadata, int]:
        """Metadata and its version; also of a stream that is being deleted.

        Raises NoSuchStream, MetadataCorrupt.
        """
        try:
            node = await self._store.get(stream_path(namespace, name))
        except NoSuchNode:
            raise _no_stream(namespace, name) from None
        return decode_stream(name, node.data), node.version

    async def put_stream(
        self,
        namespace: str,
        stream: StreamMetadata,
        version: int,
        *,
        ledger_path: str | None = None,
    ) -> int:
        """Replaces metadata that has `version`; returns the new version.

        With `ledger_path` only if that ledger's metadata exists, in one transaction: a ledger
        deleted as an orphan can never become a segment. Raises MetadataConflict if the stream
        has another version, NoSuchStream, NoSuchLedger.
        """
        assert version != ANY_VERSION, "stream metadata is never overwritten blindly"
        path, data = stream_path(namespace, stream.name), encode_stream(stream)
        try:
            if ledger_path is None:
                return await self._store.put(path, data, version)
            await self._store.transaction(
                [Put(path, data, version), Check(ledger_path, ANY_VERSION)]
            )
        except NoSuchNode:
            await self.read_stream(namespace, stream.name)
            raise NoSuchLedger(
                f"stream {stream.name!r}: the ledger at {ledger_path} was deleted meanwhile"
            ) from None
        return version + 1

    async def delete_orphan(
        self, namespace: str, stream: str, version: int, ledger_path: str
    ) -> None:
        """Deletes the metadata of a ledger that the stream at `version` does not name.

        Raises MetadataConflict if the stream has changed since: it may name the ledger now.
        """
        try:
            await self._store.transaction(
                [Check(stream_path(namespace, stream), version), Delete(ledger_path)]
            )
        except NoSuchNode:
            pass  # the ledger is gone, or the stream is: both are looked at again later

    async def update_stream(
        self,
        namespace: str,
        name: str,
        transform: Callable[[StreamMetadata], StreamMetadata],
    ) -> StreamMetadata:
        """Reads, transforms and writes until nobody came between; returns what is now stored.

        `transform` is pure and may be called several times; what it raises leaves here. A stream
        that is being deleted is NoSuchStream.
        """
        for _ in range(UPDATE_TRIES_MAX):
            present, version = await self.read_stream(namespace, name)
            if present.is_deleted:
                raise _no_stream(namespace, name)
            wanted = transform(present)
            if wanted == present:
                return present
            try:
                await self.put_stream(namespace, wanted, version)
            except MetadataConflict:
                continue
            return wanted
        raise MetadataConflict(
            f"stream {name!r}: others changed the metadata first {UPDATE_TRIES_MAX} times"
        )

    async def remove_stream(self, namespace: str, name: str, version: int) -> None:
        """Forgets a stream whose ledgers are gone. Raises MetadataConflict, NoSuchStream."""
        try:
            await self._store.delete(stream_path(namespace, name), version)
        except NoSuchNode:
            raise _no_stream(namespace, name) from None

    async def list_streams(self, namespace: str) -> list[str]:
        """Names, sorted; one that is being deleted may still be among them."""
        return await self._store.children(f"{namespace_path(namespace)}/streams")

    async def watch_stream(
        self, namespace: str, name: str
    ) -> AsyncGenerator[StreamMetadata | None, None]:
        """The metadata now and after each change; None when the stream is gone or going.

        Close it: `async with aclosing(store.watch_stream(n, s)) as versions`.
        """
        async with aclosing(self._store.watch(stream_path(namespace, name))) as nodes:
            async for node in nodes:
                stream = None if node is None else decode_stream(name, node.data)
                yield None if stream is None or stream.is_deleted else stream


def _no_namespace(name: str) -> NoSuchNamespace:
    return NoSuchNamespace(
        f"no namespace {name!r}; create it (ledgerstream namespace create {name})"
    )


def _no_stream(namespace: str, name: str) -> NoSuchStream:
    return NoSuchStream(
        f"no stream {name!r} in namespace {namespace!r}; create it "
        f"(ledgerstream stream create {namespace}/{name})"
    )
