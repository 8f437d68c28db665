"""A bookie that may have forgotten entries dies in each operation of its start: it denies none.

It restarts with empty directories under its old id, after its cookie was deleted: nothing but
the metadata of the ledgers shows that it existed before.
"""

from __future__ import annotations

import pytest
import trio

from bookie.testing import CrashKind, SimCluster, Simulation, run_simulated
from ledger.client import LedgerClient
from ledger.errors import Status
from ledger.metastore.bookies import BookieRegistry
from ledger.wire.messages import ReadRequest
from ledger.writing.writer import LedgerWriter
from tests.effort import stride
from tests.sim.bookies.dying_starts import die_in

_OPERATIONS_MAX = 500
_UNKNOWN = Status.IO_ERROR
"""The replies that readers may get: anything but "no such entry"."""
_ROUND_S = 31.0
"""A little more than the pause between two rounds of repair."""


async def _written(client: LedgerClient) -> LedgerWriter:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
    for entry in range(5):
        await writer.append(b"%d" % entry)
    return writer


async def _statuses(client: LedgerClient, bookie: str, ledger_id: int) -> list[Status]:
    """Of the first five entries, as this bookie answers."""
    answers = [
        await client.pool.call(bookie, ReadRequest(ledger_id, entry), timeout_s=10)
        for entry in range(5)
    ]
    return [answer.status for answer in answers]


@pytest.mark.parametrize("kind", list(CrashKind))
def test_a_start_with_a_doubt_that_was_broken_off_anywhere_denies_nothing(
    kind: CrashKind, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = 0

    async def main(simulation: Simulation) -> bool:
        async with SimCluster(simulation, bookies=3) as cluster, cluster.client() as client:
            still_open = await _written(client)
            closed = await _written(client)
            await closed.close()
            bookie = closed.metadata.last_fragment.bookies[0]
            name = bookie.split(":")[0]
            await cluster.kill_bookie(name, kind)
            cluster.disk(name).wipe()
            operator = cluster.metadata.connect("operator")
            await BookieRegistry(operator).delete_cookie(bookie)

            was_killed = await die_in(cluster, name, number, kind)
            await cluster.start_bookie(name)
            assert cluster.is_up(name)
            async with cluster.client() as asker:
                for ledger_id in (still_open.ledger_id, closed.ledger_id):
                    for status in await _statuses(asker, bookie, ledger_id):
                        assert status in (Status.OK, _UNKNOWN)
                await trio.sleep(_ROUND_S)
                assert await _statuses(asker, bookie, closed.ledger_id) == [Status.OK] * 5
                assert await _statuses(asker, bookie, still_open.ledger_id) == [_UNKNOWN] * 5
            still_open.abandon()
            return was_killed

    for number in range(1, _OPERATIONS_MAX, stride(ci=11)):
        if not run_simulated(main, number, time_limit_s=300):
            break
        tried += 1
    with capsys.disabled():
        print(f" {tried} crash points ", end="")
    assert 20 < number < _OPERATIONS_MAX - 1
