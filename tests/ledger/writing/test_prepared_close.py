"""Ledgers that are made with few requests, and closed by a transaction of their user."""

from __future__ import annotations

import pytest

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.errors import LedgerClosed, MetadataConflict
from ledger.metastore.base import ANY_VERSION, Check
from ledger.metastore.ledgers import CLIENT_TAG
from ledger.writing.writer import LedgerWriter

PAYLOADS = [b"one", b"two", b"three"]


async def _written(client: LedgerClient, *, saves_requests: bool = True) -> LedgerWriter:
    writer = await client.create_ledger(password=None, saves_requests=saves_requests)
    await writer.append_many(PAYLOADS)
    return writer


async def _read(client: LedgerClient, ledger_id: int) -> list[bytes]:
    async with client.open_ledger(ledger_id, recover=False) as reader:
        return [bytes(each.payload) for each in await reader.read(0, reader.last_add_confirmed)]


def test_a_transaction_closes_a_ledger() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, cluster.client() as other:
            writer = await _written(client)
            metadata = await writer.prepare_close()
            assert await writer.prepare_close() == metadata
            assert not (await other.ledger_metadata(writer.ledger_id)).is_closed
            with pytest.raises(LedgerClosed):
                writer.append_nowait(b"late")
            await client.store.transaction([await client.ledgers.put_of_created(metadata)])
            writer.note_closed(metadata)
            writer.note_closed(metadata)
            assert await writer.close() == metadata == await other.ledger_metadata(writer.ledger_id)
            assert (metadata.last_entry_id, metadata.length) == (2, 11)
            assert await _read(other, writer.ledger_id) == PAYLOADS

    simulate(scenario)


def test_a_ledger_is_closed_as_others_are_if_the_transaction_fails() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await _written(client)
            metadata = await writer.prepare_close()
            put = await client.ledgers.put_of_created(metadata)
            with pytest.raises(MetadataConflict):
                await client.store.transaction([put, Check("/ledgers/LAYOUT", 77)])
            assert not writer.is_closed
            assert await writer.close() == metadata
            with pytest.raises(MetadataConflict):  # it has another version now
                await client.store.transaction([put])
            assert await _read(client, writer.ledger_id) == PAYLOADS

    simulate(scenario)


def test_a_replaced_bookie_is_seen_in_the_metadata() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await _written(client)
            created = writer.metadata
            bookie = writer.metadata.last_fragment.bookies[0].partition(":")[0]
            await cluster.kill_bookie(bookie)
            await writer.append_many(PAYLOADS)
            await cluster.simulation.sleep(60)
            await writer.append_many(PAYLOADS)
            metadata = await writer.prepare_close()
            assert writer.metadata is not created
            with pytest.raises(MetadataConflict):
                await client.store.transaction([await client.ledgers.put_of_created(metadata)])
            await writer.close()
            assert await _read(client, writer.ledger_id) == PAYLOADS * 3

    simulate(scenario, bookies=4)


def test_a_ledger_costs_two_requests() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("maker") as client:
            made: list[str] = []
            cluster.metadata.on_call = lambda node, kind, _: (
                made.append(kind) if node == "maker" else None
            )
            await (await _written(client)).close()
            made.clear()
            writer = await _written(client)
            assert made == ["next id", "transaction"]
            made.clear()
            await _written(client, saves_requests=False)
            assert made == ["get", "children", "next id", "create"]
            client.bookies.doubt_candidates()
            made.clear()
            await writer.close()
            assert made == ["get", "put"]

    simulate(scenario)


def test_a_client_whose_session_was_lost_registers_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("maker") as client:
            first = await _written(client)
            cluster.metadata.expire("maker")
            second = await _written(client)
            tags = [each.metadata.custom[CLIENT_TAG] for each in (first, second)]
            assert tags[0] != tags[1]
            node = f"/ledgerstream/clients/{tags[1].decode()}"
            await client.store.transaction([Check(node, ANY_VERSION)])

    simulate(scenario)


def test_an_old_list_without_enough_bookies_is_asked_for_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            await cluster.kill_bookie(cluster.bookies[0])
            await cluster.simulation.sleep(10)
            assert len((await client.bookies.candidates()).places) == 2
            await cluster.start_bookie(cluster.bookies[0])
            writer = await _written(client)
            assert len(writer.metadata.last_fragment.bookies) == 3

    simulate(scenario)
