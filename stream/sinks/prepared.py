"""What saves a commit requests to the metadata store: ledgers that its own transaction closes, and
what the last commit of the sink left there.

Nothing is decided by it alone: the transaction compares the versions of all that was not read, and
if one differs, the commit reads. Must never be used for a batch that may have been committed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.metastore.base import Put
from ledger.metastore.ledgers import CLIENT_TAG, client_path
from ledger.writing.writer import LedgerWriter
from stream.core.metadata.streams import StreamMetadata
from stream.core.sink_owner import SinkQuery
from stream.core.sinks import SinkMetadata

VersionedStreams = Mapping[tuple[str, str], tuple[StreamMetadata, int]]
"""Streams by namespace and name, each with the version of its node."""


class UnclosedLedger(NamedTuple):
    """A ledger whose writer is in this process, and the metadata that it was created with."""

    writer: LedgerWriter
    created: LedgerMetadata


class UnclosedLedgers:
    """Ledgers whose writers are in this process and add nothing more."""

    def __init__(self, client: LedgerClient, ledgers: Sequence[UnclosedLedger]) -> None:
        self._client = client
        self._created = {each.writer.ledger_id: each.created for each in ledgers}
        self._writers = {each.writer.ledger_id: each.writer for each in ledgers}
        self._closed: dict[int, LedgerMetadata] = {}

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._writers

    @property
    def client_node(self) -> str | None:
        """The path of the ephemeral node of the client that writes them; None without ledgers."""
        for writer in self._writers.values():
            return client_path(writer.metadata.custom[CLIENT_TAG].decode())
        return None

    async def changes(self) -> list[Put]:
        """Returns the changes that close the ledgers, at the version that they were created with.

        Those whose bookies were replaced are closed now: they have another version. Raises what
        `LedgerWriter.close` raises.
        """
        for ledger_id, writer in list(self._writers.items()):
            self._closed[ledger_id] = await writer.prepare_close()
            if writer.metadata is not self._created[ledger_id]:
                self._client.bookies.doubt_candidates()
                await writer.close()
                del self._writers[ledger_id], self._closed[ledger_id]
        return [await self._client.ledgers.put_of_created(each) for each in self._closed.values()]

    async def close(self) -> None:
        """Closes them one by one, because a transaction did not. Raises what closing raises."""
        for ledger_id, writer in list(self._writers.items()):
            await writer.close()
            del self._writers[ledger_id]
        self._closed.clear()

    def note_closed(self) -> None:
        """Notes that a transaction has closed them, or may have."""
        for ledger_id, metadata in self._closed.items():
            self._writers[ledger_id].note_closed(metadata)


@dataclass(slots=True)
class SinkMemory:
    """What the last commit of a sink in this process left in the metadata. Empty at first."""

    sink: SinkMetadata | None = None
    sink_version: int = -1
    streams: VersionedStreams = field(default_factory=dict)
    client_node: str | None = None
    """The ephemeral node of the client. While it exists, the metadata were not put back."""
    restores: int = 0
    restores_s: float = -math.inf
    """When the restores were read, by trio's clock."""

    def precedes(self, batch_id: int | None, query: SinkQuery | None) -> bool:
        """Whether it is that of the batch before this one, and of the same run of its query."""
        if self.sink is None or self.client_node is None or batch_id != self.sink.batch_id + 1:
            return False
        owner = self.sink.owner
        if query is None or owner is None:
            return query is None and owner is None
        return (owner.query_id, owner.last_run_id) == (query.query_id, query.run_id)

    def note(
        self,
        sink: SinkMetadata | None,
        sink_version: int,
        streams: VersionedStreams,
        client_node: str | None,
    ) -> None:
        """Notes what a commit of this client has left: sink and streams, each with its version."""
        self.sink, self.sink_version, self.streams = sink, sink_version, streams
        self.client_node = client_node

    async def counted_restores(self, client: LedgerClient, *, is_known: bool) -> int:
        """Returns how often the metadata was put back; without asking if it `is_known`.

        Bookies notice it before they register. So it is asked for again after the bookies to choose
        from were. Raises MetadataUnavailable.
        """
        if not is_known or self.restores_s < client.bookies.candidates_s:
            now_s = trio.current_time()
            self.restores, self.restores_s = await client.restores(), now_s
        return self.restores

    def forget(self) -> None:
        self.sink, self.streams, self.restores_s = None, {}, -math.inf
