"""What bookies have of ledgers that the metadata does not list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.testing import SimCluster, simulate
from ledger import lost_ledgers
from ledger.core.availability import held_without_hole
from ledger.core.entry import DigestType
from ledger.errors import DigestMismatch, NoSuchLedger
from ledger.lost_ledgers import (
    LostLedger,
    find_lost_ledgers,
    look_for_lost_ledger,
    open_lost_ledger,
)
from ledger.metastore.restores import Restore, RestoreLog


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5))))
def test_the_prefix_is_what_a_set_of_entries_says(pairs: list[tuple[int, int]]) -> None:
    ranges = sorted((first, first + more) for first, more in pairs)
    held = {entry for first, last in ranges for entry in range(first, last + 1)}
    entries = next(n for n in range(100) if n not in held)
    assert held_without_hole(ranges) == (entries, len([entry for entry in held if entry > entries]))


@pytest.mark.parametrize("write_quorum", [2, 3])
def test_a_ledger_without_metadata_is_read_from_all_bookies(write_quorum: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum=write_quorum, ack_quorum=2, password=None
            )
            await writer.append_many([b"%d" % n for n in range(100)])
            await writer.close()
            lost_id = writer.ledger_id
            kept = await client.create_ledger()
            await kept.append(b"kept")
            assert await look_for_lost_ledger(client, lost_id) is None
            assert await find_lost_ledgers(client) == []
            await RestoreLog(client.store).add(Restore(lost_id, lost_id + 3, 0, "b1"))
            await client.delete_ledger(lost_id)
            (lost,) = await find_lost_ledgers(client)
            assert (lost.ledger_id, lost.entries, lost.behind_gap) == (lost_id, 100, 0)
            assert (lost.holders, lost.silent) == (
                tuple(sorted(writer.metadata.fragments[0].bookies)),
                (),
            )
            reader = await open_lost_ledger(client, lost)
            assert [bytes(entry.payload) for entry in await reader.read(0, 99)] == [
                b"%d" % n for n in range(100)
            ]
            await RestoreLog(client.store).release(1)
            assert await find_lost_ledgers(client) == []

    simulate(scenario, 0, bookies=3)


def test_what_a_silent_bookie_has_is_unknown() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=1, ack_quorum=1)
            await writer.append_many([b"x"] * 9)
            await writer.close()
            await client.delete_ledger(writer.ledger_id)
            holder_of_entry_1 = writer.metadata.fragments[0].bookies[1]
            await cluster.stop_bookie(holder_of_entry_1.partition(":")[0])
            lost = await look_for_lost_ledger(client, writer.ledger_id)
            assert lost is not None
            assert (lost.entries, lost.behind_gap) == (1, 5)
            assert lost.silent == (holder_of_entry_1,)

    simulate(scenario, 1, bookies=3)


def test_more_ranges_than_the_bound_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_ledgers, "_RANGES_MAX", 2)

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=1, ack_quorum=1)
            await writer.append_many([b"x"] * 9)
            await writer.close()
            await client.delete_ledger(writer.ledger_id)
            lost = await look_for_lost_ledger(client, writer.ledger_id)
            assert lost is not None
            assert (lost.entries, len(lost.silent)) == (6, 3)

    simulate(scenario, 3, bookies=3)


def test_entries_that_need_a_lost_password_are_refused() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger(digest_type=DigestType.HMAC, password=b"secret")
            await writer.append(b"x")
            await writer.close()
            await client.delete_ledger(writer.ledger_id)
            lost = await look_for_lost_ledger(client, writer.ledger_id)
            assert lost is not None
            with pytest.raises(DigestMismatch, match="what it needs was in the metadata"):
                await open_lost_ledger(client, lost)
            with pytest.raises(NoSuchLedger):
                await open_lost_ledger(client, LostLedger(77, (), 0, 0, ()))

    simulate(scenario, 2, bookies=3)
