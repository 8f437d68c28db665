"""An audit counts how many ledgers keep their placement, and changes nothing about it."""

from __future__ import annotations

import dataclasses
import random

from bookie.config import BookieConfig
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.published import AUDIT_PATH, AuditReport, publish_audit, read_audit
from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.policies import Grade, PlacementPolicy
from ledger.metastore.underreplication_nodes import PeriodicCheck
from tests.ledger.autorecovery.test_healing import healing, id_of, until

RACK = PlacementPolicy("rack", 2)
GOLDEN = (
    b'{"version": 1, "auditor": "b1", "begun_ms": 5, "ended_ms": 6, "after_ledger": 7,'
    b' "checks_entries": true, "ledgers": 8, "bytes": 9, "ledgers_below_write_quorum": 1,'
    b' "bytes_below_write_quorum": 2, "ledgers_below_ack_quorum": 3, "bytes_below_ack_quorum": 4,'
    b' "ledgers_without_copy": 5, "bytes_without_copy": 6, "ledgers_marked": 7,'
    b' "bookies_lost": ["b2"]}'
)
"""What the release before published."""


def in_racks(name: str, chance: random.Random) -> BookieConfig:
    """Returns settings with two bookies in each of three racks."""
    rack = int(name.removeprefix("bookie-")) // 2
    return dataclasses.replace(small_config(name, chance), location=f"/eu/rack-{rack}")


def test_ledgers_are_counted_by_how_they_keep_their_placement() -> None:
    async def main(simulation: Simulation) -> None:
        async with (
            SimCluster(simulation, bookies=6, config=in_racks) as cluster,
            cluster.client() as client,
        ):
            ids = []
            for _ in range(5):
                async with client.create_ledger(
                    ensemble_size=2, write_quorum=2, ack_quorum=2, placement=RACK
                ) as writer:
                    await writer.append(b"an entry")
                ids.append(writer.ledger_id)

            def in_one_rack(metadata: LedgerMetadata) -> LedgerMetadata:
                bookies = (id_of("bookie-4"), id_of("bookie-5"))
                moved = dataclasses.replace(metadata.fragments[0], bookies=bookies)
                return dataclasses.replace(metadata, fragments=(moved,))

            for ledger_id in ids[:2]:
                await client.ledgers.update(ledger_id, in_one_rack)
            before = [await client.ledgers.read(ledger_id) for ledger_id in ids]
            options = AutoRecoveryOptions(entry_check_interval_s=0)
            async with healing(cluster, options=options):

                async def is_audited() -> bool:
                    return await client.underreplication.last_check_ms(PeriodicCheck.PLACEMENT) >= 0

                await until(is_audited)
                report = await read_audit(client.store)
                assert report is not None
                counts = {
                    Grade.STRICT: report.placement_strict,
                    Grade.SOFT: report.placement_soft,
                    Grade.FAIL: report.placement_fail,
                }
                assert counts == {Grade.STRICT: 3, Grade.SOFT: 0, Grade.FAIL: 2}
                assert report.ledgers_marked == 0
            assert [await client.ledgers.read(ledger_id) for ledger_id in ids] == before

    run_simulated(main, 3)


def test_a_report_of_the_release_before_is_read() -> None:
    async def main(simulation: Simulation) -> None:
        async with (
            SimCluster(simulation, bookies=1) as cluster,
            cluster.client() as client,
        ):
            await client.store.create(AUDIT_PATH, GOLDEN)
            report = await read_audit(client.store)
            assert report == AuditReport(
                auditor="b1",
                begun_ms=5,
                ended_ms=6,
                after_ledger=7,
                checks_entries=True,
                ledgers=8,
                bytes=9,
                ledgers_below_write_quorum=1,
                bytes_below_write_quorum=2,
                ledgers_below_ack_quorum=3,
                bytes_below_ack_quorum=4,
                ledgers_without_copy=5,
                bytes_without_copy=6,
                ledgers_marked=7,
                bookies_lost=("b2",),
            )
            assert report.placement_fail is None
            graded = dataclasses.replace(report, placement_strict=4, placement_fail=0)
            await publish_audit(client.store, graded)
            assert await read_audit(client.store) == graded

    run_simulated(main, 0)
