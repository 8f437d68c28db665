"""A client with many ledgers to recover limits the number of concurrent recoveries."""

from __future__ import annotations

import random
from pathlib import Path

import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerState
from ledger.core.metadata_format import decode
from ledger.metastore.base import ANY_VERSION
from ledger.metastore.memory import MemoryStore
from ledger.reading.opener import RECOVERIES_MAX
from ledger.runtime.network import TcpNetwork
from tests.real_cluster import SMALL, now_ms, real_cluster

LEDGERS = 3 * RECOVERIES_MAX


class RecoveryCount(MemoryStore):
    """A store that counts recoveries that have begun and not ended."""

    begun = ended = concurrent_max = 0

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        is_ledger = path.startswith("/ledgers/0")
        state = decode(1, data).state if is_ledger else None
        if state is LedgerState.IN_RECOVERY:
            self.begun += 1
            self.concurrent_max = max(self.concurrent_max, self.begun - self.ended)
        put = await super().put(path, data, version)
        self.ended += state is LedgerState.CLOSED
        return put


async def test_a_limited_number_of_ledgers_is_recovered_at_a_time(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **SMALL) as cluster:
        async with cluster.client() as client:
            ledger_ids = []
            for _ in range(LEDGERS):
                writer = await client.create_ledger()
                await writer.append(b"kept")
                ledger_ids.append(writer.ledger_id)
                writer.abandon()
        store = RecoveryCount(cluster.tree, now_ms)
        async with (
            store,
            LedgerClient(store, TcpNetwork(), rng=random.Random(1), now_ms=now_ms) as client,
        ):
            ends: list[int] = []

            async def recover(ledger_id: int) -> None:
                async with client.open_ledger(ledger_id) as reader:
                    ends.append(reader.last_add_confirmed)

            async with trio.open_nursery() as nursery:
                for ledger_id in ledger_ids:
                    nursery.start_soon(recover, ledger_id)
            assert ends == [0] * LEDGERS
            assert (store.begun, store.ended) == (LEDGERS, LEDGERS)
            assert 1 < store.concurrent_max <= RECOVERIES_MAX
