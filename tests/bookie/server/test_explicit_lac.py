"""A bookie confirms an explicit LAC once it is durable, and rarely syncs for it alone."""

from __future__ import annotations

import trio

from bookie.core.ledger_state import READER_EXPECTED_S
from bookie.server.requests import LINGER_S
from ledger.connection.connection import BookieConnection
from ledger.core.entry import Digest, DigestType
from ledger.errors import LedgerError, Status
from ledger.wire import v2
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    Request,
    WriteLacRequest,
    WriteLacResponse,
)
from tests.bookie.server.simulated_server import SimulatedServer, call, run_server
from tests.bookie.server.test_deferred_replies import block_journal, released
from tests.bookie.server.test_server import KEY, add, entry_of

DIGEST = Digest(DigestType.CRC32C)


def write_lac(ledger_id: int, lac: int) -> WriteLacRequest:
    return WriteLacRequest(ledger_id, lac, KEY, DIGEST.encode_lac(ledger_id, lac))


async def reported(peer: BookieConnection, ledger_id: int, lac: int) -> None:
    answer = await call(peer, write_lac(ledger_id, lac))
    assert isinstance(answer, WriteLacResponse)
    assert answer.status is Status.OK


def test_it_is_visible_at_once_and_confirmed_when_durable() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with (
            bookie.peer("writer", 3) as writer,
            bookie.peer("reader", 3) as reader,
            trio.open_nursery() as nursery,
            released(bookie),
        ):
            await call(writer, add(7, 0))
            unblocked = await block_journal(bookie)
            is_reported = False

            async def report() -> None:
                nonlocal is_reported
                await reported(writer, 7, 0)
                is_reported = True

            nursery.start_soon(report)
            await trio.sleep(5)
            assert not is_reported
            answer = await call(reader, ReadLacRequest(7))
            assert isinstance(answer, ReadLacResponse)
            assert answer.lac_body == DIGEST.encode_lac(7, 0)
            unblocked.set()
            await trio.sleep(1)
            assert is_reported

    run_server(scenario)


def test_a_confirmed_lac_survives_the_process() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("writer", 3) as writer:
            await call(writer, add(7, 0))
            await reported(writer, 7, 0)
            survivor = bookie.simulated.reopened()
        async with survivor.running():
            state = survivor.storage.state(7)
            assert state is not None
            assert state.explicit_lac == DIGEST.encode_lac(7, 0)
            assert state.lac == 0

    run_server(scenario)


def test_many_share_a_sync_and_those_before_an_add_cause_none() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        journal = bookie.simulated.storage.journals[0]
        async with bookie.peer("writer", 3) as writer, bookie.peer("adder") as adder:
            for ledger_id in range(7, 57):
                await call(adder, add(ledger_id, 0))
            before, started = journal.statistics().groups, trio.current_time()
            async with trio.open_nursery() as nursery:
                for ledger_id in range(7, 57):
                    nursery.start_soon(reported, writer, ledger_id, 0)
            assert journal.statistics().groups == before + 1
            assert LINGER_S <= trio.current_time() - started < 3 * LINGER_S
            for entry_id in range(1, 11):
                before = journal.statistics().groups
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reported, writer, 7, entry_id)
                    await trio.sleep(LINGER_S / 4)
                    added = await call(adder, add(7, entry_id + 1))
                    assert isinstance(added, AddResponse)
                await trio.sleep(3 * LINGER_S)
                assert journal.statistics().groups == before + 1

    run_server(scenario)


class Acks:
    """A writer that records what acks say of readers."""

    bytes_pending = 0

    def __init__(self) -> None:
        self.unpolled: list[bool] = []

    def acked(self, bookie: str, first: int, last: int, *, is_unpolled: bool = False) -> None:
        del bookie
        self.unpolled += [is_unpolled] * (last - first + 1)

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        raise AssertionError(status)

    def lost(self, bookie: str, error: LedgerError) -> None:
        pass

    def fail(self, error: LedgerError) -> None:
        raise AssertionError(error)

    def settle(self) -> None:
        pass


def frame_of(entry_id: int, lac: int, flags: int) -> bytes:
    body = AddRequest(7, entry_id, KEY, entry_of(7, entry_id, lac))
    frame = bytearray(v2.encode_request(Request(2, 0, body)))
    frame[4:8] = (v2.ADD_HEADER | flags).to_bytes(4, "big")
    return bytes(frame)


def test_a_range_ack_says_whether_a_reader_waits_or_is_on_its_way_back() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("writer") as writer, bookie.peer("reader", 3) as reader:
            acks = Acks()
            writer.sinks[7] = acks
            next_id = 0

            async def says(lac: int, flags: int = v2.RANGE_ACKS | v2.NO_POLLS) -> bool:
                nonlocal next_id
                before = len(acks.unpolled)
                writer.send_adds(frame_of(next_id, lac, flags))
                next_id += 1
                await trio.sleep(0.5)
                (said,) = acks.unpolled[before:]
                return said

            assert await says(-1)
            poll = ReadRequest(7, -1, is_piggyback=True, previous_lac=-1, timeout_ms=60_000)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, reader, poll, 100)
                await trio.sleep(READER_EXPECTED_S + 1)
                assert not await says(-1), "it waits"
                assert not await says(1), "it was answered, and will ask again"
            await trio.sleep(READER_EXPECTED_S)
            assert await says(1)
            await call(reader, ReadLacRequest(7))
            assert not await says(1), "it asked for the LAC"
            await trio.sleep(READER_EXPECTED_S)
            assert await says(1)
            await call(reader, ReadRequest(7, -1))
            assert not await says(1), "the answer holds the LAC: clients of Apache ask so"
            await trio.sleep(READER_EXPECTED_S)
            assert not await says(1, v2.RANGE_ACKS), "the client does not know the flag"
            assert not await says(1, v2.NO_POLLS), "it knows no range acks"
            assert await says(1)

    run_server(scenario)
