"""What saves a commit requests to the metadata store: ledgers that its own transaction closes, and
what the last commit of the sink left there.

Nothing is decided by it alone: the transaction compares the versions of all that was not read, and
if one differs, the commit reads. Must never be used for a batch that may have been committed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.metastore.base import ANY_VERSION, Check, Put
from ledger.metastore.ledgers import CLIENT_TAG, client_path
from ledger.runtime.concurrency import map_bounded
from ledger.writing.writer import LedgerWriter
from stream.core.metadata.streams import StreamMetadata
from stream.core.sink_owner import SinkQuery
from stream.core.sinks import SinkMetadata

REMEMBERED_S_MAX: Final = 300.0
"""How long a memory serves. A release that does not write the node of gone segments for each
tombstone that it removes keeps tombstones for twice as long (retention/trash.py)."""

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

        async def close(writer: LedgerWriter) -> None:
            await writer.close()
            del self._writers[writer.ledger_id]
            self._closed.pop(writer.ledger_id, None)

        await map_bounded(list(self._writers.values()), close)

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
    none_gone: Check | None = None
    """While it holds, no node of a stream or sink was removed: versions did not begin again."""
    noted_s: float = -math.inf
    """When the commit was noted, by trio's clock."""
    restores: int = 0
    restores_s: float = -math.inf
    """When the restores were read, by trio's clock."""

    def precedes(self, batch_id: int | None, query: SinkQuery | None) -> bool:
        """Whether it is that of the batch before this one, of the same run of its query, and
        recent."""
        if self.sink is None or not self.conditions or batch_id != self.sink.batch_id + 1:
            return False
        if trio.current_time() - self.noted_s > REMEMBERED_S_MAX:
            return False
        owner = self.sink.owner
        if query is None or owner is None:
            return query is None and owner is None
        return (owner.query_id, owner.last_run_id) == (query.query_id, query.run_id)

    @property
    def conditions(self) -> list[Check]:
        """What must hold for the versions to mean what they meant; empty if that is unknown."""
        if self.client_node is None or self.none_gone is None:
            return []
        return [Check(self.client_node, ANY_VERSION), self.none_gone]

    def note(
        self,
        sink: SinkMetadata | None,
        sink_version: int,
        streams: VersionedStreams,
        client_node: str | None,
        none_gone: Check | None,
    ) -> None:
        """Notes what a commit of this client has left: sink and streams, each with its version.
        `none_gone` was read before these."""
        self.sink, self.sink_version, self.streams = sink, sink_version, streams
        self.client_node, self.none_gone = client_node, none_gone
        self.noted_s = trio.current_time()

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
