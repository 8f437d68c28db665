"""Adds of a recovery over protocol v2: many in one chunk are taken like ordinary ones, also by a
ledger that is fenced."""

from __future__ import annotations

import pytest
import trio

from bookie.server.requests import Requests
from bookie.testing.transport import SimTransport
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import AddRequest, AddResponse, ReadRequest, ReadResponse, Request
from tests.bookie.server.simulated_server import (
    KIB,
    SimulatedServer,
    call,
    run_server,
    send_all,
)
from tests.bookie.server.test_server import KEY, add, entry_of

LEDGER = 7
COUNT = 1000


def frames(first: int, last: int, ledger_id: int = LEDGER) -> bytes:
    """Returns adds of a recovery as a client of ours sends them, with range acks."""
    bodies = [
        AddRequest(
            ledger_id, n, KEY, entry_of(ledger_id, n), is_recovery=True, takes_range_acks=True
        )
        for n in range(first, last + 1)
    ]
    return b"".join(v2.encode_request(Request(2, 0, body)) for body in bodies)


async def acks(transport: SimTransport, entries: int) -> list[AddResponse]:
    """Receives acks, or refusals, of this number of entries."""
    found: list[AddResponse] = []
    received = bytearray()
    space = memoryview(bytearray(64 * KIB))
    while entries > 0:
        await transport.wait_readable()
        try:
            received += space[: transport.recv_into(space)]
        except BlockingIOError:
            continue
        while len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4], "big"):
            end = 4 + int.from_bytes(received[:4], "big")
            body = v2.decode_response(bytes(received[4:end])).body
            del received[:end]
            assert isinstance(body, AddResponse)
            found.append(body)
            entries -= body.last_entry_id - body.entry_id + 1
    return found


async def fence(bookie: SimulatedServer) -> None:
    async with bookie.peer("fencer") as peer:
        await call(peer, add(LEDGER, 0))
        await call(peer, ReadRequest(LEDGER, -1, KEY, is_fencing=True))


@pytest.mark.parametrize("is_fenced", [False, True])
def test_adds_of_a_recovery_are_taken_many_at_a_time(
    is_fenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = 0
    check_add = Requests.check_add

    def counted(self: Requests, body: AddRequest) -> Status:
        nonlocal checked
        checked += 1
        return check_add(self, body)

    async def scenario(bookie: SimulatedServer) -> None:
        nonlocal checked
        if is_fenced:
            await fence(bookie)
        checked = 0
        monkeypatch.setattr(Requests, "check_add", counted)
        transport = await bookie.network.of("copier").connect("bookie", 3181)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, transport, frames(1, COUNT))
            found = await acks(transport, COUNT)
        transport.close()
        assert [one.status for one in found] == [Status.OK] * len(found)
        covered = [n for one in found for n in range(one.entry_id, one.last_entry_id + 1)]
        assert sorted(covered) == list(range(1, COUNT + 1))
        assert len(found) <= 20
        assert checked == 1, "only the first of the connection is examined by itself"
        async with bookie.peer("reader") as peer:
            for entry_id in (1, COUNT // 2, COUNT):
                answer = await call(peer, ReadRequest(LEDGER, entry_id))
                assert isinstance(answer, ReadResponse)
                assert bytes(answer.body or b"") == entry_of(LEDGER, entry_id)

    run_server(scenario, queued_bytes_max=8 << 20)


def test_the_writer_of_a_fenced_ledger_stays_fenced_on_a_connection_that_recovers_it() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await fence(bookie)
        transport = await bookie.network.of("copier").connect("bookie", 3181)
        ordinary = v2.encode_request(Request(2, 0, add(LEDGER, 60, takes_range_acks=True)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                send_all, transport, frames(1, 50) + ordinary + frames(51, 59) + ordinary
            )
            found = await acks(transport, 61)
        transport.close()
        refused = [one for one in found if one.status is not Status.OK]
        assert [(one.status, one.entry_id) for one in refused] == [(Status.FENCED, 60)] * 2
        async with bookie.peer("reader") as peer:
            answer = await call(peer, ReadRequest(LEDGER, 60))
            assert answer.status is Status.NO_SUCH_ENTRY

    run_server(scenario)


def test_a_deleted_ledger_takes_no_adds_of_a_recovery() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        transport = await bookie.network.of("copier").connect("bookie", 3181)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, transport, frames(1, 5))
            assert [one.status for one in await acks(transport, 5)][-1] is Status.OK
        state = bookie.simulated.storage.state(LEDGER)
        assert state is not None
        state.delete()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, transport, frames(6, 9))
            found = await acks(transport, 4)
        transport.close()
        assert [one.status for one in found] == [Status.NO_SUCH_LEDGER] * 4

    run_server(scenario)
