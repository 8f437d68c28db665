"""Responses that arrive while another task waits for the same entry, and late requests."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerClosed, LedgerFenced, Status
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
)
from tests.ledger.scripted_bookie import Script, ScriptedBookie, scripted_cluster


async def test_late_adds_of_a_writer_are_not_taken_for_those_of_recovery() -> None:
    """A writer and a recovery of one client, and bookies that process the writer's adds last.

    Those adds are refused, which must not become the result of the same entries added by recovery.
    """
    last = 5
    async with scripted_cluster() as cluster, cluster.client() as client:
        is_added_again, is_held_by_one = trio.Event(), trio.Event()
        fenced: set[str] = set()

        def script_of(bookie: ScriptedBookie) -> Script:
            def script(request: Request) -> ResponseBody | None:
                match request.body:
                    case ReadRequest(ledger_id, entry_id, is_fencing=True):
                        fenced.add(bookie.name)
                        if (
                            bookie.name == "b1" and entry_id == last
                        ):  # otherwise it is proven absent
                            return ReadResponse(Status.IO_ERROR, ledger_id, entry_id)
                    case AddRequest(ledger_id, entry_id, is_recovery=is_recovery):
                        if is_recovery:
                            is_added_again.set()
                        elif bookie.name == "b0" and entry_id == last:
                            is_held_by_one.set()
                        elif bookie.name in fenced:
                            return AddResponse(Status.FENCED, ledger_id, entry_id, entry_id)
                return None

            return script

        def hold(request: Request) -> trio.Event | None:
            match request.body:
                case AddRequest(entry_id=5, is_recovery=False):
                    return is_added_again
            return None

        for bookie in cluster.bookies.values():
            bookie.script = script_of(bookie)
            if bookie.name != "b0":
                bookie.hold = hold
        writer = await client.create_ledger()
        await writer.append_many(b"%d" % i for i in range(last))
        writer.append_nowait(b"%d" % last)
        with trio.fail_after(10):
            await is_held_by_one.wait()
            async with client.open_ledger(writer.ledger_id) as reader:
                entries = await reader.read(0, last)
        assert [bytes(entry.payload) for entry in entries] == [b"%d" % i for i in range(last + 1)]
        assert writer.last_add_confirmed == last - 1


@pytest.mark.parametrize("by_others", [None, 0, 2])
async def test_the_fence_of_a_late_bookie_does_not_change_the_result_of_close(
    by_others: int | None,
) -> None:
    """Two of three bookies confirm all of a writer's entries, and the third processes one late.

    By then another client has recovered the ledger, so that bookie reports it as fenced. The
    result of `close` does not depend on whether that bookie was late, but on where the ledger
    ended: after the writer's entries or, if another client added some, elsewhere. A client that
    fences the ledger and gives up before it changes the metadata has not ended it, and the writer
    closes it.
    """
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        is_recovered = trio.Event()

        def script(request: Request) -> ResponseBody | None:
            match request.body:
                case AddRequest(ledger_id, entry_id, is_recovery=False):
                    return AddResponse(Status.FENCED, ledger_id, entry_id, entry_id)
            return None

        def hold(request: Request) -> trio.Event | None:
            match request.body:
                case AddRequest(entry_id=5, is_recovery=False):
                    return is_recovered
            return None

        async with cluster.client() as other:
            writer = await client.create_ledger()
            late = cluster.bookie(writer.metadata.last_fragment.bookies[2])
            late.hold = hold
            await writer.append_many(b"%d" % i for i in range(10))
            length = writer.length

            def closed(stored: LedgerMetadata) -> LedgerMetadata | None:
                if by_others is None:
                    return None
                return stored.in_recovery().closed(9 + by_others, length + by_others)

            await other.ledgers.update(writer.ledger_id, closed)
            late.script = script
            is_recovered.set()
            with trio.fail_after(10):
                while writer.error is None:
                    await trio.testing.wait_all_tasks_blocked(0.001)
            with pytest.raises(LedgerFenced, match=r"entry 5 .* confirmed up to entry 9"):
                writer.append_nowait(b"too late")
            if by_others:
                with pytest.raises(LedgerFenced, match=r"at entry 11; this writer .* up to 9"):
                    await writer.close()
            else:
                assert (await writer.close()).last_entry_id == 9
                assert (await writer.close()).length == length
                with pytest.raises(LedgerFenced):
                    await writer.append(b"too late")


async def test_a_fenced_writer_with_entries_in_flight_does_not_close() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append_many(b"%d" % i for i in range(10))
        for bookie in cluster.bookies.values():
            bookie.script = lambda request: (
                AddResponse(Status.FENCED, request.body.ledger_id, 10, 10)
                if isinstance(request.body, AddRequest)
                else None
            )
        with pytest.raises(LedgerFenced):
            await writer.append(b"10")
        with pytest.raises(LedgerFenced, match=r"entry 10 .* confirmed up to entry 9"):
            await writer.close()
        assert not (await client.ledger_metadata(writer.ledger_id)).is_closed


async def test_a_reader_that_outlives_its_client_gets_an_error() -> None:
    async with scripted_cluster() as cluster:
        async with cluster.client() as client:
            async with client.create_ledger() as writer:
                await writer.append(b"x")
            reader = await client.open_ledger(writer.ledger_id)
            assert len(await reader.read(0, 0)) == 1
        with pytest.raises(LedgerClosed, match="client is not open"):
            await reader.read(0, 0)
