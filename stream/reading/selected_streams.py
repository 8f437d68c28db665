"""Finds the streams and partitions that names and patterns select.

Reads only the metadata. Must never treat a stream that cannot be read as a missing one.
"""

from __future__ import annotations

from stream.core.stream_patterns import StreamPatterns
from stream.errors import NoSuchStream
from stream.scope import NamespaceScope
from stream.store.partitions import PartitionStore
from stream.store.streams import namespace_path


async def find_streams(scope: NamespaceScope, patterns: StreamPatterns) -> list[str]:
    """Returns the selected streams and partitions, as they are now.

    Raises NoSuchStream for a named stream that does not exist, NoSuchNamespace.
    """
    found: list[str] = []
    partitions = PartitionStore(scope.client.store)
    for name in patterns.names:
        found += await partitions.partition_names(scope.name, name)
    if patterns.patterns:
        await scope.policy()  # a namespace that does not exist is an error
        listed = await scope.client.store.children(streams_folder(scope))
        found += patterns.select(listed)
        for name in patterns.ambiguous(listed):
            try:
                found += await partitions.partition_names(scope.name, name)
            except NoSuchStream:
                pass  # deleted, as its partitions are
    return list(dict.fromkeys(found))


def streams_folder(scope: NamespaceScope) -> str:
    """Returns the node whose children are the streams of the namespace."""
    return f"{namespace_path(scope.name)}/streams"
