"""What every operation on a namespace needs, and nothing more.

Partitions, merged readers and verification take a `NamespaceScope`; they must not know `Namespace`.
It keeps no state but its addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.client import LedgerClient
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import check_name
from stream.store.streams import StreamStore


@dataclass(frozen=True, slots=True)
class NamespaceScope:
    """A namespace of a cluster: a client, the store of its streams, and its name."""

    client: LedgerClient
    store: StreamStore
    name: str

    async def policy(self) -> NamespaceMetadata:
        """Returns how streams are written and kept. Raises NoSuchNamespace."""
        namespace, _ = await self.store.read_namespace(self.name)
        return namespace

    async def stream_metadata(self, stream: str) -> StreamMetadata:
        """Returns segments, epoch and truncation point. Raises NoSuchStream, IsPartitioned."""
        return await self.store.read_living_stream(self.name, check_name(stream))
