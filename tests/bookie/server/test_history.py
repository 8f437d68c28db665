"""What is stored stays: a bookie refuses an add over an entry with another payload, over both
protocols, ordinary and of a recovery, wherever the entry is; and adds behind a ledger's end."""

from __future__ import annotations

import pytest
import trio

from bookie.core.compaction import CompactionKind
from bookie.storage.options import StorageOptions
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.connection.connection import BookieConnection
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import AddRequest, ReadRequest, ReadResponse, Request
from tests.bookie.server.simulated_server import (
    KIB,
    OPTIONS,
    SimulatedServer,
    call,
    run_server,
    send_all,
)
from tests.bookie.server.test_recovery_adds import acks
from tests.bookie.server.test_server import KEY, entry_of

LEDGER, ENTRIES = 7, 20
KINDS = [(version, is_recovery) for version in (2, 3) for is_recovery in (False, True)]


def add(
    entry_id: int, payload: bytes = b"p", *, is_recovery: bool = False, lac: int = -1
) -> AddRequest:
    body = entry_of(LEDGER, entry_id, lac, payload)
    return AddRequest(LEDGER, entry_id, KEY, body, is_recovery=is_recovery)


async def stored(peer: BookieConnection, entry_id: int) -> bytes | Status:
    answer = await call(peer, ReadRequest(LEDGER, entry_id))
    assert isinstance(answer, ReadResponse)
    return bytes(answer.body or b"") if answer.status is Status.OK else answer.status


async def write(bookie: SimulatedServer, first: int = 0, last: int = ENTRIES - 1) -> None:
    async with bookie.peer("writer") as writer:
        for entry_id in range(first, last + 1):
            assert (await call(writer, add(entry_id))).status is Status.OK


async def forge(bookie: SimulatedServer, expected: Status = Status.BAD_REQUEST) -> None:
    """Sends other payloads of the entries in each way, and checks that nothing changed."""
    for version, is_recovery in KINDS:
        async with bookie.peer("attacker", version) as attacker:
            for entry_id in (0, ENTRIES // 2, ENTRIES - 1):
                before = await stored(attacker, entry_id)
                for payload in (b"f", b"forged", b""):
                    sent = add(entry_id, payload, is_recovery=is_recovery, lac=3)
                    status = (await call(attacker, sent)).status
                    is_fenced = expected is Status.FENCED and not is_recovery
                    assert status is (Status.FENCED if is_fenced else Status.BAD_REQUEST)
                    assert await stored(attacker, entry_id) == before


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("where", ["write cache", "both halves", "entry log", "read cache"])
def test_forged_adds_change_nothing(where: str, is_fenced: bool) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await write(bookie)
        if where != "write cache":
            await bookie.flush()
        if where == "both halves":
            await write(bookie, ENTRIES, ENTRIES + 3)
        async with bookie.peer("reader") as reader:
            if is_fenced:
                await call(reader, ReadRequest(LEDGER, -1, KEY, is_fencing=True))
            if where == "read cache":
                for entry_id in range(ENTRIES):
                    assert await stored(reader, entry_id) == add(entry_id).body
        bookie.slow_disk.read_s = 0.0 if where == "read cache" else 0.01
        await forge(bookie, Status.FENCED if is_fenced else Status.BAD_REQUEST)
        await bookie.flush()
        async with bookie.peer("reader") as reader:
            for entry_id in range(ENTRIES):
                assert await stored(reader, entry_id) == add(entry_id).body

    run_server(scenario)


def test_forged_adds_change_nothing_after_a_compaction_and_after_a_restart() -> None:
    async def exists(_: int) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        await write(bookie)
        await bookie.flush()
        await storage.collect_garbage(exists, compaction=CompactionKind.MAJOR, is_forced=True)
        await forge(bookie)
        # As after a start: nothing in memory says which entries there are.
        bookie.simulated.storage.directories[0].history.end_replay()
        await forge(bookie)

    run_server(scenario)


@pytest.mark.parametrize(("version", "is_recovery"), KINDS)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_an_equal_payload_is_acknowledged_again(
    version: int, is_recovery: bool, is_flushed: bool
) -> None:
    """A writer that sends again after a lost connection, a recovery with another LAC."""

    async def scenario(bookie: SimulatedServer) -> None:
        await write(bookie)
        if is_flushed:
            await bookie.flush()
            bookie.slow_disk.read_s = 0.01
        before = len(bookie.disk.names), bookie.simulated.storage.journals[0].mark
        async with bookie.peer("writer", version) as writer:
            for entry_id in range(ENTRIES):
                again = add(entry_id, is_recovery=is_recovery, lac=entry_id - 1)
                assert (await call(writer, again)).status is Status.OK
                assert await stored(writer, entry_id) == add(entry_id).body
        after = len(bookie.disk.names), bookie.simulated.storage.journals[0].mark
        assert after == before, "nothing was written for them"

    run_server(scenario)


def test_an_equal_payload_is_acknowledged_only_once_it_is_durable() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        statuses: list[Status] = []

        async def send(peer: BookieConnection) -> None:
            statuses.append((await call(peer, add(0))).status)

        async with bookie.peer("first", 3) as first, bookie.peer("again", 3) as again:
            gate = bookie.disk.gate = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, first)
                nursery.start_soon(send, again)
                await trio.sleep(5)  # virtual time
                assert statuses == []
                gate.set()
        assert statuses == [Status.OK, Status.OK]

    run_server(scenario)


