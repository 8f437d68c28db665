"""A bookie process with several journals and ledger directories is killed and restarted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from tests.interop.our_bookies import OurBookies

pytestmark = pytest.mark.system

LEDGERS = 7
ENTRIES = 150


@pytest.fixture
def bookies(tmp_path: Path) -> Iterator[OurBookies]:
    (tmp_path / "metadata").mkdir()
    bookies = OurBookies(
        tmp_path,
        f"sqlite://{tmp_path / 'metadata' / 'cluster.db'}",
        journal_directories=[f"{tmp_path}/fast/{n}" for n in range(2)],
        ledger_directories=[f"{tmp_path}/large/{n}" for n in range(3)],
        checkpoint_interval_ms=100,
    )
    bookies.start(0)
    yield bookies
    bookies.kill_all()


def payload(ledger: int, entry: int) -> bytes:
    return b"%d of %d " % (entry, ledger) * (1 + (ledger * entry) % 50)


def files(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


async def test_acknowledged_entries_survive_kill_9(bookies: OurBookies, tmp_path: Path) -> None:
    confirmed: dict[int, int] = {}
    """Number of confirmed entries of each ledger, which are the first ones."""
    is_enough = trio.Event()

    async def write(client: LedgerClient, goal: int) -> None:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        confirmed[writer.ledger_id] = 0
        while True:
            entry = await writer.append(payload(writer.ledger_id, confirmed[writer.ledger_id]))
            confirmed[writer.ledger_id] = entry + 1
            if sum(confirmed.values()) >= goal:
                is_enough.set()

    for round_no in (1, 2):
        is_enough = trio.Event()
        async with LedgerClient.connect(bookies.uri) as client, trio.open_nursery() as nursery:
            for _ in range(LEDGERS):
                nursery.start_soon(write, client, round_no * LEDGERS * ENTRIES)
            await is_enough.wait()
            bookies.kill(0)  # while all of them write
            nursery.cancel_scope.cancel()
        bookies.start(0)
        async with LedgerClient.connect(bookies.uri) as client:
            for ledger_id, count in confirmed.items():
                reader = await client.open_ledger(ledger_id)
                assert reader.last_add_confirmed >= count - 1
                found = [bytes(e.payload) for e in await reader.read(0, count - 1)] if count else []
                assert found == [payload(ledger_id, entry) for entry in range(count)]
    assert len(confirmed) == 2 * LEDGERS
    assert sum(confirmed.values()) >= 2 * LEDGERS * ENTRIES
    for place, count in {
        "fast/0/*.journal": 1,
        "fast/1/*.journal": 1,
        "large/*/lastmark": 3,
        "large/*/index/*.sst": 3,
        "*/*/VERSION": 5,
        "*/*/LOCK": 5,
    }.items():
        assert len(files(tmp_path, place)) >= count, place
