"""Connects commands to a namespace, and explains names that do not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ledger.cli.output import ClusterOption

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from stream.cli.arguments import StreamName, StreamNames
    from stream.errors import NoSuchNamespace, NoSuchStream
    from stream.namespace import Namespace


@asynccontextmanager
async def connect(
    cluster: ClusterOption, name: StreamName | StreamNames | str
) -> AsyncIterator[Namespace]:
    """Connects to a namespace, or to that of one or several streams.

    A NoSuchNamespace or NoSuchStream from inside is raised again with the similar name that exists,
    if there is one. Raises UsageError, MetadataUnavailable.
    """
    from stream.cli.arguments import StreamName, StreamNames
    from stream.core.stream_patterns import StreamPatterns
    from stream.errors import NoSuchNamespace, NoSuchStream
    from stream.namespace import Namespace

    wanted = name if isinstance(name, str) else name.namespace
    streams: Sequence[str] = ()
    if isinstance(name, StreamName):
        streams = (name.stream,)
    elif isinstance(name, StreamNames):
        streams = StreamPatterns(name.streams).names
    connecting = Namespace.connect(cluster.uri, wanted, options=cluster.options)
    async with connecting as namespace:
        try:
            yield namespace
        except NoSuchNamespace as error:
            raise await explained_namespace(namespace.client, wanted, error) from None
        except NoSuchStream as error:
            raise await _explained_stream(namespace, streams, error) from None


async def explained_namespace(
    client: LedgerClient, name: str, error: NoSuchNamespace
) -> NoSuchNamespace:
    """Returns the error with the name of a similar namespace, if there is one."""
    from ledger.cli.contexts import did_you_mean
    from stream.errors import NoSuchNamespace
    from stream.namespace import list_namespaces

    similar = did_you_mean(name, await list_namespaces(client))
    return NoSuchNamespace(f"no namespace {name!r}{similar}") if similar else error


async def _explained_stream(
    namespace: Namespace, streams: Sequence[str], error: NoSuchStream
) -> NoSuchStream | NoSuchNamespace:
    from ledger.cli.contexts import did_you_mean
    from stream.errors import NoSuchNamespace, NoSuchStream

    try:
        known = await namespace.list_streams()
    except NoSuchNamespace as missing:
        return await explained_namespace(namespace.client, namespace.name, missing)
    for plain in (stream.partition("#")[0] for stream in streams):
        if plain not in known and (similar := did_you_mean(plain, known)):
            return NoSuchStream(f"no stream {plain!r} in namespace {namespace.name!r}{similar}")
    return error
