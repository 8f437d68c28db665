"""A bookie with `journal_sync_data = false`, used over the wire."""

from __future__ import annotations

from pathlib import Path

from ledger.errors import Status
from ledger.wire.messages import (
    AddResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ReadRequest,
    ReadResponse,
)
from tests.bookie.server.test_server import KEY, SETTINGS, add, peer_of
from tests.real_cluster import real_cluster


async def test_a_bookie_may_acknowledge_before_it_syncs(tmp_path: Path) -> None:
    """It syncs on request: for a fence and for a forced ledger. A process that ends loses
    nothing."""
    late = SETTINGS | {
        "journal_sync_data": False,
        "journal_page_cache_flush_interval_ms": 3_600_000.0,
        "checkpoint_interval_ms": 3_600_000,
    }
    async with real_cluster(tmp_path, 1, **late) as cluster:
        async with peer_of(cluster) as peer:
            storage = cluster.bookies[0].storage
            assert storage is not None
            journal = storage.journals[0]
            for version in (2, 3):
                for entry_id in range(10):
                    added = await peer.ask(AddResponse, add(version, entry_id), version)
                    assert added.status is Status.OK
            syncs, before = journal.statistics().syncs, journal.statistics()
            assert before.late_groups == before.groups == 20
            assert before.unsynced_bytes >= 20 * 4096
            assert not journal.is_idle
            await peer.ask(ForceLedgerResponse, ForceLedgerRequest(2))
            assert journal.statistics().syncs == syncs + 1
            assert journal.statistics().unsynced_bytes == 0
            await peer.ask(AddResponse, add(2, 10), 2)
            await peer.ask(ReadResponse, ReadRequest(3, 9, is_fencing=True, master_key=KEY))
            assert journal.statistics().syncs == syncs + 2
            await peer.ask(AddResponse, add(2, 11), 2)
        await cluster.stop(0)
        await cluster.start(0)
        async with peer_of(cluster) as peer:
            for ledger_id, last in ((2, 11), (3, 9)):
                read = await peer.ask(ReadResponse, ReadRequest(ledger_id, last))
                assert read.status is Status.OK
            assert (await peer.ask(AddResponse, add(3, 10))).status is Status.FENCED
