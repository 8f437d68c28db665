"""Bookies whose responses do not match the requests are given up, and no other is affected."""

from __future__ import annotations

import pytest

from ledger.errors import LedgerError, NotEnoughBookies, Status
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
)
from tests.ledger.scripted_bookie import ScriptedCluster, scripted_cluster


async def check_that_appends_and_reads_succeed(cluster: ScriptedCluster) -> None:
    async with cluster.client(wire_version=3) as client:
        async with client.create_ledger() as writer:
            for i in range(20):
                await writer.append(b"%d" % i)
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = await reader.read(0, 19)
        assert [bytes(entry.payload) for entry in entries] == [b"%d" % i for i in range(20)]


async def test_an_add_answered_as_a_read_ends_only_the_connection() -> None:
    def script(request: Request) -> ResponseBody | None:
        if isinstance(request.body, AddRequest):
            return ReadResponse(Status.OK, request.body.ledger_id, request.body.entry_id, b"x")
        return None

    async with scripted_cluster() as cluster:
        cluster.bookie("b1").script = script
        await check_that_appends_and_reads_succeed(cluster)


async def test_a_read_answered_as_a_force_ends_only_the_connection() -> None:
    def script(request: Request) -> ResponseBody | None:
        if isinstance(request.body, ReadRequest | ReadLacRequest):
            return ForceLedgerResponse(Status.OK, request.body.ledger_id)
        return None

    async with scripted_cluster() as cluster:
        cluster.bookie("b1").script = script
        await check_that_appends_and_reads_succeed(cluster)


async def test_only_the_answer_to_a_force_proves_that_a_bookie_has_synced() -> None:
    def script(request: Request) -> ResponseBody | None:
        if isinstance(request.body, ForceLedgerRequest):
            return AddResponse(Status.OK, request.body.ledger_id, 0, 0)
        return None

    async with (
        scripted_cluster(1) as cluster,
        cluster.client(ensemble_change_timeout_s=0.5) as client,
    ):
        cluster.bookie("b0").script = script
        writer = await client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, deferred_sync=True
        )
        await writer.append(b"perhaps")
        with pytest.raises(LedgerError) as caught:
            await writer.force()
        assert isinstance(caught.value, NotEnoughBookies)
        assert writer.last_add_confirmed == -1
        writer.abandon()