def test_an_entry_that_was_missing_below_others_is_taken() -> None:
    """A replication worker fills gaps, and Java's sends entries out of order."""

    async def scenario(bookie: SimulatedServer) -> None:
        for version, is_recovery in KINDS:
            first = 100 * (1 + KINDS.index((version, is_recovery)))
            async with bookie.peer("worker", version) as worker:
                for entry_id in (first + 50, first + 3, first + 4, first + 49, first + 2):
                    sent = add(entry_id, is_recovery=is_recovery)
                    assert (await call(worker, sent)).status is Status.OK
                    if entry_id == first + 4:
                        await bookie.flush()
                for entry_id in (first + 2, first + 3, first + 4, first + 49, first + 50):
                    assert await stored(worker, entry_id) == add(entry_id).body
                    forged = add(entry_id, b"f", is_recovery=is_recovery)
                    assert (await call(worker, forged)).status is Status.BAD_REQUEST
                assert await stored(worker, first + 5) is Status.NO_SUCH_ENTRY

    run_server(scenario)


def test_a_damaged_entry_is_replaced() -> None:
    """The bookie does not have it: a copy from another bookie is welcome."""

    async def scenario(bookie: SimulatedServer) -> None:
        await write(bookie)
        await bookie.flush()
        [data] = [one.data for name, one in bookie.disk.names.items() if name.endswith(".log")]
        at = bytes(data).index(add(5).body)
        data[at + len(add(5).body) - 1] ^= 4
        async with bookie.peer("worker", 3) as worker:
            assert await stored(worker, 5) is Status.IO_ERROR
            assert (await call(worker, add(5, is_recovery=True))).status is Status.OK
            assert await stored(worker, 5) == add(5).body
            assert (await call(worker, add(5, b"f"))).status is Status.BAD_REQUEST

    run_server(scenario)


# ---- behind the end of a closed ledger


@pytest.mark.parametrize("is_loaded", [False, True])
def test_nothing_is_added_behind_the_end_of_a_closed_ledger(is_loaded: bool) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        await write(bookie)
        await bookie.flush()
        await storage.directory_of(LEDGER).history.closed({LEDGER: ENTRIES + 1})
        if is_loaded:  # as after a start: the index alone knows the end
            directory = storage.directories[0]
            directory.states.clear()
        for version, is_recovery in KINDS:
            async with bookie.peer("attacker", version) as attacker:
                for entry_id in (ENTRIES + 2, ENTRIES + 3, 10**12):
                    behind = add(entry_id, is_recovery=is_recovery)
                    assert (await call(attacker, behind)).status is Status.FENCED
                    assert await stored(attacker, entry_id) is Status.NO_SUCH_ENTRY
        async with bookie.peer("worker") as worker:  # copies of what it missed arrive
            for entry_id in (ENTRIES, ENTRIES + 1, 3):
                assert (await call(worker, add(entry_id, is_recovery=True))).status is Status.OK
        # A repair of the metadata may move the end back, and forward.
        await storage.directory_of(LEDGER).history.closed({LEDGER: ENTRIES + 2})
        async with bookie.peer("worker") as worker:
            for entry_id, status in ((ENTRIES + 2, Status.OK), (ENTRIES + 3, Status.FENCED)):
                sent = add(entry_id, is_recovery=True)
                assert (await call(worker, sent)).status is status

    run_server(scenario)


