"""Bookies that accept connections and refuse every add: a writer fails in time, and the metadata of
its ledger does not grow with every attempt."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from ledger.errors import LedgerError, NotEnoughBookies, Status, Unauthorized
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire.messages import AddRequest, AddResponse, ErrorResponse, Request, ResponseBody
from tests.ledger.scripted_bookie import Hangup, Script, ScriptedCluster, scripted_cluster


def requires_authentication(request: Request) -> ResponseBody | None:
    """Answers as Apache's bookie with SASL answers v3: without the message of the operation."""
    if isinstance(request.body, AddRequest):
        if request.version == 3:
            return ErrorResponse(Status.UNAUTHORIZED, pb.ADD_ENTRY)
        return refused(request, Status.UNAUTHORIZED)
    return None


def refused(request: Request, status: Status) -> ResponseBody | None:
    match request.body:
        case AddRequest(ledger_id, entry_id):
            return AddResponse(status, ledger_id, entry_id, entry_id)
    return None


def refuses_adds(request: Request) -> ResponseBody | None:
    return refused(request, Status.IO_ERROR)


def hangs_up(request: Request) -> ResponseBody | None:
    if isinstance(request.body, AddRequest):
        raise Hangup
    return None


def script_all(cluster: ScriptedCluster, script: Script, without: int = 0) -> None:
    for name in sorted(cluster.bookies)[without:]:
        cluster.bookie(name).script = script


@pytest.mark.parametrize("wire_version", [2, 3])
@pytest.mark.parametrize("open_bookies", [0, 1])
async def test_a_writer_without_authentication_fails_at_once(
    wire_version: int, open_bookies: int
) -> None:
    async with scripted_cluster() as cluster:
        script_all(cluster, requires_authentication, open_bookies)
        async with cluster.client(wire_version=wire_version) as client:
            writer = await client.create_ledger()
            with trio.fail_after(5), pytest.raises(Unauthorized, match="authenticat"):
                await writer.append(b"x")
            assert writer.statistics().ensemble_changes == 0


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_a_writer_goes_on_without_one_bookie_that_has_the_id_under_another_key(
    wire_version: int,
) -> None:
    """From the first entry on: it was silent when the ledger was claimed."""
    async with scripted_cluster(4) as cluster, cluster.client(wire_version=wire_version) as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        taken = writer.metadata.last_fragment.bookies[1]
        cluster.bookie(taken).script = lambda request: refused(request, Status.UNAUTHORIZED)
        with trio.fail_after(20):
            number = 0
            while number < 5 or writer.core.failed:
                assert await writer.append(b"x") == number
                number += 1
        assert taken not in writer.metadata.last_fragment.bookies


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_a_writer_that_loses_its_right_fails_at_once(wire_version: int) -> None:
    """A bookie that took entries with this key refuses the client, and not the key."""
    async with scripted_cluster(4) as cluster, cluster.client(wire_version=wire_version) as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"x")
        while writer.core.acked_up_to(1) < 0:
            await trio.lowlevel.checkpoint()
        revoked = writer.metadata.last_fragment.bookies[1]
        cluster.bookie(revoked).script = lambda request: refused(request, Status.UNAUTHORIZED)
        with trio.move_on_after(5):  # it may be the slowest, which no append waits for
            with suppress(Unauthorized):
                while True:
                    await writer.append(b"y")
        assert "the role ledger" in str(writer.error)
        assert writer.statistics().ensemble_changes == 0


@pytest.mark.parametrize("script", [refuses_adds, hangs_up])
@pytest.mark.parametrize(("bookies", "working"), [(3, 0), (3, 1), (8, 0), (8, 1)])
@pytest.mark.parametrize("wire_version", [2, 3])
async def test_ensemble_changes_that_cannot_succeed_end(
    script: Script, bookies: int, working: int, wire_version: int
) -> None:
    async with scripted_cluster(bookies) as cluster:
        script_all(cluster, script, working)
        async with cluster.client(
            wire_version=wire_version, ensemble_change_timeout_s=1.0
        ) as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            begun_s = trio.current_time()
            with trio.fail_after(10), pytest.raises(NotEnoughBookies, match="no replacement"):
                await writer.append(b"x")
            assert trio.current_time() - begun_s < 4.0
            stored = await client.ledger_metadata(writer.ledger_id)
            assert len(stored.fragments) == 1  # nothing was confirmed in between
            assert writer.statistics().ensemble_changes <= 6
            assert writer.last_add_confirmed == -1


async def test_refusing_replacements_cost_few_ensemble_changes_while_others_work() -> None:
    """Two of twelve bookies work and confirm every entry; ten refuse, one at a time."""
    async with scripted_cluster(12) as cluster, cluster.client() as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"0")
        working = writer.metadata.last_fragment.bookies[:2]
        for name, bookie in cluster.bookies.items():
            if name not in working:
                bookie.script = refuses_adds
        begun_s = trio.current_time()
        count = 1
        while trio.current_time() - begun_s < 2.0:
            await writer.append(b"%d" % count)
            count += 1
        assert writer.last_add_confirmed == count - 1
        assert 1 <= writer.statistics().ensemble_changes <= 6
        stored = await client.ledger_metadata(writer.ledger_id)
        assert len(stored.fragments) <= 7
        for bookie in cluster.bookies.values():
            bookie.script = lambda request: None
        with trio.fail_after(20):
            while writer.core.failed:
                await writer.append(b"%d" % count)
                count += 1
                await trio.sleep(0.01)
        await writer.close()
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = await reader.read(0, count - 1)
        assert [bytes(e.payload) for e in entries] == [b"%d" % i for i in range(count)]


async def test_one_refused_add_is_answered_by_a_replacement_without_a_pause() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await writer.append(b"0")
        victim = writer.metadata.last_fragment.bookies[0]
        cluster.bookie(victim).script = refuses_adds
        with trio.fail_after(1):
            await writer.append(b"1")
        assert victim not in writer.metadata.last_fragment.bookies
        try:
            await writer.close()
        except LedgerError as error:  # pragma: no cover - shows the cause
            pytest.fail(str(error))
