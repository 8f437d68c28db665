"""A roll whose outcome is unknown, and which the metadata store applies late.

The store applies it only when the writer is about to store another change. No record is lost by
that, and none is stored twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import MetadataUnavailable
from ledger.metastore.base import Change, MetadataStore, Node, Put
from stream.namespace import Namespace
from stream.store.streams import stream_path
from tests.stream.whole_streams import read_all

PATH = stream_path("n", "s")


class LateStore:
    """A store that delays the next new segment once `is_late` is set.

    It applies the change just before the next change of the stream; until then `failed_reads`
    reads of the stream fail.
    """

    def __init__(self, inner: MetadataStore, failed_reads: int) -> None:
        self._inner = inner
        self.is_late = False
        self._failed_reads = failed_reads
        self.kept: Sequence[Change] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, path: str) -> Node:
        if path == PATH and self.kept is not None and self._failed_reads:
            self._failed_reads -= 1
            raise MetadataUnavailable(f"{path}: no answer")
        return await self._inner.get(path)

    async def transaction(self, changes: Sequence[Change]) -> None:
        if any(isinstance(change, Put) and change.path == PATH for change in changes):
            if self.is_late:
                self.is_late, self.kept = False, changes
                raise MetadataUnavailable(f"{PATH}: no answer")
            if self.kept is not None:
                kept, self.kept = self.kept, None
                await self._inner.transaction(kept)
        await self._inner.transaction(changes)


@pytest.mark.parametrize("failed_reads", [1, 2, 3])
def test_a_roll_that_the_store_applies_late_loses_and_repeats_nothing(failed_reads: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            client.store = store = LateStore(client.store, failed_reads)
            namespace = Namespace(client, "n")
            await namespace.ensure(roll_ms=1000, linger_ms=0)
            await namespace.ensure_stream("s")
            async with namespace.writer("s") as writer:
                tickets = []
                for number in range(200):
                    store.is_late |= number == 50
                    tickets.append(writer.append_nowait(b"%d" % number))
                    await trio.sleep(0.01)
                with trio.fail_after(10):
                    positions = [await ticket.wait() for ticket in tickets]
                assert writer.statistics().repairs == 1
                assert store.kept is None
            records = await read_all(namespace, "s")
            assert [record.value for record in records] == [b"%d" % n for n in range(200)]
            assert [record.position for record in records] == positions

    simulate(scenario, failed_reads)