def test_many_adds_in_one_chunk_end_at_the_end_of_the_ledger() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await write(bookie)
        await bookie.simulated.storage.directory_of(LEDGER).history.closed({LEDGER: 29})
        bodies = [add(n, is_recovery=True) for n in range(ENTRIES, 40)]
        transport = await bookie.network.of("copier").connect("bookie", 3181)
        async with trio.open_nursery() as nursery:
            frames = b"".join(v2.encode_request(Request(2, 0, body)) for body in bodies)
            nursery.start_soon(send_all, transport, frames)
            found = await acks(transport, len(bodies))
        transport.close()
        statuses = {one.entry_id: one.status for one in found}
        assert statuses == {n: Status.OK if n < 30 else Status.FENCED for n in range(ENTRIES, 40)}

    run_server(scenario)


# ---- cost


class Lookups:
    """Counts the searches of the index."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("get", "floor", "items"):
            self._count(monkeypatch, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        asked = getattr(MemoryKeyValue, name)

        def counted(pairs: MemoryKeyValue, *arguments: bytes) -> object:
            self.count += 1
            return asked(pairs, *arguments)

        monkeypatch.setattr(MemoryKeyValue, name, counted)


@pytest.mark.parametrize("is_recovery", [False, True])
def test_a_thousand_ordinary_adds_look_up_nothing(
    is_recovery: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await write(bookie)
        await bookie.flush()  # the ledger's state stays in memory
        lookups = Lookups(monkeypatch)
        for first in (ENTRIES, ENTRIES + 500):
            bodies = [add(n, is_recovery=is_recovery) for n in range(first, first + 500)]
            frames = b"".join(v2.encode_request(Request(2, 0, body)) for body in bodies)
            transport = await bookie.network.of("writer").connect("bookie", 3181)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_all, transport, frames)
                found = await acks(transport, 500)
            transport.close()
            assert {one.status for one in found} == {Status.OK}
        assert lookups.count == 0

    run_server(scenario, queued_bytes_max=8 << 20)


def test_a_loaded_ledger_costs_its_first_add_two_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await write(bookie)
        await bookie.flush()
        bookie.simulated.storage.directories[0].history.end_replay()
        lookups = Lookups(monkeypatch)
        async with bookie.peer("writer") as writer:
            for entry_id in range(ENTRIES, ENTRIES + 10):
                assert (await call(writer, add(entry_id))).status is Status.OK
        assert lookups.count == 2, "where its entries end, and whether it is closed"

    run_server(scenario)


def test_adds_that_wait_for_a_disk_are_bounded_and_their_memory_is_released() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        payload = bytes(8 * KIB)
        async with bookie.peer("writer") as writer:
            for entry_id in range(40):
                assert (await call(writer, add(entry_id, payload))).status is Status.OK
        await bookie.flush()
        bookie.slow_disk.read_s = 1.0
        bodies = [add(n, payload) for n in range(40)]
        frames = b"".join(v2.encode_request(Request(2, 0, body)) for body in bodies)
        pressure = bookie.server._pressure
        transport = await bookie.network.of("again").connect("bookie", 3181)
        most = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, transport, frames)

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, pressure.held_bytes)
                    await trio.sleep(0.1)

            nursery.start_soon(watch)
            found = await acks(transport, 40)
            nursery.cancel_scope.cancel()
        assert {one.status for one in found} == {Status.OK}
        assert 0 < most <= 64 * KIB + len(bodies[0].body)
        assert pressure.held_bytes == 0
        # A peer that leaves takes what waits for it along.
        leaving = await bookie.network.of("leaving").connect("bookie", 3181)
        await send_all(leaving, frames[: len(frames) // 4])
        await _until_held(bookie)
        leaving.close()
        await trio.sleep(5)
        assert pressure.held_bytes == 0

    run_server(scenario, options=_NO_READ_CACHE)


_NO_READ_CACHE = StorageOptions(
    write_cache_bytes=OPTIONS.write_cache_bytes,
    read_cache_bytes=1,
    read_ahead_bytes=1,
    checkpoint_interval_s=1e9,
)


async def _until_held(bookie: SimulatedServer) -> None:
    while not bookie.server._pressure.held_bytes:  # noqa: ASYNC110
        await trio.sleep(0.01)
