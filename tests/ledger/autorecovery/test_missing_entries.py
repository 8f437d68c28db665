"""Bookies are asked which entries they lack, also those that list none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from ledger.autorecovery.missing_entries import lacking_ranges
from ledger.client import LedgerClient
from ledger.core.availability import Range
from ledger.errors import BookieUnavailable, OperationTimeout
from ledger.metastore.bookies import OUR_SOFTWARE, SOFTWARE_PROPERTY
from ledger.wire.messages import ListEntriesRequest, Request, ResponseBody
from tests.ledger.scripted_bookie import (
    ScriptedBookie,
    Silence,
    answers_no_lists,
    scripted_cluster,
)

COUNT = 20
LEDGERS = 50


async def closed(client: LedgerClient) -> int:
    async with client.create_ledger(ack_quorum=3) as writer:
        await writer.append_many([b"x"] * COUNT)
    return writer.ledger_id


async def lacking(client: LedgerClient, ledger_id: int, bookie: str) -> Sequence[Range]:
    return await lacking_ranges(client, await client.ledger_metadata(ledger_id), bookie)


async def lacking_when_reachable(
    client: LedgerClient, ledger_id: int, bookie: str
) -> Sequence[Range]:
    """Tries again during the back-off after a silence."""
    with trio.fail_after(30):
        while True:
            try:
                return await lacking(client, ledger_id, bookie)
            except BookieUnavailable:
                await trio.sleep(0.05)


def questions(bookie: ScriptedBookie) -> int:
    return sum(isinstance(one.body, ListEntriesRequest) for one in bookie.requests)


async def test_a_hole_is_found_by_the_list() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        ledger_id = await closed(client)
        bookie = cluster.bookie("b1")
        assert await lacking(client, ledger_id, "b1") == []
        del bookie.entries[ledger_id, 7]
        assert await lacking(client, ledger_id, "b1") == [(7, 7)]
        assert questions(bookie) == 2


@pytest.mark.parametrize("lost", [0, COUNT - 1])
async def test_a_bookie_that_answers_no_lists_is_read_from(lost: int) -> None:
    async with scripted_cluster(3) as cluster, cluster.client(read_timeout_s=0.5) as client:
        ledger_id = await closed(client)
        bookie = cluster.bookie("b1")
        bookie.script = answers_no_lists
        assert await lacking(client, ledger_id, "b1") == []
        connections = bookie.connections
        with trio.fail_after(0.4):  # it is not waited for again
            assert await lacking(client, ledger_id, "b1") == []
        del bookie.entries[ledger_id, lost]
        assert await lacking(client, ledger_id, "b1") == [(0, COUNT - 1)]
        assert questions(bookie) == 1
        assert bookie.connections == connections


async def test_many_ledgers_that_are_asked_for_at_once_are_all_read() -> None:
    async with scripted_cluster(3) as cluster, cluster.client(read_timeout_s=1) as client:
        bookie = cluster.bookie("b1")
        ids = [await closed(client) for _ in range(LEDGERS)]
        bookie.script = answers_no_lists
        found: dict[int, Sequence[Range]] = {}

        async def ask(ledger_id: int) -> None:
            found[ledger_id] = await lacking(client, ledger_id, "b1")

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for ledger_id in ids:
                    nursery.start_soon(ask, ledger_id)
        assert found == {ledger_id: [] for ledger_id in ids}


async def test_a_bookie_that_answers_nothing_at_all_proves_nothing() -> None:
    def is_silent(request: Request) -> ResponseBody | None:
        raise Silence

    async with scripted_cluster(3) as cluster, cluster.client(read_timeout_s=0.2) as client:
        ledger_id = await closed(client)
        bookie = cluster.bookie("b1")
        bookie.script = is_silent
        with pytest.raises(OperationTimeout, match="no answer from bookie b1 to ListEntries"):
            await lacking(client, ledger_id, "b1")
        bookie.script = lambda request: None
        assert await lacking_when_reachable(client, ledger_id, "b1") == []
        assert questions(bookie) == 2


async def test_silence_of_a_bookie_that_lists_entries_proves_nothing() -> None:
    ours = {SOFTWARE_PROPERTY: OUR_SOFTWARE}
    async with (
        scripted_cluster(3, properties=ours) as cluster,
        cluster.client(read_timeout_s=0.2) as client,
    ):
        ledger_id = await closed(client)
        bookie = cluster.bookie("b1")
        bookie.script = answers_no_lists  # as if one of its connections had stalled
        del bookie.entries[ledger_id, 7]
        for _ in range(2):
            with pytest.raises(OperationTimeout, match="no answer from bookie b1 to ListEntries"):
                await lacking_when_reachable(client, ledger_id, "b1")
        assert questions(bookie) == 2
        bookie.script = lambda request: None
        assert await lacking_when_reachable(client, ledger_id, "b1") == [(7, 7)]


async def test_a_bookie_is_asked_for_lists_again_after_it_was_restarted() -> None:
    async with scripted_cluster(3) as cluster, cluster.client(read_timeout_s=0.2) as client:
        ledger_id = await closed(client)
        bookie = cluster.bookie("b1")
        bookie.script = answers_no_lists
        assert await lacking(client, ledger_id, "b1") == []
        client.pool.connection("b1", 3).close(BookieUnavailable("restarted"))
        bookie.script = lambda request: None
        del bookie.entries[ledger_id, 7]
        found: Sequence[Range] = []
        with trio.fail_after(10):
            while not found:
                found = await lacking_when_reachable(client, ledger_id, "b1")
        assert found == [(7, 7)]
